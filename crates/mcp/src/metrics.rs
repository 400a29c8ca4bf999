//! The metrics of sources. The label `source` is a name from the configuration.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Gauge, counter, gauge};

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_mcp_connected",
        MetricKind::Gauge,
        "1 if this replica has a stream to the MCP source, else 0. Only the leader has one.",
    ),
    Metric::new(
        "chancery_mcp_messages_total",
        MetricKind::Counter,
        "Messages of MCP sources, by result: accepted, rejected, or held because they delete too much.",
    ),
    Metric::new(
        "chancery_mcp_held_deletions",
        MetricKind::Gauge,
        "Resources whose deletion by an MCP source waits for a confirmation.",
    ),
    Metric::new(
        "chancery_mcp_stream_errors_total",
        MetricKind::Counter,
        "Failed connections to MCP sources, and streams that ended.",
    ),
    Metric::new(
        "chancery_mcp_refused_streams_total",
        MetricKind::Counter,
        "Streams of MCP sources that this replica refused: it does not lead, the source already has a stream, or its certificate has no allowed name.",
    ),
];

#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) connected: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) rejected: Counter,
    pub(crate) held: Counter,
    pub(crate) held_deletions: Gauge,
    pub(crate) errors: Counter,
    pub(crate) refused: Counter,
}

impl Metrics {
    pub(crate) fn new(source: &str) -> Self {
        chancery_metrics::describe(METRICS);
        let source = source.to_owned();
        let result = |result| counter!("chancery_mcp_messages_total", "source" => source.clone(), "result" => result);
        let metrics = Self {
            connected: gauge!("chancery_mcp_connected", "source" => source.clone()),
            accepted: result("accepted"),
            rejected: result("rejected"),
            held: result("held"),
            held_deletions: gauge!("chancery_mcp_held_deletions", "source" => source.clone()),
            errors: counter!("chancery_mcp_stream_errors_total", "source" => source.clone()),
            refused: counter!("chancery_mcp_refused_streams_total", "source" => source.clone()),
        };
        metrics.connected.set(0.0);
        metrics.held_deletions.set(0.0);
        let Self { accepted, rejected, held, errors, refused, .. } = &metrics;
        for counter in [accepted, rejected, held, errors, refused] {
            counter.increment(0);
        }
        metrics
    }
}
