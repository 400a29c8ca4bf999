//! The drain of a replica that an operator orders. The replica that receives the request passes it on to all, and the
//! one with the ID obeys.

use std::time::Duration;

use chancery_admin_proto::v1 as pb;
use chancery_audit::duration_text;

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    members::given,
    record::Operation,
    time_limits::DRAIN,
};

/// The default time over which the streams end.
const OVER_DEFAULT: Duration = Duration::from_secs(60);

/// Returns the record of an operation on a replica.
pub(crate) fn record(operation: &'static str, replica_id: u64) -> Operation {
    Operation::new(operation).target("replica", replica_id.to_string())
}

/// Lets the streams of a replica end, and no new ones begin.
pub(crate) async fn drain_replica(
    ctx: &Ctx,
    request: pb::DrainReplicaRequest,
) -> Result<pb::DrainStatus, AdminError> {
    over_of(&request)?;
    order(ctx, given(request.replica_id)?, request).await
}

/// Lets a replica accept streams again.
pub(crate) async fn undrain_replica(
    ctx: &Ctx,
    request: pb::UndrainReplicaRequest,
) -> Result<pb::DrainStatus, AdminError> {
    order(ctx, given(request.replica_id)?, request).await
}

impl FleetRequest for pb::DrainReplicaRequest {
    const NAME: &'static str = "chancery.admin.v1.DrainReplicaRequest";
    type Reply = pb::DrainStatus;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::DrainStatus, AdminError> {
        obey(ctx, self.replica_id, Some(over_of(&self)?))
    }
}

impl FleetRequest for pb::UndrainReplicaRequest {
    const NAME: &'static str = "chancery.admin.v1.UndrainReplicaRequest";
    type Reply = pb::DrainStatus;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::DrainStatus, AdminError> {
        obey(ctx, self.replica_id, None)
    }
}

/// Returns the time over which the streams end.
fn over_of(request: &pb::DrainReplicaRequest) -> Result<Duration, AdminError> {
    let over = request.over_ms.map_or(OVER_DEFAULT, Duration::from_millis);
    if !DRAIN.contains(&over) {
        let [over, max] = [over, *DRAIN.end()].map(duration_text);
        let text = format!("invalid `over`: {over} exceeds the maximum of {max}");
        return Err(AdminError::Parameter(text));
    }
    Ok(over)
}

/// Passes an order to the replica with the ID, which may be this one.
async fn order<R: FleetRequest<Reply = pb::DrainStatus>>(
    ctx: &Ctx,
    replica_id: u64,
    request: R,
) -> Result<pb::DrainStatus, AdminError> {
    if ctx.deps.replica.id() == replica_id {
        return request.answer_here(ctx).await;
    }
    let there = fleet::ask(ctx, &request).await;
    if let Some(missing) = there.not_asked.iter().find(|one| one.replica_id == replica_id) {
        return Err(AdminError::Unavailable(format!(
            "replica {replica_id} {}; try again, or send the command to that replica",
            missing.message
        )));
    }
    let reply = there.into_replies().next();
    reply.ok_or_else(|| not_a_member(replica_id))
}

/// Drains this replica over a time, or no longer. Fails if it has another ID.
fn obey(ctx: &Ctx, replica_id: u64, over: Option<Duration>) -> Result<pb::DrainStatus, AdminError> {
    let (replica, fanout) = (&ctx.deps.replica, &ctx.deps.fanout);
    if replica.id() != replica_id {
        return Err(not_a_member(replica_id));
    }
    // Counted first, because the first stream ends at once.
    let (streams, principal) = (fanout.n_streams() as u64, ctx.call().principal());
    fanout.drain_orders().set(over);
    replica.set_drained(over.is_some());
    match over {
        Some(over) => tracing::info!(?over, streams, principal, "an operator drains this replica"),
        None => tracing::info!(principal, "an operator ended the drain of this replica"),
    }
    let over_ms = over.map_or(0, |over| u64::try_from(over.as_millis()).unwrap_or(u64::MAX));
    Ok(pb::DrainStatus { replica_id, drained: over.is_some(), over_ms, streams })
}

fn not_a_member(replica_id: u64) -> AdminError {
    AdminError::NotFound(format!("replica {replica_id} is not a member"))
}
