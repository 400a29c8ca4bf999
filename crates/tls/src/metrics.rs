//! The metrics of TLS, by port.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Gauge, counter, gauge};

use crate::{handshake::HandshakeResult, material::TlsPort, peer::CredentialEnd};

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_tls_certificate_seconds_left",
        MetricKind::Gauge,
        "Seconds until the certificate of a port (tls_cert) expires, or an intermediate certificate in \
         its file. Negative after that, +Inf without TLS",
    ),
    Metric::new(
        "chancery_tls_certificate_lifetime_seconds",
        MetricKind::Gauge,
        "Validity period of a port's certificate chain (tls_cert), in seconds: from the latest start to \
         the earliest end. +Inf without TLS",
    ),
    Metric::new(
        "chancery_tls_reloads_total",
        MetricKind::Counter,
        "Attempts to read changed certificate files, by port and result. failed: the files are \
         unusable, and the previous certificates stay in use",
    ),
    Metric::new(
        "chancery_tls_handshakes_total",
        MetricKind::Counter,
        "TLS handshakes of incoming connections, by port and result. unknown_ca, self_signed: no CA of \
         the port signed the client's certificate. bad_san, bad_certificate: its names or key usage \
         are invalid. bad_crl: it cannot be checked with the revocation list. refused_by_client: the \
         client rejected the certificate of the server. protocol: the client does not use TLS",
    ),
    Metric::new(
        "chancery_tls_ended_connections_total",
        MetricKind::Counter,
        "Connections that end because the certificate of their client is no longer valid, by port and \
         reason. expired: it is about to expire. revoked: the revocation list now names it. untrusted: \
         the port no longer trusts its CA",
    ),
];

/// The metrics of one port.
#[derive(Debug)]
pub(crate) struct PortMetrics {
    pub(crate) seconds_left: Gauge,
    pub(crate) lifetime_seconds: Gauge,
    pub(crate) reloaded: Counter,
    pub(crate) reload_failed: Counter,
    /// By [`HandshakeResult`].
    handshakes: [Counter; HandshakeResult::ALL.len()],
    /// By [`CredentialEnd`].
    ended: [Counter; CredentialEnd::ALL.len()],
}

impl PortMetrics {
    pub(crate) fn new(port: TlsPort) -> Self {
        let port = port.label();
        let reloads =
            |result| counter!("chancery_tls_reloads_total", "port" => port, "result" => result);
        Self {
            seconds_left: gauge!("chancery_tls_certificate_seconds_left", "port" => port),
            lifetime_seconds: gauge!("chancery_tls_certificate_lifetime_seconds", "port" => port),
            reloaded: reloads("ok"),
            reload_failed: reloads("failed"),
            handshakes: HandshakeResult::ALL.map(|result| {
                counter!("chancery_tls_handshakes_total", "port" => port, "result" => result.label())
            }),
            ended: CredentialEnd::ALL.map(|end| {
                counter!("chancery_tls_ended_connections_total", "port" => port, "reason" => end.label())
            }),
        }
    }

    pub(crate) fn on_handshake(&self, result: HandshakeResult) {
        self.handshakes[result as usize].increment(1);
    }

    pub(crate) fn on_end(&self, end: CredentialEnd) {
        self.ended[end as usize].increment(1);
    }
}

/// Describes the metrics, and shows those of all ports: the counters as zero, and the times as +Inf.
pub fn register_metrics() {
    chancery_metrics::describe(METRICS);
    for port in TlsPort::ALL {
        let PortMetrics {
            seconds_left,
            lifetime_seconds,
            reloaded,
            reload_failed,
            handshakes,
            ended,
        } = PortMetrics::new(port);
        seconds_left.set(f64::INFINITY);
        lifetime_seconds.set(f64::INFINITY);
        for counter in [reloaded, reload_failed].into_iter().chain(handshakes).chain(ended) {
            counter.increment(0);
        }
    }
}
