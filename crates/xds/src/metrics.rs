//! The metrics of the transport, in addition to those of the fan-out.

use chancery_fanout::{Metric, MetricKind};
use metrics::{Counter, Gauge, counter, gauge};

use crate::reason::Reason;

const CONNECTIONS: &str = "chancery_xds_connections";
const CONNECTIONS_TOTAL: &str = "chancery_xds_connections_total";
const CONNECTION_ENDS: &str = "chancery_xds_connection_ends_total";
const ACCEPT_ERRORS: &str = "chancery_xds_accept_errors_total";
const REQUEST_BYTES: &str = "chancery_xds_request_bytes_total";

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(CONNECTIONS, MetricKind::Gauge, "Open connections."),
    Metric::new(CONNECTIONS_TOTAL, MetricKind::Counter, "Connections that were accepted."),
    Metric::new(
        CONNECTION_ENDS,
        MetricKind::Counter,
        "Connections that ended, by reason. client: the client closed or lost the \
         connection. age and drain: it was asked to reconnect. idle: no stream for too \
         long. first_stream: never a stream. keepalive: the client did not answer a \
         probe, or accepted no data. limit: it exceeded a limit. protocol_error: it sent \
         bytes that are not valid HTTP/2.",
    ),
    Metric::new(
        ACCEPT_ERRORS,
        MetricKind::Counter,
        "Failed attempts to accept a connection, usually for lack of file descriptors.",
    ),
    Metric::new(REQUEST_BYTES, MetricKind::Counter, "Bytes of discovery requests."),
];

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) connections: Gauge,
    pub(crate) connections_total: Counter,
    pub(crate) accept_errors: Counter,
    /// By [`Reason`].
    pub(crate) ends: [Counter; Reason::ALL.len()],
    pub(crate) request_bytes: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            connections: gauge!(CONNECTIONS),
            connections_total: counter!(CONNECTIONS_TOTAL),
            accept_errors: counter!(ACCEPT_ERRORS),
            ends: Reason::ALL.map(|reason| counter!(CONNECTION_ENDS, "reason" => reason.label())),
            request_bytes: counter!(REQUEST_BYTES),
        }
    }

    pub(crate) fn on_end(&self, reason: Reason) {
        self.ends[reason as usize].increment(1);
    }
}
