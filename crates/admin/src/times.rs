//! Times in messages.

use std::time::{SystemTime, UNIX_EPOCH};

/// Converts a time to milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
