//! Connected nodes: all streams with the same node ID.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::{NackRecord, PollRejection, StalledShard, StreamStatus};
use chancery_model::Glob;
use chancery_protocol::{SubscriptionStatus, SyncState};
use tokio::time::Instant;

use crate::{AdminError, ctx::Ctx, deps::Deps, requested::missing_names, work::Size};

/// The maximum number of nodes in one piece of the list.
const PIECE_NODES_MAX: usize = 200;

/// The maximum number of streams that are processed inline. More streams are processed on a thread
/// for blocking work.
pub(crate) const INLINE_STREAMS_MAX: usize = 500;

/// The names of the states of a node, the worst first.
const STATES: [&str; 4] = ["unassigned", "nacked", "pending", "synced"];

/// Returns the status of every stream, for an answer that must have all of them.
pub(crate) async fn streams(ctx: &Ctx) -> Result<Vec<StreamStatus>, AdminError> {
    let since = Instant::now();
    let streams = ctx.deps.fanout.nodes().await;
    match ctx.deps.fanout.stalled_since(since).first() {
        None => Ok(streams),
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

/// Connected nodes, in pieces.
pub(crate) struct NodePages(pub(crate) Vec<pb::ListNodesResponse>);

/// Returns the connected nodes in pieces.
pub(crate) async fn list_nodes(
    ctx: &Ctx,
    request: pb::ListNodesRequest,
) -> Result<NodePages, AdminError> {
    if !request.state.is_empty() && !STATES.contains(&request.state.as_str()) {
        let (state, known) = (request.state, STATES.join(", "));
        return Err(AdminError::Parameter(format!(
            "{state:?} is not a state of a node; the states are {known}"
        )));
    }
    let streams = streams(ctx).await?;
    let not_asked = replicas_not_asked(&ctx.deps);
    if streams.len() <= INLINE_STREAMS_MAX {
        return Ok(NodePages(list(&streams, &request, not_asked)));
    }
    ctx.deps.work.run(Size::Large, move || NodePages(list(&streams, &request, not_asked))).await
}

/// Returns the number of other replicas. This replica does not know their nodes.
pub(crate) fn replicas_not_asked(deps: &Deps) -> u64 {
    deps.replica.n_members().saturating_sub(1) as u64
}

/// Returns the error for a node without a stream to this replica.
pub(crate) fn not_connected(deps: &Deps, id: &str) -> AdminError {
    let others = match replicas_not_asked(deps) {
        0 => String::new(),
        n => format!("; {}", not_asked(n)),
    };
    AdminError::NotFound(format!(
        "node {id:?} is not connected to this replica{others}; list the nodes of a replica with `chancery nodes`"
    ))
}

/// Returns one connected node.
pub(crate) async fn get_node(
    ctx: &Ctx,
    request: pb::GetNodeRequest,
) -> Result<pb::NodeStatus, AdminError> {
    let streams = streams(ctx).await?;
    let streams = streams_of(&streams, &request.id);
    if streams.is_empty() {
        return Err(not_connected(&ctx.deps, &request.id));
    }
    let missing = missing_names(&ctx.deps.fanout, &streams, None).await;
    let waits = missing
        .into_iter()
        .map(|(type_url, clause)| pb::Wait { type_url: type_url.to_string(), message: clause });
    let (waits, replicas_not_asked) = (waits.collect(), replicas_not_asked(&ctx.deps));
    Ok(pb::NodeStatus { waits, replicas_not_asked, ..show_node(&streams) })
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

fn list(
    streams: &[StreamStatus],
    request: &pb::ListNodesRequest,
    replicas_not_asked: u64,
) -> Vec<pb::ListNodesResponse> {
    let glob = Glob::new(if request.id.is_empty() { "*" } else { &request.id });
    let mut by_id: BTreeMap<&str, Vec<&StreamStatus>> = BTreeMap::new();
    for stream in streams.iter().filter(|stream| glob.matches(&stream.node.id)) {
        by_id.entry(&stream.node.id).or_default().push(stream);
    }
    let mut nodes = by_id
        .into_values()
        .map(|streams| show_node(&streams))
        .filter(|node| request.state.is_empty() || node.state == request.state);
    let mut pieces = Vec::new();
    loop {
        let piece: Vec<pb::NodeStatus> = nodes.by_ref().take(PIECE_NODES_MAX).collect();
        if piece.is_empty() && !pieces.is_empty() {
            return pieces;
        }
        let is_last = piece.len() < PIECE_NODES_MAX;
        pieces.push(pb::ListNodesResponse { nodes: piece, replicas_not_asked });
        if is_last {
            return pieces;
        }
    }
}

/// Returns the streams of a node, sorted by start time.
pub(crate) fn streams_of<'a>(streams: &'a [StreamStatus], id: &str) -> Vec<&'a StreamStatus> {
    let mut of_node: Vec<&StreamStatus> =
        streams.iter().filter(|stream| stream.node.id == id).collect();
    of_node.sort_by_key(|stream| (stream.since, stream.peer));
    of_node
}

/// Converts a time to milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn show_node(streams: &[&StreamStatus]) -> pb::NodeStatus {
    let mut streams = streams.to_vec();
    streams.sort_by_key(|stream| (stream.since, stream.peer));
    let Some(newest) = streams.last() else { return pb::NodeStatus::default() };
    let node = &newest.node;
    let state = streams.iter().map(|stream| stream_state(stream)).max().unwrap_or_default();
    pb::NodeStatus {
        id: node.id.clone(),
        cluster: node.cluster.clone(),
        locality: Some(pb::Locality {
            region: node.locality.region.clone(),
            zone: node.locality.zone.clone(),
            sub_zone: node.locality.sub_zone.clone(),
        }),
        user_agent: node.user_agent.clone(),
        state: state.word().to_owned(),
        streams: streams.iter().map(|stream| show_stream(stream)).collect(),
        replicas_not_asked: 0,
        waits: Vec::new(),
    }
}

