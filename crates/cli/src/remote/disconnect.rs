//! The command `disconnect`.

use std::io::{self, Write};

use chancery_admin_proto::v1::{
    DisconnectNodeRequest, DisconnectNodeResponse, streams_service_client::StreamsServiceClient,
};
use clap::Args;

use super::{client::refusal, connector::Channel, fleet::check_complete};
use crate::{answer::Answer, failure::Failure, text::count};

/// The arguments of `disconnect`.
#[derive(Debug, Args)]
pub(crate) struct Disconnect {
    /// ID of the node
    node: String,
}

/// Ends all streams of a node.
pub(super) async fn run(
    disconnect: Disconnect,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let node = disconnect.node;
    let request = DisconnectNodeRequest { node: node.clone() };
    let response = StreamsServiceClient::new(channel).disconnect_node(request).await;
    let response = response.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| write_ended(&node, &response, out))?;
    check_complete(&response.not_asked)
}

/// Writes the number of ended streams of each replica.
fn write_ended(
    node: &str,
    response: &DisconnectNodeResponse,
    out: &mut dyn Write,
) -> io::Result<()> {
    // The server rejects the request if all replicas have answered.
    if response.replicas.is_empty() {
        return writeln!(out, "node {node:?} is not connected to the replicas that answered");
    }
    for one in &response.replicas {
        writeln!(out, "replica {}: ended {}", one.replica_id, count(one.streams, "stream"))?;
    }
    Ok(())
}
