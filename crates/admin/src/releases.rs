//! The releases of the other replicas, for what an older one cannot apply.

use chancery_admin_proto::v1 as pb;

use crate::{AdminError, ctx::Ctx, fleet};

/// Fails if a replica answers that its release does not support freezes and labels. `what` names the operation, and
/// `lack` says what the release lacks, and what would follow.
pub(crate) async fn require(ctx: &Ctx, what: &str, lack: &str) -> Result<(), AdminError> {
    let there =
        fleet::ask(ctx, &pb::ListFreezesRequest { stale: true, ..Default::default() }).await;
    let old = there.not_asked.iter().find(|one| one.reason == "old-release");
    let Some(old) = old else { return Ok(()) };
    let id = old.replica_id;
    Err(AdminError::Precondition(format!(
        "cannot {what}: replica {id} runs a release {lack}; upgrade all replicas first"
    )))
}
