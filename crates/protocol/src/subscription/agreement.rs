//! The form of the next response to a sink of MCP: a full state, or an incremental response.

/// The conditions for an incremental response.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// Whether the sink accepts an incremental response, according to its most recent request (MCP-34).
    pub(super) accepts_incremental: bool,
    /// Whether the state of the sink is unknown, so that it needs a full state: it rejected the last response (MCP-46),
    /// or listed a version that this cluster never sent (MCP-37).
    pub(super) needs_full_state: bool,
}
