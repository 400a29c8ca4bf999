//! The command `node`.

use std::io::{self, Write};

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use clap::Args;

use super::{
    client::refusal,
    connector::Channel,
    fleet::{Extent, check_complete},
    stream::{in_words, write_stream},
};
use crate::{
    answer::Answer,
    failure::Failure,
    text::{count, plain, short_type},
    time::now,
};

/// The arguments of `node`.
#[derive(Debug, Args)]
pub(crate) struct Node {
    /// ID of the node
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    extent: Extent,
}

/// Shows one connected node.
pub(super) async fn run(
    node: Node,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::GetNodeRequest { id: node.id, local: node.extent.local };
    let node = client.get_node(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&node, |out| write_node(&node, now(), out))?;
    check_complete(&node.not_asked)
}

fn write_node(node: &pb::NodeStatus, now: u64, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "node        {}", plain(&node.id))?;
    let locality = node.locality.clone().unwrap_or_default();
    let locality = [locality.region, locality.zone, locality.sub_zone].join("/");
    let locality = locality.trim_end_matches('/');
    let state = node.condition.as_ref().map_or(node.state.clone(), |one| in_words(one, now));
    for (what, value) in [
        ("cluster", node.cluster.as_str()),
        ("locality", locality),
        ("client", node.user_agent.as_str()),
        ("state", state.as_str()),
    ] {
        if !value.is_empty() {
            writeln!(out, "{what:<12}{}", plain(value))?;
        }
    }
    for stream in &node.streams {
        writeln!(out)?;
        write_stream(stream, now, out)?;
    }
    if !node.waits.is_empty() {
        writeln!(out)?;
    }
    for wait in &node.waits {
        writeln!(out, "{} {}", short_type(&wait.type_url), plain(&wait.message))?;
    }
    if node.duplicates > 0 {
        writeln!(out, "\n{} use this ID at the same time", count(node.duplicates, "client"))?;
    }
    match (node.replicas_not_asked, node.not_asked.as_slice()) {
        (0, _) => Ok(()),
        (n, []) => writeln!(out, "\n{} not asked", count(n, "other replica")),
        (_, _) => Ok(()),
    }
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
