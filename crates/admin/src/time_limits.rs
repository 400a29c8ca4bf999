//! The allowed ranges of durations in requests. The CLI checks its flags against these ranges, and the server checks each
//! request.

use std::{ops::RangeInclusive, time::Duration};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The range of the time over which the streams of a drained replica end.
pub const DRAIN: RangeInclusive<Duration> = Duration::ZERO..=HOUR;
/// The range of the duration of a freeze with an end.
pub const FREEZE: RangeInclusive<Duration> = SECOND..=DAY.saturating_mul(30);
/// The range of the duration of a temporary filter of the log.
pub const LOG_FILTER: RangeInclusive<Duration> = SECOND..=DAY;
/// The range of the time between two load reports of a client.
pub const LOAD_REPORT: RangeInclusive<Duration> =
    chancery_load::INTERVAL_MIN..=chancery_load::INTERVAL_MAX;
/// The range of the time for which a token is valid.
pub const TOKEN: RangeInclusive<Duration> = SECOND..=DAY.saturating_mul(366);
/// The range of the time for which a write waits for sessions.
pub const WAIT: RangeInclusive<Duration> = Duration::ZERO..=HOUR;
