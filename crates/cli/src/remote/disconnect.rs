//! The command `disconnect`.

use chancery_admin_proto::v1::{
    DisconnectNodeRequest, streams_service_client::StreamsServiceClient,
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
    let request = DisconnectNodeRequest { node: disconnect.node };
    let response = StreamsServiceClient::new(channel).disconnect_node(request).await;
    let response = response.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| {
        for one in &response.replicas {
            writeln!(out, "replica {}: ended {}", one.replica_id, count(one.streams, "stream"))?;
        }
        Ok(())
    })?;
    check_complete(&response.not_asked)
}
