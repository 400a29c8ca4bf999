//! The settings of the transport, with defaults and validation.

use std::time::Duration;

use chancery_auth::Authenticator;
use chancery_load::LoadReports;
use chancery_model::RESOURCE_NAME_BYTES_MAX;
use chancery_tls::PortTls;

use crate::BodyEncoder;

/// The settings of the discovery services' transport.
///
/// `docs/hostile-clients.md` explains the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The certificates of the port; `None` without TLS.
    pub tls: Option<PortTls>,
    /// Authenticates clients, if the fan-out enforces access rules.
    pub auth: Option<Authenticator>,
    /// Whether the services of v2 are served (SVC-14). They serve the resources that are stored under
    /// types of v2.
    pub v2_services: bool,
    /// The maximum number of connections. Further connections are rejected with GOAWAY and an
    /// explanation.
    pub connections_max: usize,
    /// The maximum number of connections from one address, or from one /64 of IPv6. Further connections
    /// are rejected with GOAWAY and an explanation.
    pub connections_per_peer_max: usize,
    /// The maximum number of streams on one connection. Further streams are rejected with
    /// `RESOURCE_EXHAUSTED`. Without aggregated EDS, Envoy opens a stream per cluster, all on one
    /// connection.
    pub streams_per_connection_max: u32,
    /// The maximum size of a request in bytes (OPS-12). A reconnecting delta client lists all its
    /// resources in one request.
    pub request_bytes_max: usize,
    /// The memory budget in bytes for the large requests (over 256 KiB) of all streams that are being
    /// read or wait for their shard. Reconnecting clients with many resources wait for each other here
    /// (OPS-17). One request of `request_bytes_max` always fits: that size is reserved for one request
    /// that finds no other memory. If the budget is not larger than that, large requests are handled
    /// one at a time.
    pub large_requests_bytes_max: usize,
    /// The maximum time for a large request to arrive, excluding the time that it waits for others. In
    /// each tenth of this time, 64 KiB must arrive.
    pub large_request_timeout: Duration,
    /// The maximum number of names in one request, in all its lists together (SOTW-52). A reconnecting
    /// delta client lists each name twice.
    pub names_per_request_max: usize,
    /// The maximum length in bytes of a resource name in a request (SOTW-52). No resource may have a
    /// longer name.
    pub name_bytes_max: usize,
    /// The maximum number of bytes of a NACK's message that are kept. The rest is truncated.
    pub nack_message_bytes_max: usize,
    /// The sustained rate of requests per second on one stream.
    pub requests_per_second_max: u32,
    /// The number of requests that a stream may send at once after idle time.
    pub requests_burst_max: u32,
    /// The maximum size of `Node` in a request, in bytes.
    pub node_bytes_max: usize,
    /// The maximum number of scalars in `Node.metadata`.
    pub node_metadata_max: usize,
    /// The maximum size of a request's headers in bytes, with 32 bytes for each header (RFC 9113,
    /// 6.5.2).
    pub header_list_bytes_max: u32,
    /// The number of bytes that a client may send on a stream before the replica reads them.
    pub stream_window_bytes: u32,
    /// The number of bytes that a client may send on all streams of a connection before the replica
    /// reads them.
    pub connection_window_bytes: u32,
    /// The maximum number of bytes per stream that wait to be written.
    pub send_buffer_bytes_max: usize,
    /// The maximum number of streams that a client may open and reset before the replica has handled
    /// them (CVE-2023-44487). One more closes the connection.
    pub pending_resets_max: usize,
    /// The maximum number of streams of a connection that the replica resets because of client errors
    /// (CVE-2025-8671). One more closes the connection.
    pub error_resets_max: usize,
    /// The sustained rate of HTTP/2 frames without data (PING, SETTINGS, HEADERS, `RST_STREAM` and
    /// others) per second on one connection. Each 32 bytes that the replica sends allow one more frame.
    pub control_frames_per_second_max: u32,
    /// The number of such frames allowed at once after idle time. One more closes the connection.
    pub control_frames_burst_max: u32,
    /// The idle time after which the replica probes a connection with a PING (OPS-14).
    pub keepalive_interval: Duration,
    /// The maximum time to answer a probe. A connection that accepts no data for the sum of both times
    /// is closed too.
    pub keepalive_timeout: Duration,
    /// The maximum time for a new connection to open its first stream, including the handshake.
    pub first_stream_timeout: Duration,
    /// The maximum time for a connection without a stream. The replica closes it before twice that
    /// time.
    pub idle_timeout: Duration,
    /// The age at which a client is asked to reconnect, so that load spreads over the replicas
    /// (OPS-13). The age of each connection varies by up to a tenth. `None` disables the limit.
    pub connection_age_max: Option<Duration>,
    /// The time that streams may continue after the maximum age before the replica ends them.
    pub connection_age_grace: Duration,
    /// The number of connections per second whose streams end during a drain. It prevents all clients
    /// from reconnecting to other replicas at once (T11).
    pub drain_connections_per_second: u32,
    /// The maximum duration of a drain. If it is too short for that rate, more connections end per
    /// second.
    pub drain_spread_max: Duration,
    /// The maximum time for a client to close its connection after all its streams have ended.
    pub close_timeout: Duration,
    /// The maximum time that a REST poll waits for a change (REST-13). It has to be less than the
    /// clients' timeout for a request. 0 answers at once.
    pub poll_hold: Duration,
    /// The maximum number of bytes for the encoded responses to REST polls, of all clients together.
    /// Polls that need more are rejected with 503.
    pub poll_bytes_max: usize,
    /// Writes resources as JSON for REST polls.
    pub json: BodyEncoder,
    /// The load reports of clients; `None` if the load reporting service is not served (LRS-20).
    pub load_reports: Option<LoadReports>,
}

