//! The sources of MCP, over HTTP and gRPC.

use chancery_admin_proto::v1::{self as pb, mcp_service_client::McpServiceClient};
use http::StatusCode;
use serde_json::json;
use tonic::Code;

use crate::support::Server;

/// A server without sources shows none, and refuses confirmations.
#[tokio::test(flavor = "multi_thread")]
async fn confirmation_of_an_unknown_source_is_not_found() {
    let server = Server::start().await;
    let status = server.done("GET", "/v1/mcp", "").await;
    assert_eq!(
        status,
        json!({"replica_id": 1, "leader": 1, "sources": [], "not_asked": [], "next": ""})
    );
    let (status, error) =
        server.call("POST", "/v1/mcp/confirm?source=pilot&collection=a/b/c&token=0", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(error["error"]["message"], json!("there is no source \"pilot\""));
    let (status, _) = server.call("POST", "/v1/mcp/confirm?name=pilot", "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let mut grpc = McpServiceClient::new(server.router.clone());
    let status =
        grpc.get_mcp_status(pb::GetMcpStatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.replica_id, status.sources), (1, vec![]));
    let request = pb::ConfirmMcpDeletionRequest::default();
    let refused = grpc.confirm_mcp_deletion(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    server.stop().await;
}
