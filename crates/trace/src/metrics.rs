//! The metrics of traces.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, counter};

/// The metrics of this crate. They stay 0 without a receiver.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_trace_spans_total",
        MetricKind::Counter,
        "Spans of traces, by result. sent: the receiver accepted the span. rejected: the receiver rejected it. failed: its batch was not sent. dropped: the queue was full",
    ),
    Metric::new(
        "chancery_trace_exports_total",
        MetricKind::Counter,
        "Batches of spans, by result: ok, or failed because the receiver returned an error or did not answer in time",
    ),
];

/// Describes all metrics and sets them to 0.
pub fn register_metrics() {
    chancery_metrics::describe(METRICS);
    drop(Counters::new());
}

/// The counters of an exporter.
pub(crate) struct Counters {
    pub(crate) sent: Counter,
    pub(crate) rejected: Counter,
    pub(crate) failed: Counter,
    pub(crate) dropped: Counter,
    pub(crate) exports_ok: Counter,
    pub(crate) exports_failed: Counter,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let spans = |result: &'static str| {
            let counter = counter!("chancery_trace_spans_total", "result" => result);
            counter.increment(0);
            counter
        };
        let exports = |result: &'static str| {
            let counter = counter!("chancery_trace_exports_total", "result" => result);
            counter.increment(0);
            counter
        };
        Self {
            sent: spans("sent"),
            rejected: spans("rejected"),
            failed: spans("failed"),
            dropped: spans("dropped"),
            exports_ok: exports("ok"),
            exports_failed: exports("failed"),
        }
    }
}
