//! The command `nodes`.

use std::io::{self, Write};

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use clap::{Args, ValueEnum};

use super::{client::refusal, connector::Channel};
use crate::cli::{
    answer::Answer,
    failure::Failure,
    table::Table,
    text::{count, short_type},
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
}

/// The state of a node. A node with several streams has the first of these states that one of its
/// subscriptions has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    /// No assignment matches the node, so it receives no changes
    Unassigned,
    /// The node rejected its newest response of a type
    Nacked,
    /// The node has not yet acknowledged a response, or a response waits to be sent
    Pending,
    /// The node has acknowledged everything that it was sent
    Synced,
}

impl State {
    /// Returns the name of the state in the admin API.
    fn name(self) -> &'static str {
        match self {
            Self::Unassigned => "unassigned",
            Self::Nacked => "nacked",
            Self::Pending => "pending",
            Self::Synced => "synced",
        }
    }
}

/// Lists the connected nodes.
pub(super) async fn run(
    nodes: Nodes,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ListNodesRequest {
        id: nodes.id.unwrap_or_default(),
        state: nodes.state.map(State::name).unwrap_or_default().to_owned(),
    };
    let response = client.list_nodes(request).await.map_err(|status| refusal(&status))?;
    let mut pieces = response.into_inner();
    let mut list = pb::ListNodesResponse::default();
    while let Some(piece) = pieces.message().await.map_err(|status| refusal(&status))? {
        list.nodes.extend(piece.nodes);
        list.replicas_not_asked = piece.replicas_not_asked;
    }
    answer.show(&list, |out| write_list(&list, now(), out))
}

fn write_list(list: &pb::ListNodesResponse, now: u64, out: &mut dyn Write) -> io::Result<()> {
    let others = match list.replicas_not_asked {
        0 => None,
        n => Some(format!("{} not asked", count(n, "other replica"))),
    };
    if list.nodes.is_empty() {
        return match others {
            None => writeln!(out, "no nodes"),
            Some(others) => writeln!(out, "no nodes of this replica; {others}"),
        };
    }
    let mut table =
        Table::new(["NODE", "CLUSTER", "STATE", "PROTOCOL", "ASSIGNMENT", "AGE", "TYPES"]);
    for node in &list.nodes {
        let mut protocols: Vec<&str> =
            node.streams.iter().map(|stream| stream.protocol.as_str()).collect();
        protocols.sort_unstable();
        protocols.dedup();
        let mut assignments: Vec<&str> =
            node.streams.iter().map(|stream| stream.assignment.as_str()).collect();
        assignments.sort_unstable();
        assignments.dedup();
        let since = node.streams.iter().map(|stream| stream.since_ms).min().unwrap_or(now);
        table.row([
            node.id.clone(),
            node.cluster.clone(),
            node.state.clone(),
            protocols.join(","),
            assignments.join(","),
            age(since, now),
            types(node),
        ]);
    }
    table.write(out, "")?;
    match others {
        None => Ok(()),
        Some(others) => writeln!(out, "{others}"),
    }
}

/// Returns the types that a node subscribes to. Types that are not synced or idle are followed by
/// their state.
fn types(node: &pb::NodeStatus) -> String {
    let mut types: Vec<String> = node
        .streams
        .iter()
        .flat_map(|stream| &stream.subscriptions)
        .map(|subscription| {
            let name = short_type(&subscription.type_url);
            match subscription.state.as_str() {
                "synced" | "idle" => name,
                state => format!("{name}:{state}"),
            }
        })
        .collect();
    types.sort();
    types.dedup();
    types.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
                assignment: "default".into(),
                subscriptions: vec![
                    subscription(chancery_model::types::CLUSTER, "synced"),
                    subscription(chancery_model::types::LISTENER, "nacked"),
                ],
                ..Default::default()
            }],
            ..Default::default()
        };
        let mut out = Vec::new();
        let list = pb::ListNodesResponse { nodes: vec![node], replicas_not_asked: 2 };
        write_list(&list, 61_000, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NODE    CLUSTER  STATE   PROTOCOL  ASSIGNMENT  AGE  TYPES\n\
             edge-1  edge     nacked  delta     default     60s  cluster listener:nacked\n\
             2 other replicas not asked\n"
        );
        let mut out = Vec::new();
        write_list(&pb::ListNodesResponse { nodes: Vec::new(), ..list }, 0, &mut out).unwrap();
        assert_eq!(out, b"no nodes of this replica; 2 other replicas not asked\n");
    }
}
