//! Unix times of credentials.

use std::time::{Duration, SystemTime};

/// The first second of the year 10000. Later times have no usual form.
pub(crate) const SECONDS_END: u64 = 253_402_300_800;

/// Returns the Unix time in seconds of a wall clock.
pub(crate) fn seconds(wall: SystemTime) -> u64 {
    wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
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
    fn every_time_can_be_shown() {
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
