//! The states of streams and nodes, in one vocabulary for all answers.

use std::time::{Duration, SystemTime};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::{LiveStream, StreamStatus};
use chancery_protocol::{SubscriptionStatus, SyncState, Synchronization};

use crate::times::millis;

/// The time after which a client that owes an answer counts as silent.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(10);

/// The state of a connected node or of its stream. A worse state is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum NodeState {
    #[default]
    Synced,
    Waiting,
    Pending,
    Silent,
    Rejected,
    Unassigned,
}

/// The states, the worst first.
pub(crate) const STATES: [NodeState; 6] = [
    NodeState::Unassigned,
    NodeState::Rejected,
    NodeState::Silent,
    NodeState::Pending,
    NodeState::Waiting,
    NodeState::Synced,
];

/// The state of a node without streams, which no stream has.
pub(crate) const DISCONNECTED: &str = "disconnected";

/// The words of all states of a node in [`pb::Condition`], the worst first.
pub const NODE_STATES: [&str; 7] = [
    STATES[0].word(),
    STATES[1].word(),
    STATES[2].word(),
    STATES[3].word(),
    STATES[4].word(),
    STATES[5].word(),
    DISCONNECTED,
];

impl NodeState {
    /// Returns the word in [`pb::Condition`].
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Unassigned => "unassigned",
            Self::Rejected => "rejected",
            Self::Silent => "silent",
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Synced => "synced",
        }
    }

    /// Returns the state of a word; the older word `nacked` means [`Self::Rejected`].
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let word = if word == "nacked" { "rejected" } else { word };
        STATES.into_iter().find(|state| state.word() == word)
    }

    /// Returns the word in the field `state` of a node, which has only four.
    fn coarse_word(self) -> &'static str {
        match self {
            Self::Rejected => "nacked",
            Self::Silent => Self::Pending.word(),
            Self::Waiting => Self::Synced.word(),
            Self::Unassigned | Self::Pending | Self::Synced => self.word(),
        }
    }
}

/// Returns the word in the field `state` of a node with this condition.
pub(crate) fn coarse_word(condition: &pb::Condition) -> &'static str {
    NodeState::parse(&condition.state).map_or(DISCONNECTED, NodeState::coarse_word)
}

/// Returns the state of a stream.
pub(crate) fn stream_state(stream: &LiveStream<'_>) -> NodeState {
    if stream.assignment.is_none() {
        return NodeState::Unassigned;
    }
    let states = stream.synchronization().map(|one| state_of(stream.clock_ms, one));
    states.max().unwrap_or_default()
}

/// Returns the worst of some conditions. Of equal states, the one that lasts longest.
pub(crate) fn worst<'a>(
    conditions: impl IntoIterator<Item = &'a pb::Condition>,
) -> Option<pb::Condition> {
    let known = |one: &&pb::Condition| match one.since_ms {
        0 => u64::MAX,
        since => since,
    };
    let key = |one: &&pb::Condition| (NodeState::parse(&one.state), std::cmp::Reverse(known(one)));
    conditions.into_iter().max_by_key(key).cloned()
}

/// Returns the time since which a client owes an answer.
fn unanswered_for(clock_ms: u64, synchronization: Synchronization) -> Option<Duration> {
    let since = synchronization.unanswered_since?;
    Some(Duration::from_millis(clock_ms.saturating_sub(since)))
}

fn state_of(clock_ms: u64, synchronization: Synchronization) -> NodeState {
    match synchronization.state {
        SyncState::Nacked => NodeState::Rejected,
        SyncState::Pending => match unanswered_for(clock_ms, synchronization) {
            Some(time) if time > SILENT_AFTER => NodeState::Silent,
            _ => NodeState::Pending,
        },
        SyncState::Idle | SyncState::Synced if synchronization.n_missing > 0 => NodeState::Waiting,
        SyncState::Idle | SyncState::Synced => NodeState::Synced,
    }
}

/// Returns the condition of a stream.
pub(crate) fn condition(stream: &StreamStatus, now: SystemTime) -> pb::Condition {
    let new = |state: NodeState, since: Option<SystemTime>, message| pb::Condition {
        state: state.word().to_owned(),
        since_ms: since.map(millis).unwrap_or_default(),
        message,
    };
    if stream.assignment.is_none() {
        let text = "no assignment matches the node; it keeps its resources";
        return new(NodeState::Unassigned, None, text.to_owned());
    }
    let of_types = stream.subscriptions.iter().map(|one| {
        let state = state_of(stream.clock_ms, one.synchronization());
        let owed = unanswered_for(stream.clock_ms, one.synchronization())
            .and_then(|time| now.checked_sub(time));
        let (since, message) = match state {
            NodeState::Rejected => {
                let nack = stream.nacks.iter().find(|nack| nack.type_url == one.type_url);
                let message = one.nack.as_ref().map(|nack| nack.message.clone());
                (nack.map(|nack| nack.time), message.unwrap_or_default())
            }
            NodeState::Silent | NodeState::Pending => (owed, one.type_url.short_name().to_owned()),
            NodeState::Waiting => (None, waits_for(one)),
            NodeState::Synced | NodeState::Unassigned => (None, String::new()),
        };
        new(state, since, message)
    });
    let of_types: Vec<pb::Condition> = of_types.collect();
    worst(&of_types).unwrap_or_else(|| new(NodeState::Synced, None, String::new()))
}

