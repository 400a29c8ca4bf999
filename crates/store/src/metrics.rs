//! The metrics of the store. Handles are created once, so recording needs no lookup.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// All metrics of the store.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_store_append_seconds",
        MetricKind::Histogram,
        "Time from handing entries to the log until they are durable and acknowledged",
    ),
    Metric::new(
        "chancery_store_fsync_seconds",
        MetricKind::Histogram,
        "Time that a sync of the write-ahead log takes",
    ),
    Metric::new("chancery_store_fsyncs_total", MetricKind::Counter, "Syncs of the write-ahead log"),
    Metric::new(
        "chancery_store_commits_total",
        MetricKind::Counter,
        "Transactions that were applied",
    ),
    Metric::new(
        "chancery_store_refused_writes_total",
        MetricKind::Counter,
        "Transactions refused before they reached the log, by reason",
    ),
    Metric::new(
        "chancery_store_snapshots_installed_total",
        MetricKind::Counter,
        "Snapshots of the leader that this replica has installed",
    ),
    Metric::new(
        "chancery_store_forwarded_writes_total",
        MetricKind::Counter,
        "Write attempts that this replica sent to the leader on another replica",
    ),
    Metric::new(
        "chancery_raft_has_leader",
        MetricKind::Gauge,
        "1 if this replica hears a leader, or leads and most voters answer it; with 0 it accepts no writes",
    ),
    Metric::new("chancery_raft_is_leader", MetricKind::Gauge, "1 if this replica leads, else 0"),
    Metric::new(
        "chancery_raft_term",
        MetricKind::Gauge,
        "The Raft term: each election makes it greater",
    ),
    Metric::new(
        "chancery_raft_elections_total",
        MetricKind::Counter,
        "Elections in which this replica stood as a candidate; a pre-vote does not count",
    ),
    Metric::new(
        "chancery_raft_leader_changes_total",
        MetricKind::Counter,
        "Times that this replica has found another leader, or the same one in a later term; checked five times per second",
    ),
    Metric::new(
        "chancery_raft_certificate_seconds_left",
        MetricKind::Gauge,
        "Seconds until other replicas reject the certificate of this replica (raft.tls_cert), \
         because it or an intermediate certificate expires. Negative after that, +Inf without TLS",
    ),
    Metric::new(
        "chancery_raft_state_differences",
        MetricKind::Gauge,
        "Voters whose state differs from that of this replica at the same position of the log; any value other than 0 is an alarm",
    ),
    Metric::new(
        "chancery_raft_diverged",
        MetricKind::Gauge,
        "1 if this replica has stopped because its state or its log differs from that of the cluster, else 0",
    ),
    Metric::new("chancery_raft_voters", MetricKind::Gauge, "Members that vote"),
    Metric::new("chancery_raft_learners", MetricKind::Gauge, "Members that do not vote"),
    Metric::new(
        "chancery_raft_voters_up",
        MetricKind::Gauge,
        "Voters that the leader has heard recently, including itself; 0 on replicas that do not lead",
    ),
    Metric::new(
        "chancery_raft_connections",
        MetricKind::Gauge,
        "Incoming connections of the replication port",
    ),
    Metric::new(
        "chancery_raft_refused_connections_total",
        MetricKind::Counter,
        "Connections to the replication port that were rejected or closed, by reason. tls: no \
         TLS, or no certificate of the CA. protocol: not HTTP/2. silent: no data in time, or \
         closed by the peer. limit: its slot was needed. accept: the accept failed, usually for \
         lack of file descriptors",
    ),
    Metric::new(
        "chancery_raft_apply_lag_entries",
        MetricKind::Gauge,
        "Log entries that this replica knows to be committed and has not yet applied",
    ),
    Metric::new(
        "chancery_raft_replication_lag_entries",
        MetricKind::Gauge,
        "Log entries that a member lacks, by its ID; 0 on replicas that do not lead",
    ),
    Metric::new(
        "chancery_store_last_log_index",
        MetricKind::Gauge,
        "Index of the last entry in the log",
    ),
    Metric::new(
        "chancery_store_applied_index",
        MetricKind::Gauge,
        "Index of the last applied entry",
    ),
    Metric::new("chancery_store_revision", MetricKind::Gauge, "Revision of the state"),
    Metric::new("chancery_store_resources", MetricKind::Gauge, "Resources in the state"),
    Metric::new("chancery_freezes", MetricKind::Gauge, "Freezes of scopes, or of all scopes"),
    Metric::new(
        "chancery_held_resources",
        MetricKind::Gauge,
        "Resources that writes have changed in frozen scopes, counted once per freeze, including those that were changed back",
    ),
    Metric::new("chancery_secrets_sealed", MetricKind::Gauge, "Sealed resources in the state"),
    Metric::new(
        "chancery_secrets_unopened",
        MetricKind::Gauge,
        "Sealed resources that this replica cannot open. Their types are unavailable to clients that see them. Alert on a value above 0",
    ),
    Metric::new(
        "chancery_store_log_bytes",
        MetricKind::Gauge,
        "Bytes of entries in the log that are not purged",
    ),
    Metric::new(
        "chancery_store_free_bytes",
        MetricKind::Gauge,
        "Bytes free on the file system of the data directory",
    ),
    Metric::new(
        "chancery_store_failed",
        MetricKind::Gauge,
        "1 if the replica has failed and accepts no writes, else 0",
    ),
];

