//! What can be set, with its defaults and its rules.

use std::time::Duration;

use chancery_model::RESOURCE_NAME_BYTES_MAX;

/// Settings of the discovery services' transport.
///
/// What a default is for stands in `docs/hostile-clients.md`.
#[derive(Debug, Clone)]
pub struct Config {
    /// Connections at a time; one more is told so and closed.
    pub connections_max: usize,
    /// Connections at a time from one address, or from one /64 of IPv6; one more is told so and closed.
    pub connections_per_peer_max: usize,
    /// Streams at a time on one connection; one more is refused with `RESOURCE_EXHAUSTED`. Envoy opens
    /// a stream per cluster where EDS is not aggregated, all on one connection.
    pub streams_per_connection_max: u32,
    /// Bytes of one request (OPS-12). A reconnecting delta client lists all that it holds in one.
    pub request_bytes_max: usize,
    /// Bytes of the large requests (over 256 KiB) of all streams that are being read or wait for their
    /// shard. Clients that come back with what they hold wait for each other here (OPS-17). One of
    /// `request_bytes_max` always fits in: so much is set apart for one that finds no other room. If
    /// this is no more than that, large requests go through one at a time.
    pub large_requests_bytes_max: usize,
    /// How long a large request may take to arrive, without the time that it waits for others. Of
    /// each tenth of it 64 KiB have to come.
    pub large_request_timeout: Duration,
    /// Names in one request, of all its lists together (SOTW-52). A delta client that comes back has
    /// each name in two of them.
    pub names_per_request_max: usize,
    /// Bytes of a resource's name in a request (SOTW-52); at most what a resource may be called.
    pub name_bytes_max: usize,
    /// Bytes of the message of a NACK that are kept; the rest is cut off.
    pub nack_message_bytes_max: usize,
    /// Requests per second on one stream, over time.
    pub requests_per_second_max: u32,
    /// Requests that a stream may send at once after a quiet time.
    pub requests_burst_max: u32,
    /// Bytes of `Node` in a request.
    pub node_bytes_max: usize,
    /// Scalars in `Node.metadata`.
    pub node_metadata_max: usize,
    /// Bytes of a request's headers, each with 32 more (RFC 9113, 6.5.2).
    pub header_list_bytes_max: u32,
    /// Bytes that a client may send on a stream before the replica has read them.
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together.
    pub connection_window_bytes: u32,
    /// Bytes that wait to be written, per stream.
    pub send_buffer_bytes_max: usize,
    /// Streams that a client may open and reset before the replica has looked at them
    /// (CVE-2023-44487); one more closes the connection.
    pub pending_resets_max: usize,
    /// Streams of a connection that the replica may have to reset for the client's mistakes
    /// (CVE-2025-8671); one more closes the connection.
    pub error_resets_max: usize,
    /// HTTP/2 frames that carry no data (PING, SETTINGS, HEADERS, `RST_STREAM` and others) per second on
    /// one connection, over time. What the client is sent pays for further ones: one for each 32 bytes.
    pub control_frames_per_second_max: u32,
    /// The same, at once after a quiet time; one more closes the connection.
    pub control_frames_burst_max: u32,
    /// How long a connection may be quiet before it is probed (OPS-14).
    pub keepalive_interval: Duration,
    /// How long a probe may stay unanswered. A connection that takes nothing of what it is sent for
    /// both times together is closed as well.
    pub keepalive_timeout: Duration,
    /// How long a new connection may take to open its first stream, the handshake included.
    pub first_stream_timeout: Duration,
    /// How long a connection may have no stream; it is closed before twice that time.
    pub idle_timeout: Duration,
    /// Age at which a client is asked to connect anew, so that load spreads over the replicas
    /// (OPS-13). Each connection's own is up to a tenth more or less. `None` for never.
    pub connection_age_max: Option<Duration>,
    /// How long streams may go on after that, before they are ended.
    pub connection_age_grace: Duration,
    /// Connections per second whose streams are ended in a drain, so that the clients do not come to
    /// the other replicas all at once (T11).
    pub drain_connections_per_second: u32,
    /// How long that may take at most; if it is too short, more are ended per second.
    pub drain_spread_max: Duration,
    /// How long a client may take to close when all its streams have been ended.
    pub close_timeout: Duration,
}

/// A setting that can not be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, {rule}")]
pub struct ConfigError {
    /// The field of [`Config`].
    pub key: &'static str,
    /// Its value, as text.
    pub value: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections_max: 100_000,
            // All that one host or NAT address can open to one port with Linux's own port range (28,232).
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
        }
    }
}

impl Config {
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Names the first setting that can not be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        const POSITIVE: &str = "it has to be more than 0";
        /// Flow control windows are 31 bits wide (RFC 9113, 6.9.1).
        const WINDOW: &str = "it has to be from 65535 to 2147483647";
        let rule = |key, value: &dyn ToString, holds: bool, rule| match holds {
            true => Ok(()),
            false => Err(ConfigError { key, value: value.to_string(), rule }),
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
        // A connection's beginning takes a few.
        let burst = self.control_frames_burst_max;
        rule("control_frames_burst_max", &burst, burst >= 100, "it has to be at least 100")?;
        time("keepalive_interval", self.keepalive_interval)?;
        time("keepalive_timeout", self.keepalive_timeout)?;
        time("first_stream_timeout", self.first_stream_timeout)?;
        time("idle_timeout", self.idle_timeout)?;
        time("connection_age_max", self.connection_age_max.unwrap_or(Duration::MAX))?;
        count("drain_connections_per_second", self.drain_connections_per_second)?;
        time("close_timeout", self.close_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_a_refusal_names_key_value_and_rule() {
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
