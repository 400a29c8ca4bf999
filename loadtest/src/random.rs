//! Reproducible pseudo-random numbers.

use std::time::Duration;

/// The SplitMix64 generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0. The bias, `n` / 2^64, does not matter here.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.number() % n.max(1)
    }

    /// Returns random characters of base64. A multiple of four characters encodes whole bytes.
    pub(crate) fn base64(&mut self, chars: usize) -> String {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bytes = std::iter::repeat_with(|| self.number().to_le_bytes()).flatten();
        bytes.take(chars).map(|byte| char::from(ALPHABET[usize::from(byte % 64)])).collect()
    }

    /// Returns a duration of at most `max`, in whole microseconds.
    pub(crate) fn time(&mut self, max: Duration) -> Duration {
        let micros = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.below(micros.saturating_add(1)))
    }

    /// Returns true with probability 1 / `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        assert!(numbers(1).iter().any(|n| *n < 300) && numbers(1).iter().any(|n| *n > 700));
    }
}
