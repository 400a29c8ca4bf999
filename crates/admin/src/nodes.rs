//! Connected nodes: all streams with the same node ID, to all replicas.

use std::{sync::Arc, time::SystemTime};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::{NackRecord, PollRejection, SelectStream, StalledShard, StreamStatus};
use chancery_protocol::{SubscriptionStatus, SyncState};
use tokio::time::Instant;

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, Elsewhere, FleetRequest},
    node_state::{DISCONNECTED, coarse_word, condition, n_duplicates, worst},
    requested::missing_names,
    times::millis,
};

/// The maximum number of streams that are processed inline. More streams are processed on a thread
/// for blocking work.
pub(crate) const INLINE_STREAMS_MAX: usize = 500;

/// Returns the status of every stream, for an answer that must have all of them.
pub(crate) async fn streams(ctx: &Ctx) -> Result<Vec<StreamStatus>, AdminError> {
    selected_streams(ctx, Arc::new(|_| true)).await
}

/// Returns the status of selected streams to this replica.
pub(crate) async fn selected_streams(
    ctx: &Ctx,
    select: SelectStream,
) -> Result<Vec<StreamStatus>, AdminError> {
    let since = Instant::now();
    let streams = ctx.deps.fanout.streams_of(select).await;
    check_answered(ctx, since)?;
    Ok(streams)
}

/// Fails if a query since a time may have left out streams.
pub(crate) fn check_answered(ctx: &Ctx, since: Instant) -> Result<(), AdminError> {
    match ctx.deps.fanout.stalled_since(since).first() {
        None => Ok(()),
        Some(stalled) => Err(AdminError::Unavailable(format!(
            "{stalled}; the answer needs them, so retry later, or ask another replica"
        ))),
    }
}

/// Returns a warning for each shard whose streams the checks of a write may have missed since `since`.
pub(crate) fn unasked_shards(ctx: &Ctx, since: Instant) -> Vec<pb::Problem> {
    let warning = |stalled: StalledShard| pb::Problem {
        message: format!("{stalled}; the write was checked and reported without them"),
        fix: "check the log and /readyz of this replica, or write through another replica"
            .to_owned(),
        ..pb::Problem::default()
    };
    ctx.deps.fanout.stalled_since(since).into_iter().map(warning).collect()
}

/// Returns the error for a node without a stream to a replica that has answered.
pub(crate) fn not_connected<T>(id: &str, there: &Elsewhere<T>) -> AdminError {
    let text = format!(
        "node {id:?} is not connected{}; list the connected nodes with `chancery nodes`",
        extent(there)
    );
    match there.not_asked.as_slice() {
        [] => AdminError::NotFound(text),
        missing => AdminError::NotFoundYet { text, not_asked: missing.to_vec() },
    }
}

/// Returns which replicas know nothing of a node, as a part of a sentence about it.
pub(crate) fn extent<T>(there: &Elsewhere<T>) -> String {
    match (there.not_asked.as_slice(), there.n_not_asked) {
        ([], 0) => String::new(),
        ([], n) => format!(" to this replica; {}", not_asked(n)),
        (missing, _) => {
            let replicas = match there.n_answered() {
                0 => "this replica".to_owned(),
                n => format!("the {} replicas that answered", n + 1),
            };
            format!(" to {replicas}; {}", unanswered(missing))
        }
    }
}

/// Returns the replicas that have not answered, each with its reason.
#[must_use]
pub fn unanswered(missing: &[pb::ReplicaNotAsked]) -> String {
    let replicas = missing.iter().map(|one| format!("replica {} {}", one.replica_id, one.message));
    replicas.collect::<Vec<_>>().join(", ")
}

/// Returns one node with its streams to all replicas.
pub(crate) async fn get_node(
    ctx: &Ctx,
    request: pb::GetNodeRequest,
) -> Result<pb::NodeStatus, AdminError> {
    let pb::GetNodeRequest { id, local } = request;
    let forwarded = pb::GetNodeRequest { id: id.clone(), local: true };
    let here = node_here(ctx, &id);
    let (here, mut there) = tokio::join!(here, fleet::ask_unless(local, ctx, &forwarded));
    let here = match here {
        Err(AdminError::NotFound(_)) => None,
        other => Some(other?),
    };
    let replies = std::mem::take(&mut there.replies).into_iter().map(|(_, node)| node);
    let node = merged(here.into_iter().chain(replies)).ok_or_else(|| not_connected(&id, &there))?;
    let Elsewhere { not_asked, n_not_asked: replicas_not_asked, .. } = there;
    Ok(pb::NodeStatus { replicas_not_asked, not_asked, ..node })
}

