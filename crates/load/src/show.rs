//! The sums as messages of the admin API.

use chancery_admin_proto::v1 as pb;
use chancery_model::Glob;
use tokio::time::Instant;

use crate::{
    metrics::value,
    node_share::{Bytes, Limited},
    settings::Settings,
    stats::{Cluster, ClusterKey, Counts, Endpoint, Gauges, Locality, LocalityKey, Metric},
    sum_limits::Kind,
    table::Table,
};

/// The names of the utilization metrics, in the order of their fields.
const UTILIZATION: [&str; 3] = ["cpu_utilization", "mem_utilization", "application_utilization"];

/// The maximum size of an answer in bytes, approximately.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A selection of reported load.
#[derive(Debug, Clone)]
pub struct Query {
    /// The pattern of the cluster name; empty for all clusters.
    pub cluster: String,
    /// Whether the answer has endpoints.
    pub endpoints: bool,
    /// The maximum number of clusters.
    pub clusters_max: usize,
    /// The name and service name of the last cluster that is left out, with all before it.
    pub after: Option<(String, String)>,
}

/// Returns the settings as a message of the admin API.
#[must_use]
pub fn show_settings(settings: &Settings) -> pb::LoadSettings {
    pb::LoadSettings {
        clusters: settings.clusters.to_list(),
        interval_ms: u64::try_from(settings.interval.as_millis()).unwrap_or(u64::MAX),
        endpoints: settings.endpoints,
    }
}

pub(crate) fn status(table: &Table, query: &Query, now: Instant) -> pb::LoadStatus {
    let glob = Glob::new(if query.cluster.is_empty() { "*" } else { &query.cluster });
    let (mut clusters, mut left, mut clusters_omitted) = (Vec::new(), ANSWER_BYTES_MAX, 0);
    let after = query.after.as_ref().map(|(name, service)| (name.as_str(), service.as_str()));
    let is_selected = |key: &ClusterKey| {
        glob.matches(&key.name) && after.is_none_or(|after| (&*key.name, &*key.service) > after)
    };
    for (key, sum) in table.clusters.iter().filter(|(key, _)| is_selected(key)) {
        // The list ends before the first cluster that does not fit, so that the next page begins with it.
        let rest = left.checked_sub(n_bytes(key, sum, query.endpoints));
        let fits = rest.is_some() || clusters.is_empty();
        if clusters_omitted == 0 && fits && clusters.len() < query.clusters_max {
            left = rest.unwrap_or_default();
            clusters.push(cluster(key, sum, query.endpoints, now));
        } else {
            clusters_omitted += 1;
        }
    }
    let totals = &table.totals;
    let omitted = Kind::ALL.iter().zip(&table.limits.omitted).filter(|(_, count)| **count > 0);
    pb::LoadStatus {
        reports: totals.n_reports,
        total: Some(pb::LoadSum { dropped: totals.dropped, ..sum(totals.counts, totals.gauges) }),
        clusters,
        clusters_omitted,
        omitted: omitted
            .map(|(kind, count)| pb::OmittedLoad { kind: kind.name().into(), count: *count })
            .collect(),
        ..pb::LoadStatus::default()
    }
}

/// Returns the approximate size of a cluster in an answer.
fn n_bytes(key: &ClusterKey, cluster: &Cluster, endpoints: bool) -> usize {
    if endpoints {
        return key.n_bytes() + cluster.n_bytes();
    }
    let locality = |key: &LocalityKey, one: &Locality| {
        size_of::<Locality>() + key.n_bytes() + one.metrics.n_bytes()
    };
    let localities: usize = cluster.localities.iter().map(|(key, one)| locality(key, one)).sum();
    key.n_bytes() + size_of::<Cluster>() + cluster.categories.n_bytes() + localities
}

fn cluster(key: &ClusterKey, cluster: &Cluster, endpoints: bool, now: Instant) -> pb::ClusterLoad {
    let ago = cluster.reported.map(|at| now.saturating_duration_since(at)).unwrap_or_default();
    let dropped = cluster.categories.iter().map(|(category, count)| pb::DroppedLoad {
        category: category.to_string(),
        requests: count.0,
    });
    let localities = cluster.localities.iter();
    pb::ClusterLoad {
        cluster_name: key.name.to_string(),
        cluster_service_name: key.service.to_string(),
        sum: Some(pb::LoadSum { dropped: cluster.dropped, ..sum(cluster.counts, cluster.gauges) }),
        dropped: dropped.collect(),
        localities: localities.map(|(key, one)| locality(key, one, endpoints)).collect(),
        streams: cluster.n_streams as u64,
        reports: cluster.n_reports,
        reported_ms_ago: u64::try_from(ago.as_millis()).unwrap_or(u64::MAX),
    }
}

fn locality(key: &LocalityKey, locality: &Locality, endpoints: bool) -> pb::LocalityLoad {
    let utilization = UTILIZATION.into_iter().zip(&locality.utilization);
    let utilization = utilization.filter(|(_, metric)| **metric != Metric::default());
    let mut all: Vec<_> = utilization.map(|(name, one)| metric(name, *one)).collect();
    all.extend(metrics(&locality.metrics));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let shown = locality.endpoints.iter().filter(|_| endpoints);
    pb::LocalityLoad {
        region: key.region.to_string(),
        zone: key.zone.to_string(),
        sub_zone: key.sub_zone.to_string(),
        priority: key.priority,
        sum: Some(sum(locality.counts, locality.gauges)),
        metrics: all,
        endpoints: shown.map(|(address, one)| endpoint(address, one)).collect(),
    }
}

fn endpoint(address: &str, endpoint: &Endpoint) -> pb::EndpointLoad {
    let Counts { issued, succeeded, failed, .. } = endpoint.counts;
    let (address, metrics) = (address.to_owned(), metrics(&endpoint.metrics).collect());
    pb::EndpointLoad { address, issued, succeeded, failed, metrics }
}

fn metrics(all: &Limited<Box<str>, Metric>) -> impl Iterator<Item = pb::MetricLoad> {
    all.iter().map(|(name, one)| metric(name, *one))
}

fn metric(name: &str, Metric { requests, total }: Metric) -> pb::MetricLoad {
    pb::MetricLoad { name: name.to_owned(), requests, total }
}

fn sum(counts: Counts, gauges: Gauges) -> pb::LoadSum {
    let rate = |thousandths: u64| value(thousandths) / 1000.0;
    pb::LoadSum {
        issued: counts.issued,
        succeeded: counts.succeeded,
        failed: counts.failed,
        new_connections: counts.new_connections,
        failed_connections: counts.failed_connections,
        in_progress: gauges.in_progress,
        active_connections: gauges.active_connections,
        issued_per_second: rate(gauges.issued_rate),
        succeeded_per_second: rate(gauges.succeeded_rate),
        failed_per_second: rate(gauges.failed_rate),
        dropped: 0,
        dropped_per_second: rate(gauges.dropped_rate),
    }
}
