//! The reasons for the end of a connection.

use std::{error::Error, io};

use chancery_fanout::limit_hit;

/// The reason for the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The client closed or lost the connection.
    Client,
    /// The connection reached its maximum age.
    Age,
    /// The replica shuts down.
    Drain,
    /// The connection had no stream for too long.
    Idle,
    /// The connection never had a stream.
    FirstStream,
    /// The client did not answer a probe, or accepted no data.
    Keepalive,
    /// The connection exceeded a limit.
    Limit,
    /// The client sent bytes that are not valid HTTP.
    ProtocolError,
    /// The TLS handshake failed.
    Tls,
    /// The client's certificate no longer permits the connection.
    Credential,
}

impl Reason {
    /// All reasons, in the order of their discriminants.
    pub(crate) const ALL: [Self; 10] = [
        Self::Client,
        Self::Age,
        Self::Drain,
        Self::Idle,
        Self::FirstStream,
        Self::Keepalive,
        Self::Limit,
        Self::ProtocolError,
        Self::Tls,
        Self::Credential,
    ];

    /// Returns the label of the metric.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Age => "age",
            Self::Drain => "drain",
            Self::Idle => "idle",
            Self::FirstStream => "first_stream",
            Self::Keepalive => "keepalive",
            Self::Limit => "limit",
            Self::ProtocolError => "protocol_error",
            Self::Tls => "tls",
            Self::Credential => "credential",
        }
    }

    /// Returns the reason for the end of HTTP. Counts the limit if one was exceeded.
    pub(crate) fn of(ended: &hyper::Result<()>) -> Self {
        let Err(error) = ended else { return Self::Client };
        if error.is_timeout() {
            return Self::Keepalive;
        }
        if error.is_parse() {
            return Self::ProtocolError;
        }
        let Some(source) = error.source() else { return Self::Client };
        if let Some(error) = source.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::TimedOut => Self::Keepalive,
                io::ErrorKind::QuotaExceeded => {
                    limit_hit("control_frames");
                    Self::Limit
                }
                _ => Self::Client,
            };
        }
        let Some(error) = source.downcast_ref::<h2::Error>() else { return Self::Client };
        match (error.is_library(), error.reason()) {
            (true, Some(h2::Reason::ENHANCE_YOUR_CALM)) => {
                limit_hit("http2_flood");
                Self::Limit
            }
            (true, _) => Self::ProtocolError,
            (false, _) => Self::Client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_list_matches_discriminants() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.label());
        }
    }
}
