//! Durations and timestamps in the JSON mapping of protobuf.

/// The maximum of `google.protobuf.Duration` in seconds: ten thousand years.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// Parses a duration like `1.5s` into seconds and nanoseconds with equal signs.
pub(crate) fn parse_duration(text: &str) -> Option<(i64, i32)> {
    let text = text.strip_suffix('s')?;
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds: i64 = digits(whole, 12)?.parse().ok()?;
    let nanos = nanos(fraction)?;
    let is_in_range =
        seconds < DURATION_SECONDS_MAX || (seconds == DURATION_SECONDS_MAX && nanos == 0);
    is_in_range.then_some((sign * seconds, if sign < 0 { -nanos } else { nanos }))
}

/// Formats a duration like `1.5s`, with 0, 3, 6 or 9 digits after the point.
pub(crate) fn print_duration(seconds: i64, nanos: i32) -> Option<String> {
    let is_possible = seconds.unsigned_abs() <= DURATION_SECONDS_MAX.unsigned_abs()
        && nanos.unsigned_abs() < 1_000_000_000
        && (seconds == 0 || nanos == 0 || (seconds < 0) == (nanos < 0));
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    is_possible.then(|| {
        format!("{sign}{}{}s", seconds.unsigned_abs(), print_fraction(nanos.unsigned_abs()))
    })
}

fn print_fraction(nanos: u32) -> String {
    match nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1000 == 0 => format!(".{:06}", n / 1000),
        n => format!(".{n:09}"),
    }
}

fn digits(text: &str, most: usize) -> Option<&str> {
    let is_good =
        !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
    is_good.then_some(text)
}

fn nanos(fraction: &str) -> Option<i32> {
    let fraction = digits(fraction, 9)?;
    format!("{fraction:0<9}").parse().ok()
}

const SECONDS_PER_DAY: i64 = 86_400;
/// The valid timestamps in seconds since 1970, from 0001-01-01 to 9999-12-31.
const TIMESTAMPS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Parses an RFC 3339 timestamp into seconds since 1970 and nanoseconds.
pub(crate) fn parse_timestamp(text: &str) -> Option<(i64, i32)> {
    let (date, time) = text.split_once(['T', 't'])?;
    let [year, month, day] = numbers::<3>(date, '-', [4, 2, 2])?;
    let zone = time.rfind(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(zone);
    let offset = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        ("Z" | "z", _) => return None,
        (sign, zone) => {
            let [hours, minutes] = numbers::<2>(zone, ':', [2, 2])?;
            let offset = hours * 3600 + minutes * 60;
            if sign == "-" { -offset } else { offset }
        }
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers::<3>(time, ':', [2, 2, 2])?;
    let nanos = nanos(fraction)?;
    let is_date = (1..=12).contains(&month) && day >= 1 && day <= days_of_month(year, month);
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds =
        days_since_1970(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second
            - offset;
    TIMESTAMPS.contains(&seconds).then_some((seconds, nanos))
}

/// Formats a timestamp in RFC 3339, in UTC.
pub(crate) fn print_timestamp(seconds: i64, nanos: i32) -> Option<String> {
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    if !TIMESTAMPS.contains(&seconds) {
        return None;
    }
    let (days, second) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = date_of(days);
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}{}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        print_fraction(nanos)
    ))
}

fn numbers<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut out = [0; N];
    for (value, width) in out.iter_mut().zip(widths) {
        *value = digits(parts.next()?, width).filter(|part| part.len() == width)?.parse().ok()?;
    }
    parts.next().is_none().then_some(out)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days since 1970-01-01. In the calculation, years begin in March, so that the leap day is the
/// last day.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_the_json_mapping() {
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
    fn times_are_those_of_rfc_3339() {
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
            ("0001-01-01T00:00:00+01:00", None),
        ] {
            assert_eq!(parse_timestamp(text), expected, "{text}");
        }
        for day in (-719_162..2_932_896).step_by(97) {
            let text = print_timestamp(day * SECONDS_PER_DAY + 3723, 0).unwrap();
            assert_eq!(parse_timestamp(&text), Some((day * SECONDS_PER_DAY + 3723, 0)), "{text}");
        }
    }
}
