//! The delays between attempts to open a stream.

use std::time::Duration;

/// The minimum and the maximum delay, except before the first retry.
const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// A stream that lasted longer was successful.
const SUCCESS_AFTER: Duration = Duration::from_secs(5);

/// Computes delays: none after the first failure, then increasing ones with jitter (MCP-66).
#[derive(Debug, Default)]
pub struct Backoff {
    n_failures: u32,
}

impl Backoff {
    /// Returns the delay after an attempt or a stream that lasted this long.
    #[must_use]
    pub fn after(&mut self, lasted: Duration) -> Duration {
        if lasted > SUCCESS_AFTER {
            self.n_failures = 0;
        }
        let n = self.n_failures;
        self.n_failures = n.saturating_add(1);
        if n == 0 {
            return Duration::ZERO;
        }
        let max = DELAY_MIN.saturating_mul(2_u32.saturating_pow(n)).min(DELAY_MAX);
        max.mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MCP-66: the first retry is immediate. The delay of further ones grows up to 30 s. A successful stream starts again.
    #[test]
    fn delay_grows_until_a_stream_lasts() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.after(Duration::ZERO), Duration::ZERO);
        for n in 1..100 {
            let delay = backoff.after(SUCCESS_AFTER);
            assert!((DELAY_MIN..=DELAY_MAX).contains(&delay), "{n}: {delay:?}");
            assert!(n > 1 || delay <= 2 * DELAY_MIN, "{delay:?}");
            assert!(n < 5 || delay >= DELAY_MAX / 2, "{n}: {delay:?}");
        }
        assert_eq!(backoff.after(2 * SUCCESS_AFTER), Duration::ZERO);
    }
}
