//! What can be set, with its defaults and its rules.

use std::time::Duration;

/// Settings of the discovery services' transport.
#[derive(Debug, Clone)]
pub struct Config {
    /// Connections at a time; one more is closed at once.
    pub connections_max: usize,
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
    /// Names in one request, of all its lists together (SOTW-52).
    pub names_per_request_max: usize,
    /// Requests per second on one stream, over time.
    pub requests_per_second_max: u32,
    /// Requests that a stream may send at once after a quiet time.
    pub requests_burst_max: u32,
    /// Bytes of `Node` in a request.
    pub node_bytes_max: usize,
    /// Scalars in `Node.metadata`.
    pub node_metadata_max: usize,
    /// Bytes of a request's headers.
    pub header_list_bytes_max: u32,
    /// Bytes that a client may send on a stream before the replica has read them.
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together.
    pub connection_window_bytes: u32,
    /// Bytes that wait to be written, per stream.
    pub send_buffer_bytes_max: usize,
    /// How long a connection may be quiet before it is probed (OPS-14).
    pub keepalive_interval: Duration,
    /// How long a probe may stay unanswered.
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
            streams_per_connection_max: 2000,
            request_bytes_max: 64 << 20,
            large_requests_bytes_max: 256 << 20,
            large_request_timeout: Duration::from_secs(60),
            names_per_request_max: 1_000_000,
            requests_per_second_max: 10_000,
            requests_burst_max: 50_000,
            node_bytes_max: 1 << 20,
            node_metadata_max: 4096,
            header_list_bytes_max: 32 << 10,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 2 << 20,
            send_buffer_bytes_max: 128 << 10,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            first_stream_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            connection_age_max: Some(Duration::from_secs(3600)),
            connection_age_grace: Duration::from_secs(30),
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
        count("requests_per_second_max", self.requests_per_second_max)?;
        count("requests_burst_max", self.requests_burst_max)?;
        size("node_bytes_max", self.node_bytes_max)?;
        size("node_metadata_max", self.node_metadata_max)?;
        count("header_list_bytes_max", self.header_list_bytes_max)?;
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
        time("keepalive_interval", self.keepalive_interval)?;
        time("keepalive_timeout", self.keepalive_timeout)?;
        time("first_stream_timeout", self.first_stream_timeout)?;
        time("idle_timeout", self.idle_timeout)?;
        time("connection_age_max", self.connection_age_max.unwrap_or(Duration::MAX))?;
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
