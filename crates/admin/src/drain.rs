//! The drain of a replica that an operator orders. The replica that receives the request passes it on.

use std::time::Duration;

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_fanout::Fanout;
use chancery_model::Revision;
use chancery_raft_proto::v1 as pb_raft;
use chancery_store::{AskLimits, NoAnswer, Question, Replica};
use prost::Message;

use crate::{AdminError, ctx::Ctx, record::Operation};

/// The kind of the question that orders a drain.
pub(crate) const DRAIN: &str = "drain";

/// The default time over which the streams end.
const OVER_DEFAULT: Duration = Duration::from_secs(60);
/// The maximum time over which the streams end.
const OVER_MAX: Duration = Duration::from_secs(3600);

const LIMITS: AskLimits = AskLimits {
    timeout: Duration::from_secs(5),
    page_bytes_max: 4 << 10,
    answer_bytes_max: 4 << 10,
};

/// Returns the record of an operation on a replica.
pub(crate) fn record(operation: &'static str, replica_id: u64) -> Operation {
    Operation::new(operation).target("replica", replica_id.to_string())
}

/// Lets the streams of a replica end, and no new ones begin.
pub(crate) async fn drain_replica(
    ctx: &Ctx,
    request: pb::DrainReplicaRequest,
) -> Result<pb::DrainStatus, AdminError> {
    let over = request.over_ms.map_or(OVER_DEFAULT, Duration::from_millis);
    if over > OVER_MAX {
        let text = format!("the drain takes {over:?}; it must take at most {OVER_MAX:?}");
        return Err(AdminError::Parameter(text));
    }
    order(ctx, request.replica_id, Some(over)).await
}

/// Lets a replica accept streams again.
pub(crate) async fn undrain_replica(
    ctx: &Ctx,
    request: pb::UndrainReplicaRequest,
) -> Result<pb::DrainStatus, AdminError> {
    order(ctx, request.replica_id, None).await
}

/// Passes an order to a replica, which may be this one.
async fn order(
    ctx: &Ctx,
    replica_id: u64,
    over: Option<Duration>,
) -> Result<pb::DrainStatus, AdminError> {
    let replica = &ctx.deps.replica;
    if replica.status().replica_id == replica_id {
        return Ok(set(&ctx.deps.fanout, replica, over));
    }
    let over_ms = over.map(|over| u64::try_from(over.as_millis()).unwrap_or(u64::MAX));
    let body = pb_raft::DrainQuestion { replica_id, over_ms }.encode_to_vec().into();
    let asked = Question { kind: DRAIN, body, revision: Revision(0) };
    let answers = replica.ask_all(asked, LIMITS).await;
    if let Some(missing) = answers.unanswered.iter().find(|one| one.replica_id == replica_id) {
        return Err(AdminError::Unavailable(format!(
            "replica {replica_id} {}; try again, or send the command to the replica itself",
            missing.reason
        )));
    }
    let answer = answers.answered.into_iter().find(|(id, _)| *id == replica_id);
    let Some((_, pages)) = answer else {
        return Err(AdminError::NotFound(format!("replica {replica_id} is not a member")));
    };
    let answer = pages.into_iter().next().unwrap_or_default();
    let answer = pb_raft::DrainAnswer::decode(answer).map_err(|error| {
        AdminError::Unavailable(format!("the answer of replica {replica_id} is invalid: {error}"))
    })?;
    Ok(pb::DrainStatus {
        replica_id,
        drained: answer.over_ms.is_some(),
        over_ms: answer.over_ms.unwrap_or_default(),
        streams: answer.streams,
    })
}

/// Answers the question of another replica. All replicas receive it, and one of them has its ID.
pub(crate) fn answer(
    fanout: &Fanout,
    replica: &Replica,
    question: Bytes,
) -> Result<Bytes, NoAnswer> {
    let question = pb_raft::DrainQuestion::decode(question)
        .map_err(|error| NoAnswer::Failed(error.to_string()))?;
    if question.replica_id != replica.status().replica_id {
        return Ok(Bytes::new());
    }
    let over = question.over_ms.map(Duration::from_millis);
    let status = set(fanout, replica, over);
    let over_ms = status.drained.then_some(status.over_ms);
    let answer = pb_raft::DrainAnswer { over_ms, streams: status.streams };
    Ok(answer.encode_to_vec().into())
}

/// Drains this replica over a time, or no longer.
fn set(fanout: &Fanout, replica: &Replica, over: Option<Duration>) -> pb::DrainStatus {
    fanout.drain_orders().set(over);
    replica.set_drained(over.is_some());
    let streams = fanout.n_streams();
    match over {
        Some(over) => tracing::info!(?over, streams, "an operator drains this replica"),
        None => tracing::info!("an operator ended the drain of this replica"),
    }
    pb::DrainStatus {
        replica_id: replica.status().replica_id,
        drained: over.is_some(),
        over_ms: over.map_or(0, |over| u64::try_from(over.as_millis()).unwrap_or(u64::MAX)),
        streams: streams as u64,
    }
}
