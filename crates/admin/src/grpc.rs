//! `chancery.admin.v1.Admin`: the operations as gRPC methods.

use std::pin::Pin;

use chancery_proto::admin::v1::{self as pb, admin_server::Admin};
use futures::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};

use crate::{AdminError, service::Service};

/// The admin service.
#[derive(Clone)]
pub(crate) struct GrpcAdmin(pub(crate) Service);

impl GrpcAdmin {
    /// Returns the service for the caller of a request, and the message.
    fn of<T>(&self, request: Request<T>) -> (Service, T) {
        let service = self.0.of(request.extensions());
        (service, request.into_inner())
    }
}

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
        let (service, request) = self.of(request);
        let options = request.options.clone();
        answer(options.as_ref(), service.apply(request).await)
    }

    async fn import(
        &self,
        request: Request<pb::ImportRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let (service, request) = self.of(request);
        let options = request.options.clone();
        answer(options.as_ref(), service.import(request).await)
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let (service, request) = self.of(request);
        answer(None, service.delete(request).await)
    }

    type ListResourcesStream = Pieces<pb::ListResourcesResponse>;

    async fn list_resources(
        &self,
        request: Request<pb::ListResourcesRequest>,
    ) -> Result<Response<Self::ListResourcesStream>, Status> {
        let (service, request) = self.of(request);
        let listing = service.list_resources(request).await?;
        Ok(Response::new(Box::pin(listing.into_stream().map(Ok))))
    }

    async fn describe_resource(
        &self,
        request: Request<pb::DescribeResourceRequest>,
    ) -> Result<Response<pb::DescribeResourceResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.describe_resource(request).await?))
    }

    type ListNodesStream = Pieces<pb::ListNodesResponse>;

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<Self::ListNodesStream>, Status> {
        let (service, request) = self.of(request);
        let pieces = service.list_nodes(request).await?;
        Ok(Response::new(Box::pin(stream::iter(pieces.into_iter().map(Ok)))))
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::NodeStatus>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.get_node(request).await?))
    }

    async fn explain(
        &self,
        request: Request<pb::ExplainRequest>,
    ) -> Result<Response<pb::ExplainResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.explain(request).await?))
    }

    async fn list_assignments(
        &self,
        request: Request<pb::ListAssignmentsRequest>,
    ) -> Result<Response<pb::ListAssignmentsResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.list_assignments(request).await?))
    }

    async fn delete_assignment(
        &self,
        request: Request<pb::DeleteAssignmentRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let (service, request) = self.of(request);
        answer(None, service.delete_assignment(request).await)
    }

    async fn get_cluster(
        &self,
        request: Request<pb::GetClusterRequest>,
    ) -> Result<Response<pb::ClusterStatus>, Status> {
        Ok(Response::new(self.of(request).0.get_cluster().await?))
    }

    async fn add_member(
        &self,
        request: Request<pb::AddMemberRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.add_member(request).await?))
    }

    async fn promote_member(
        &self,
        request: Request<pb::PromoteMemberRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.promote_member(request).await?))
    }

    async fn remove_member(
        &self,
        request: Request<pb::RemoveMemberRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.remove_member(request).await?))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::ChangeResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.transfer_leader(request).await?))
    }

    async fn take_snapshot(
        &self,
        request: Request<pb::TakeSnapshotRequest>,
    ) -> Result<Response<pb::TakeSnapshotResponse>, Status> {
        Ok(Response::new(self.of(request).0.take_snapshot().await?))
    }

    async fn list_history(
        &self,
        request: Request<pb::ListHistoryRequest>,
    ) -> Result<Response<pb::ListHistoryResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.list_history(request).await?))
    }

    async fn get_version(
        &self,
        _request: Request<pb::GetVersionRequest>,
    ) -> Result<Response<pb::VersionInfo>, Status> {
        Ok(Response::new(self.0.version()))
    }
}
