//! The load reports of a replica, and the reporting streams.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use chancery_admin_proto::v1 as pb;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedMutexGuard, watch},
    time::Instant,
};

use crate::{
    metrics::{Metrics, Shown},
    node_share::{Limits, Owner},
    report::{Report, ReportError},
    settings::{Settings, SettingsError},
    show::{self, Query},
    table::{Source, Table},
};

/// The load reports of a replica. A clone is cheap.
#[derive(Debug, Clone)]
pub struct LoadReports(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: watch::Sender<Arc<Settings>>,
    /// Locked for one report or one answer at a time, in the order of arrival.
    sums: Arc<tokio::sync::Mutex<Sums>>,
    /// The streams that have ended, and whose present values are to be removed.
    ended: Mutex<Vec<u64>>,
    next_stream: AtomicU64,
    /// Hashes identities and IDs of nodes. Its keys are random, so that no client can choose the hash of another one.
    hasher: RandomState,
    n_streams: AtomicU64,
    metrics: Metrics,
    since: SystemTime,
}

#[derive(Debug)]
struct Sums {
    table: Table,
    shown: Shown,
}

/// The reports of one stream. Dropping it removes the present values of the stream from the sums.
#[derive(Debug)]
pub struct Reporter {
    shared: Arc<Shared>,
    source: Source,
}

impl LoadReports {
    /// Creates empty sums.
    ///
    /// # Errors
    /// Fails if the settings are invalid.
    pub fn new(settings: Settings, limits: Limits) -> Result<Self, SettingsError> {
        settings.validate()?;
        let sums = Sums { table: Table::new(limits), shown: Shown::default() };
        Ok(Self(Arc::new(Shared {
            settings: watch::Sender::new(Arc::new(settings)),
            sums: Arc::new(tokio::sync::Mutex::new(sums)),
            ended: Mutex::default(),
            next_stream: AtomicU64::new(0),
            hasher: RandomState::new(),
            n_streams: AtomicU64::new(0),
            metrics: Metrics::new(),
            since: SystemTime::now(),
        })))
    }

    /// Returns the present settings.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.borrow())
    }

    /// Returns the settings for streams that follow them.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Settings>> {
        self.0.settings.subscribe()
    }

    /// Changes the settings. Equal settings wake no stream. Returns the new settings.
    ///
    /// # Errors
    /// Fails if the new settings are invalid.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Settings),
    ) -> Result<Arc<Settings>, SettingsError> {
        let mut result = Ok(());
        self.0.settings.send_if_modified(|settings| {
            let mut new = Settings::clone(settings);
            change(&mut new);
            result = new.validate();
            let is_changed = result.is_ok() && new != **settings;
            if is_changed {
                *settings = Arc::new(new);
            }
            is_changed
        });
        result.map(|()| self.settings())
    }

    /// Opens a stream of reports. What it adds to the sums counts towards the share of its identity and node.
    #[must_use]
    pub fn open(&self, identity: &str, node: &str) -> Reporter {
        let shared = Arc::clone(&self.0);
        shared.metrics.streams.increment(1.0);
        shared.n_streams.fetch_add(1, Ordering::Relaxed);
        let stream = shared.next_stream.fetch_add(1, Ordering::Relaxed);
        let owner = Owner(shared.hasher.hash_one((identity, node)));
        Reporter { shared, source: Source { stream, owner, node: node.into() } }
    }

    /// Counts a report that was rejected.
    pub fn count_rejected(&self) {
        self.0.metrics.rejected.increment(1);
    }

    /// Returns the sums, without the fields that describe the replica and its cluster.
    pub async fn show(&self, query: Query) -> pb::LoadStatus {
        let shared = &self.0;
        let settings = self.settings();
        let n_streams = shared.n_streams.load(Ordering::Relaxed);
        let since = shared.since;
        let ending = Arc::clone(shared);
        let show = move |sums: &mut Sums| {
            ending.end_streams(sums);
            let mut status = show::status(&sums.table, &query, Instant::now());
            status.settings = Some(show::show_settings(&settings));
            status.streams = n_streams;
            let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            status.since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            status
        };
        shared.run(true, show).await.unwrap_or_default()
    }
}

impl Reporter {
    /// Adds a report, after the reports that arrived before it.
    ///
    /// # Errors
    /// Fails if the report is malformed. Then nothing of it counts.
    pub async fn report(&self, report: Report) -> Result<(), ReportError> {
        let (source, is_large) = (self.source.clone(), report.is_large());
        let settings = Arc::clone(&self.shared.settings.borrow());
        let add = move |sums: &mut Sums| {
            sums.table.add(&source, &report, &settings.clusters, Instant::now())
        };
        // A panic of the thread ends with the report.
        self.shared.run(is_large, add).await.unwrap_or(Ok(()))
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.shared.metrics.streams.decrement(1.0);
        self.shared.n_streams.fetch_sub(1, Ordering::Relaxed);
        self.shared.ended.lock().push(self.source.stream);
        self.shared.remove_ended();
    }
}

