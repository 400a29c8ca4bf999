//! The filter of the log, as the process provides it.

use std::time::Duration;

/// The filter of the log at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilterState {
    /// The filter in force.
    pub filter: String,
    /// The filter of the configuration.
    pub configured: String,
    /// The time until the configured filter returns.
    pub returns_in: Option<Duration>,
}

/// The log of the process.
pub trait LogFilter: Send + Sync {
    /// Returns the filter.
    fn state(&self) -> LogFilterState;

    /// Changes the filter; an empty text means the filter of the configuration. Must be called within a runtime.
    ///
    /// # Errors
    /// Returns the reason if the filter is not valid. The filter does not change.
    fn set(&self, filter: &str, lasts: Option<Duration>) -> Result<LogFilterState, String>;
}
