//! The command `nodes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use chancery_admin::NODE_STATES;
use chancery_admin_proto::v1 as pb;
use clap::{Args, ValueEnum};

use super::{
    client::{Servers, admin, refusal},
    fleet::{Extent, check_complete},
    stream::in_words,
    wait_result::held,
    watch::{Follower, Kind},
};
use crate::{
    answer::Answer,
    failure::Failure,
    table::Table,
    text::{count, plain, short_type},
    time::{age, now},
};

/// The arguments of `nodes`.
#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// Show only nodes whose ID matches; `*` matches any characters [default: all]
    #[arg(long, value_name = "PATTERN")]
    id: Option<String>,
    /// Show only nodes in this state [default: all]
    ///
    /// A node is in the first of these states that applies.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Show only nodes that have not acknowledged this revision
    #[arg(long, value_name = "REVISION")]
    behind: Option<u64>,
    /// After the list, show events of nodes, until you interrupt the command
    ///
    /// The events are streams that open and end, rejections, and the ends of rejections.
    #[arg(long, conflicts_with_all = ["id", "state", "behind"])]
    watch: bool,
    #[command(flatten)]
    extent: Extent,
}

/// The state of a node. A node with several streams has the first of these states that one of its
/// subscriptions has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    /// No assignment matches the node, so it receives no changes
    Unassigned,
    /// The node rejected its newest response of a type
    #[value(alias = "nacked")]
    Rejected,
    /// The node has left a response unanswered for more than 10 seconds
    Silent,
    /// The node has not yet acknowledged a response, or a response waits to be sent
    Pending,
    /// The node asks for names that it does not see
    Waiting,
    /// The node has acknowledged everything that it was sent
    Synced,
    /// The node was connected recently, and has no stream
    Disconnected,
}

impl State {
    /// Returns the name of the state in the admin API, which has the states in the same order.
    fn name(self) -> &'static str {
        NODE_STATES[self as usize]
    }
}

/// The maximum number of reasons below the table.
const REASONS_MAX: usize = 20;

/// Lists the nodes.
pub(super) async fn run(
    nodes: Nodes,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let channel = servers.any_channel().await?;
    let mut client = admin(channel.clone());
    let mut follower = None;
    if nodes.watch {
        // No event between the list and the events is lost.
        let opened = follower.insert(Follower::of_kinds(&[Kind::Nodes], None, nodes.extent.local));
        opened.open(channel).await.map_err(|status| refusal(&status))?;
    }
    let request = pb::ListNodesRequest {
        id: nodes.id.unwrap_or_default(),
        state: nodes.state.map(State::name).unwrap_or_default().to_owned(),
        behind: nodes.behind,
        local: nodes.extent.local,
        ..pb::ListNodesRequest::default()
    };
    let response = client.list_nodes(request).await.map_err(|status| refusal(&status))?;
    let mut pieces = response.into_inner();
    let mut list = pb::ListNodesResponse::default();
    while let Some(mut piece) = pieces.message().await.map_err(|status| refusal(&status))? {
        let nodes = list.nodes.into_iter().chain(std::mem::take(&mut piece.nodes)).collect();
        list.disconnected.append(&mut piece.disconnected);
        piece.held.splice(0..0, list.held);
        list = pb::ListNodesResponse { nodes, disconnected: list.disconnected, ..piece };
    }
    answer.show(&list, |out| {
        write_list(&list, now(), out)?;
        // A command about nodes behind a revision ends with these lines.
        let held = if nodes.behind.is_some() { Vec::new() } else { held(&list.held).lines };
        held.iter().try_for_each(|line| writeln!(out, "{line}"))
    })?;
    if let Some(follower) = follower {
        return follower.follow(servers, answer).await;
    }
    if nodes.behind.is_some() && !list.held.is_empty() {
        return Err(held(&list.held));
    }
    check_complete(&list.not_asked)
}

