//! The clock of a turn.

use tokio::time::Instant;

/// One reading of the clock for a whole turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    /// The milliseconds since the start of the fan-out, which is the protocol's clock.
    pub(crate) ms: u64,
}

impl Now {
    /// Returns the seconds since the start of the fan-out.
    pub(crate) fn second(self) -> u64 {
        self.ms / 1000
    }

    /// Converts a later instant to the protocol's time in milliseconds.
    pub(crate) fn ms_at(self, later: Instant) -> u64 {
        let passed = later.saturating_duration_since(self.instant).as_millis();
        self.ms.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    pub(crate) fn since(start: Instant, instant: Instant) -> Self {
        let ms = instant.saturating_duration_since(start).as_millis();
        Self { instant, ms: u64::try_from(ms).unwrap_or(u64::MAX) }
    }
}
