//! The arguments of the comparison.

use std::path::PathBuf;

/// Compare durable writes of 1 KiB with etcd, three replicas of each
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replicas of each system
    #[arg(long, default_value_t = 3)]
    pub(super) replicas: usize,
    /// Concurrent writers
    #[arg(long, default_value_t = 1000)]
    pub(super) writers: usize,
    /// Connections that the writers share, spread over all replicas
    #[arg(long, default_value_t = 48)]
    pub(super) connections: usize,
    /// Seconds of a turn; the turn of a single writer takes half as long
    #[arg(long, default_value_t = 5.0)]
    pub(super) seconds: f64,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: usize,
    /// The etcd binary [default: /usr/bin/etcd, from Debian's package etcd-server]
    #[arg(long, value_name = "PATH")]
    pub(super) etcd: Option<PathBuf>,
    /// Write clusters of 24 endpoints and about the same size, instead of clusters with few fields
    #[arg(long)]
    pub(super) endpoints: bool,
    /// Minimum ratio of writes per second to those of etcd
    #[arg(long, default_value_t = 3.0)]
    pub(super) ratio_min: f64,
    /// Maximum seconds of the slowest write
    #[arg(long, default_value_t = 0.25)]
    pub(super) slowest_max: f64,
    /// Maximum ratio of the latency of one writer to that of the disk alone
    #[arg(long, default_value_t = 1.3)]
    pub(super) fsync_ratio_max: f64,
}
