//! Resume data of ended streams, for the next streams of the same clients.
//!
//! A state-of-the-world client does not report its resources. Its stream may end, at the connection's
//! maximum age for instance. A resource to which its routes still refer may be removed before its next
//! stream. That stream must still remove it in order (ADS-08).
//!
//! Invariants:
//! - Only a client with the same principal and the same node gets the data. The data contains resources, so the
//!   caller must also check that this client may read all scopes that they come from.
//! - The data is bounded in number and time. Dropped data costs a client the order of one removal, and nothing else.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use chancery_model::{Node, Principal, ScopeName};
use chancery_protocol::ResumeState;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The time for which resume data is kept. A client reconnects within seconds, or its configuration is
/// as good as lost.
const KEEP: Duration = Duration::from_secs(30);
/// The maximum number of streams with resume data. Beyond it the oldest is dropped.
const STREAMS_MAX: usize = 16_384;
/// The maximum number of streams with resume data per client. gRPC has a stream for each of its targets.
const STREAMS_PER_CLIENT_MAX: usize = 16;

/// The resume data of one stream.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) state: Arc<ResumeState>,
    /// The scopes from which the resources may come.
    pub(crate) scopes: Arc<[ScopeName]>,
}

/// A client: what it has proven, and the node that it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClientKey {
    /// `None` for a connection that the operator has configured.
    principal: Option<Principal>,
    /// The hash of the whole node. Nodes may be large, and the key of the hash is random.
    node: u64,
}

/// The resume data of ended streams. All shards share it, because a client may reconnect to another
/// shard.
#[derive(Debug, Default)]
pub(crate) struct ResumeCache {
    inner: Mutex<Inner>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Inner {
    by_client: HashMap<ClientKey, VecDeque<(u64, Kept)>>,
    /// The end time and client of each stream, by number. The numbers ascend in the order of the ends.
    ends: BTreeMap<u64, (Instant, ClientKey)>,
    last: u64,
}

impl ResumeCache {
    fn key(&self, principal: Option<&Principal>, node: &Node) -> ClientKey {
        ClientKey { principal: principal.cloned(), node: self.hasher.hash_one(node) }
    }

    pub(crate) fn put(&self, principal: Option<&Principal>, node: &Node, kept: Kept, now: Instant) {
        let client = self.key(principal, node);
        let mut inner = self.inner.lock();
        inner.forget_before(now);
        if inner.ends.len() == STREAMS_MAX {
            inner.forget_oldest();
        }
        inner.last += 1;
        let number = inner.last;
        let of_client = inner.by_client.entry(client.clone()).or_default();
        let is_full = of_client.len() == STREAMS_PER_CLIENT_MAX;
        let oldest = is_full.then(|| of_client.pop_front()).flatten();
        of_client.push_back((number, kept));
        // A client that reconnects constantly replaces only its own data.
        if let Some((oldest, _)) = oldest {
            inner.ends.remove(&oldest);
        }
        inner.ends.insert(number, (now, client));
    }

    /// Returns the resume data of a client's last streams. The data remains, because the client may open
    /// several streams.
    pub(crate) fn of(&self, principal: Option<&Principal>, node: &Node, now: Instant) -> Vec<Kept> {
        let client = self.key(principal, node);
        let mut inner = self.inner.lock();
        inner.forget_before(now);
        let of_client = inner.by_client.get(&client);
        of_client.into_iter().flatten().map(|(_, kept)| kept.clone()).collect()
    }

    /// Drops expired data. Old states stay in memory only after newer ones arrive, so it suffices to
    /// call this for each new state.
    pub(crate) fn forget_old(&self, now: Instant) {
        self.inner.lock().forget_before(now);
    }
}

impl Inner {
    fn forget_before(&mut self, now: Instant) {
        while self.ends.first_key_value().is_some_and(|(_, (at, _))| *at + KEEP < now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((number, (_, client))) = self.ends.pop_first() else { return };
        let Some(of_client) = self.by_client.get_mut(&client) else { return };
        of_client.retain(|(known, _)| *known != number);
        if of_client.is_empty() {
            self.by_client.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str) -> Node {
        Node { id: id.to_owned(), ..Node::default() }
    }

    fn kept() -> Kept {
        Kept { state: Arc::default(), scopes: [].into() }
    }

    fn put(resume_cache: &ResumeCache, id: &str, now: Instant) {
        resume_cache.put(None, &node(id), kept(), now);
    }

    fn n_of(resume_cache: &ResumeCache, id: &str, now: Instant) -> usize {
        resume_cache.of(None, &node(id), now).len()
    }

    fn n_clients(resume_cache: &ResumeCache) -> usize {
        resume_cache.inner.lock().by_client.len()
    }

    /// T3: neither the ID of a node nor a similar principal gets the data of another client.
    #[test]
    fn resume_state_belongs_to_one_principal_and_node() {
        let (cache, now) = (ResumeCache::default(), Instant::now());
        let principal = |text: &str| Some(Principal::new(text).unwrap());
        let owner = principal("token:a");
        cache.put(owner.as_ref(), &node("n"), kept(), now);
        let others = ["token:b", "anonymous", "jwt:a/a", "k8s:a/a/a", "token:a/a", "unix:1"];
        for other in others.map(principal).iter().chain(&[None]) {
            assert_eq!(cache.of(other.as_ref(), &node("n"), now).len(), 0, "{other:?}");
        }
        let changed = [
            Node { id: "m".to_owned(), ..node("n") },
            Node { cluster: "c".to_owned(), ..node("n") },
            Node { metadata: [("a".to_owned(), "b".to_owned())].into(), ..node("n") },
        ];
        for other in &changed {
            assert_eq!(cache.of(owner.as_ref(), other, now).len(), 0, "{other:?}");
        }
        assert_eq!(cache.of(owner.as_ref(), &node("n"), now).len(), 1);
    }

    #[test]
    fn resume_state_of_a_client_expires() {
        let (resume_cache, start) = (ResumeCache::default(), Instant::now());
        put(&resume_cache, "a", start);
        put(&resume_cache, "a", start + KEEP / 2);
        put(&resume_cache, "b", start + KEEP / 2);
        assert_eq!(n_of(&resume_cache, "a", start + KEEP), 2);
        let later = start + KEEP + Duration::from_millis(1);
        assert_eq!((n_of(&resume_cache, "a", later), n_of(&resume_cache, "b", later)), (1, 1));
        resume_cache.forget_old(start + KEEP * 2);
        assert_eq!(n_clients(&resume_cache), 0, "expired data is dropped");
    }

    #[test]
    fn resume_cache_bounds_streams_per_client_and_in_total() {
        let (resume_cache, now) = (ResumeCache::default(), Instant::now());
        put(&resume_cache, "one", now);
        for _ in 0..STREAMS_MAX + 3 {
            put(&resume_cache, "many", now);
        }
        assert_eq!(n_of(&resume_cache, "many", now), STREAMS_PER_CLIENT_MAX);
        assert_eq!(
            n_of(&resume_cache, "one", now),
            1,
            "one node does not evict the data of another"
        );
        for n in 0..STREAMS_MAX {
            put(&resume_cache, &format!("n{n}"), now);
        }
        assert_eq!((n_of(&resume_cache, "many", now), n_clients(&resume_cache)), (0, STREAMS_MAX));
        assert_eq!(resume_cache.inner.lock().ends.len(), STREAMS_MAX);
    }
}