/// The handles of the metrics.
#[derive(Clone)]
pub(crate) struct StoreMetrics {
    pub(crate) append_seconds: Histogram,
    pub(crate) fsync_seconds: Histogram,
    fsyncs_total: Counter,
    /// The same count for [`crate::Status`]: handles cannot be read.
    fsyncs: Arc<AtomicU64>,
    pub(crate) commits_total: Counter,
    pub(crate) refused_too_large: Counter,
    pub(crate) refused_disk_full: Counter,
    pub(crate) refused_failed: Counter,
    pub(crate) refused_no_leader: Counter,
    pub(crate) refused_behind: Counter,
    pub(crate) refused_busy: Counter,
    pub(crate) snapshots_installed: Counter,
    pub(crate) forwarded_writes: Counter,
    pub(crate) cluster: ClusterMetrics,
    pub(crate) last_log_index: Gauge,
    pub(crate) applied_index: Gauge,
    pub(crate) revision: Gauge,
    pub(crate) resources: Gauge,
    pub(crate) freezes: Gauge,
    pub(crate) held: Gauge,
    pub(crate) sealed: Gauge,
    pub(crate) unopened: Gauge,
    pub(crate) log_bytes: Gauge,
    pub(crate) free_bytes: Gauge,
    pub(crate) failed: Gauge,
}

/// Counts elections: one for each term in which this replica is a candidate, however many voters it
/// asks. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Elections {
    /// The last term that was counted.
    term: Arc<AtomicU64>,
    total: Arc<Counter>,
}

impl Elections {
    fn new() -> Self {
        Self { term: Arc::default(), total: Arc::new(counter!("chancery_raft_elections_total")) }
    }

    /// Sets the term before this start. Elections up to that term are not counted.
    pub(crate) fn begin_after(&self, term: u64) {
        self.term.fetch_max(term, Ordering::Relaxed);
    }

    /// Counts an election: this replica stands in a term, or has been elected in it.
    pub(crate) fn stands_in(&self, term: u64) {
        if self.term.fetch_max(term, Ordering::Relaxed) < term {
            self.total.increment(1);
        }
    }
}

/// The metrics of a replica's cluster.
#[derive(Clone)]
pub(crate) struct ClusterMetrics {
    pub(crate) has_leader: Gauge,
    pub(crate) is_leader: Gauge,
    pub(crate) term: Gauge,
    pub(crate) elections: Elections,
    pub(crate) leader_changes: Counter,
    pub(crate) certificate_seconds_left: Gauge,
    pub(crate) state_differences: Gauge,
    pub(crate) diverged: Gauge,
    pub(crate) voters: Gauge,
    pub(crate) learners: Gauge,
    pub(crate) voters_up: Gauge,
    pub(crate) apply_lag: Gauge,
}

/// The reason why a connection to the replication port was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The peer has no certificate of the CA, or does not speak TLS.
    Tls,
    /// The peer does not speak HTTP/2.
    Protocol,
    /// The peer sent nothing in time, or closed the connection.
    Silent,
    /// Another connection took its place.
    Limit,
    /// The connection could not be accepted at all.
    Accept,
}