/// Returns the names for which the client of a type waits: `endpoint "web" and 2 more`.
fn waits_for(subscription: &SubscriptionStatus) -> String {
    let type_name = subscription.type_url.short_name();
    let more = match subscription.n_missing.saturating_sub(1) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match &subscription.missing {
        Some(name) => format!("{type_name} {:?}{more}", name.to_string()),
        None => format!("{} names of {type_name}", subscription.n_missing),
    }
}

/// Returns whether a client is an Envoy, which has one connection.
pub(crate) fn is_envoy(user_agent: &str) -> bool {
    user_agent.starts_with("envoy")
}

/// Returns the number of clients that use the ID of a node at the same time, if there is more than one.
///
/// Two connections are two clients if both have a stream for the same types. A process with gRPC may have one
/// connection for each of its channels, so only addresses count there.
pub(crate) fn n_duplicates(streams: &[pb::StreamStatus]) -> u64 {
    let client = |stream: &pb::StreamStatus| match stream.peer.rsplit_once(':') {
        Some((host, _)) if !is_envoy(&stream.user_agent) => (0, host.to_owned()),
        _ => (stream.replica_id, stream.peer.clone()),
    };
    let mut clients: Vec<(&str, (u64, String))> =
        streams.iter().map(|stream| (stream.type_url.as_str(), client(stream))).collect();
    clients.sort_unstable();
    clients.dedup();
    let of_type = |one: &[(&str, (u64, String))]| one.len() as u64;
    let most = clients.chunk_by(|a, b| a.0 == b.0).map(of_type).max().unwrap_or_default();
    if most > 1 { most } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(user_agent: &str, replica_id: u64, peer: &str, type_url: &str) -> pb::StreamStatus {
        let [user_agent, peer, type_url] = [user_agent, peer, type_url].map(str::to_owned);
        pb::StreamStatus { user_agent, replica_id, peer, type_url, ..Default::default() }
    }

    #[test]
    fn clients_with_one_node_id_are_counted_by_connection_of_the_same_types() {
        let envoy = |replica_id, peer, of_type| stream("envoy/1.40.0", replica_id, peer, of_type);
        let grpc = |replica_id, peer| stream("gRPC Go/1.85.0", replica_id, peer, "");
        assert_eq!(n_duplicates(&[envoy(1, "10.0.0.1:5", "")]), 0);
        assert_eq!(n_duplicates(&[envoy(1, "10.0.0.1:5", ""), envoy(2, "10.0.0.1:6", "")]), 2);
        // One Envoy with a stream for each type, on one connection or on several.
        let types = [envoy(1, "10.0.0.1:5", "cds"), envoy(1, "10.0.0.1:6", "lds")];
        assert_eq!(n_duplicates(&types), 0);
        // The channels of one process.
        assert_eq!(n_duplicates(&[grpc(1, "10.0.0.1:5"), grpc(2, "10.0.0.1:6")]), 0);
        assert_eq!(n_duplicates(&[grpc(1, "10.0.0.1:5"), grpc(1, "10.0.0.2:5")]), 2);
        // An Envoy and a process beside it, and the channels of that process.
        let both = [envoy(1, "10.0.0.1:5", ""), grpc(1, "10.0.0.1:6"), grpc(2, "10.0.0.1:7")];
        assert_eq!(n_duplicates(&both), 2);
    }

    #[test]
    fn worst_condition_is_the_one_that_lasts_longest() {
        let condition = |state: &str, since_ms| pb::Condition {
            state: state.to_owned(),
            since_ms,
            message: String::new(),
        };
        let all = [
            condition("synced", 1),
            condition("rejected", 9),
            condition("rejected", 5),
            condition("rejected", 0),
            condition("silent", 2),
        ];
        assert_eq!(worst(&all), Some(condition("rejected", 5)));
        assert_eq!(worst(&[]), None);
        assert_eq!(coarse_word(&all[1]), "nacked");
        assert_eq!(coarse_word(&condition("silent", 1)), "pending");
        assert_eq!(coarse_word(&condition(DISCONNECTED, 1)), DISCONNECTED);
        assert_eq!(NodeState::parse("nacked"), Some(NodeState::Rejected));
    }
}
