//! Polls: requests without a stream (REST-JSON).
//!
//! A poll has no session and no shard. It reads the newest state in the task of its connection, so
//! it delays no other connection. It counts as a stream while it runs.
//!
//! A poll may wait for a change (long polling, REST-13). [`HeldPolls`] is the index of the waiting polls
//! by what they ask for. A commit wakes only the polls that it concerns: the cost is
//! O(changes + concerned polls). A commit that changes assignments wakes all, in bounded steps.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    ops::Bound,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use chancery_model::{Identity, Node, Principal, Revision, ScopeName, State, TypeUrl, base_of};
use chancery_protocol::{NameList, PollNames, Request, SotwRequest};
use chancery_view::{Differ, LayerDelta, View, changed_collections};
use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    messages::status::End,
    placement::access::{Authorization, PollAccess},
    poll::rejections::{PollRejection, PollRejections},
    replica::freshness::{Behind, ReadFreshness},
    shard::Streams,
};

pub(crate) mod rejections;

/// The maximum time that a poll waits for the confirmation that the state is current. Envoy gives
/// up a poll after a second by default. Without a confirmation, the poll receives the local state,
/// unless its client has seen a newer one.
const FRESHNESS_TIMEOUT: Duration = Duration::from_millis(500);

/// The maximum number of names by which a waiting poll is registered. A poll with more names wakes at
/// every change of their type in its scopes.
const NAMES_MAX: usize = 16;

/// The number of polls that are woken before other tasks run.
const WAKE_STEP: usize = 1024;

/// A running poll. Dropping it uncounts it among the streams.
#[derive(Debug)]
pub struct Poll {
    streams: Streams,
    freshness: ReadFreshness,
    state: watch::Receiver<Arc<State>>,
    held: Arc<HeldPolls>,
    rejections: PollRejections,
    protocol: Arc<chancery_protocol::Config>,
    access: Arc<PollAccess>,
    /// The address of the client.
    peer: SocketAddr,
}

/// The part of the state that a poll sees.
#[derive(Debug, Clone)]
pub struct PollView {
    /// The resources; `None` if no assignment matches the node.
    pub view: Option<View>,
    /// The scopes of the view.
    scopes: Vec<ScopeName>,
    /// The last revision of the assignments and access rules that decided about the view.
    placed_at: Revision,
}

/// The index of waiting polls.
#[derive(Debug)]
pub(crate) struct HeldPolls {
    index: Mutex<Index>,
    gauge: Gauge,
}

#[derive(Debug, Default)]
struct Index {
    next: u64,
    polls: BTreeMap<u64, Arc<Notify>>,
    subscribers: HashMap<(ScopeName, TypeUrl), Subscribers>,
}

/// The polls that ask for one type in one scope.
#[derive(Debug, Default)]
struct Subscribers {
    /// Those that wake at every change.
    all: BTreeSet<u64>,
    /// Those that wake at a change of a name.
    by_name: HashMap<Box<str>, BTreeSet<u64>>,
}

/// The registration of a waiting poll. Dropping it removes the poll from the index.
#[derive(Debug)]
pub struct HeldPoll {
    held: Arc<HeldPolls>,
    number: u64,
    notify: Arc<Notify>,
    scopes: Vec<ScopeName>,
    type_url: TypeUrl,
    /// `None` if every change wakes it.
    names: Option<Vec<Box<str>>>,
}

impl Poll {
    pub(crate) fn new(
        streams: Streams,
        freshness: ReadFreshness,
        held: Arc<HeldPolls>,
        rejections: PollRejections,
        protocol: Arc<chancery_protocol::Config>,
        access: Arc<PollAccess>,
        peer: SocketAddr,
    ) -> Self {
        let state = freshness.state();
        Self { streams, freshness, state, held, rejections, protocol, access, peer }
    }

    /// Keeps the report of a client that it has rejected a response (REST-16). `version` is that of the
    /// client.
    pub fn record_rejection(
        &self,
        principal: &Principal,
        node: &Node,
        scopes: &PollView,
        type_url: &TypeUrl,
        version: &str,
        code: i32,
    ) {
        self.rejections.record(PollRejection {
            principal: principal.clone(),
            node: node.id.clone(),
            scopes: scopes.scopes.clone(),
            type_url: type_url.clone(),
            version: version.to_owned(),
            code,
            time: SystemTime::now(),
        });
    }

