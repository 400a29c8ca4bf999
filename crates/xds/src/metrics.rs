//! The metrics of the transport, in addition to those of the fan-out.

use chancery_fanout::type_label;
use chancery_metrics::{Metric, MetricKind};
use chancery_model::{TypeUrl, types};
use metrics::{Counter, Gauge, counter, gauge};

use crate::{reason::Reason, rest::RESULTS};

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new("chancery_xds_connections", MetricKind::Gauge, "Open connections."),
    Metric::new(
        "chancery_xds_connections_total",
        MetricKind::Counter,
        "Connections that were accepted.",
    ),
    Metric::new(
        "chancery_xds_connection_ends_total",
        MetricKind::Counter,
        "Connections that ended, by reason. client: the client closed or lost the \
         connection. age and drain: the server asked the client to reconnect. idle: no stream for too \
         long. first_stream: never a stream. keepalive: the client did not answer a \
         probe, or accepted no data. limit: it exceeded a limit, or another \
         connection needed its slot. protocol_error: it sent bytes that are not valid \
         HTTP. tls: the TLS handshake failed. credential: the server asked the client to \
         reconnect, because its certificate is about to expire or is no longer accepted.",
    ),
    Metric::new(
        "chancery_xds_polls_total",
        MetricKind::Counter,
        "REST polls, by type and result. changed: a response was sent (200). unchanged: there was \
         nothing to send (304). rejected: the request is invalid or exceeds a limit (4xx). \
         unavailable: the replica is overloaded or behind (503). failed: a resource has no JSON form \
         (500).",
    ),
    Metric::new(
        "chancery_xds_poll_nacks_total",
        MetricKind::Counter,
        "REST polls whose client reports that it rejected a response, by type. Envoy does not report \
         this.",
    ),
    Metric::new(
        "chancery_xds_accept_errors_total",
        MetricKind::Counter,
        "Failed attempts to accept a connection, usually for lack of file descriptors.",
    ),
    Metric::new(
        "chancery_xds_request_bytes_total",
        MetricKind::Counter,
        "Bytes of discovery requests and load reports.",
    ),
    Metric::new(
        "chancery_mcp_connected_sinks",
        MetricKind::Gauge,
        "Remote sinks to which this replica has a stream.",
    ),
    Metric::new(
        "chancery_mcp_sink_failures_total",
        MetricKind::Counter,
        "Streams to remote sinks that ended or did not begin.",
    ),
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
        let polled = types::KNOWN
            .iter()
            .filter(|known| known.service.as_ref().is_some_and(|service| service.rest.is_some()));
        for known in polled {
            let label = type_label(&TypeUrl::from_static(known.url));
            counter!("chancery_xds_poll_nacks_total", "type" => label).increment(0);
            for result in RESULTS {
                counter!("chancery_xds_polls_total", "type" => label, "result" => result)
                    .increment(0);
            }
        }
        gauge!("chancery_mcp_connected_sinks").set(0.0);
        counter!("chancery_mcp_sink_failures_total").increment(0);
        Self {
            connections: gauge!("chancery_xds_connections"),
            connections_total: counter!("chancery_xds_connections_total"),
            accept_errors: counter!("chancery_xds_accept_errors_total"),
            ends: Reason::ALL.map(
                |reason| counter!("chancery_xds_connection_ends_total", "reason" => reason.label()),
            ),
            request_bytes: counter!("chancery_xds_request_bytes_total"),
        }
    }

    pub(crate) fn on_end(&self, reason: Reason) {
        self.ends[reason as usize].increment(1);
    }
}
