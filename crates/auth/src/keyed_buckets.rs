//! Token buckets by key, with bounded memory.
//!
//! A full bucket is the same as none, so it is removed when the table is swept. If the table has no room for
//! another key, the key is not limited: memory is bounded, and a flood of keys limits nobody else.

use std::{collections::HashMap, hash::Hash};

use chancery_net::Bucket;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The maximum number of buckets.
pub(crate) const BUCKETS_MAX: usize = 65_536;
/// The number of buckets up to which none is removed.
const SWEEP_MIN: usize = 1024;

/// Buckets by key.
#[derive(Debug)]
pub(crate) struct KeyedBuckets<K>(Mutex<Table<K>>);

#[derive(Debug)]
struct Table<K> {
    buckets: HashMap<K, Bucket>,
    /// The number of buckets at which full ones are removed.
    sweep_at: usize,
}

impl<K> Default for KeyedBuckets<K> {
    fn default() -> Self {
        Self(Mutex::new(Table { buckets: HashMap::new(), sweep_at: SWEEP_MIN }))
    }
}

impl<K: Hash + Eq + Clone> KeyedBuckets<K> {
    /// Takes a token from the bucket of a key. Returns whether there was one.
    pub(crate) fn take(&self, key: &K, per_second: u32, burst: u32, now: Instant) -> bool {
        let mut table = self.0.lock();
        if let Some(bucket) = table.buckets.get_mut(key)
            && bucket.per_second() == per_second
        {
            return bucket.take(now, 1);
        }
        if table.buckets.len() >= table.sweep_at {
            table.buckets.retain(|_, bucket| !bucket.is_full(now));
            table.sweep_at = (table.buckets.len() * 2).clamp(SWEEP_MIN, BUCKETS_MAX);
        }
        if table.buckets.len() >= BUCKETS_MAX {
            return true;
        }
        // The limit of a known key may have changed.
        let mut bucket = Bucket::new(per_second, burst);
        let has_token = bucket.take(now, 1);
        table.buckets.insert(key.clone(), bucket);
        has_token
    }

    /// Returns whether the bucket of a key is empty.
    pub(crate) fn is_empty(&self, key: &K, now: Instant) -> bool {
        let mut table = self.0.lock();
        table.buckets.get_mut(key).is_some_and(|bucket| !bucket.has(now, 1))
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().buckets.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_key_has_its_own_rate() {
        let buckets = KeyedBuckets::default();
        let start = Instant::now();
        let n = |key, now| (0..10).filter(|_| buckets.take(&key, 3, 3, now)).count();
        assert_eq!((n("a", start), n("b", start)), (3, 3));
        assert!(buckets.is_empty(&"a", start) && !buckets.is_empty(&"c", start));
        assert_eq!(n("a", start + Duration::from_secs(1)), 3);
        let later = start + Duration::from_secs(1);
        assert!(buckets.take(&"a", 5, 5, later), "a changed limit applies at once");
    }

    /// Unused keys take no memory, and a flood of keys takes a bounded amount.
    #[tokio::test(start_paused = true)]
    async fn number_of_buckets_is_bounded() {
        let buckets = KeyedBuckets::default();
        let start = Instant::now();
        for key in 0..BUCKETS_MAX + 1000 {
            assert!(buckets.take(&key, 1, 1, start));
        }
        assert_eq!(buckets.len(), BUCKETS_MAX);
        assert!(!buckets.take(&0, 1, 1, start), "a known key stays limited");
        let later = start + Duration::from_secs(2);
        assert!(buckets.take(&usize::MAX, 1, 1, later));
        assert_eq!(buckets.len(), 1);
    }
}