impl Shared {
    /// Runs work on the sums, on a blocking thread if it takes long. Returns `None` if that thread was
    /// stopped.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        is_long: bool,
        work: impl FnOnce(&mut Sums) -> T + Send + 'static,
    ) -> Option<T> {
        let sums = Arc::clone(&self.sums).lock_owned().await;
        let shared = Arc::clone(self);
        if is_long || sums.table.wants_sweep(Instant::now()) {
            return tokio::task::spawn_blocking(move || shared.run_locked(sums, work)).await.ok();
        }
        Some(shared.run_locked(sums, work))
    }

    fn run_locked<T>(
        &self,
        mut sums: OwnedMutexGuard<Sums>,
        work: impl FnOnce(&mut Sums) -> T,
    ) -> T {
        let result = work(&mut sums);
        // The stream of a report may have ended since the report got the lock.
        self.end_streams(&mut sums);
        let Sums { table, shown } = &mut *sums;
        self.metrics.show(table, shown);
        drop(sums);
        self.remove_ended();
        result
    }

    fn end_streams(&self, sums: &mut Sums) {
        let ended = std::mem::take(&mut *self.ended.lock());
        for stream in ended {
            sums.table.end_stream(stream);
        }
    }

    /// Removes the values of ended streams, unless other work is running, which then does so.
    fn remove_ended(&self) {
        while !self.ended.lock().is_empty() {
            let Ok(mut sums) = self.sums.try_lock() else { return };
            self.end_streams(&mut sums);
            let Sums { table, shown } = &mut *sums;
            self.metrics.show(table, shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chancery_proto::lrs::{ClusterStats, LoadStatsRequest, UpstreamLocalityStats};
    use prost::Message;

    use super::*;

    fn report(n_clusters: usize) -> Report {
        report_of("c", n_clusters)
    }

    fn report_of(prefix: &str, n_clusters: usize) -> Report {
        let cluster = |n| ClusterStats {
            cluster_name: format!("{prefix}{n}"),
            upstream_locality_stats: vec![UpstreamLocalityStats {
                total_requests_in_progress: 1,
                ..UpstreamLocalityStats::default()
            }],
            ..ClusterStats::default()
        };
        let cluster_stats = (0..n_clusters).map(cluster).collect();
        let request = LoadStatsRequest { node: None, cluster_stats };
        Report::new(request.encode_to_vec().into()).unwrap()
    }

    /// LRS-13: a stream that ends while its large report is read leaves no present values.
    #[tokio::test]
    async fn stream_that_ends_during_its_report_leaves_no_present_values() {
        let reports = LoadReports::new(Settings::default(), Limits::default()).unwrap();
        let stream = reports.open("anonymous", "n");
        let large = report(5000);
        assert!(large.is_large());
        // The report goes on after its stream has given up.
        drop(tokio::time::timeout(Duration::ZERO, stream.report(large)).await);
        drop(stream);
        let query =
            Query { cluster: String::new(), endpoints: false, clusters_max: 1, after: None };
        let status = reports.show(query).await;
        assert_eq!((status.reports, status.streams), (1, 0));
        assert_eq!((status.clusters.len(), status.clusters_omitted), (1, 4999));
        assert_eq!(status.total.unwrap().in_progress, 0);
    }

    /// T3: an identity that claims the node of another one does not use up the other one's share.
    #[tokio::test]
    async fn share_of_a_node_belongs_to_one_identity() {
        let limits = Limits { clusters_max: 8, ..Limits::default() };
        let reports = LoadReports::new(Settings::default(), limits).unwrap();
        let mut n_clusters = Vec::new();
        for identity in ["token:a", "token:b"] {
            let stream = reports.open(identity, "n");
            stream.report(report_of(identity, 8)).await.unwrap();
            let query =
                Query { cluster: String::new(), endpoints: false, clusters_max: 8, after: None };
            n_clusters.push(reports.show(query).await.clusters.len());
        }
        assert_eq!(n_clusters, [4, 6], "each identity can use half of what is left");
    }

    /// LRS-07: invalid settings change nothing, and equal settings wake no stream.
    #[tokio::test]
    async fn only_changed_settings_wake_streams() {
        let reports = LoadReports::new(Settings::default(), Limits::default()).unwrap();
        let watch = reports.watch();
        let error = reports.change(|settings| settings.interval = Duration::ZERO).unwrap_err();
        assert_eq!(error, SettingsError::Interval(Duration::ZERO));
        reports.change(|settings| settings.endpoints = false).unwrap();
        assert!(!watch.has_changed().unwrap());
        reports.change(|settings| settings.endpoints = true).unwrap();
        assert!(watch.has_changed().unwrap() && reports.settings().endpoints);
    }
}
