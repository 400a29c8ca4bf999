//! Waiting until a revision is live.
//!
//! Asking the shards takes a part of their time that grows with their sessions, so waiters share what
//! one of them was told: a waiter is not done while one for an earlier revision, or the same one, is
//! not, and it is settled if a later one is. One question is asked at a time, whoever waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chancery_fanout::{Fanout, Settlement, StreamStatus, Unsettled, UnsettledState};
use chancery_model::{Revision, ScopeName, State, TypeUrl};
use chancery_view::View;
use tokio::time::Instant;

/// First pause between two looks. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest pause, if a question is cheap.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A pause is at least so many times as long as a question took.
const PAUSE_PER_COST: u32 = 10;

/// How a wait ended.
#[derive(Debug)]
pub(crate) struct Waited {
    /// The sessions that were asked, and those that have not acknowledged.
    pub(crate) settlement: Arc<Settlement>,
    pub(crate) time: Duration,
}

/// What the shards said last.
#[derive(Debug, Clone)]
struct Told {
    revision: Revision,
    /// When they had answered.
    at: Instant,
    cost: Duration,
    settlement: Arc<Settlement>,
    /// Nobody is left from whom another verdict is to be expected.
    is_final: bool,
}

impl Told {
    /// Whether a waiter for `revision` learns from this how it stands.
    fn concerns(&self, revision: Revision) -> bool {
        let is_settled = self.settlement.unsettled.is_empty() && self.revision >= revision;
        let is_not_done = !self.is_final && self.revision <= revision;
        is_settled || is_not_done || self.revision == revision
    }
}

/// All waits of a replica. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Waits {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Held while the shards are asked: so there is one question at a time.
    told: tokio::sync::Mutex<Option<Told>>,
    /// The revisions that are waited for, and how many wait for each.
    waiting: Mutex<BTreeMap<Revision, usize>>,
}

/// A place among those that wait.
struct Place {
    shared: Arc<Shared>,
    revision: Revision,
}

impl Place {
    fn take(shared: &Arc<Shared>, revision: Revision) -> Self {
        let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting.entry(revision).or_default() += 1;
        drop(waiting);
        Self { shared: Arc::clone(shared), revision }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = waiting.get_mut(&self.revision) {
            *n -= 1;
            if *n == 0 {
                waiting.remove(&self.revision);
            }
        }
    }
}

impl Waits {
    /// Looks again and again who has not acknowledged `revision`, until nobody is left, or only those
    /// who have rejected it, or the time is up. `ask` asks the shards.
    pub(crate) async fn wait(
        &self,
        shards: &impl Shards,
        revision: Revision,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Waited {
        let start = Instant::now();
        let _place = Place::take(&self.shared, revision);
        let (mut pause, mut age_max) = (PAUSE_MIN, PAUSE_MIN);
        loop {
            let told = self.look(shards, revision, age_max).await;
            let left = timeout.saturating_sub(start.elapsed());
            let is_last = told.is_final || left.is_zero() || is_over();
            if is_last && (told.revision == revision || told.settlement.unsettled.is_empty()) {
                return Waited { settlement: told.settlement, time: start.elapsed() };
            }
            if is_last {
                let settlement = shards.unsettled(revision).await.into();
                return Waited { settlement, time: start.elapsed() };
            }
            age_max = pause.max(told.cost * PAUSE_PER_COST).min(left);
            tokio::time::sleep(age_max).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What was told to another one a short time ago if it serves, else an answer of its own.
    async fn look(&self, shards: &impl Shards, revision: Revision, age_max: Duration) -> Told {
        let mut last = self.shared.told.lock().await;
        if let Some(told) = last.as_ref()
            && told.concerns(revision)
            && told.at.elapsed() < age_max
        {
            return told.clone();
        }
        let told = self.shared.ask_for(shards, revision).await;
        *last = Some(told.clone());
        told
    }
}

impl Shared {
    /// Asks what serves the waiter for `revision`, and, if that can be, all the others.
    async fn ask_for(&self, shards: &impl Shards, revision: Revision) -> Told {
        let (earliest, latest) = self.ends().unwrap_or((revision, revision));
        let told = ask(shards, earliest).await;
        // While the earliest is not done, nobody is.
        if !told.is_final && told.concerns(revision) {
            return told;
        }
        // When the latest is settled, all are.
        if latest > earliest {
            let told = ask(shards, latest).await;
            if told.concerns(revision) {
                return told;
            }
        }
        if earliest == revision { told } else { ask(shards, revision).await }
    }

    /// The earliest and the latest revision that is waited for.
    fn ends(&self) -> Option<(Revision, Revision)> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        Some((*waiting.keys().next()?, *waiting.keys().next_back()?))
    }
}

async fn ask(shards: &impl Shards, revision: Revision) -> Told {
    let start = Instant::now();
    let settlement = shards.unsettled(revision).await;
    let unsettled = &settlement.unsettled;
    let all_rejected = unsettled.iter().all(|one| matches!(one.state, UnsettledState::Nacked(_)));
    let is_final =
        unsettled.is_empty() || (all_rejected && shards.have_nothing_newer(unsettled).await);
    let at = Instant::now();
    Told { revision, at, cost: at - start, settlement: settlement.into(), is_final }
}

/// Whom a waiter asks.
pub(crate) trait Shards: Sync {
    /// The sessions that were asked to acknowledge `revision`, and those that have not.
    fn unsettled(&self, revision: Revision) -> impl Future<Output = Settlement> + Send;

    /// Whether all these have rejected the newest that there is for them, so that nothing is on its
    /// way that they could take.
    fn have_nothing_newer(&self, rejected: &[Unsettled]) -> impl Future<Output = bool> + Send;
}

/// The shards of this replica, and the newest state.
pub(crate) struct Replica<'a, S> {
    pub(crate) fanout: &'a Fanout,
    pub(crate) state: S,
}

impl<S: Fn() -> Arc<State> + Sync> Shards for Replica<'_, S> {
    async fn unsettled(&self, revision: Revision) -> Settlement {
        self.fanout.settlement(revision).await
    }

