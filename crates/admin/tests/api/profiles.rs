//! Client profiles: the clients that are connected decide which rules apply to a write.

use chancery_admin_proto::v1 as pb;
use chancery_model::Node;
use prost::Message;
use serde_json::json;

use crate::support::{Client, Server};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const DNS: &str = "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a, type: STRICT_DNS}]";
const EDS: &str = "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a, type: EDS, \
     connect_timeout: 0s, eds_cluster_config: {eds_config: {ads: {}}}}]";

async fn connect(server: &Server, user_agent: &str) -> Client {
    let (id, user_agent) = (user_agent.to_owned(), user_agent.to_owned());
    let mut client = Client::open_as(server, Node { id, user_agent, ..Node::default() });
    client.subscribe(CLUSTER).await;
    let first = client.response().await;
    client.answer(&first, None).await;
    client
}

/// A cluster that only Envoy can use is refused while gRPC clients alone see its scope. What only Envoy
/// rejects is stored with a warning.
#[tokio::test]
async fn connected_clients_decide_which_rules_refuse_a_write() {
    let server = Server::start().await;
    let apply = "/v1/apply?validation=enforce";
    server.done("POST", "/v1/apply?validation=enforce&dry_run=true", DNS).await;
    let (status, _, text) = server.refused("POST", apply, EDS).await;
    assert!(status == 400 && text.contains("connect_timeout: is 0s"), "{status} {text}");

    let _go = connect(&server, "gRPC Go/1.85.0").await;
    let (status, _, text) = server.refused("POST", apply, DNS).await;
    assert!(
        status == 400 && text.contains("a gRPC client (Go) would reject this cluster"),
        "{text}"
    );
    refusals_name_clients(&server, apply).await;
    let written = server.done("POST", apply, EDS).await;
    assert_eq!(written["warnings"][0]["rule_id"], "duration.gt");
    assert_eq!(
        written["checked_clients"],
        json!([{
            "scope": "default",
            "profiles": ["grpc-go@1.85"],
            "source": "connected",
            "replicas_not_asked": 0,
        }])
    );

    // With an Envoy, the cluster may be for that one alone.
    let _envoy = connect(&server, "envoy/1.40.0").await;
    let written = server.done("POST", apply, DNS).await;
    assert_eq!(written["warnings"][0]["rule_id"], "grpc.cluster_type");
    assert_eq!(server.refused("POST", apply, EDS).await.0, 400);
    server.stop().await;
}

/// A refused author sees for which clients the resources were checked: over HTTP, and over gRPC in the details of the
/// status or in the response.
async fn refusals_name_clients(server: &Server, apply: &str) {
    let checked = pb::CheckedClients {
        scope: "default".into(),
        profiles: vec!["grpc-go@1.85".into()],
        source: "connected".into(),
        replicas_not_asked: 0,
    };
    let (_, body) = server.call("POST", apply, DNS).await;
    assert_eq!(
        body["error"]["checked_clients"],
        json!([{
            "scope": "default",
            "profiles": ["grpc-go@1.85"],
            "source": "connected",
            "replicas_not_asked": 0,
        }])
    );
    // A problem that is not a finding of validation concerns no clients.
    let (_, body) = server.call("POST", apply, "resources: [{}]").await;
    assert_eq!(body["error"]["checked_clients"], json!([]));

    let enforce = pb::WriteOptions { validation: "enforce".into(), ..pb::WriteOptions::default() };
    let request = |options| pb::ApplyRequest {
        files: vec![pb::File { name: "a.yaml".into(), content: DNS.into() }],
        options: Some(options),
        ..pb::ApplyRequest::default()
    };
    let status = server.grpc().apply(request(enforce.clone())).await.unwrap_err();
    let details = RpcStatus::decode(status.details()).unwrap().details;
    let problems = pb::Problems::decode(details[0].value.as_slice()).unwrap();
    assert_eq!(problems.checked_clients, std::slice::from_ref(&checked));
    let inside = pb::WriteOptions { problems_in_response: true, ..enforce };
    let response = server.grpc().apply(request(inside)).await.unwrap().into_inner();
    assert_eq!((response.problems.len(), response.checked_clients), (1, vec![checked.clone()]));

    let import = pb::ImportRequest {
        file: Some(pb::File {
            name: "b.yaml".into(),
            content: "static_resources: {clusters: [{name: a, type: STRICT_DNS}]}".into(),
        }),
        options: Some(pb::WriteOptions {
            problems_in_response: true,
            validation: "enforce".into(),
            ..pb::WriteOptions::default()
        }),
        ..pb::ImportRequest::default()
    };
    let response = server.grpc().import(import).await.unwrap().into_inner();
    assert_eq!((response.problems.len(), response.checked_clients), (1, vec![checked]));
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}
