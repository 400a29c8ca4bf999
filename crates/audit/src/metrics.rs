//! The metrics of the audit log.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Gauge, counter, gauge};

/// All metrics of the audit log.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_audit_records_total",
        MetricKind::Counter,
        "Audit records by sink (file, stdout, syslog) and result. written: the sink has the record. \
         dropped: the record is lost. failed: an attempt to write it has failed. sync_failed: a file \
         could not be synced",
    ),
    Metric::new(
        "chancery_audit_oldest_unwritten_seconds",
        MetricKind::Gauge,
        "The age of the oldest audit record that a sink has not written, over all sinks. 0 if all \
         are written",
    ),
];

/// The kinds of sinks.
pub(crate) const KINDS: [&str; 3] = ["file", "stdout", "syslog"];

/// The counters of one sink.
#[derive(Clone)]
pub(crate) struct SinkMetrics {
    pub(crate) written: Counter,
    pub(crate) dropped: Counter,
    pub(crate) failed: Counter,
    pub(crate) sync_failed: Counter,
}

impl SinkMetrics {
    pub(crate) fn new(sink: &'static str) -> Self {
        let records = |result: &'static str| counter!("chancery_audit_records_total", "sink" => sink, "result" => result);
        Self {
            written: records("written"),
            dropped: records("dropped"),
            failed: records("failed"),
            sync_failed: records("sync_failed"),
        }
    }
}

/// Describes the metrics, and shows all of them as zero.
pub(crate) fn register() -> Gauge {
    chancery_metrics::describe(METRICS);
    for kind in KINDS {
        let SinkMetrics { written, dropped, failed, sync_failed } = SinkMetrics::new(kind);
        for counter in [written, dropped, failed, sync_failed] {
            counter.increment(0);
        }
    }
    let oldest = gauge!("chancery_audit_oldest_unwritten_seconds");
    oldest.set(0.0);
    oldest
}