impl Refused {
    /// All reasons, in order.
    pub(crate) const ALL: [Self; 5] =
        [Self::Tls, Self::Protocol, Self::Silent, Self::Limit, Self::Accept];

    fn label(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Protocol => "protocol",
            Self::Silent => "silent",
            Self::Limit => "limit",
            Self::Accept => "accept",
        }
    }
}

/// The metrics of the replication port.
pub(crate) struct PortMetrics {
    pub(crate) connections: Gauge,
    refused: [Counter; Refused::ALL.len()],
}

impl PortMetrics {
    /// Creates all of them, with the value 0.
    pub(crate) fn new() -> Self {
        let refused = |reason: Refused| counter!("chancery_raft_refused_connections_total", "reason" => reason.label());
        Self {
            connections: gauge!("chancery_raft_connections"),
            refused: Refused::ALL.map(refused),
        }
    }

    /// Returns the counter of refused connections for a reason.
    pub(crate) fn refused(&self, reason: Refused) -> &Counter {
        &self.refused[reason as usize]
    }
}

impl ClusterMetrics {
    fn new() -> Self {
        Self {
            has_leader: gauge!("chancery_raft_has_leader"),
            is_leader: gauge!("chancery_raft_is_leader"),
            term: gauge!("chancery_raft_term"),
            elections: Elections::new(),
            leader_changes: counter!("chancery_raft_leader_changes_total"),
            certificate_seconds_left: gauge!("chancery_raft_certificate_seconds_left"),
            state_differences: gauge!("chancery_raft_state_differences"),
            diverged: gauge!("chancery_raft_diverged"),
            voters: gauge!("chancery_raft_voters"),
            learners: gauge!("chancery_raft_learners"),
            voters_up: gauge!("chancery_raft_voters_up"),
            apply_lag: gauge!("chancery_raft_apply_lag_entries"),
        }
    }
}

/// Returns the gauge for the lag of a member. There are as many gauges as members.
pub(crate) fn replication_lag(replica: u64) -> Gauge {
    gauge!("chancery_raft_replication_lag_entries", "replica" => replica.to_string())
}

/// Converts a number to a gauge value. Values above 2^53 lose precision, which no real count
/// reaches.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(crate) fn gauge_value(n: u64) -> f64 {
    n as f64
}

impl StoreMetrics {
    /// Describes the metrics and creates the handles.
    pub(crate) fn new() -> Self {
        chancery_metrics::describe(METRICS);
        // These metrics exist even without a replication port.
        drop(PortMetrics::new());
        let refused = |reason: &'static str| counter!("chancery_store_refused_writes_total", "reason" => reason);
        Self {
            append_seconds: histogram!("chancery_store_append_seconds"),
            fsync_seconds: histogram!("chancery_store_fsync_seconds"),
            fsyncs_total: counter!("chancery_store_fsyncs_total"),
            fsyncs: Arc::default(),
            commits_total: counter!("chancery_store_commits_total"),
            refused_too_large: refused("too_large"),
            refused_disk_full: refused("disk_full"),
            refused_failed: refused("failed"),
            refused_no_leader: refused("no_leader"),
            refused_behind: refused("behind"),
            refused_busy: refused("busy"),
            snapshots_installed: counter!("chancery_store_snapshots_installed_total"),
            forwarded_writes: counter!("chancery_store_forwarded_writes_total"),
            cluster: ClusterMetrics::new(),
            last_log_index: gauge!("chancery_store_last_log_index"),
            applied_index: gauge!("chancery_store_applied_index"),
            revision: gauge!("chancery_store_revision"),
            resources: gauge!("chancery_store_resources"),
            freezes: gauge!("chancery_freezes"),
            held: gauge!("chancery_held_resources"),
            sealed: gauge!("chancery_secrets_sealed"),
            unopened: gauge!("chancery_secrets_unopened"),
            log_bytes: gauge!("chancery_store_log_bytes"),
            free_bytes: gauge!("chancery_store_free_bytes"),
            failed: gauge!("chancery_store_failed"),
        }
    }

    pub(crate) fn count_fsync(&self) {
        self.fsyncs_total.increment(1);
        self.fsyncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fsyncs(&self) -> u64 {
        self.fsyncs.load(Ordering::Relaxed)
    }
}
