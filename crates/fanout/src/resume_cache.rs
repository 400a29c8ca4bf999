//! Resume data of ended streams, for the next streams of the same clients.
//!
//! A state-of-the-world client does not report its resources. Its stream may end, at the connection's
//! maximum age for instance. A resource to which its routes still refer may be removed before its next
//! stream. That stream must still remove it in order (ADS-08).
//!
//! Invariant: the data is bounded in number and time. Dropped data costs a client the order of one
//! removal, and nothing else.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use chancery_protocol::ResumeState;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The time for which resume data is kept. A client reconnects within seconds, or its configuration is
/// as good as lost.
const KEEP: Duration = Duration::from_secs(30);
/// The maximum number of streams with resume data. Beyond it the oldest is dropped.
const STREAMS_MAX: usize = 16_384;
/// The maximum number of streams with resume data per node. gRPC has a stream for each of its targets.
const STREAMS_PER_NODE_MAX: usize = 16;

/// The resume data of ended streams. All shards share it, because a client may reconnect to another
/// shard.
#[derive(Debug, Default)]
pub(crate) struct ResumeCache(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_node: HashMap<Arc<str>, VecDeque<(u64, Arc<ResumeState>)>>,
    /// The end time and node of each stream, by number. The numbers ascend in the order of the ends.
    ends: BTreeMap<u64, (Instant, Arc<str>)>,
    last: u64,
}

impl ResumeCache {
    pub(crate) fn put(&self, node: &str, state: ResumeState, now: Instant) {
        let mut inner = self.0.lock();
        inner.forget_before(now);
        if inner.ends.len() == STREAMS_MAX {
            inner.forget_oldest();
        }
        inner.last += 1;
        let number = inner.last;
        let node: Arc<str> = match inner.by_node.get_key_value(node) {
            Some((known, _)) => Arc::clone(known),
            None => node.into(),
        };
        let of_node = inner.by_node.entry(Arc::clone(&node)).or_default();
        let oldest = (of_node.len() == STREAMS_PER_NODE_MAX).then(|| of_node.pop_front()).flatten();
        of_node.push_back((number, Arc::new(state)));
        // A node that reconnects constantly replaces only its own data.
        if let Some((oldest, _)) = oldest {
            inner.ends.remove(&oldest);
        }
        inner.ends.insert(number, (now, node));
    }

    /// Returns the resume data of a node's last streams. The data remains, because the node may open
    /// several streams.
    pub(crate) fn of(&self, node: &str, now: Instant) -> Vec<Arc<ResumeState>> {
        let mut inner = self.0.lock();
        inner.forget_before(now);
        let of_node = inner.by_node.get(node);
        of_node.into_iter().flatten().map(|(_, state)| Arc::clone(state)).collect()
    }

    /// Drops expired data. Old states stay in memory only after newer ones arrive, so it suffices to
    /// call this for each new state.
    pub(crate) fn forget_old(&self, now: Instant) {
        self.0.lock().forget_before(now);
    }
}

impl Inner {
    fn forget_before(&mut self, now: Instant) {
        while self.ends.first_key_value().is_some_and(|(_, (at, _))| *at + KEEP < now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((number, (_, node))) = self.ends.pop_first() else { return };
        let Some(of_node) = self.by_node.get_mut(&node) else { return };
        of_node.retain(|(known, _)| *known != number);
        if of_node.is_empty() {
            self.by_node.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(resume_cache: &ResumeCache, node: &str, now: Instant) {
        resume_cache.put(node, ResumeState::default(), now);
    }

    fn n_of(resume_cache: &ResumeCache, node: &str, now: Instant) -> usize {
        resume_cache.of(node, now).len()
    }

    fn n_nodes(resume_cache: &ResumeCache) -> usize {
        resume_cache.0.lock().by_node.len()
    }

    #[test]
    fn resume_state_of_a_node_expires() {
        let (resume_cache, start) = (ResumeCache::default(), Instant::now());
        put(&resume_cache, "a", start);
        put(&resume_cache, "a", start + KEEP / 2);
        put(&resume_cache, "b", start + KEEP / 2);
        assert_eq!(n_of(&resume_cache, "a", start + KEEP), 2);
        let later = start + KEEP + Duration::from_millis(1);
        assert_eq!((n_of(&resume_cache, "a", later), n_of(&resume_cache, "b", later)), (1, 1));
        resume_cache.forget_old(start + KEEP * 2);
        assert_eq!(n_nodes(&resume_cache), 0, "expired data is dropped");
    }

    #[test]
    fn resume_cache_bounds_streams_per_node_and_in_total() {
        let (resume_cache, now) = (ResumeCache::default(), Instant::now());
        put(&resume_cache, "one", now);
        for _ in 0..STREAMS_MAX + 3 {
            put(&resume_cache, "many", now);
        }
        assert_eq!(n_of(&resume_cache, "many", now), STREAMS_PER_NODE_MAX);
        assert_eq!(
            n_of(&resume_cache, "one", now),
            1,
            "one node does not evict the data of another"
        );
        for n in 0..STREAMS_MAX {
            put(&resume_cache, &format!("n{n}"), now);
        }
        assert_eq!((n_of(&resume_cache, "many", now), n_nodes(&resume_cache)), (0, STREAMS_MAX));
        assert_eq!(resume_cache.0.lock().ends.len(), STREAMS_MAX);
    }
}
