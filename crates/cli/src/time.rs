//! Times in a readable form.

use std::{
    ops::RangeInclusive,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chancery_config::Span;

/// Returns the milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Formats milliseconds since 1970 as `2026-11-20T09:45:42Z`. Returns an empty text for 0.
pub(crate) fn timestamp(millis: u64) -> String {
    if millis == 0 {
        return String::new();
    }
    let text = chancery_audit::timestamp(millis);
    text.rsplit_once('.').map_or_else(String::new, |(seconds, _)| format!("{seconds}Z"))
}

/// Returns the time between two instants in milliseconds since 1970, with one unit: `12s`, `5m`,
/// `3h`, `2d`.
pub(crate) fn age(since: u64, now: u64) -> String {
    let seconds = now.saturating_sub(since) / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns the parser of a time in a range.
pub(crate) fn time_in(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Span, String> + Clone + Send + Sync + 'static {
    move |text| {
        let span: Span = text.parse()?;
        let [min, max] = [*range.start(), *range.end()].map(Span::new);
        match range.contains(&span.duration()) {
            true => Ok(span),
            false if range.start().is_zero() => Err(format!("must be at most {max}")),
            false => Err(format!("must be from {min} to {max}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outside_its_range_is_rejected() {
        let parsed = |min, max, text: &str| {
            let [min, max] = [min, max].map(Duration::from_secs);
            time_in(min..=max)(text).map(|span| span.to_string())
        };
        assert_eq!(parsed(1, 3600, "60m"), Ok("1h".to_owned()));
        assert_eq!(parsed(1, 3600, "999ms"), Err("must be from 1s to 1h".to_owned()));
        assert_eq!(parsed(0, 3600, "0s"), Ok("0s".to_owned()));
        assert_eq!(parsed(0, 3600, "3601s"), Err("must be at most 1h".to_owned()));
        let unit = "is not a time such as 250ms, 10s, 5m or 1h";
        assert_eq!(parsed(0, 3600, "5"), Err(unit.to_owned()));
    }

    #[test]
    fn timestamp_is_shown_as_a_date() {
        for (millis, expected) in [
            (0, ""),
            (1000, "1970-01-01T00:00:01Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00Z"),
            (1_795_167_942_000, "2026-11-20T09:45:42Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(millis), expected);
        }
    }

    #[test]
    fn an_age_has_one_unit() {
        for (millis, expected) in
            [(0, "0s"), (119_000, "119s"), (120_000, "2m"), (7_200_000, "2h"), (864_000_000, "10d")]
        {
            assert_eq!(age(5, 5 + millis), expected);
        }
        assert_eq!(age(10, 5), "0s");
    }
}
