//! The arguments of the test.

use anyhow::Result;

use super::clients::Fault;
use crate::host::Pinning;

/// Measure the effect of clients that never read or never acknowledge
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clients in total
    #[arg(long, default_value_t = 1000)]
    pub(super) clients: usize,
    /// Clients that never read: half keep the stream's window shut, half do not read their socket
    #[arg(long, default_value_t = 100)]
    pub(super) never_read: usize,
    /// Clients that never acknowledge
    #[arg(long, default_value_t = 100)]
    pub(super) never_ack: usize,
    /// Updates of one cluster per second, each for all clients
    #[arg(long, default_value_t = 100)]
    pub(super) updates_per_second: u32,
    /// Clusters of about 1 KB
    #[arg(long, default_value_t = 1000)]
    pub(super) resources: usize,
    /// Rounds with faulty clients; there is one more round without them
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: usize,
    /// Seconds of measurement per round
    #[arg(long, default_value_t = 20.0)]
    pub(super) round_seconds: f64,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 5.0)]
    pub(super) settle_seconds: f64,
    /// Minutes of the long part; its first fifth does not count for memory
    #[arg(long, default_value_t = 10.0)]
    pub(super) minutes: f64,
    /// Maximum ratio of the healthy clients' p99 to that without faulty clients
    #[arg(long, default_value_t = 2.0)]
    pub(super) ratio_max: f64,
    /// Maximum growth of RSS over the long part, in percent
    #[arg(long, default_value_t = 2.0)]
    pub(super) growth_percent_max: f64,
    /// Seed for the choice of clusters and the times of reconnects
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Let server and clients run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    pub(super) no_pin: bool,
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        if self.no_pin { Ok(Pinning::NONE) } else { Pinning::apart() }
    }

    pub(super) fn healthy(&self) -> usize {
        self.clients.saturating_sub(self.never_read + self.never_ack)
    }

    pub(super) fn faults(&self) -> impl Iterator<Item = Fault> + use<> {
        let read = |n| if n % 2 == 0 { Fault::Window } else { Fault::Socket };
        (0..self.never_read).map(read).chain((0..self.never_ack).map(|_| Fault::Ack))
    }
}