/// The state of a stream. A worse state is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum NodeState {
    #[default]
    Synced,
    Pending,
    Nacked,
    Unassigned,
}

impl NodeState {
    fn word(self) -> &'static str {
        match self {
            Self::Unassigned => STATES[0],
            Self::Nacked => STATES[1],
            Self::Pending => STATES[2],
            Self::Synced => STATES[3],
        }
    }
}

fn stream_state(stream: &StreamStatus) -> NodeState {
    if stream.assignment.is_none() {
        return NodeState::Unassigned;
    }
    let states = stream.subscriptions.iter().map(|subscription| match subscription.state {
        SyncState::Idle | SyncState::Synced => NodeState::Synced,
        SyncState::Pending => NodeState::Pending,
        SyncState::Nacked => NodeState::Nacked,
    });
    states.max().unwrap_or_default()
}

/// Converts a stream to a message.
pub(crate) fn show_stream(stream: &StreamStatus) -> pb::StreamStatus {
    let mut subscriptions: Vec<pb::SubscriptionStatus> =
        stream.subscriptions.iter().map(|one| show_subscription(stream, one)).collect();
    subscriptions.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    let mut nacks: Vec<pb::Nack> =
        stream.nacks.iter().map(|nack| show_nack(&stream.node.id, nack)).collect();
    nacks.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    pb::StreamStatus {
        peer: stream.peer.to_string(),
        identity: stream.identity.as_ref().map(|one| one.principal.to_string()).unwrap_or_default(),
        protocol: stream.protocol.as_str().to_owned(),
        type_url: stream.type_url.as_ref().map(ToString::to_string).unwrap_or_default(),
        since_ms: millis(stream.since),
        assignment: stream.assignment.as_deref().unwrap_or_default().to_owned(),
        scopes: stream.scopes.iter().map(ToString::to_string).collect(),
        subscriptions,
        nacks,
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
