//! The commands `nodes` and `node`.

use std::{
    io::{self, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use tonic::transport::Channel;

use super::{
    Answer, Failure, args,
    client::refusal,
    plain, short_type,
    table::Table,
    time::{age, timestamp},
};

/// Lists the connected nodes.
pub(crate) async fn list(
    mut client: AdminClient<Channel>,
    nodes: args::Nodes,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ListNodesRequest {
        id: nodes.id.unwrap_or_default(),
        state: nodes.state.unwrap_or_default(),
    };
    let response = client.list_nodes(request).await.map_err(|status| refusal(&status))?;
    let mut pieces = response.into_inner();
    let mut list = pb::ListNodesResponse::default();
    while let Some(piece) = pieces.message().await.map_err(|status| refusal(&status))? {
        list.nodes.extend(piece.nodes);
    }
    answer.show(&list, |out| write_list(&list, now(), out))
}

/// Shows one connected node.
pub(crate) async fn show(
    mut client: AdminClient<Channel>,
    node: args::Node,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::GetNodeRequest { id: node.id };
    let node = client.get_node(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&node, |out| write_node(&node, now(), out))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn write_list(list: &pb::ListNodesResponse, now: u64, out: &mut dyn Write) -> io::Result<()> {
    if list.nodes.is_empty() {
        return writeln!(out, "no nodes");
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
    table.write(out, "")
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

fn write_node(node: &pb::NodeStatus, now: u64, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "node        {}", plain(&node.id))?;
    let locality = node.locality.clone().unwrap_or_default();
    let locality = [locality.region, locality.zone, locality.sub_zone].join("/");
    let locality = locality.trim_end_matches('/');
    for (what, value) in [
        ("cluster", node.cluster.as_str()),
        ("locality", locality),
        ("client", node.user_agent.as_str()),
        ("state", node.state.as_str()),
    ] {
        if !value.is_empty() {
            writeln!(out, "{what:<12}{}", plain(value))?;
        }
    }
    for stream in &node.streams {
        writeln!(out)?;
        write_stream(stream, now, out)?;
    }
    Ok(())
}

/// Writes a stream with its subscriptions and rejections.
pub(super) fn write_stream(
    stream: &pb::StreamStatus,
    now: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let kind = match stream.type_url.is_empty() {
        true => "aggregated".to_owned(),
        false => short_type(&stream.type_url),
    };
    let (peer, protocol) = (&stream.peer, &stream.protocol);
    writeln!(out, "stream from {peer}, {protocol}, {kind}, {} old", age(stream.since_ms, now))?;
    match stream.assignment.as_str() {
        "" => writeln!(out, "  no assignment matches this node")?,
        assignment => {
            writeln!(out, "  assignment {assignment}, scopes {}", stream.scopes.join(", "))?;
        }
    }
    let mut table = Table::new(["TYPE", "SUBSCRIBED", "SENT", "ACKED", "STATE"]);
    for subscription in &stream.subscriptions {
        let subscribed = match (subscription.wildcard, subscription.names) {
            (true, 0) => "all".to_owned(),
            (true, n) => format!("all, {n} by name"),
            (false, n) => format!("{n} by name"),
        };
        let held = match subscription.held_removals {
            0 => String::new(),
            n => format!(" ({n} removals held back)"),
        };
        table.row([
            short_type(&subscription.type_url),
            subscribed,
            subscription.sent_version.clone(),
            subscription.acked_version.clone(),
            format!("{}{held}", subscription.state),
        ]);
    }
    if !table.is_empty() {
        table.write(out, "  ")?;
    }
    for nack in &stream.nacks {
        let (time, type_name) = (timestamp(nack.time_ms), short_type(&nack.type_url));
        writeln!(out, "  rejected {type_name} at {time}: {}", plain(&nack.message))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> pb::NodeStatus {
        let subscription = |type_url: &str, state: &str| pb::SubscriptionStatus {
            type_url: type_url.into(),
            wildcard: true,
            sent_version: "3-1".into(),
            acked_version: "2-1".into(),
            state: state.into(),
            ..Default::default()
        };
        pb::NodeStatus {
            id: "edge-1".into(),
            cluster: "edge".into(),
            state: "nacked".into(),
            streams: vec![pb::StreamStatus {
                peer: "127.0.0.1:5".into(),
                protocol: "delta".into(),
                since_ms: 1000,
                assignment: "default".into(),
                scopes: vec!["default".into()],
                subscriptions: vec![
                    subscription(chancery_model::types::CLUSTER, "synced"),
                    subscription(chancery_model::types::LISTENER, "nacked"),
                ],
                nacks: vec![pb::Nack {
                    type_url: chancery_model::types::LISTENER.into(),
                    message: "bad\u{1b}[2J port".into(),
                    time_ms: 1000,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn a_list_of_nodes_is_a_table_with_what_is_not_well() {
        let mut out = Vec::new();
        let list = pb::ListNodesResponse { nodes: vec![node()] };
        write_list(&list, 61_000, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NODE    CLUSTER  STATE   PROTOCOL  ASSIGNMENT  AGE  TYPES\n\
             edge-1  edge     nacked  delta     default     60s  cluster listener:nacked\n"
        );
    }

    #[test]
    fn node_is_shown_with_rejections_and_escaped_control_characters() {
        let mut out = Vec::new();
        write_node(&node(), 61_000, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("stream from 127.0.0.1:5, delta, aggregated, 60s old\n"), "{text}");
        assert!(text.contains("  cluster   all         3-1   2-1    synced\n"), "{text}");
        assert!(
            text.contains("  rejected listener at 1970-01-01T00:00:01Z: bad\\u{1b}[2J port\n"),
            "{text}"
        );
    }
}
