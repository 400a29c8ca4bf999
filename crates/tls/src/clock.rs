//! The time for decisions about credentials.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time by which the wall clock may run ahead of the monotonic clock and still count as correct.
const TOLERANCE_SECONDS: u64 = 5;
/// The time for which the wall clock has to stay ahead until the jump counts as a correction.
const CORRECTED_AFTER: Duration = Duration::from_secs(60 * 60);
/// The time after which nothing is known about a wall clock that was not read.
const UNREAD_MAX: Duration = Duration::from_secs(5 * 60);

/// A clock for decisions about credentials. It follows the wall clock of the machine, but never goes back further than
/// the time that has passed on the monotonic clock. A wall clock that jumps back therefore revives no credential.
///
/// The wall clock may also be wrong for a moment. A jump ahead counts at once, because a credential may have expired.
/// When the wall clock returns within an hour, this clock does, too. After an hour, the jump counts as a correction.
///
/// The first time counts as correct only after an hour, too. Until then, the wall clock may go back once, as after the
/// start of a machine whose hardware clock is ahead.
#[derive(Debug, Default)]
pub struct CredentialClock(Mutex<Option<Mark>>);

/// A time that counts as correct, and the monotonic time at which it was read.
#[derive(Debug, Clone, Copy)]
struct Mark {
    seconds: u64,
    at: Instant,
    /// If the wall clock is ahead of this clock: since when, and when it was last read.
    ahead: Option<(Instant, Instant)>,
    /// The time until which the wall clock may go back.
    is_first_until: Option<Instant>,
}

impl CredentialClock {
    /// Returns the Unix time in seconds. `wall` is the time of the wall clock.
    #[must_use]
    pub fn seconds(&self, wall: u64) -> u64 {
        let now = Instant::now();
        let mut mark = self.0.lock();
        let mark = mark.get_or_insert_with(|| Mark {
            is_first_until: Some(now + CORRECTED_AFTER),
            ..Mark::new(wall, now)
        });
        let passed = now.saturating_duration_since(mark.at).as_secs();
        let expected = mark.seconds.saturating_add(passed);
        if wall <= expected {
            mark.ahead = None;
            let is_behind = wall.saturating_add(TOLERANCE_SECONDS) < expected;
            if is_behind && mark.is_first_until.is_some_and(|until| now < until) {
                *mark = Mark::new(wall, now);
                return wall;
            }
            // The mark stays, because a newer one would lose a part of a second each time.
            return expected;
        }
        let is_believed = wall <= expected.saturating_add(TOLERANCE_SECONDS) || {
            let known = mark.ahead.filter(|(_, read)| now.duration_since(*read) <= UNREAD_MAX);
            let since = known.map_or(now, |(since, _)| since);
            mark.ahead = Some((since, now));
            now.duration_since(since) >= CORRECTED_AFTER
        };
        if is_believed {
            *mark = Mark { is_first_until: mark.is_first_until, ..Mark::new(wall, now) };
        }
        wall
    }
}

impl Mark {
    fn new(seconds: u64, at: Instant) -> Self {
        Self { seconds, at, ahead: None, is_first_until: None }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    /// Reads a right wall clock for an hour.
    async fn believe(clock: &CredentialClock, start: u64) {
        for minute in 1..=60 {
            advance(Duration::from_secs(60)).await;
            assert_eq!(clock.seconds(start + minute * 60), start + minute * 60);
        }
    }

    /// Attack 34: time passes for credentials, whatever the wall clock shows.
    #[tokio::test(start_paused = true)]
    async fn clock_never_goes_back() {
        let clock = CredentialClock::default();
        assert_eq!(clock.seconds(100), 100);
        assert_eq!(clock.seconds(1000), 1000);
        believe(&clock, 1000).await;
        let start = 1000 + CORRECTED_AFTER.as_secs();
        assert_eq!(clock.seconds(50), start);
        advance(Duration::from_secs(60)).await;
        assert_eq!(clock.seconds(50), start + 60, "the monotonic clock continues");
        assert_eq!(clock.seconds(start + 63), start + 63, "clocks drift");
        assert_eq!(clock.seconds(start + 60), start + 63);
        for n in 1..100 {
            advance(Duration::from_millis(999)).await;
            assert!(clock.seconds(0) >= start + 62 + n * 999 / 1000);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_moment_of_the_wall_clock_passes() {
        let clock = CredentialClock::default();
        let start = 20_000 * DAY;
        assert_eq!(clock.seconds(start), start);
        assert_eq!(clock.seconds(start + 100 * DAY), start + 100 * DAY, "it may be right");
        advance(Duration::from_secs(600)).await;
        assert_eq!(clock.seconds(start + 100 * DAY + 600), start + 100 * DAY + 600);
        assert_eq!(clock.seconds(start + 600), start + 600);
        // Several wrong moments do not add up.
        for hour in 1..48 {
            advance(CORRECTED_AFTER).await;
            let right = start + 600 + hour * 3600;
            assert_eq!(clock.seconds(right + DAY), right + DAY);
            assert_eq!(clock.seconds(right), right);
        }
        // Nothing is known about the time between two moments.
        let right = start + 600 + 47 * 3600;
        for hour in 0..3 {
            assert_eq!(clock.seconds(right + DAY + hour * 3600), right + DAY + hour * 3600);
            advance(CORRECTED_AFTER).await;
        }
        assert_eq!(clock.seconds(right + 3 * 3600), right + 3 * 3600);
    }

    /// The hardware clock is ahead at the start, for example because it shows local time.
    #[tokio::test(start_paused = true)]
    async fn wrong_first_time_may_be_corrected_once() {
        let clock = CredentialClock::default();
        let right = 20_000 * DAY;
        assert_eq!(clock.seconds(right + 7200), right + 7200);
        advance(Duration::from_secs(60)).await;
        assert_eq!(clock.seconds(right + 60), right + 60);
        assert_eq!(clock.seconds(right - DAY), right + 60, "only once");
    }

    #[tokio::test(start_paused = true)]
    async fn corrected_wall_clock_is_believed_after_an_hour() {
        let clock = CredentialClock::default();
        assert_eq!(clock.seconds(0), 0, "a machine that has just started");
        let right = 20_000 * DAY;
        assert_eq!(clock.seconds(right), right);
        believe(&clock, right).await;
        assert_eq!(clock.seconds(right - DAY), right + 3600, "it revives no credential");
    }
}
