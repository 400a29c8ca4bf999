//! The time for decisions about credentials.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

/// The first second of the year 10000. Later times have no usual form.
pub(crate) const SECONDS_END: u64 = 253_402_300_800;

/// A clock that never goes back: a credential that was once refused as expired is never valid again.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    latest: AtomicU64,
}

impl Clock {
    /// Returns the Unix time in seconds: the largest one that was ever passed to this function.
    pub(crate) fn latest(&self, now: SystemTime) -> u64 {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

/// Returns the time of a Unix time in seconds.
pub(crate) fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(SECONDS_END - 1))
}

/// Formats a Unix time in seconds.
pub(crate) fn date(seconds: u64) -> String {
    httpdate::fmt_http_date(time(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_goes_back() {
        let clock = Clock::default();
        assert_eq!(clock.latest(time(100)), 100);
        assert_eq!(clock.latest(time(50)), 100);
        assert_eq!(clock.latest(time(101)), 101);
    }

    #[test]
    fn every_time_can_be_shown() {
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
