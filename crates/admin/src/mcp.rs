//! The sources of MCP, and the confirmation of held deletions.

use chancery_admin_proto::v1 as pb;
use chancery_mcp::{CollectionStatus, ConfirmRefusal, SourceStatus};
use chancery_model::State;

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, Elsewhere, FleetRequest},
    page::Page,
    record::Operation,
};

/// Returns the status of all sources on the leader, which has the streams to them. If it does not answer, returns the
/// status on this replica.
pub(crate) async fn get_mcp_status(
    ctx: &Ctx,
    request: pb::GetMcpStatusRequest,
) -> Result<pb::McpStatus, AdminError> {
    let page = Page::parse_or_all("mcp", request.limit, &request.cursor)?;
    let local = pb::GetMcpStatusRequest { local: true, ..Default::default() };
    let there = fleet::ask_unless(request.local, ctx, &local).await;
    Ok(paged(leading(mcp_status(ctx), there), &page))
}

/// Returns the status on the leader, or on this replica if the leader did not answer.
fn leading(here: pb::McpStatus, there: Elsewhere<pb::McpStatus>) -> pb::McpStatus {
    let not_asked = there.not_asked.clone();
    let leads = |status: &pb::McpStatus| status.leader == status.replica_id;
    let leading = if leads(&here) { None } else { there.into_replies().find(leads) };
    pb::McpStatus { not_asked, ..leading.unwrap_or(here) }
}

/// Returns the status with the sources of a page.
fn paged(mut status: pb::McpStatus, page: &Page<String>) -> pb::McpStatus {
    let mut sources = std::mem::take(&mut status.sources);
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    let (sources, next) = page.of(sources, |source| source.name.clone());
    pb::McpStatus { sources, next, ..status }
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
        ..pb::McpStatus::default()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn status(replica_id: u64, leader: u64, sources: &[&str]) -> pb::McpStatus {
        let source = |name: &&str| pb::McpSource { name: (*name).to_owned(), ..Default::default() };
        let sources = sources.iter().map(source).collect();
        pb::McpStatus { replica_id, leader, sources, ..Default::default() }
    }

    /// The replicas that did not answer were named only if the leader was one of them.
    #[test]
    fn status_of_the_leader_names_the_replicas_that_did_not_answer() {
        let missing = |replica_id| pb::ReplicaNotAsked { replica_id, ..Default::default() };
        let there = |replies: Vec<(u64, pb::McpStatus)>, replica_id| Elsewhere {
            answered: replies.iter().map(|(replica_id, _)| *replica_id).collect(),
            replies,
            not_asked: vec![missing(replica_id)],
            n_not_asked: 1,
        };
        let asked = leading(status(1, 2, &[]), there(vec![(2, status(2, 2, &["a"]))], 3));
        assert_eq!(asked, pb::McpStatus { not_asked: vec![missing(3)], ..status(2, 2, &["a"]) });
        let leader = leading(status(1, 1, &["a"]), there(vec![(2, status(2, 1, &[]))], 3));
        assert_eq!(leader, pb::McpStatus { not_asked: vec![missing(3)], ..status(1, 1, &["a"]) });
        let none = leading(status(1, 3, &[]), there(vec![(2, status(2, 3, &[]))], 3));
        assert_eq!((none.replica_id, none.not_asked), (1, vec![missing(3)]));
    }

    #[test]
    fn pages_of_sources_are_all_sources() {
        let whole = status(1, 1, &["web", "pilot", "a \"é", "mesh"]);
        let (mut names, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = Page::parse_or_all("mcp", 3, &cursor).unwrap();
            let part = paged(whole.clone(), &page);
            assert_eq!((part.replica_id, part.leader), (1, 1));
            names.push(part.sources.into_iter().map(|one| one.name).collect::<Vec<_>>());
            cursor = part.next;
            if cursor.is_empty() {
                break;
            }
        }
        assert_eq!(names, [vec!["a \"é", "mesh", "pilot"], vec!["web"]]);
    }
}