/// A setting with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, {rule}")]
pub struct ConfigError {
    /// The field of [`Config`].
    pub key: &'static str,
    /// The value, as text.
    pub value: String,
    /// The violated rule.
    pub rule: &'static str,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tls: None,
            auth: None,
            v2_services: false,
            connections_max: 100_000,
            // One host or NAT address can open 28,232 connections to one port with Linux's default port
            // range.
            connections_per_peer_max: 32_000,
            streams_per_connection_max: 2000,
            request_bytes_max: 64 << 20,
            large_requests_bytes_max: 256 << 20,
            large_request_timeout: Duration::from_secs(60),
            names_per_request_max: 2_000_000,
            name_bytes_max: RESOURCE_NAME_BYTES_MAX,
            nack_message_bytes_max: 4 << 10,
            requests_per_second_max: 10_000,
            requests_burst_max: 50_000,
            node_bytes_max: 1 << 20,
            node_metadata_max: 4096,
            header_list_bytes_max: 32 << 10,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 2 << 20,
            send_buffer_bytes_max: 128 << 10,
            pending_resets_max: 20,
            error_resets_max: 1024,
            control_frames_per_second_max: 1000,
            control_frames_burst_max: 10_000,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            first_stream_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            connection_age_max: Some(Duration::from_secs(3600)),
            connection_age_grace: Duration::from_secs(30),
            drain_connections_per_second: 2000,
            drain_spread_max: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            poll_hold: Duration::ZERO,
            poll_bytes_max: 512 << 20,
            json: BodyEncoder::none(),
            load_reports: None,
        }
    }
}

impl Config {
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Returns the first invalid setting.
    pub fn validate(&self) -> Result<(), ConfigError> {
        const POSITIVE: &str = "it has to be more than 0";
        /// Flow control windows have 31 bits (RFC 9113, 6.9.1).
        const WINDOW: &str = "it has to be from 65535 to 2147483647";
        let rule = |key, value: &dyn ToString, holds: bool, rule| {
            if holds { Ok(()) } else { Err(ConfigError { key, value: value.to_string(), rule }) }
        };
        let window = |bytes: u32| (65_535..=i32::MAX.unsigned_abs()).contains(&bytes);
        let size = |key, value: usize| rule(key, &value, value > 0, POSITIVE);
        let count = |key, value: u32| rule(key, &value, value > 0, POSITIVE);
        let time = |key, value: Duration| {
            rule(key, &format!("{} s", value.as_secs_f64()), !value.is_zero(), POSITIVE)
        };
        size("connections_max", self.connections_max)?;
        size("connections_per_peer_max", self.connections_per_peer_max)?;
        count("streams_per_connection_max", self.streams_per_connection_max)?;
        rule(
            "request_bytes_max",
            &self.request_bytes_max,
            (1024..=1 << 30).contains(&self.request_bytes_max),
            "it has to be from 1024 to 1073741824",
        )?;
        size("large_requests_bytes_max", self.large_requests_bytes_max)?;
        time("large_request_timeout", self.large_request_timeout)?;
        size("names_per_request_max", self.names_per_request_max)?;
        rule(
            "name_bytes_max",
            &self.name_bytes_max,
            (1..=RESOURCE_NAME_BYTES_MAX).contains(&self.name_bytes_max),
            "it has to be from 1 to 4096",
        )?;
        size("nack_message_bytes_max", self.nack_message_bytes_max)?;
        count("requests_per_second_max", self.requests_per_second_max)?;
        count("requests_burst_max", self.requests_burst_max)?;
        size("node_bytes_max", self.node_bytes_max)?;
        size("node_metadata_max", self.node_metadata_max)?;
        rule(
            "header_list_bytes_max",
            &self.header_list_bytes_max,
            (1024..=16 << 20).contains(&self.header_list_bytes_max),
            "it has to be from 1024 to 16777216",
        )?;
        let bytes = self.stream_window_bytes;
        rule("stream_window_bytes", &bytes, window(bytes), WINDOW)?;
        let bytes = self.connection_window_bytes;
        rule("connection_window_bytes", &bytes, window(bytes), WINDOW)?;
        rule(
            "send_buffer_bytes_max",
            &self.send_buffer_bytes_max,
            (16 << 10..=u32::MAX as usize).contains(&self.send_buffer_bytes_max),
            "it has to be from 16384 to 4294967295",
        )?;
        size("pending_resets_max", self.pending_resets_max)?;
        size("error_resets_max", self.error_resets_max)?;
        count("control_frames_per_second_max", self.control_frames_per_second_max)?;
        // The start of a connection takes a few of these frames.
        let burst = self.control_frames_burst_max;
        rule("control_frames_burst_max", &burst, burst >= 100, "it has to be at least 100")?;
        time("keepalive_interval", self.keepalive_interval)?;
        time("keepalive_timeout", self.keepalive_timeout)?;
        time("first_stream_timeout", self.first_stream_timeout)?;
        time("idle_timeout", self.idle_timeout)?;
        time("connection_age_max", self.connection_age_max.unwrap_or(Duration::MAX))?;
        count("drain_connections_per_second", self.drain_connections_per_second)?;
        time("close_timeout", self.close_timeout)?;
        size("poll_bytes_max", self.poll_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_error_names_key_value_and_rule() {
        assert_eq!(Config::default().validate(), Ok(()));
        let error = |config: Config| config.validate().unwrap_err().to_string();
        assert_eq!(
            error(Config { idle_timeout: Duration::ZERO, ..Config::default() }),
            "idle_timeout is 0 s, it has to be more than 0"
        );
        assert_eq!(
            error(Config { stream_window_bytes: 1, ..Config::default() }),
            "stream_window_bytes is 1, it has to be from 65535 to 2147483647"
        );
    }
}
