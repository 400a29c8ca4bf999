//! `chancery.admin.v1.Admin`: the operations as gRPC methods.

use std::pin::Pin;

use chancery_proto::admin::v1::{self as pb, admin_server::Admin};
use futures::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};

use crate::{AdminError, service::Service};

/// The admin service.
#[derive(Clone)]
pub(crate) struct GrpcAdmin(pub(crate) Service);

type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Returns the result of a write. The problems of rejected input go into the response if the
/// request asks for that.
fn answer(
    options: Option<&pb::WriteOptions>,
    result: Result<pb::WriteResponse, AdminError>,
) -> Result<Response<pb::WriteResponse>, Status> {
    let inside = options.is_some_and(|options| options.problems_in_response);
    match result {
        Err(AdminError::Input(pb::Problems { problems, checked_clients, .. })) if inside => {
            let refused = pb::WriteResponse { problems, checked_clients, ..Default::default() };
            Ok(Response::new(refused))
        }
        other => other.map(Response::new).map_err(Status::from),
    }
}

#[tonic::async_trait]
impl Admin for GrpcAdmin {
    async fn apply(
        &self,
        request: Request<pb::ApplyRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let request = request.into_inner();
        let options = request.options.clone();
        answer(options.as_ref(), self.0.apply(request).await)
    }

    async fn import(
        &self,
        request: Request<pb::ImportRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let request = request.into_inner();
        let options = request.options.clone();
        answer(options.as_ref(), self.0.import(request).await)
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        answer(None, self.0.delete(request.into_inner()).await)
    }

    type ListResourcesStream = Pieces<pb::ListResourcesResponse>;

    async fn list_resources(
        &self,
        request: Request<pb::ListResourcesRequest>,
    ) -> Result<Response<Self::ListResourcesStream>, Status> {
        let listing = self.0.list_resources(request.into_inner()).await?;
        Ok(Response::new(Box::pin(listing.into_stream().map(Ok))))
    }

    async fn describe_resource(
        &self,
        request: Request<pb::DescribeResourceRequest>,
    ) -> Result<Response<pb::DescribeResourceResponse>, Status> {
        Ok(Response::new(self.0.describe_resource(request.into_inner()).await?))
    }

    type ListNodesStream = Pieces<pb::ListNodesResponse>;

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<Self::ListNodesStream>, Status> {
        let pieces = self.0.list_nodes(request.into_inner()).await?;
        Ok(Response::new(Box::pin(stream::iter(pieces.into_iter().map(Ok)))))
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::NodeStatus>, Status> {
        Ok(Response::new(self.0.get_node(request.into_inner()).await?))
    }

    async fn explain(
        &self,
        request: Request<pb::ExplainRequest>,
    ) -> Result<Response<pb::ExplainResponse>, Status> {
        Ok(Response::new(self.0.explain(request.into_inner()).await?))
    }

    async fn list_assignments(
        &self,
        request: Request<pb::ListAssignmentsRequest>,
    ) -> Result<Response<pb::ListAssignmentsResponse>, Status> {
        Ok(Response::new(self.0.list_assignments(request.into_inner()).await?))
    }

    async fn delete_assignment(
        &self,
        request: Request<pb::DeleteAssignmentRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        answer(None, self.0.delete_assignment(request.into_inner()).await)
    }

    async fn get_cluster(
        &self,
        _request: Request<pb::GetClusterRequest>,
    ) -> Result<Response<pb::ClusterStatus>, Status> {
        Ok(Response::new(self.0.get_cluster().await))
    }

    async fn add_member(
        &self,
        request: Request<pb::AddMemberRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        Ok(Response::new(self.0.add_member(request.into_inner()).await?))
    }

    async fn promote_member(
        &self,
        request: Request<pb::PromoteMemberRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        Ok(Response::new(self.0.promote_member(request.into_inner()).await?))
    }

    async fn remove_member(
        &self,
        request: Request<pb::RemoveMemberRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        Ok(Response::new(self.0.remove_member(request.into_inner()).await?))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        Ok(Response::new(self.0.transfer_leader(request.into_inner()).await?))
    }

    async fn take_snapshot(
        &self,
        _request: Request<pb::TakeSnapshotRequest>,
    ) -> Result<Response<pb::TakeSnapshotResponse>, Status> {
        Ok(Response::new(self.0.take_snapshot().await?))
    }

    async fn list_history(
        &self,
        request: Request<pb::ListHistoryRequest>,
    ) -> Result<Response<pb::ListHistoryResponse>, Status> {
        Ok(Response::new(self.0.list_history(request.into_inner()).await?))
    }

    async fn get_version(
        &self,
        _request: Request<pb::GetVersionRequest>,
    ) -> Result<Response<pb::VersionInfo>, Status> {
        Ok(Response::new(self.0.version()))
    }
}
