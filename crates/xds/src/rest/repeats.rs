//! The versions that polls received recently.
//!
//! A client that rejects a response repeats its old version (REST-15). With long polling, the client
//! would receive the rejected response again at once, and reject it again. The poll therefore waits for
//! a change as if nothing had changed, and receives the response again at the end of its wait.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use chancery_model::Principal;
use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// The time for which a version is remembered.
const KEEP: Duration = Duration::from_secs(60);
/// The maximum number of remembered versions.
const ENTRIES_MAX: usize = 16_384;

/// The recent versions by the requests that received them.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    versions: HashMap<u64, (String, Instant)>,
    order: VecDeque<(u64, Instant)>,
}

/// Returns the key of a request: its principal, its node, its path, and the version that its client has. The version
/// depends on the requested names. Requests of different identities have different keys, so that they neither reveal
/// nor delay each other.
pub(crate) fn key(principal: &Principal, node: &str, path: &str, version_info: &str) -> u64 {
    let mut hash = Xxh3::default();
    for field in [principal.as_str(), node, path, version_info] {
        hash.update(&(field.len() as u64).to_le_bytes());
        hash.update(field.as_bytes());
    }
    hash.digest()
}

impl Repeats {
    /// Returns whether the same request has received this version recently.
    pub(crate) fn has(&self, key: u64, version: &str) -> bool {
        let recent = self.0.lock();
        let known = recent.versions.get(&key);
        known.is_some_and(|(of, at)| of == version && at.elapsed() < KEEP)
    }

    /// Records the version that a request receives.
    pub(crate) fn record(&self, key: u64, version: &str) {
        let now = Instant::now();
        let mut recent = self.0.lock();
        let Recent { versions, order } = &mut *recent;
        versions.insert(key, (version.to_owned(), now));
        order.push_back((key, now));
        while let Some((oldest, at)) = order.front().copied()
            && (order.len() > ENTRIES_MAX || now.saturating_duration_since(at) >= KEEP)
        {
            order.pop_front();
            // A later entry of the same key stays.
            if versions.get(&oldest).is_some_and(|(_, of)| *of == at) {
                versions.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn versions_are_forgotten_by_age_and_number() {
        let repeats = Repeats::default();
        let key = |n: usize| key(&Principal::anonymous(), "n", "/p", &n.to_string());
        repeats.record(key(1), "a");
        assert!(repeats.has(key(1), "a"));
        assert!(!repeats.has(key(1), "b") && !repeats.has(key(2), "a"));
        tokio::time::advance(KEEP).await;
        assert!(!repeats.has(key(1), "a"));
        for n in 0..2 * ENTRIES_MAX {
            repeats.record(key(n), "a");
        }
        let recent = repeats.0.lock();
        assert_eq!((recent.versions.len(), recent.order.len()), (ENTRIES_MAX, ENTRIES_MAX));
    }

    /// T3: the versions of one identity do not make another one with the same node wait.
    #[test]
    fn versions_belong_to_one_identity() {
        let repeats = Repeats::default();
        let key = |text| key(&Principal::new(text).unwrap(), "n", "/p", "1");
        repeats.record(key("token:a"), "2");
        assert!(repeats.has(key("token:a"), "2"));
        assert!(!repeats.has(key("token:b"), "2") && !repeats.has(key("anonymous"), "2"));
    }
}
