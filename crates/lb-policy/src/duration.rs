//! `google.protobuf.Duration` as JSON text.

use prost_types::Duration;

/// The maximum number of seconds of a valid duration: about 10,000 years.
const SECONDS_MAX: i64 = 315_576_000_000;
const NANOS_MAX: i32 = 999_999_999;

/// Formats a duration such as `10s` or `0.100s`, with 0, 3, 6 or 9 digits after the point.
pub(crate) fn format(duration: &Duration) -> Result<String, String> {
    let Duration { seconds, nanos } = *duration;
    let is_in_range = (-SECONDS_MAX..=SECONDS_MAX).contains(&seconds)
        && (-NANOS_MAX..=NANOS_MAX).contains(&nanos);
    if !is_in_range || (seconds > 0 && nanos < 0) || (seconds < 0 && nanos > 0) {
        return Err(format!("{seconds} seconds and {nanos} nanoseconds are not a valid duration"));
    }
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    let (seconds, nanos) = (seconds.unsigned_abs(), nanos.unsigned_abs());
    Ok(match nanos {
        0 => format!("{sign}{seconds}s"),
        _ if nanos.is_multiple_of(1_000_000) => {
            format!("{sign}{seconds}.{:03}s", nanos / 1_000_000)
        }
        _ if nanos.is_multiple_of(1_000) => format!("{sign}{seconds}.{:06}s", nanos / 1_000),
        _ => format!("{sign}{seconds}.{nanos:09}s"),
    })
}

/// Parses the JSON text of a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let parts = text.strip_suffix('s').and_then(split);
    let (is_negative, seconds, fraction) = parts.ok_or_else(|| {
        format!("{text:?} is not a duration; write seconds with the suffix s, such as 1.5s")
    })?;
    let seconds: i64 = seconds.parse().unwrap_or(i64::MAX);
    let nanos: i32 = format!("{fraction:0<9}").parse().unwrap_or(i32::MAX);
    let sign = if is_negative { -1 } else { 1 };
    let duration = Duration { seconds: seconds * i64::from(sign), nanos: nanos * sign };
    format(&duration).map(|_| duration)
}

/// Splits `-1.5` into its sign, seconds and fraction.
fn split(text: &str) -> Option<(bool, &str, &str)> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let has_digits = !seconds.is_empty() || !fraction.is_empty();
    if !has_digits || fraction.len() > 9 || !is_number(seconds) || !is_number(fraction) {
        return None;
    }
    Some((is_negative, if seconds.is_empty() { "0" } else { seconds }, fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LB-17.
    #[test]
    fn duration_has_the_form_of_proto_json() {
        for (seconds, nanos, text) in [
            (10, 0, "10s"),
            (0, 100_000_000, "0.100s"),
            (0, 1_000, "0.000001s"),
            (1, 1, "1.000000001s"),
            (0, 0, "0s"),
            (-1, -500_000_000, "-1.500s"),
        ] {
            let duration = Duration { seconds, nanos };
            assert_eq!(format(&duration).as_deref(), Ok(text));
            assert_eq!(parse(text), Ok(duration));
        }
        assert_eq!(parse(".5s"), Ok(Duration { seconds: 0, nanos: 500_000_000 }));
        assert_eq!(parse("1.s"), Ok(Duration { seconds: 1, nanos: 0 }));
    }

    #[test]
    fn invalid_duration_is_refused() {
        for (seconds, nanos) in [
            (1, -1),
            (-1, 1),
            (SECONDS_MAX + 1, 0),
            (i64::MIN, 0),
            (0, i32::MIN),
            (0, 1_000_000_000),
        ] {
            assert!(format(&Duration { seconds, nanos }).is_err(), "{seconds} {nanos}");
        }
        for text in [
            "",
            "s",
            "1",
            "-s",
            ".s",
            "1.0000000001s",
            "1e3s",
            "1..2s",
            "+1s",
            "--1s",
            "315576000001s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("{}s", "9".repeat(400))).is_err());
    }
}
