//! Limits and times of a session.

use std::{collections::BTreeSet, sync::Arc};

use crate::Protocol;

/// Limits and times of a session. Times are in milliseconds of the caller's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The maximum time for which an unacknowledged response delays the next response of its type,
    /// and a type delays the types that follow it (ADS-22).
    pub ack_timeout_ms: u64,
    /// The time after which an unanswered response is overdue and the caller closes the stream.
    /// `None` disables this limit. Memory is bounded without it. Some clients never answer one
    /// response and continue with a later one.
    pub ack_close_after_ms: Option<u64>,
    /// The time after the first request for a type during which an aggregated stream holds back
    /// removals of that type. A reconnecting client requests the types that refer to it shortly
    /// afterwards.
    pub resume_hold_ms: u64,
    /// The maximum time for which removals are kept back because the client still subscribes to a
    /// route table that no longer exists. A listener that drains uses it.
    pub drain_hold_ms: u64,
    /// The size in bytes at which the session splits a response, where the protocol allows it
    /// (OPS-12).
    pub response_bytes_target: usize,
    /// The maximum number of names that a stream may subscribe to, over all types (SOTW-52).
    pub names_max: usize,
    /// The maximum number of types that a stream may open.
    pub types_max: usize,
    /// The maximum number of removals, per type, that are held back for rejected referrers.
    pub held_removals_max: usize,
    /// The maximum number of bytes that are kept of the message of a NACK.
    pub nack_message_bytes_max: usize,
    /// The maximum number of resources in a wildcard's first state for which the session tracks
    /// rejections by resource. If the client rejects a part of a larger first state, all of it
    /// counts as rejected.
    pub first_state_listed_max: usize,
    /// Whether responses contain errors for subscribed names that do not exist (ERR-14). A feature of
    /// the client could enable them for its session alone.
    pub resource_errors: bool,
    /// The authorities of structured names that exist here, in canonical form (XDSTP-25). `None` means
    /// all.
    pub authorities: Option<Arc<BTreeSet<String>>>,
    /// The collections that sinks of MCP can request. `None` means all (MCP-26).
    pub collections: Option<Arc<BTreeSet<String>>>,
    /// Whether the session ignores a request for another collection. Otherwise the request ends the stream (MCP-26).
    pub ignore_other_collections: bool,
}

impl Config {
    /// The defaults. Real fleets do not reach these limits.
    pub const DEFAULTS: Self = Self {
        ack_timeout_ms: 5_000,
        ack_close_after_ms: None,
        resume_hold_ms: 1_000,
        // Envoy's default drain time of 600 s, and a minute for its last responses.
        drain_hold_ms: 660_000,
        response_bytes_target: 3 << 20,
        names_max: 1_000_000,
        types_max: 64,
        held_removals_max: 10_000,
        nack_message_bytes_max: 4 << 10,
        first_state_listed_max: 100,
        resource_errors: false,
        authorities: None,
        collections: None,
        ignore_other_collections: false,
    };

    /// An ACK timeout that no stream reaches, in milliseconds: 100 years.
    const NEVER_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

    /// Returns the configuration for sessions of a protocol. In MCP, the next response always waits for the answer to
    /// the previous one, and a response is never split (MCP-30).
    pub(crate) fn of(self: Arc<Self>, protocol: Protocol) -> Arc<Self> {
        match protocol {
            Protocol::Sotw | Protocol::Delta => self,
            Protocol::Mcp => Arc::new(Self {
                ack_timeout_ms: Self::NEVER_MS,
                response_bytes_target: usize::MAX,
                ..(*self).clone()
            }),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULTS
    }
}
