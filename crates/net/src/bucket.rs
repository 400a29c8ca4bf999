//! A token bucket.

use tokio::time::Instant;

/// Allows a burst, and a sustained rate over time.
#[derive(Debug)]
pub struct Bucket {
    per_second: u32,
    burst: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    /// Creates a full bucket.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let burst = f64::from(burst);
        Self { per_second, burst, left: burst, at: Instant::now() }
    }

    /// Returns the sustained rate.
    #[must_use]
    pub fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Takes `n` tokens. Returns `false`, and takes none, if there are fewer.
    pub fn take(&mut self, now: Instant, n: usize) -> bool {
        let there = self.has(now, n);
        if there {
            #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 frames")]
            let n = n as f64;
            self.left -= n;
        }
        there
    }

    /// Returns whether there are `n` tokens.
    pub fn has(&mut self, now: Instant, n: usize) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * f64::from(self.per_second)).min(self.burst);
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 frames")]
        let n = n as f64;
        self.left >= n
    }

    /// Returns whether the bucket is full, as a new one is.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.has(now, 0);
        self.left >= self.burst
    }

    /// Adds `n` tokens, up to the burst.
    pub fn give(&mut self, n: f64) {
        self.left = (self.left + n).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bucket_admits_a_burst_and_then_the_rate() {
        let mut bucket = Bucket::new(10, 3);
        let start = bucket.at;
        assert_eq!((0..5).filter(|_| bucket.take(start, 1)).count(), 3);
        let later = start + Duration::from_millis(150);
        assert_eq!((0..5).filter(|_| bucket.take(later, 1)).count(), 1);
        let much_later = start + Duration::from_secs(60);
        assert!(!bucket.take(much_later, 4), "never more than the burst");
        assert!(bucket.take(much_later, 3));
        assert!(!bucket.has(much_later, 1) && !bucket.is_full(much_later));
        bucket.give(2.0);
        assert!(bucket.take(much_later, 2) && !bucket.take(much_later, 1));
    }
}
