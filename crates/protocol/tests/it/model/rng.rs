//! Pseudo-random numbers from a seed (splitmix64), so that a case is repeatable.

/// A generator. Each case has its own.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`. `n` must not be 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    /// Returns `true` with a probability of `n` percent.
    pub(crate) fn percent(&mut self, n: usize) -> bool {
        self.below(100) < n
    }

    /// Returns up to `max` numbers below `n`, possibly with repetitions.
    pub(crate) fn some(&mut self, max: usize, n: usize) -> Vec<usize> {
        (0..self.below(max + 1)).map(|_| self.below(n)).collect()
    }
}
