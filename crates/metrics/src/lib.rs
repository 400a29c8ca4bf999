//! The description of a metric. Each crate that records metrics declares them in one table, `METRICS`.
//!
//! The server test `scraped_metrics_match_the_described_tables` compares the tables with `/metrics`, and
//! `cargo xtask metrics` generates `docs/metrics.md` from them.

mod runtimes;
mod sample;

pub use runtimes::{METRICS, register_runtime, runtime_samples};
pub use sample::{Sample, append_samples};

/// A metric, as used for registration, documentation and dashboards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The name without labels, such as `chancery_xds_streams`.
    pub name: &'static str,
    /// The kind: a counter, a gauge or a histogram.
    pub kind: MetricKind,
    /// The help text.
    pub help: &'static str,
}

/// The kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A distribution of values.
    Histogram,
}

impl Metric {
    /// Creates a metric.
    #[must_use]
    pub const fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Self {
        Self { name, kind, help }
    }
}

/// Passes the help texts of a table to the installed recorder.
pub fn describe(table: &[Metric]) {
    for Metric { name, kind, help } in table {
        match kind {
            MetricKind::Counter => metrics::describe_counter!(*name, *help),
            MetricKind::Gauge => metrics::describe_gauge!(*name, *help),
            MetricKind::Histogram => metrics::describe_histogram!(*name, *help),
        }
    }
}
