//! The tokens that were verified, so that each signature is verified once.

use std::{collections::HashMap, sync::Arc};

use chancery_model::Principal;
use parking_lot::Mutex;

/// The number of tokens in each of the two generations.
const GENERATION_MAX: usize = 8192;

/// A verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) principal: Principal,
    /// The Unix time from which the token is valid.
    pub(crate) begins: u64,
    /// The Unix time at which the token expires.
    pub(crate) expires: u64,
    /// The issuer, by its place in the configuration.
    pub(crate) issuer: usize,
    /// The key set with which the token was verified.
    pub(crate) keys: u64,
}

/// Verified tokens by their SHA-256 digests. When the newer generation is full, it replaces the older one.
#[derive(Debug, Default)]
pub(crate) struct VerifiedTokens(Mutex<Generations>);

type Generation = HashMap<[u8; 32], Arc<Verified>>;

#[derive(Debug, Default)]
struct Generations {
    newer: Generation,
    older: Generation,
}

impl VerifiedTokens {
    /// Returns a verified token.
    pub(crate) fn get(&self, digest: &[u8; 32]) -> Option<Arc<Verified>> {
        let mut all = self.0.lock();
        if let Some(found) = all.newer.get(digest) {
            return Some(Arc::clone(found));
        }
        let found = all.older.remove(digest)?;
        all.add(*digest, Arc::clone(&found));
        Some(found)
    }

    /// Adds a verified token.
    pub(crate) fn add(&self, digest: [u8; 32], verified: Verified) {
        self.0.lock().add(digest, Arc::new(verified));
    }

    /// Removes a token that is no longer valid.
    pub(crate) fn remove(&self, digest: &[u8; 32]) {
        let mut all = self.0.lock();
        all.newer.remove(digest);
        all.older.remove(digest);
    }
}

impl Generations {
    fn add(&mut self, digest: [u8; 32], verified: Arc<Verified>) {
        if self.newer.len() >= GENERATION_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(digest, verified);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: usize) -> [u8; 32] {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&n.to_le_bytes());
        digest
    }

    #[test]
    fn number_of_remembered_tokens_is_bounded() {
        let verified =
            Verified { principal: Principal::unix(1), begins: 0, expires: 1, issuer: 0, keys: 0 };
        let tokens = VerifiedTokens::default();
        for n in 0..50_000 {
            tokens.add(digest(n), verified.clone());
            assert!(tokens.get(&digest(0)).is_some(), "a token in use stays: {n}");
        }
        let all = tokens.0.lock();
        assert!(all.newer.len() + all.older.len() <= 2 * GENERATION_MAX);
        drop(all);
        assert_eq!(tokens.get(&digest(10)), None);
        tokens.remove(&digest(0));
        assert_eq!(tokens.get(&digest(0)), None);
    }
}
