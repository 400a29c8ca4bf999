//! The sums of a replica: reports in, bounded sums out.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use chancery_proto::lrs::UnnamedEndpointLoadMetricStats;
use tokio::time::Instant;
use tracing::warn;

use crate::{
    node_share::{Limited, Limits, Owner},
    report::{ClusterPart, EndpointPart, LocalityPart, Report, ReportError},
    settings::Clusters,
    stats::{
        Cluster, ClusterKey, Counts, Endpoint, Gauges, Locality, LocalityKey, Totals, bounded, rate,
    },
    streams::StreamLoads,
    sum_limits::{Kind, SumLimits},
};

/// The time without reports after which a cluster, locality or endpoint makes room for another.
const OUTDATED_AFTER: Duration = Duration::from_secs(3600);

/// The minimum time between two log lines about nodes that hold their share.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The minimum time between two searches for outdated entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The sums of a replica.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) limits: SumLimits,
    pub(crate) clusters: Limited<Arc<ClusterKey>, Cluster>,
    pub(crate) totals: Totals,
    /// The part of each open stream in the present values.
    streams: HashMap<u64, StreamLoads>,
    swept: Option<Instant>,
    /// The time of the last log line about a node that holds its share.
    logged: Option<Instant>,
}

/// A stream of reports, and its node.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) stream: u64,
    pub(crate) owner: Owner,
    pub(crate) node: Arc<str>,
}

impl Table {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits: SumLimits::new(limits),
            clusters: Limited::default(),
            totals: Totals::default(),
            streams: HashMap::new(),
            swept: None,
            logged: None,
        }
    }

    /// Returns whether the next report first searches for outdated entries, which takes long.
    pub(crate) fn wants_sweep(&self, now: Instant) -> bool {
        self.limits.is_full && self.swept.is_none_or(|swept| now >= swept + SWEEP_INTERVAL)
    }

    /// Adds a report of a stream. The present values of clusters that are not `selected` do not count:
    /// the stream may not report them again.
    ///
    /// # Errors
    /// Fails if a part of the report is malformed. Then nothing of it counts.
    pub(crate) fn add(
        &mut self,
        source: &Source,
        report: &Report,
        selected: &Clusters,
        now: Instant,
    ) -> Result<(), ReportError> {
        report.check()?;
        if self.wants_sweep(now) {
            self.sweep(now);
        }
        let Source { stream, owner, .. } = *source;
        let n_over_share = self.limits.n_over_share;
        let mut loads = self.streams.remove(&stream).unwrap_or_else(|| StreamLoads::new(owner));
        loads.begin_report();
        let added = report.clusters().try_for_each(|part| self.add_cluster(&mut loads, part?, now));
        loads.end_rates_of_missing(&mut self.clusters, &mut self.totals);
        let keep = |key: &ClusterKey| selected.has(&key.name);
        loads.keep_only(keep, &mut self.clusters, &mut self.limits, &mut self.totals);
        self.streams.insert(stream, loads);
        self.totals.n_reports += 1;
        if self.limits.n_over_share > n_over_share {
            self.log_over_share(&source.node, self.limits.n_over_share - n_over_share, now);
        }
        added
    }

    /// Logs that a node holds its share of a limit, at most once a minute.
    fn log_over_share(&mut self, node: &str, n_items: u64, now: Instant) {
        if self.logged.is_none_or(|logged| now >= logged + LOG_INTERVAL) {
            self.logged = Some(now);
            warn!(
                ?node,
                n_items,
                "the node holds its share of the sums of load reports, and the replica does not keep \
                 further items of its reports"
            );
        }
    }

    fn add_cluster(
        &mut self,
        loads: &mut StreamLoads,
        part: ClusterPart<'_>,
        now: Instant,
    ) -> Result<(), ReportError> {
        let Self { limits, clusters, totals, .. } = self;
        let names = limits.name(part.name).zip(limits.name(part.service));
        let key = names.map(|(name, service)| Arc::new(ClusterKey { name, service }));
        let owner = loads.owner;
        let mut known = limits.entry(clusters, key, owner, Kind::Cluster);
        let period_ms = u64::try_from(part.period.as_millis()).unwrap_or(u64::MAX);
        let dropped = bounded(part.dropped);
        totals.dropped = totals.dropped.saturating_add(dropped);
        if let Some((_, cluster)) = &mut known {
            cluster.n_reports += 1;
            cluster.reported = Some(now);
            cluster.dropped = cluster.dropped.saturating_add(dropped);
            for category in part.dropped() {
                let category = category?;
                let key = limits.name(&category.category);
                let entry = limits.entry(&mut cluster.categories, key, owner, Kind::Category);
                if let Some((_, count)) = entry {
                    count.0 = count.0.saturating_add(bounded(category.dropped_count));
                }
            }
        }
        // The number of localities of a cluster is limited, and so is the number of shares.
        let mut shares: BTreeMap<Arc<LocalityKey>, Gauges> = BTreeMap::new();
        for locality in part.localities() {
            let locality = locality?;
            let counts = counts_of(&locality);
            totals.counts.add(counts);
            let Some((_, cluster)) = &mut known else { continue };
            cluster.counts.add(counts);
            let key = locality_key(limits, &locality);
            let entry = limits.entry(&mut cluster.localities, key, owner, Kind::Locality);
            let Some((key, entry)) = entry else { continue };
            entry.counts.add(counts);
            entry.reported = Some(now);
            add_details(limits, owner, entry, &locality, now)?;
            let gauges =
                Gauges::new(counts, locality.in_progress, locality.active_connections, period_ms);
            shares.entry(Arc::clone(key)).or_default().add(gauges);
        }
        if let Some((key, cluster)) = known {
            loads.replace(key, cluster, shares, rate(dropped, period_ms), limits, totals);
        }
        Ok(())
    }

    /// Removes the present values of a stream that has ended.
    pub(crate) fn end_stream(&mut self, stream: u64) {
        if let Some(mut loads) = self.streams.remove(&stream) {
            loads.keep_only(|_| false, &mut self.clusters, &mut self.limits, &mut self.totals);
        }
    }

    /// Removes clusters, localities and endpoints without recent reports.
    fn sweep(&mut self, now: Instant) {
        self.swept = Some(now);
        let Self { limits: SumLimits { budget, is_full, .. }, clusters, .. } = self;
        *is_full = false;
        let is_recent =
            |reported: Option<Instant>| reported.is_some_and(|at| now < at + OUTDATED_AFTER);
        clusters.retain(budget, |cluster| cluster.n_streams > 0 || is_recent(cluster.reported));
        for cluster in clusters.values_mut() {
            let keep = |one: &Locality| one.n_streams > 0 || is_recent(one.reported);
            cluster.localities.retain(budget, keep);
            for locality in cluster.localities.values_mut() {
                locality.endpoints.retain(budget, |endpoint| is_recent(endpoint.reported));
            }
        }
    }
}

