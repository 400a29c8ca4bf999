//! The arguments of the restarts.

/// Restart replicas in turn under load and check streams and writes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replicas
    #[arg(long, default_value_t = 3)]
    pub(super) replicas: usize,
    /// Wildcard delta streams, each on its own connection
    #[arg(long, default_value_t = 1000)]
    pub(super) delta: usize,
    /// SotW streams, each on its own connection
    #[arg(long, default_value_t = 100)]
    pub(super) sotw: usize,
    /// Clusters of about 1 KB that each stream receives
    #[arg(long, default_value_t = 1000)]
    pub(super) resources: usize,
    /// Endpoints that each SotW stream requests by name
    #[arg(long, default_value_t = 100)]
    pub(super) endpoints: usize,
    /// Writers of resources that no client sees
    #[arg(long, default_value_t = 8)]
    pub(super) writers: usize,
    /// Milliseconds between two writes of a writer
    #[arg(long, default_value_t = 10)]
    pub(super) pause_ms: u64,
    /// Seconds between two changes that all clients see
    #[arg(long, default_value_t = 2.0)]
    pub(super) change_seconds: f64,
    /// Minimum number of leader changes; rounds, each of which restarts every replica once,
    /// continue until then
    #[arg(long, default_value_t = 5)]
    pub(super) leader_changes: usize,
    /// Kills of the leader after these rounds
    #[arg(long, default_value_t = 5)]
    pub(super) kills: usize,
    /// Maximum seconds without an acknowledged write when the leader changes
    #[arg(long, default_value_t = 1.5)]
    pub(super) gap_max: f64,
    /// Maximum seconds without an acknowledged write when the leader is killed
    #[arg(long, default_value_t = 2.0)]
    pub(super) gap_killed_max: f64,
}