    async fn have_nothing_newer(&self, rejected: &[Unsettled]) -> bool {
        let state = (self.state)();
        all_reject_newest(&state, &self.fanout.nodes().await, rejected)
    }
}

/// Whether each of `rejected` still rejects the newest of its type. One that does not has been sent
/// something since, or will be.
fn all_reject_newest(state: &State, streams: &[StreamStatus], rejected: &[Unsettled]) -> bool {
    let mut open: BTreeSet<(&str, Option<&TypeUrl>)> =
        rejected.iter().map(|one| (one.node.as_str(), one.type_url.as_ref())).collect();
    let nodes: BTreeSet<&str> = open.iter().map(|(node, _)| *node).collect();
    let mut views: BTreeMap<&[ScopeName], View> = BTreeMap::new();
    for stream in streams.iter().filter(|stream| nodes.contains(stream.node.id.as_str())) {
        let view =
            views.entry(&stream.scopes).or_insert_with(|| View::resolve(state, &stream.scopes));
        for subscription in &stream.subscriptions {
            let Some(nack) = &subscription.nack else { continue };
            let newest = view.of_type(&subscription.type_url).version();
            if nack.version.revision < newest.revision {
                return false;
            }
            open.remove(&(stream.node.id.as_str(), Some(&subscription.type_url)));
        }
    }
    open.is_empty()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::SystemTime,
    };

    use chancery_model::{
        Incarnation, Node, ResourceDraft, ResourceKey, ResourceName, Transaction, TypeVersion,
        Upsert, types,
    };
    use chancery_protocol::{Nack, Protocol, SubscriptionStatus, SyncState};

    use super::*;

    /// Shards with one client that is silent until `verdict`, from whom revisions up to `reached` are
    /// acknowledged.
    struct Fake {
        reached: Revision,
        verdict: Instant,
        nack: bool,
        asked: AtomicUsize,
    }

    impl Fake {
        fn new(reached: u64, after: Duration, nack: bool) -> Self {
            let verdict = Instant::now() + after;
            Self { reached: Revision(reached), verdict, nack, asked: AtomicUsize::new(0) }
        }
    }

    impl Shards for Fake {
        async fn unsettled(&self, revision: Revision) -> Settlement {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let is_silent = Instant::now() < self.verdict || revision > self.reached;
            let state = match (is_silent, self.nack) {
                (true, _) => UnsettledState::Pending,
                (false, true) => UnsettledState::Nacked("no".to_owned()),
                (false, false) => {
                    return Settlement { n_asked: 1, n_acknowledged: 1, ..Settlement::default() };
                }
            };
            let unsettled = vec![Unsettled { node: "n".to_owned(), type_url: None, state }];
            Settlement { unsettled, n_asked: 1, n_acknowledged: 0 }
        }

        async fn have_nothing_newer(&self, _rejected: &[Unsettled]) -> bool {
            true
        }
    }

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn waiters_share_what_the_shards_say() {
        let fake = Fake::new(1000, Duration::from_secs(5), false);
        let waits = Waits::default();
        let waiters =
            (1..=200).map(|revision| waits.wait(&fake, Revision(revision), PATIENCE, || false));
        for waited in futures::future::join_all(waiters).await {
            assert!(waited.settlement.unsettled.is_empty() && waited.time < Duration::from_secs(6));
        }
        let asked = fake.asked.load(Ordering::Relaxed);
        assert!(asked <= 60, "200 waiters asked {asked} times in 5 seconds");
        assert!(waits.shared.waiting.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_only_those_are_left_who_have_rejected() {
        let fake = Fake::new(1, Duration::from_secs(1), true);
        let waited = Waits::default().wait(&fake, Revision(1), PATIENCE, || false).await;
        assert_eq!(waited.settlement.unsettled[0].state, UnsettledState::Nacked("no".to_owned()));
        assert!(waited.time < Duration::from_secs(2), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_an_earlier_revision_does_not_wait_for_a_later_one() {
        let fake = Fake::new(3, Duration::from_secs(1), false);
        let waits = Waits::default();
        let (third, fourth, first) = tokio::join!(
            waits.wait(&fake, Revision(3), PATIENCE, || false),
            waits.wait(&fake, Revision(4), PATIENCE, || false),
            waits.wait(&fake, Revision(1), PATIENCE, || false),
        );
        for settled in [first, third] {
            assert!(
                settled.settlement.unsettled.is_empty() && settled.time < Duration::from_secs(2)
            );
        }
        assert_eq!(fourth.settlement.unsettled[0].state, UnsettledState::Pending);
        assert!(fourth.time >= PATIENCE);
    }

    fn stream(scope: &ScopeName, nack: Option<u64>) -> StreamStatus {
        let (revision, incarnation) = (Revision(nack.unwrap_or_default()), Incarnation(1));
        let version = TypeVersion { revision, incarnation, label: None };
        let nack = nack.map(|_| Nack { version, code: 3, message: "no".to_owned(), at_ms: 0 });
        StreamStatus {
            node: Arc::new(Node { id: "n".to_owned(), ..Node::default() }),
            peer: "127.0.0.1:1".parse().unwrap(),
            protocol: Protocol::Delta,
            type_url: None,
            assignment: Some("default".into()),
            scopes: vec![scope.clone()],
            since: SystemTime::now(),
            subscriptions: vec![SubscriptionStatus {
                type_url: TypeUrl::from_static(types::CLUSTER),
                wildcard: true,
                n_names: 0,
                sent: None,
                acked: None,
                state: SyncState::Nacked,
                nack,
                n_held_removals: 0,
            }],
            nacks: Vec::new(),
        }
    }

    /// A client that has rejected an older version looks as if it had rejected this one until it is sent
    /// this one.
    #[test]
    fn a_rejection_is_final_only_if_it_is_of_the_newest() {
        let scope = ScopeName::new("default").unwrap();
        let type_url = TypeUrl::from_static(types::CLUSTER);
        let name = ResourceName::new("web").unwrap();
        let key = ResourceKey { type_url: type_url.clone(), name };
        let draft = ResourceDraft::new(key, bytes::Bytes::from_static(b"\x0a\x03web"));
        let upserts = vec![Upsert { scope: scope.clone(), draft }];
        let transaction = Transaction { upserts, ..Transaction::default() };
        let state = State { revision: Revision(6), ..State::new(Incarnation(1)) };
        let state = state.apply(&transaction).state;
        assert_eq!(state.revision, Revision(7));
        let state_of = UnsettledState::Nacked("no".to_owned());
        let rejected =
            [Unsettled { node: "n".to_owned(), type_url: Some(type_url), state: state_of }];
        let is_final = |nack| all_reject_newest(&state, &[stream(&scope, nack)], &rejected);
        assert!(is_final(Some(7)));
        assert!(!is_final(Some(6)), "the newest is still to be sent");
        assert!(!is_final(None), "it has been acknowledged in the meantime");
        assert!(!all_reject_newest(&state, &[], &rejected), "it has gone in the meantime");
    }
}
