//! The form of the next response to a sink of MCP: a full state, or an incremental response.

/// The conditions for an incremental response.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// Whether the sink accepts an incremental response, according to its most recent request (MCP-34).
    accepts_incremental: bool,
    /// Whether the state of the sink is unknown, so that it needs a full state: it rejected the last response (MCP-46),
    /// or listed a version that this cluster never sent (MCP-37).
    needs_full_state: bool,
}

impl Agreement {
    /// Records whether the sink accepts an incremental response, according to its most recent request.
    pub(super) fn on_request(&mut self, accepts_incremental: bool) {
        self.accepts_incremental = accepts_incremental;
    }

    /// Records the answer to a response.
    pub(super) fn on_answer(&mut self, accepts_incremental: bool, rejects: bool) {
        *self = Self { accepts_incremental, needs_full_state: rejects };
    }

    /// Records that the sink starts with the versions that it lists.
    pub(super) fn on_restarted(&mut self) {
        self.needs_full_state = false;
    }

    /// Records that the sink has listed a version that this cluster never sent.
    pub(super) fn on_unknown_version(&mut self) {
        self.needs_full_state = true;
    }

    /// Returns whether the next response is incremental. The first response of a collection is the full state, unless
    /// the sink has listed the versions that it holds, so that its state `is_known` (MCP-36).
    pub(super) fn is_incremental(&self, is_known: bool) -> bool {
        self.accepts_incremental && !self.needs_full_state && is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each condition alone requires a full state.
    #[test]
    fn incremental_response_needs_consent_and_a_known_state() {
        let mut agreement = Agreement::default();
        assert!(!agreement.is_incremental(true), "the sink did not accept it");
        agreement.on_request(true);
        assert!(agreement.is_incremental(true) && !agreement.is_incremental(false));
        agreement.on_answer(true, true);
        assert!(!agreement.is_incremental(true), "the state after a rejection is unknown");
        agreement.on_restarted();
        agreement.on_unknown_version();
        assert!(!agreement.is_incremental(true));
        agreement.on_answer(true, false);
        assert!(agreement.is_incremental(true));
    }
}