fn write_list(list: &pb::ListNodesResponse, now: u64, out: &mut dyn Write) -> io::Result<()> {
    let others = match (list.replicas_not_asked, list.not_asked.as_slice()) {
        (n, []) if n > 0 => Some(format!("{} not asked", count(n, "other replica"))),
        _ => None,
    };
    if list.nodes.is_empty() && list.disconnected.is_empty() {
        return match (others, list.not_asked.len()) {
            (Some(others), _) => writeln!(out, "no nodes of this replica; {others}"),
            (None, 0) => writeln!(out, "no nodes"),
            (None, _) => writeln!(out, "no nodes of the replicas that answered"),
        };
    }
    let header =
        ["NODE", "CLUSTER", "STATE", "SINCE", "REPLICA", "PROTOCOL", "ASSIGNMENT", "AGE", "TYPES"];
    let mut table = Table::new(header);
    list.nodes.iter().for_each(|node| rows(node, now, &mut table));
    for node in &list.disconnected {
        let pb::DisconnectedNode { id, cluster, since_ms, replica_id, .. } = node;
        let (id, cluster, since) = (id.clone(), cluster.clone(), age(*since_ms, now));
        let none = String::new;
        let state = State::Disconnected.name().to_owned();
        let replica = replica_id.to_string();
        table.row([id, cluster, state, since, replica, none(), none(), none(), none()]);
    }
    table.write(out, "")?;
    write_reasons(list, now, out)?;
    match others {
        None => Ok(()),
        Some(others) => writeln!(out, "{others}"),
    }
}

/// Adds the row of a node. If several clients use its ID, each has a row.
fn rows(node: &pb::NodeStatus, now: u64, table: &mut Table) {
    if node.duplicates == 0 {
        let streams: Vec<&pb::StreamStatus> = node.streams.iter().collect();
        let condition = node.condition.clone().unwrap_or_default();
        return row(node, &condition, &streams, now, table);
    }
    let mut clients: BTreeMap<(u64, &str), Vec<&pb::StreamStatus>> = BTreeMap::new();
    for stream in &node.streams {
        clients.entry((stream.replica_id, &stream.peer)).or_default().push(stream);
    }
    for streams in clients.values() {
        let conditions = streams.iter().filter_map(|stream| stream.condition.as_ref());
        let condition = conditions.min_by_key(|one| rank(&one.state)).cloned().unwrap_or_default();
        row(node, &condition, streams, now, table);
    }
}

/// Returns the place of a state in the order of states, the worst first.
fn rank(state: &str) -> usize {
    NODE_STATES.iter().position(|name| *name == state).unwrap_or(usize::MAX)
}

fn row(
    node: &pb::NodeStatus,
    condition: &pb::Condition,
    streams: &[&pb::StreamStatus],
    now: u64,
    table: &mut Table,
) {
    let join = |texts: &mut dyn Iterator<Item = String>, separator: &str| {
        let texts: BTreeSet<String> = texts.collect();
        texts.into_iter().collect::<Vec<_>>().join(separator)
    };
    let since = streams.iter().map(|stream| stream.since_ms).min().unwrap_or(now);
    let lasts = match condition.since_ms {
        0 => String::new(),
        since => age(since, now),
    };
    table.row([
        node.id.clone(),
        node.cluster.clone(),
        condition.state.clone(),
        lasts,
        join(&mut streams.iter().map(|one| one.replica_id.to_string()), ","),
        join(&mut streams.iter().map(|one| one.protocol.clone()), ","),
        join(&mut streams.iter().map(|one| one.assignment.clone()), ","),
        age(since, now),
        join(&mut streams.iter().flat_map(|one| &one.subscriptions).map(type_in_words), " "),
    ]);
}