fn counts_of(part: &LocalityPart<'_>) -> Counts {
    Counts {
        issued: bounded(part.issued),
        succeeded: bounded(part.succeeded),
        failed: bounded(part.failed),
        new_connections: bounded(part.new_connections),
        failed_connections: bounded(part.failed_connections),
    }
}

fn locality_key(limits: &SumLimits, part: &LocalityPart<'_>) -> Option<Arc<LocalityKey>> {
    Some(Arc::new(LocalityKey {
        priority: part.priority,
        region: limits.name(&part.locality.region)?,
        zone: limits.name(&part.locality.zone)?,
        sub_zone: limits.name(&part.locality.sub_zone)?,
    }))
}

/// Adds the metrics and the endpoints of a locality.
fn add_details(
    limits: &mut SumLimits,
    owner: Owner,
    entry: &mut Locality,
    part: &LocalityPart<'_>,
    now: Instant,
) -> Result<(), ReportError> {
    for (sum, reported) in entry.utilization.iter_mut().zip(part.utilization) {
        let Some(reported) = reported else { continue };
        let UnnamedEndpointLoadMetricStats {
            num_requests_finished_with_metric: requests,
            total_metric_value: total,
        } = reported;
        if !sum.add(requests, total) {
            limits.omit(Kind::Value);
        }
    }
    for metric in part.metrics() {
        let metric = metric?;
        let requests = metric.num_requests_finished_with_metric;
        let (name, sum) = (&metric.metric_name, metric.total_metric_value);
        limits.metric(&mut entry.metrics, owner, name, requests, sum);
    }
    for endpoint in part.endpoints() {
        let endpoint: EndpointPart<'_> = endpoint?;
        let key = limits.name(&endpoint.address);
        let sum = limits.entry(&mut entry.endpoints, key, owner, Kind::Endpoint);
        let Some((_, sum)): Option<(_, &mut Endpoint)> = sum else { continue };
        sum.reported = Some(now);
        sum.counts.add(Counts {
            issued: bounded(endpoint.issued),
            succeeded: bounded(endpoint.succeeded),
            failed: bounded(endpoint.failed),
            ..Counts::default()
        });
        for metric in endpoint.metrics() {
            let metric = metric?;
            let requests = metric.num_requests_finished_with_metric;
            let (name, total) = (&metric.metric_name, metric.total_metric_value);
            limits.metric(&mut sum.metrics, owner, name, requests, total);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
