//! The commands `drain` and `undrain`.

use std::time::Duration;

use chancery_admin::time_limits::DRAIN;
use chancery_admin_proto::v1::{
    DrainReplicaRequest, DrainStatus, UndrainReplicaRequest,
    streams_service_client::StreamsServiceClient,
};
use chancery_config::Span;
use clap::Args;

use super::{client::refusal, cluster::replica_id, connector::Channel};
use crate::{answer::Answer, failure::Failure, text::count, time::time_in};

/// The arguments of `drain`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// ID of the replica
    #[arg(value_name = "ID", value_parser = replica_id())]
    id: u64,
    /// End the streams evenly over this time, at most 1h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time_in(DRAIN))]
    over: Span,
}

/// The arguments of `undrain`.
#[derive(Debug, Args)]
pub(crate) struct Undrain {
    /// ID of the replica
    #[arg(value_name = "ID", value_parser = replica_id())]
    id: u64,
}

impl Drain {
    /// Drains a replica.
    pub(super) async fn run(
        self,
        channel: Channel,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        let request =
            DrainReplicaRequest { replica_id: self.id, over_ms: Some(self.over.millis()) };
        let response = StreamsServiceClient::new(channel).drain_replica(request).await;
        show(response.map_err(|status| refusal(&status))?.into_inner(), answer)
    }
}

impl Undrain {
    /// Ends the drain of a replica.
    pub(super) async fn run(
        self,
        channel: Channel,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        let request = UndrainReplicaRequest { replica_id: self.id };
        let response = StreamsServiceClient::new(channel).undrain_replica(request).await;
        show(response.map_err(|status| refusal(&status))?.into_inner(), answer)
    }
}

fn show(status: DrainStatus, answer: &mut Answer<'_>) -> Result<(), Failure> {
    answer.show(&status, |out| {
        let DrainStatus { replica_id, drained, over_ms, streams } = status;
        if drained {
            let over = Span::new(Duration::from_millis(over_ms));
            let streams = count(streams, "stream");
            writeln!(
                out,
                "replica {replica_id} accepts no streams, and ends {streams} within {over}"
            )
        } else {
            writeln!(out, "replica {replica_id} accepts streams")
        }
    })
}