/// Writes why nodes are not synced, and which IDs several clients use.
fn write_reasons(list: &pb::ListNodesResponse, now: u64, out: &mut dyn Write) -> io::Result<()> {
    let reason = |node: &pb::NodeStatus| {
        let condition = node.condition.as_ref().filter(|one| !one.message.is_empty())?;
        Some(format!("{}: {}", plain(&node.id), in_words(condition, now)))
    };
    let reasons: Vec<String> = list.nodes.iter().filter_map(reason).collect();
    for reason in reasons.iter().take(REASONS_MAX) {
        writeln!(out, "{reason}")?;
    }
    if let Some(more) = reasons.len().checked_sub(REASONS_MAX).filter(|more| *more > 0) {
        writeln!(
            out,
            "and {}; `chancery node ID` shows the reason",
            count(more as u64, "other node")
        )?;
    }
    let duplicates: Vec<&str> =
        list.nodes.iter().filter(|node| node.duplicates > 0).map(|node| node.id.as_str()).collect();
    if let Some(first) = duplicates.first() {
        let n = count(duplicates.len() as u64, "node ID");
        writeln!(
            out,
            "warning: several clients use the same node ID: {n}, such as {}",
            plain(first)
        )?;
    }
    Ok(())
}

/// Returns a type to which a node subscribes. A type that is not synced or idle is followed by its state.
fn type_in_words(subscription: &pb::SubscriptionStatus) -> String {
    let name = short_type(&subscription.type_url);
    match subscription.state.as_str() {
        "synced" | "idle" => name,
        state => format!("{name}:{state}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_flag_are_those_of_the_admin_api() {
        let value = |state: &State| state.to_possible_value().unwrap().get_name().to_owned();
        let values: Vec<String> = State::value_variants().iter().map(value).collect();
        assert_eq!(values, NODE_STATES);
        assert_eq!(State::Waiting.name(), "waiting");
    }

    #[test]
    fn node_table_shows_problems_of_each_node() {
        let subscription = |type_url: &str, state: &str| pb::SubscriptionStatus {
            type_url: type_url.into(),
            state: state.into(),
            ..Default::default()
        };
        let node = pb::NodeStatus {
            id: "edge-1".into(),
            cluster: "edge".into(),
            state: "nacked".into(),
            streams: vec![pb::StreamStatus {
                protocol: "delta".into(),
                since_ms: 1000,
                replica_id: 2,
                assignment: "default".into(),
                subscriptions: vec![
                    subscription(chancery_model::types::CLUSTER, "synced"),
                    subscription(chancery_model::types::LISTENER, "nacked"),
                ],
                ..Default::default()
            }],
            ..Default::default()
        };
        let condition = pb::Condition {
            state: "rejected".into(),
            since_ms: 31_000,
            message: "bad port".into(),
        };
        let node = pb::NodeStatus { condition: Some(condition), ..node };
        let mut out = Vec::new();
        let list = pb::ListNodesResponse { nodes: vec![node], ..Default::default() };
        write_list(&list, 61_000, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NODE    CLUSTER  STATE     SINCE  REPLICA  PROTOCOL  ASSIGNMENT  AGE  TYPES\n\
             edge-1  edge     rejected  30s    2        delta     default     60s  cluster listener:nacked\n\
             edge-1: rejected for 30s: bad port\n"
        );
        let others = pb::ListNodesResponse { nodes: Vec::new(), replicas_not_asked: 2, ..list };
        let mut out = Vec::new();
        write_list(&others, 0, &mut out).unwrap();
        assert_eq!(out, b"no nodes of this replica; 2 other replicas not asked\n");
    }

    /// Two clients with one node ID were one row.
    #[test]
    fn clients_with_one_node_id_have_a_row_each() {
        let stream = |replica_id, state: &str| pb::StreamStatus {
            peer: format!("10.0.0.{replica_id}:5"),
            replica_id,
            condition: Some(pb::Condition { state: state.into(), ..Default::default() }),
            ..Default::default()
        };
        let streams = vec![stream(1, "synced"), stream(2, "silent")];
        let id = "edge-1".to_owned();
        let node = pb::NodeStatus { id, streams, duplicates: 2, ..Default::default() };
        let list = pb::ListNodesResponse { nodes: vec![node], ..Default::default() };
        let mut out = Vec::new();
        write_list(&list, 0, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].contains("synced") && lines[2].contains("silent"), "{text}");
        assert_eq!(
            lines[3],
            "warning: several clients use the same node ID: 1 node ID, such as edge-1"
        );
    }
}
