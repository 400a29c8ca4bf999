//! The time for decisions about credentials.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time by which the wall clock may run ahead of the monotonic clock and still count as correct.
const TOLERANCE_SECONDS: u64 = 5;
/// The time for which the wall clock has to stay ahead until the jump counts as a correction.
const CORRECTED_AFTER: Duration = Duration::from_secs(60 * 60);

/// A clock for decisions about credentials. It follows the wall clock of the machine, but never goes back further than
/// the time that has passed on the monotonic clock. A wall clock that jumps back therefore revives no credential.
///
/// The wall clock may also be wrong for a moment. A jump ahead counts at once, because a credential may have expired.
/// When the wall clock returns within an hour, this clock does, too. After an hour, the jump counts as a correction.
#[derive(Debug, Default)]
pub struct CredentialClock(Mutex<Option<Mark>>);

/// A time that counts as correct, and the monotonic time at which it was read.
#[derive(Debug, Clone, Copy)]
struct Mark {
    seconds: u64,
    at: Instant,
    /// When the wall clock was first ahead of this clock, if it still is.
    ahead_since: Option<Instant>,
}

impl CredentialClock {
    /// Returns the Unix time in seconds. `wall` is the time of the wall clock.
    #[must_use]
    pub fn seconds(&self, wall: u64) -> u64 {
        let now = Instant::now();
        let mut mark = self.0.lock();
        let mark = mark.get_or_insert(Mark { seconds: wall, at: now, ahead_since: None });
        let passed = now.saturating_duration_since(mark.at).as_secs();
        let expected = mark.seconds.saturating_add(passed);
        if wall <= expected {
            // The mark stays, because a newer one would lose a part of a second each time.
            mark.ahead_since = None;
            return expected;
        }
        let is_believed = wall <= expected.saturating_add(TOLERANCE_SECONDS) || {
            let since = *mark.ahead_since.get_or_insert(now);
            now.saturating_duration_since(since) >= CORRECTED_AFTER
        };
        if is_believed {
            *mark = Mark { seconds: wall, at: now, ahead_since: None };
        }
        wall
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    /// Attack 34: time passes for credentials, whatever the wall clock shows.
    #[tokio::test(start_paused = true)]
    async fn clock_never_goes_back() {
        let clock = CredentialClock::default();
        assert_eq!(clock.seconds(1000), 1000);
        assert_eq!(clock.seconds(50), 1000);
        advance(Duration::from_secs(60)).await;
        assert_eq!(clock.seconds(50), 1060, "the monotonic clock continues");
        assert_eq!(clock.seconds(1063), 1063, "clocks drift");
        assert_eq!(clock.seconds(1060), 1063);
        for n in 1..100 {
            advance(Duration::from_millis(999)).await;
            assert!(clock.seconds(0) >= 1062 + n * 999 / 1000);
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
    }

    #[tokio::test(start_paused = true)]
    async fn corrected_wall_clock_is_believed_after_an_hour() {
        let clock = CredentialClock::default();
        assert_eq!(clock.seconds(0), 0, "a machine that has just started");
        let right = 20_000 * DAY;
        assert_eq!(clock.seconds(right), right);
        advance(CORRECTED_AFTER).await;
        assert_eq!(clock.seconds(right + 3600), right + 3600);
        assert_eq!(clock.seconds(right - DAY), right + 3600, "it revives no credential");
    }
}
