//! Entry point for the fuzz target of `fuzz/`: load reports, and their sums, which are private.

use bytes::Bytes;
use chancery_proto::lrs::LoadStatsRequest;
use prost::Message;
use tokio::time::Instant;

use crate::{
    node_share::{Bytes as _, Limits, Owner},
    report::Report,
    settings::Clusters,
    show::{self, Query},
    stats::{Counts, Gauges, bounded},
    sum_limits::Kind,
    table::{Source, Table},
};

/// Limits that short inputs reach.
const LIMITS: Limits = Limits {
    bytes_max: 16 << 10,
    clusters_max: 8,
    localities_max: 4,
    endpoints_max: 4,
    metrics_max: 4,
    categories_max: 4,
    name_bytes_max: 64,
};

/// Adds a report to empty sums, on two streams. Panics if the sums exceed a limit, differ from those of the report
/// that prost decodes, or keep present values after the end of the streams.
///
/// The caller measures the memory until `decoded` is called.
pub fn load_report(message: &[u8], decoded: &dyn Fn()) {
    let Ok(report) = Report::new(Bytes::copy_from_slice(message)) else { return };
    let (now, all) = (Instant::now(), Clusters::All);
    let source = |stream| Source { stream, owner: Owner(stream), node: "n".into() };
    let mut table = Table::new(LIMITS);
    if table.add(&source(1), &report, &all, now).is_err() {
        assert_eq!(table.totals.n_reports, 0, "nothing of a malformed report counts");
        assert_eq!(table.clusters.len(), 0, "nothing of a malformed report counts");
        return;
    }
    let query = Query { cluster: String::new(), endpoints: true, clusters_max: 8, after: None };
    drop(show::status(&table, &query, now));
    decoded();
    if let Ok(expected) = LoadStatsRequest::decode(message) {
        assert_eq!((table.totals.counts, table.totals.dropped), sums(&expected));
    }
    // A second report of a stream replaces its present values.
    let gauges = table.totals.gauges;
    table.add(&source(1), &report, &all, now).expect("the report was valid before");
    let is_complete = table.limits.omitted == [0; Kind::ALL.len()];
    assert!(!is_complete || table.totals.gauges == gauges, "{gauges:?} is {:?}", table.totals);
    table.add(&source(2), &report, &all, now).expect("the report was valid before");
    assert!(table.limits.budget.used <= LIMITS.bytes_max, "{}", table.limits.budget.used);
    table.end_stream(1);
    table.end_stream(2);
    assert_eq!(table.totals.gauges, Gauges::default());
    assert_eq!(table.limits.budget.used, table.clusters.n_bytes(), "only the sums are kept");
}

/// Returns the sums of all clusters, and of their dropped requests.
fn sums(request: &LoadStatsRequest) -> (Counts, u64) {
    let (mut counts, mut dropped) = (Counts::default(), 0);
    for cluster in &request.cluster_stats {
        dropped += bounded(cluster.total_dropped_requests);
        for locality in &cluster.upstream_locality_stats {
            counts.add(Counts {
                issued: bounded(locality.total_issued_requests),
                succeeded: bounded(locality.total_successful_requests),
                failed: bounded(locality.total_error_requests),
                new_connections: bounded(locality.total_new_connections),
                failed_connections: bounded(locality.total_fail_connections),
            });
        }
    }
    (counts, dropped)
}
