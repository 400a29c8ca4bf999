//! The sources of MCP, and the confirmation of held deletions.

use chancery_admin_proto::v1 as pb;
use chancery_mcp::{CollectionStatus, ConfirmRefusal, SourceStatus};
use chancery_model::State;

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    record::Operation,
};

/// Returns the status of all sources on the leader, which has the streams to them. If it does not answer, returns the
/// status on this replica.
pub(crate) async fn get_mcp_status(ctx: &Ctx, request: pb::GetMcpStatusRequest) -> pb::McpStatus {
    let here = mcp_status(ctx);
    if request.local || here.leader == here.replica_id {
        return here;
    }
    let there = fleet::ask(ctx, &pb::GetMcpStatusRequest { local: true }).await;
    let not_asked = there.not_asked.clone();
    let leads = |status: &pb::McpStatus| status.leader == status.replica_id;
    let leading = there.into_replies().find(leads);
    leading.unwrap_or(pb::McpStatus { not_asked, ..here })
}

impl FleetRequest for pb::GetMcpStatusRequest {
    const NAME: &'static str = "chancery.admin.v1.GetMcpStatusRequest";
    type Reply = pb::McpStatus;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::McpStatus, AdminError> {
        Ok(mcp_status(ctx))
    }
}

/// Returns the status of all sources on this replica.
fn mcp_status(ctx: &Ctx) -> pb::McpStatus {
    let state = ctx.deps.replica.state();
    pb::McpStatus {
        replica_id: ctx.deps.replica.id(),
        leader: ctx.deps.replica.leader().unwrap_or_default(),
        sources: ctx.deps.sources.status().into_iter().map(|one| source(one, &state)).collect(),
        not_asked: Vec::new(),
    }
}

/// Returns the record of [`confirm_mcp_deletion`].
pub(crate) fn record(request: &pb::ConfirmMcpDeletionRequest) -> Operation {
    Operation::new("mcp.confirm")
        .target(&request.collection, "")
        .detail("source", request.source.as_str())
}

/// Allows a held deletion.
pub(crate) async fn confirm_mcp_deletion(
    ctx: &Ctx,
    request: pb::ConfirmMcpDeletionRequest,
) -> Result<pb::McpStatus, AdminError> {
    let pb::ConfirmMcpDeletionRequest { source, collection, token } = request;
    ctx.deps.sources.confirm(&source, &collection, &token).await?;
    Ok(mcp_status(ctx))
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
