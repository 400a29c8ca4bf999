//! The static tokens that were valid before. An address with many failures may still use them, because the clients that
//! share the address must not lose access with the one that fails.

use std::collections::HashSet;

use parking_lot::Mutex;

/// The number of digests in each of the two generations.
const GENERATION_MAX: usize = 8192;

/// The digests of tokens. When the newer generation is full, it replaces the older one.
#[derive(Debug, Default)]
pub(crate) struct KnownTokens(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    newer: HashSet<[u8; 32]>,
    older: HashSet<[u8; 32]>,
}

impl KnownTokens {
    /// Returns whether a token was valid before.
    pub(crate) fn contains(&self, digest: &[u8; 32]) -> bool {
        let all = self.0.lock();
        all.newer.contains(digest) || all.older.contains(digest)
    }

    /// Adds a valid token.
    pub(crate) fn add(&self, digest: [u8; 32]) {
        let mut all = self.0.lock();
        if all.newer.len() >= GENERATION_MAX && !all.newer.contains(&digest) {
            all.older = std::mem::take(&mut all.newer);
        }
        all.newer.insert(digest);
    }

    /// Removes a token that is no longer valid.
    pub(crate) fn remove(&self, digest: &[u8; 32]) {
        let mut all = self.0.lock();
        all.newer.remove(digest);
        all.older.remove(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_known_tokens_is_bounded() {
        let known = KnownTokens::default();
        let digest = |n: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_be_bytes());
            digest
        };
        for n in 0..5 * GENERATION_MAX {
            known.add(digest(n));
            known.add(digest(0));
        }
        let n_known = (0..5 * GENERATION_MAX).filter(|n| known.contains(&digest(*n))).count();
        assert!((GENERATION_MAX..=2 * GENERATION_MAX).contains(&n_known), "{n_known}");
        assert!(known.contains(&digest(0)), "a token in use stays known");
        known.remove(&digest(0));
        assert!(!known.contains(&digest(0)));
    }
}