/// Returns a node with its streams to this replica.
async fn node_here(ctx: &Ctx, id: &str) -> Result<pb::NodeStatus, AdminError> {
    let streams = streams_of_node(ctx, id).await?;
    if streams.is_empty() {
        return disconnected_node(ctx, id).await;
    }
    let streams: Vec<&StreamStatus> = streams.iter().collect();
    let missing = missing_names(&ctx.deps.fanout, &streams, None).await;
    let waits = missing
        .into_iter()
        .map(|(type_url, clause)| pb::Wait { type_url: type_url.to_string(), message: clause });
    let waits = waits.collect();
    Ok(pb::NodeStatus { waits, ..show_node(ctx.deps.replica.id(), &streams) })
}

/// Returns a node that was connected to this replica recently.
async fn disconnected_node(ctx: &Ctx, id: &str) -> Result<pb::NodeStatus, AdminError> {
    let recent = &ctx.deps.recent_nodes;
    recent.update(&ctx.deps.fanout).await;
    let found = recent.disconnected(ctx.deps.replica.id(), 1, |known| known == id).pop();
    let node = found.ok_or_else(|| AdminError::NotFound(String::new()))?;
    let condition = pb::Condition {
        state: DISCONNECTED.to_owned(),
        since_ms: node.since_ms,
        message: format!("was connected to replica {}", node.replica_id),
    };
    Ok(pb::NodeStatus {
        id: node.id,
        cluster: node.cluster,
        user_agent: node.user_agent,
        state: DISCONNECTED.to_owned(),
        condition: Some(condition),
        ..pb::NodeStatus::default()
    })
}

impl FleetRequest for pb::GetNodeRequest {
    const NAME: &'static str = "chancery.admin.v1.GetNodeRequest";
    type Reply = pb::NodeStatus;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::NodeStatus, AdminError> {
        node_here(ctx, &self.id).await
    }
}

/// Merges what replicas know of one node. A node that reconnects may describe itself differently: its newest stream
/// counts.
pub(crate) fn merged(parts: impl IntoIterator<Item = pb::NodeStatus>) -> Option<pb::NodeStatus> {
    // The replica to which a disconnected node was connected last comes last.
    let newest = |node: &pb::NodeStatus| {
        let lost = node.condition.as_ref().map(|condition| condition.since_ms);
        (node.streams.last().map(|stream| stream.since_ms), lost)
    };
    let mut parts: Vec<pb::NodeStatus> = parts.into_iter().collect();
    parts.sort_by_key(newest);
    let last = parts.pop()?;
    if parts.is_empty() {
        return Some(last);
    }
    let condition = if last.streams.is_empty() {
        last.condition.clone()
    } else {
        worst(parts.iter().chain([&last]).filter_map(|node| node.condition.as_ref()))
    };
    let (mut streams, mut waits) = (Vec::new(), Vec::new());
    for part in parts {
        streams.extend(part.streams);
        waits.extend(part.waits);
    }
    streams.extend(last.streams);
    waits.extend(last.waits);
    streams.sort_by(|a, b| (a.since_ms, &a.peer).cmp(&(b.since_ms, &b.peer)));
    Some(pb::NodeStatus {
        state: condition.as_ref().map(coarse_word).unwrap_or_default().to_owned(),
        duplicates: n_duplicates(&streams),
        condition,
        streams,
        waits,
        ..last
    })
}