    /// Converts requested names to the form in which resources have them.
    ///
    /// # Errors
    /// Returns the name of a glob collection, which a poll cannot request.
    pub fn names(&self, type_url: &TypeUrl, names: NameList) -> Result<PollNames, String> {
        PollNames::new(type_url, &self.protocol, names)
    }

    /// Waits until the state is current, for a bounded time.
    ///
    /// # Errors
    /// Fails if the client has seen a newer state than the replica can confirm.
    pub async fn check_fresh(&mut self, version_info: &str) -> Result<(), Behind> {
        let request = SotwRequest { version_info: version_info.to_owned(), ..Default::default() };
        self.freshness.check_within(FRESHNESS_TIMEOUT, &Request::Sotw(request)).await
    }

    /// Returns what the node of an identity sees in the newest state. The only place where a client without a session
    /// gets a view.
    ///
    /// # Errors
    /// Returns the end for a client that the access rules refuse.
    pub fn view(&self, identity: &Identity, node: &Node) -> Result<PollView, End> {
        let state = Arc::clone(&self.state.borrow());
        let Authorization { assigned, rights } =
            self.access.authorize(&state, identity, node, self.peer)?;
        let secrets = rights.map(|rights| rights.secrets);
        let scopes = assigned.map(|(_, scopes)| scopes);
        let resolve = |scopes: &Vec<ScopeName>| View::resolve(&state, scopes).with_secrets(secrets);
        let view = scopes.as_ref().map(resolve);
        let placed_at = state.placement_changed();
        Ok(PollView { view, scopes: scopes.unwrap_or_default(), placed_at })
    }

    /// Registers the poll, so that changes of the named resources wake it. `names` is `None` for
    /// all resources of the type. A change before the call does not wake the poll, so the caller
    /// must resolve the view again.
    #[must_use]
    pub fn hold<'n>(
        &self,
        view: &PollView,
        type_url: &TypeUrl,
        names: Option<impl Iterator<Item = &'n str>>,
    ) -> HeldPoll {
        let names = names.and_then(|names| {
            let names: Vec<Box<str>> =
                names.take(NAMES_MAX + 1).map(|name| base_of(name).into()).collect();
            (names.len() <= NAMES_MAX).then_some(names)
        });
        self.held.add(view.scopes.clone(), type_url.clone(), names)
    }

    /// Registers for changes of the assignments and the access rules alone.
    #[must_use]
    pub fn hold_placement(&self) -> HeldPoll {
        self.held.add(Vec::new(), TypeUrl::from_static(""), None)
    }
}

impl PollView {
    /// Returns whether both views have the same scopes.
    #[must_use]
    pub fn has_scopes_of(&self, other: &Self) -> bool {
        self.view.is_some() == other.view.is_some() && self.scopes == other.scopes
    }

