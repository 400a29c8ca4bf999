//! Limits and times of a session.

/// Limits and times of a session. Times are in milliseconds, of the clock that the caller counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How long an unacknowledged response holds back the next one of its type, and a type those
    /// that come after it (ADS-22).
    pub ack_timeout_ms: u64,
    /// How long a client may leave a response unanswered before its stream is overdue, and to be closed;
    /// `None` for ever. Nothing needs it: memory is bounded anyway, and there are clients that fall
    /// silent on one response and go on with a later one (`clients.md` rule 9).
    pub ack_close_after_ms: Option<u64>,
    /// How long after a type was opened its removals are held back on an aggregated stream: a client
    /// that reconnects asks for the types that refer to it just afterwards (`clients.md` rule 4).
    pub resume_hold_ms: u64,
    /// Size in bytes at which a response is cut, where the protocol allows it (OPS-12).
    pub response_bytes_target: usize,
    /// Most names that a stream may subscribe to, over all its types (SOTW-52).
    pub names_max: usize,
    /// Most types that a stream may open.
    pub types_max: usize,
    /// Most removals that are held back for rejected referrers, per type.
    pub held_removals_max: usize,
    /// Bytes of a rejection's message that are kept.
    pub nack_message_bytes_max: usize,
    /// A wildcard's first state of more resources than this counts as rejected as a whole when a part of
    /// it is, so that a session does not remember each resource.
    pub first_state_listed_max: usize,
}

impl Config {
    /// The defaults, which real fleets do not hit.
    pub const DEFAULTS: Self = Self {
        ack_timeout_ms: 5_000,
        ack_close_after_ms: None,
        resume_hold_ms: 1_000,
        response_bytes_target: 3 << 20,
        names_max: 1_000_000,
        types_max: 64,
        held_removals_max: 10_000,
        nack_message_bytes_max: 4 << 10,
        first_state_listed_max: 100,
    };
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULTS
    }
}
