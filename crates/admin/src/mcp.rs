//! The sources of MCP, and the confirmation of held deletions.

use chancery_admin_proto::v1 as pb;
use chancery_mcp::{CollectionStatus, ConfirmRefusal, SourceStatus};
use chancery_model::State;

use crate::{AdminError, ctx::Ctx, record::Operation};

/// Returns the status of all sources.
pub(crate) fn mcp_status(ctx: &Ctx) -> pb::McpStatus {
    let state = ctx.deps.replica.state();
    pb::McpStatus {
        replica_id: ctx.deps.replica.status().replica_id,
        leader: ctx.deps.replica.leader().unwrap_or_default(),
        sources: ctx.deps.sources.status().into_iter().map(|one| source(one, &state)).collect(),
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
