//! The sources of MCP, and the confirmation of held deletions.

use chancery_mcp::{CollectionStatus, ConfirmRefusal, SourceStatus};
use chancery_model::{State, Target, Verb};
use chancery_proto::admin::v1::{self as pb, mcp_service_server::McpService};
use tonic::{Request, Response, Status};

use crate::{AdminError, audited::Operation, service::Service};

/// The service for sources of MCP.
#[derive(Clone)]
pub(crate) struct GrpcMcp(pub(crate) Service);

#[tonic::async_trait]
impl McpService for GrpcMcp {
    async fn get_mcp_status(
        &self,
        request: Request<pb::GetMcpStatusRequest>,
    ) -> Result<Response<pb::McpStatus>, Status> {
        Ok(Response::new(self.0.of(request.extensions()).mcp_status()?))
    }

    async fn confirm_mcp_deletion(
        &self,
        request: Request<pb::ConfirmMcpDeletionRequest>,
    ) -> Result<Response<pb::McpStatus>, Status> {
        let service = self.0.of(request.extensions());
        Ok(Response::new(service.confirm_mcp_deletion(request.into_inner()).await?))
    }
}

impl Service {
    /// Returns the status of all sources.
    pub(crate) fn mcp_status(&self) -> Result<pb::McpStatus, AdminError> {
        self.authorize(Verb::McpRead, Target::Cluster)?;
        Ok(self.sources_now())
    }

    fn sources_now(&self) -> pb::McpStatus {
        let state = self.replica.state();
        pb::McpStatus {
            replica_id: self.replica.status().replica_id,
            leader: self.replica.leader().unwrap_or_default(),
            sources: self.sources.status().into_iter().map(|one| source(one, &state)).collect(),
        }
    }

    /// Allows a held deletion.
    pub(crate) async fn confirm_mcp_deletion(
        &self,
        request: pb::ConfirmMcpDeletionRequest,
    ) -> Result<pb::McpStatus, AdminError> {
        let pb::ConfirmMcpDeletionRequest { source, collection, token } = request;
        let operation =
            Operation::new("mcp.confirm").target(&collection, "").detail("source", source.as_str());
        let confirm = async {
            self.authorize(Verb::McpWrite, Target::Cluster)?;
            self.sources.confirm(&source, &collection, &token).await?;
            Ok::<_, AdminError>(self.sources_now())
        };
        self.audited(operation, confirm).await
    }
}

fn source(status: SourceStatus, state: &State) -> pb::McpSource {
    let SourceStatus { name, address, listen, peer, scope, connection, last_error, collections } =
        status;
    let collection = |one: CollectionStatus| {
        let stored = state.collection(&scope, &one.name);
        pb::McpCollection {
            name: one.name.as_str().to_owned(),
            accepted: one.n_accepted,
            rejected: one.n_rejected,
            held: one.held.map(|held| pb::McpHeldDeletion {
                deletions: held.n_deletions as u64,
                stored: held.n_stored as u64,
                token: held.token,
            }),
            last_rejection: one.last_rejection.unwrap_or_default(),
            resources: stored.map_or(0, |stored| stored.resources.len()) as u64,
        }
    };
    pb::McpSource {
        name,
        address,
        listen: listen.map(|listen| listen.to_string()).unwrap_or_default(),
        peer,
        collections: collections.into_iter().map(collection).collect(),
        scope: scope.as_str().to_owned(),
        connection: connection.name().to_owned(),
        last_error: last_error.unwrap_or_default(),
    }
}

impl From<ConfirmRefusal> for AdminError {
    fn from(refusal: ConfirmRefusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            ConfirmRefusal::UnknownSource(_) => Self::NotFound(text),
            ConfirmRefusal::NotLeader(_) | ConfirmRefusal::Refused(_) => Self::Precondition(text),
            ConfirmRefusal::ShutDown => Self::Unavailable(text),
        }
    }
}
