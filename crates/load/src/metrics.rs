//! The metrics of load reports. No label has the name of a cluster, because clients choose it.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Gauge, counter, gauge};

use crate::{stats::Totals, sum_limits::Kind, table::Table};

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_load_streams",
        MetricKind::Gauge,
        "Streams of load reports (LRS) that have sent a request.",
    ),
    Metric::new(
        "chancery_load_reports_total",
        MetricKind::Counter,
        "Load reports, by result: accepted or rejected.",
    ),
    Metric::new(
        "chancery_load_requests_total",
        MetricKind::Counter,
        "Requests that clients report, over all clusters, by outcome. issued: started. succeeded and \
         failed: finished. dropped: not sent.",
    ),
    Metric::new(
        "chancery_load_requests_in_progress",
        MetricKind::Gauge,
        "Unfinished requests in the newest reports of all open streams, over all clusters.",
    ),
    Metric::new("chancery_load_clusters", MetricKind::Gauge, "Clusters with reported load."),
    Metric::new(
        "chancery_load_bytes",
        MetricKind::Gauge,
        "Approximate memory for the sums of load reports (load_reports.bytes_max).",
    ),
    Metric::new(
        "chancery_load_omitted_total",
        MetricKind::Counter,
        "Items of load reports that the replica did not keep, by kind. cluster, locality, endpoint, \
         metric and category: a limit was reached. stream: the present values of a stream did not fit. \
         value: a value was not a finite number.",
    ),
    Metric::new(
        "chancery_load_over_share_total",
        MetricKind::Counter,
        "Items in chancery_load_omitted_total that the replica did not keep because their node holds its \
         share of a limit.",
    ),
];

/// The outcomes of requests.
const OUTCOMES: [&str; 4] = ["issued", "succeeded", "failed", "dropped"];

#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) streams: Gauge,
    accepted: Counter,
    pub(crate) rejected: Counter,
    /// By [`OUTCOMES`].
    requests: [Counter; OUTCOMES.len()],
    in_progress: Gauge,
    clusters: Gauge,
    bytes: Gauge,
    /// By [`Kind`].
    omitted: [Counter; Kind::ALL.len()],
    over_share: Counter,
}

/// The sums that the metrics already show.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    totals: Totals,
    omitted: [u64; Kind::ALL.len()],
    over_share: u64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        chancery_metrics::describe(METRICS);
        let result = |result| counter!("chancery_load_reports_total", "result" => result);
        let metrics = Self {
            streams: gauge!("chancery_load_streams"),
            accepted: result("accepted"),
            rejected: result("rejected"),
            requests: OUTCOMES
                .map(|outcome| counter!("chancery_load_requests_total", "outcome" => outcome)),
            in_progress: gauge!("chancery_load_requests_in_progress"),
            clusters: gauge!("chancery_load_clusters"),
            bytes: gauge!("chancery_load_bytes"),
            omitted: Kind::ALL
                .map(|kind| counter!("chancery_load_omitted_total", "kind" => kind.name())),
            over_share: counter!("chancery_load_over_share_total"),
        };
        let counters = [&metrics.accepted, &metrics.rejected, &metrics.over_share];
        for counter in counters.into_iter().chain(&metrics.requests).chain(&metrics.omitted) {
            counter.increment(0);
        }
        for gauge in [&metrics.streams, &metrics.in_progress, &metrics.clusters, &metrics.bytes] {
            gauge.set(0.0);
        }
        metrics
    }

    /// Shows the sums.
    pub(crate) fn show(&self, table: &Table, shown: &mut Shown) {
        let (old, new) = (shown.totals, table.totals);
        let requests = |totals: &Totals| {
            let counts = totals.counts;
            [counts.issued, counts.succeeded, counts.failed, totals.dropped]
        };
        for ((counter, old), new) in self.requests.iter().zip(requests(&old)).zip(requests(&new)) {
            counter.increment(new.saturating_sub(old));
        }
        self.accepted.increment(new.n_reports.saturating_sub(old.n_reports));
        let omitted = &table.limits.omitted;
        for ((counter, old), new) in self.omitted.iter().zip(shown.omitted).zip(omitted) {
            counter.increment(new.saturating_sub(old));
        }
        self.in_progress.set(value(new.gauges.in_progress));
        self.clusters.set(value(table.clusters.len() as u64));
        self.bytes.set(value(table.limits.budget.used as u64));
        let over_share = table.limits.n_over_share;
        self.over_share.increment(over_share.saturating_sub(shown.over_share));
        *shown = Shown { totals: new, omitted: *omitted, over_share };
    }
}

/// Returns a number as a gauge value. Gauges are floating-point numbers.
#[expect(clippy::cast_precision_loss, reason = "no reader needs more than 53 bits")]
pub(crate) fn value(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_their_discriminants() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place, "{}", kind.name());
        }
    }
}
