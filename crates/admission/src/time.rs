//! Durations and timestamps in the JSON mapping of protobuf.
//!
//! `prost_types` reads and writes them. It also reads other forms: a space for the `T`, no zone, no time, a
//! leap second, and more than nine digits, which it cuts off. Manifests accept only the forms of the mapping.

use std::cmp::Ordering;

use prost_types::{Duration, Timestamp};

/// The maximum of `google.protobuf.Duration` in seconds: ten thousand years.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;
/// The valid timestamps in seconds since 1970, from 0001-01-01 to 9999-12-31.
const TIMESTAMPS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Parses a duration like `1.5s` into seconds and nanoseconds with equal signs.
pub(crate) fn parse_duration(text: &str) -> Option<(i64, i32)> {
    let Duration { seconds, nanos } = text.parse().ok()?;
    (is_duration(seconds, nanos) && has_nanos(text)).then_some((seconds, nanos))
}

/// Formats a duration like `1.5s`, with 0, 3, 6 or 9 digits after the point.
pub(crate) fn print_duration(seconds: i64, nanos: i32) -> Option<String> {
    is_duration(seconds, nanos).then(|| Duration { seconds, nanos }.to_string())
}

/// Parses an RFC 3339 timestamp into seconds since 1970 and nanoseconds.
pub(crate) fn parse_timestamp(text: &str) -> Option<(i64, i32)> {
    let (date, time) = text.split_once(['T', 't'])?;
    let zone = time.get(time.rfind(['Z', 'z', '+', '-'])?..)?;
    let is_mapped = date.len() == 10
        && matches!(zone.len(), 1 | 6)
        && !text.contains(' ')
        && !time.get(6..)?.starts_with("60")
        && has_nanos(text);
    let Timestamp { seconds, nanos } = text.parse().ok().filter(|_| is_mapped)?;
    is_timestamp(seconds, nanos).then_some((seconds, nanos))
}

/// Formats a timestamp in RFC 3339, in UTC.
pub(crate) fn print_timestamp(seconds: i64, nanos: i32) -> Option<String> {
    is_timestamp(seconds, nanos).then(|| Timestamp { seconds, nanos }.to_string())
}

/// Returns whether a fraction has at most nine digits.
fn has_nanos(text: &str) -> bool {
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    fraction.bytes().take_while(u8::is_ascii_digit).count() <= 9
}

/// Returns whether the mapping has a form for a duration.
pub(crate) fn is_duration(seconds: i64, nanos: i32) -> bool {
    let is_in_range = match seconds.unsigned_abs().cmp(&DURATION_SECONDS_MAX.unsigned_abs()) {
        Ordering::Less => nanos.unsigned_abs() < 1_000_000_000,
        Ordering::Equal => nanos == 0,
        Ordering::Greater => false,
    };
    is_in_range && (seconds == 0 || nanos == 0 || (seconds < 0) == (nanos < 0))
}

/// Returns whether the mapping has a form for a timestamp.
pub(crate) fn is_timestamp(seconds: i64, nanos: i32) -> bool {
    TIMESTAMPS.contains(&seconds) && (0..1_000_000_000).contains(&nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_parsing_follows_proto_json_mapping() {
        for (text, expected) in [
            ("1s", Some((1, 0))),
            ("0.5s", Some((0, 500_000_000))),
            ("-1.000000001s", Some((-1, -1))),
            ("315576000000s", Some((315_576_000_000, 0))),
            ("315576000000.1s", None),
            ("315576000001s", None),
            ("1", None),
            ("s", None),
            (".5s", None),
            ("1.s", None),
            ("1.0000000001s", None),
            ("1m", None),
            ("1 s", None),
            ("+1s", None),
            ("--1s", None),
            ("1e3s", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
        for text in ["0s", "1s", "0.500s", "-1.000001s", "-0.000000001s", "315576000000s"] {
            let (seconds, nanos) = parse_duration(text).unwrap();
            assert_eq!(print_duration(seconds, nanos).unwrap(), text);
        }
        for (seconds, nanos) in [(1, -1), (0, 1_000_000_000), (i64::MIN, 0), (0, i32::MIN)] {
            assert_eq!(print_duration(seconds, nanos), None);
        }
    }

    #[test]
    fn timestamp_parsing_follows_rfc_3339() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some((0, 0))),
            ("2026-11-20T09:44:37.5Z", Some((1_795_167_877, 500_000_000))),
            ("2026-11-20T10:44:37.5+01:00", Some((1_795_167_877, 500_000_000))),
            ("0001-01-01T00:00:00Z", Some((-62_135_596_800, 0))),
            ("9999-12-31T23:59:59.999999999Z", Some((253_402_300_799, 999_999_999))),
            ("2024-02-29T00:00:00Z", Some((1_709_164_800, 0))),
            ("2023-02-29T00:00:00Z", None),
            ("2023-13-01T00:00:00Z", None),
            ("2023-01-01T24:00:00Z", None),
            ("2023-01-01 00:00:00Z", None),
            ("2023-01-01T00:00:00", None),
            ("2023-01-01T00:00:00Zx", None),
            ("2023-1-1T00:00:00Z", None),
            ("2023-01-01", None),
            ("2023-01-01T00:00:00 Z", None),
            ("2023-01-01T00:00:00+0100", None),
            ("2023-01-01T00:00:00+01", None),
            ("2016-12-31T23:59:60Z", None),
            ("2023-01-01T00:00:00.1234567890Z", None),
            ("+10000-01-01T00:00:00Z", None),
            ("2023-01-01T\u{e9}", None),
            ("0001-01-01T00:00:00+01:00", None),
        ] {
            assert_eq!(parse_timestamp(text), expected, "{text}");
        }
        for text in
            ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.500Z", "9999-12-31T23:59:59.000000001Z"]
        {
            let (seconds, nanos) = parse_timestamp(text).unwrap();
            assert_eq!(print_timestamp(seconds, nanos).unwrap(), text);
        }
        for (seconds, nanos) in [(0, -1), (0, 1_000_000_000), (253_402_300_800, 0), (i64::MIN, 0)] {
            assert_eq!(print_timestamp(seconds, nanos), None);
        }
    }
}