/// Returns a number with a noun: `1 node`, `2 nodes`.
pub(crate) fn number(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Returns the statement that other replicas were not asked.
pub(crate) fn not_asked(n_replicas: u64) -> String {
    match n_replicas {
        1 => "1 other replica was not asked".to_owned(),
        n => format!("{n} other replicas were not asked"),
    }
}

/// Returns the streams of a node to this replica, sorted by start time.
pub(crate) async fn streams_of_node(ctx: &Ctx, id: &str) -> Result<Vec<StreamStatus>, AdminError> {
    let id = id.to_owned();
    let mut streams = selected_streams(ctx, Arc::new(move |stream| stream.node.id == id)).await?;
    streams.sort_by_key(|stream| (stream.since, stream.peer));
    Ok(streams)
}

/// Converts a node with its streams to this replica to a message.
pub(crate) fn show_node(replica_id: u64, streams: &[&StreamStatus]) -> pb::NodeStatus {
    let mut streams = streams.to_vec();
    streams.sort_by_key(|stream| (stream.since, stream.peer));
    let Some(newest) = streams.last() else { return pb::NodeStatus::default() };
    let node = &newest.node;
    let streams: Vec<pb::StreamStatus> =
        streams.iter().map(|stream| show_stream(replica_id, stream)).collect();
    let condition = worst(streams.iter().filter_map(|stream| stream.condition.as_ref()));
    pb::NodeStatus {
        id: node.id.clone(),
        cluster: node.cluster.clone(),
        locality: Some(pb::Locality {
            region: node.locality.region.clone(),
            zone: node.locality.zone.clone(),
            sub_zone: node.locality.sub_zone.clone(),
        }),
        user_agent: node.user_agent.clone(),
        state: condition.as_ref().map(coarse_word).unwrap_or_default().to_owned(),
        duplicates: n_duplicates(&streams),
        condition,
        streams,
        ..pb::NodeStatus::default()
    }
}

/// Converts a stream to a message.
pub(crate) fn show_stream(replica_id: u64, stream: &StreamStatus) -> pb::StreamStatus {
    let mut subscriptions: Vec<pb::SubscriptionStatus> =
        stream.subscriptions.iter().map(|one| show_subscription(stream, one)).collect();
    subscriptions.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    let mut nacks: Vec<pb::Nack> =
        stream.nacks.iter().map(|nack| show_nack(&stream.node.id, nack)).collect();
    nacks.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    pb::StreamStatus {
        peer: stream.peer.to_string(),
        user_agent: stream.node.user_agent.clone(),
        identity: stream.identity.as_ref().map(|one| one.principal.to_string()).unwrap_or_default(),
        protocol: stream.protocol.as_str().to_owned(),
        type_url: stream.type_url.as_ref().map(ToString::to_string).unwrap_or_default(),
        since_ms: millis(stream.since),
        assignment: stream.assignment.as_deref().unwrap_or_default().to_owned(),
        scopes: stream.scopes.iter().map(ToString::to_string).collect(),
        subscriptions,
        nacks,
        replica_id,
        condition: Some(condition(stream, SystemTime::now())),
    }
}

/// Returns the state of a subscription. Without an assignment, changes and requests do not count as
/// pending, because the client receives nothing (OPS-05). Only an unanswered response does.
fn subscription_state(stream: &StreamStatus, subscription: &SubscriptionStatus) -> SyncState {
    match (&stream.assignment, subscription.state) {
        (None, SyncState::Pending) if subscription.sent == subscription.acked => {
            if subscription.acked.is_some() { SyncState::Synced } else { SyncState::Idle }
        }
        (_, state) => state,
    }
}

fn show_subscription(
    stream: &StreamStatus,
    subscription: &SubscriptionStatus,
) -> pb::SubscriptionStatus {
    let state = match subscription_state(stream, subscription) {
        SyncState::Idle => "idle",
        SyncState::Synced => "synced",
        SyncState::Pending => "pending",
        SyncState::Nacked => "nacked",
    };
    let version =
        |version: &Option<_>| version.as_ref().map(ToString::to_string).unwrap_or_default();
    let nack = subscription.nack.as_ref();
    pb::SubscriptionStatus {
        type_url: subscription.type_url.to_string(),
        wildcard: subscription.wildcard,
        names: subscription.n_names as u64,
        sent_version: version(&subscription.sent),
        acked_version: version(&subscription.acked),
        state: state.to_owned(),
        nack_message: nack.map(|nack| nack.message.clone()).unwrap_or_default(),
        nack_version: nack.map(|nack| nack.version.to_string()).unwrap_or_default(),
        held_removals: subscription.n_pending_removals as u64,
        missing: subscription.n_missing as u64,
        first_missing: subscription.missing.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

/// Converts a rejection that a REST client has reported to a message.
pub(crate) fn show_poll_rejection(rejection: &PollRejection) -> pb::Nack {
    pb::Nack {
        node: rejection.node.clone(),
        type_url: rejection.type_url.to_string(),
        version: rejection.version.clone(),
        message: "reported by a REST client; its text is not kept".to_owned(),
        time_ms: millis(rejection.time),
        code: rejection.code,
    }
}

/// Converts a rejection to a message.
pub(crate) fn show_nack(node: &str, nack: &NackRecord) -> pb::Nack {
    pb::Nack {
        node: node.to_owned(),
        type_url: nack.type_url.to_string(),
        version: nack.version.to_string(),
        message: nack.message.clone(),
        time_ms: millis(nack.time),
        code: nack.code,
    }
}