    /// Returns the last revision of the assignments and access rules that decided about the view.
    #[must_use]
    pub fn placed_at(&self) -> Revision {
        self.placed_at
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HeldPoll {
    /// Waits for a change that may concern the poll.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for HeldPoll {
    fn drop(&mut self) {
        self.held.remove(self);
    }
}

impl HeldPolls {
    pub(crate) fn new() -> Arc<Self> {
        let gauge = gauge!("chancery_xds_held_polls");
        gauge.set(0.0);
        Arc::new(Self { index: Mutex::default(), gauge })
    }

    fn add(
        self: &Arc<Self>,
        scopes: Vec<ScopeName>,
        type_url: TypeUrl,
        names: Option<Vec<Box<str>>>,
    ) -> HeldPoll {
        let notify = Arc::new(Notify::new());
        let mut index = self.index.lock();
        let number = index.next;
        index.next += 1;
        index.polls.insert(number, Arc::clone(&notify));
        for scope in &scopes {
            let subscribers =
                index.subscribers.entry((scope.clone(), type_url.clone())).or_default();
            match &names {
                None => drop(subscribers.all.insert(number)),
                Some(names) => {
                    for name in names {
                        subscribers.by_name.entry(name.clone()).or_default().insert(number);
                    }
                }
            }
        }
        drop(index);
        self.gauge.increment(1.0);
        HeldPoll { held: Arc::clone(self), number, notify, scopes, type_url, names }
    }

    fn remove(&self, poll: &HeldPoll) {
        let mut index = self.index.lock();
        index.polls.remove(&poll.number);
        for scope in &poll.scopes {
            let key = (scope.clone(), poll.type_url.clone());
            let Some(subscribers) = index.subscribers.get_mut(&key) else { continue };
            subscribers.all.remove(&poll.number);
            for name in poll.names.iter().flatten() {
                if let Some(numbers) = subscribers.by_name.get_mut(name) {
                    numbers.remove(&poll.number);
                    if numbers.is_empty() {
                        subscribers.by_name.remove(name);
                    }
                }
            }
            if subscribers.all.is_empty() && subscribers.by_name.is_empty() {
                index.subscribers.remove(&key);
            }
        }
        drop(index);
        self.gauge.decrement(1.0);
    }

    /// Follows the state until `cancel`, and wakes the polls that each change after the call concerns.
    pub(crate) fn follow(
        self: Arc<Self>,
        mut state: watch::Receiver<Arc<State>>,
        differ: Arc<Differ>,
        cancel: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let mut last = Arc::clone(&state.borrow_and_update());
        async move {
            loop {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    changed = state.changed() => if changed.is_err() { return },
                }
                let newest = Arc::clone(&state.borrow_and_update());
                let old = std::mem::replace(&mut last, Arc::clone(&newest));
                if self.index.lock().polls.is_empty() {
                    continue;
                }
                if !newest.follows(&old) || old.placement_changed() != newest.placement_changed() {
                    self.wake_all().await;
                    continue;
                }
                for delta in changed_collections(&differ, &old, &newest) {
                    self.wake_concerned(&delta).await;
                }
            }
        }
    }

    async fn wake_all(&self) {
        self.wake_in_steps(|index, after| {
            let polls = index.polls.range((after, Bound::Unbounded));
            polls.map(|(number, _)| *number).take(WAKE_STEP).collect()
        })
        .await;
    }

    async fn wake_concerned(&self, delta: &LayerDelta) {
        let key = (delta.scope().clone(), delta.type_url().clone());
        let range = |numbers: &BTreeSet<u64>, after| {
            numbers.range((after, Bound::Unbounded)).copied().take(WAKE_STEP).collect()
        };
        self.wake_in_steps(|index, after| {
            index
                .subscribers
                .get(&key)
                .map_or_else(Vec::new, |subscribers| range(&subscribers.all, after))
        })
        .await;
        let has_names = |index: &Index| {
            index.subscribers.get(&key).is_some_and(|subscribers| !subscribers.by_name.is_empty())
        };
        if !has_names(&self.index.lock()) {
            return;
        }
        for (step, name) in delta.names().enumerate() {
            self.wake_in_steps(|index, after| {
                let numbers = index
                    .subscribers
                    .get(&key)
                    .and_then(|subscribers| subscribers.by_name.get(name.as_str()));
                numbers.map_or_else(Vec::new, |numbers| range(numbers, after))
            })
            .await;
            if step % WAKE_STEP == WAKE_STEP - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Wakes polls in the order of their numbers. `step` returns at most [`WAKE_STEP`] of them after a
    /// bound.
    async fn wake_in_steps(&self, step: impl Fn(&Index, Bound<u64>) -> Vec<u64>) {
        let mut after = Bound::Unbounded;
        loop {
            let n_woken = {
                let index = self.index.lock();
                let numbers = step(&index, after);
                for number in &numbers {
                    if let Some(notify) = index.polls.get(number) {
                        notify.notify_one();
                    }
                    after = Bound::Excluded(*number);
                }
                numbers.len()
            };
            if n_woken < WAKE_STEP {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{
        Incarnation, Outcome, ResourceDraft, ResourceKey, ResourceName, Transaction, Upsert,
        types::{CLUSTER, ENDPOINT},
    };
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::{Config, Fanout};

    struct Author(watch::Sender<Arc<State>>);

    impl Author {
        fn put(&self, type_url: &'static str, name: &str) {
            let key = ResourceKey {
                type_url: TypeUrl::from_static(type_url),
                name: ResourceName::new(name).unwrap(),
            };
            let revision = self.0.borrow().revision.to_string();
            let draft = ResourceDraft::new(key, Bytes::from(revision));
            let upserts = vec![Upsert { scope: ScopeName::new("default").unwrap(), draft }];
            self.apply(&Transaction { upserts, ..Transaction::default() });
        }

        fn apply(&self, transaction: &Transaction) {
            let applied = self.0.borrow().apply(transaction);
            assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
            self.0.send_replace(Arc::new(applied.state));
        }
    }

    const PEER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn start(streams_max: usize) -> (Author, Fanout, CancellationToken) {
        let (sender, state) = watch::channel(Arc::new(State::new(Incarnation(7))));
        let cancel = CancellationToken::new();
        let config = Config { shards: 1, streams_max, ..Config::default() };
        let fanout = Fanout::spawn(config, state, &TaskTracker::new(), cancel.clone());
        (Author(sender), fanout, cancel)
    }

    fn node() -> Node {
        Node { id: "n".into(), ..Node::default() }
    }

    fn names<'a>(names: &'a [&'static str]) -> Option<impl Iterator<Item = &'static str> + 'a> {
        (!names.is_empty()).then(|| names.iter().copied())
    }

    /// REST-13, design 4.3: a commit wakes the polls that ask for what it changes, and no others.
    #[tokio::test(start_paused = true)]
    async fn commit_wakes_only_concerned_polls() {
        let (author, fanout, _cancel) = start(100);
        let poll = fanout.open_poll(PEER).unwrap();
        let view = poll.view(&Identity::anonymous(), &node()).unwrap();
        let endpoint = TypeUrl::from_static(ENDPOINT);
        let hold =
            |type_url: &TypeUrl, list: &[&'static str]| poll.hold(&view, type_url, names(list));
        let clusters = hold(&TypeUrl::from_static(CLUSTER), &[]);
        let all = hold(&endpoint, &[]);
        let (a, b) = (hold(&endpoint, &["a"]), hold(&endpoint, &["b", "c"]));
        let woken = async |held: &HeldPoll| {
            tokio::time::timeout(Duration::from_secs(1), held.changed()).await.is_ok()
        };
        author.put(ENDPOINT, "a");
        assert!(woken(&a).await && woken(&all).await);
        assert!(!woken(&b).await && !woken(&clusters).await);
        author.put(ENDPOINT, "c");
        assert!(woken(&b).await && woken(&all).await && !woken(&a).await);
        author.apply(&Transaction {
            assignments: vec![chancery_model::AssignmentOp::Delete("default".into())],
            ..Transaction::default()
        });
        assert!(woken(&a).await && woken(&b).await && woken(&clusters).await);
        drop((a, b, all, clusters));
        let index = poll.held.index.lock();
        assert!(index.polls.is_empty() && index.subscribers.is_empty(), "{index:?}");
    }

    /// OPS-11: polls count as streams, and free their place.
    #[tokio::test]
    async fn polls_count_as_streams() {
        let (_author, fanout, _cancel) = start(1);
        let poll = fanout.open_poll(PEER).unwrap();
        assert_eq!(fanout.n_streams(), 1);
        assert!(fanout.open_poll(PEER).is_err());
        drop(poll);
        assert_eq!(fanout.n_streams(), 0);
        assert!(fanout.open_poll(PEER).is_ok());
    }

    #[derive(Debug)]
    struct Silent;

    impl crate::Fresh for Silent {
        fn confirm(&self) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send + '_>> {
            Box::pin(std::future::pending())
        }
    }

    /// REST-20, SOTW-92: without a leader, a poll gets the local state within its timeout, unless its
    /// client has seen a newer one.
    #[tokio::test(start_paused = true)]
    async fn poll_without_leader_is_answered_in_time() {
        let (author, fanout, _cancel) = start(1);
        author.put(CLUSTER, "a");
        let fanout = fanout.with_fresh(Arc::new(Silent));
        let since = tokio::time::Instant::now();
        let mut poll = fanout.open_poll(PEER).unwrap();
        assert!(poll.check_fresh("1-7-0").await.is_ok());
        assert_eq!(since.elapsed(), FRESHNESS_TIMEOUT);
        let error = poll.check_fresh("2-7-0").await.unwrap_err();
        assert!(error.to_string().contains("has seen revision 2"), "{error}");
    }
}
