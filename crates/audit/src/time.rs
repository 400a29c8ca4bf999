//! Timestamps in records, and the text form of durations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The units of [`duration_text`] in milliseconds, the largest first.
const UNITS: [(&str, u128); 3] = [("h", 3_600_000), ("m", 60_000), ("s", 1000)];

/// Returns the milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a duration, truncated to milliseconds, with the largest unit that leaves no fraction: `250ms`, `90s`, `1h`.
#[must_use]
pub fn duration_text(time: Duration) -> String {
    let millis = time.as_millis();
    match UNITS.into_iter().find(|(_, factor)| millis.is_multiple_of(*factor)) {
        _ if millis == 0 => "0s".to_owned(),
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => format!("{millis}ms"),
    }
}

/// Formats milliseconds since 1970 as `2026-11-20T09:45:42.000Z` (RFC 3339).
#[must_use]
pub fn timestamp(millis: u64) -> String {
    let (seconds, rest) = (millis / 1000, millis % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest:03}Z")
}

/// Returns the year, month and day of a day since 1970-01-01. The years of the computation begin in March, so
/// that the leap day is the last day. Each era of 400 years has 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    // 719,468 days before 1970-01-01 is 0000-03-01.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_the_largest_unit_without_a_fraction() {
        for (millis, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (1500, "1500ms"),
            (90_000, "90s"),
            (300_000, "5m"),
            (3_600_000, "1h"),
            (359_999_996_400_000, "99999999h"),
        ] {
            assert_eq!(duration_text(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn timestamp_has_date_and_milliseconds() {
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(millis), expected);
        }
    }
}
