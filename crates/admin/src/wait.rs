//! Waiting until a change is live.
//!
//! A rejection is the final answer of a session, even if a later write replaces what the session
//! rejected. The result contains every rejection that a query found, even if the session ends later.
//!
//! Each waiter queries the shards for the sessions that its change concerns. Only one query runs at
//! a time. Waiters pause between queries for a multiple of the duration of a query, and longer the
//! more waiters there are. All waits together thus use a small fraction of the shards' time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chancery_fanout::{
    Change, ConcernedSession, Fanout, Progress, SessionId, Unacknowledged, UnacknowledgedState,
};
use chancery_model::{Node, TypeUrl};
use tokio::time::Instant;

/// The first pause between two queries. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The maximum pause, if queries are fast.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The minimum pause of each waiter, as a multiple of the duration of a query and the number of
/// waiters.
const PAUSE_PER_COST: u32 = 10;

/// The maximum number of listed sessions that have not acknowledged, and of listed nodes whose sessions ended.
pub(crate) const LISTED_MAX: usize = 100;

/// The progress of a wait, or its result.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waited {
    /// The first sessions that have not acknowledged, with one entry for each type of a session.
    pub(crate) unsettled: Vec<Unacknowledged>,
    /// The number of all these entries, and of those that are rejections.
    pub(crate) n_unsettled: usize,
    pub(crate) n_rejected: usize,
    /// Whether no further answer is expected from any session.
    pub(crate) is_final: bool,
    /// The number of sessions that were asked.
    pub(crate) n_asked: usize,
    /// The number of sessions that have acknowledged.
    pub(crate) n_acknowledged: usize,
    /// The nodes of the first sessions that ended, or gave up their subscription, before they answered.
    pub(crate) left: Vec<Arc<Node>>,
    /// The number of all these sessions.
    pub(crate) n_left: usize,
    /// The nodes of the sessions that ended after they had acknowledged, and have not returned to this replica.
    pub(crate) gone: Vec<Arc<Node>>,
    /// The nodes of the sessions that the change concerns now.
    pub(crate) present: Vec<Arc<Node>>,
    pub(crate) time: Duration,
}

/// All waits of a replica. A clone is cheap.
#[derive(Clone, Default)]
pub(crate) struct Waits {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Locked during a query, so that only one query runs at a time.
    asking: tokio::sync::Mutex<()>,
    n_waiting: AtomicU32,
}

/// A guard that counts a waiter.
struct Place<'a>(&'a Shared);

impl<'a> Place<'a> {
    fn take(shared: &'a Shared) -> Self {
        shared.n_waiting.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.n_waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Everything that the queries of a wait have found. Some of the sessions may have ended.
#[derive(Default)]
struct Seen {
    /// All sessions that were asked, with their last known state.
    asked: HashMap<SessionId, ConcernedSession>,
    /// The rejections, by node and type.
    rejections: BTreeMap<(String, Option<TypeUrl>), Unacknowledged>,
}

impl Seen {
    fn update(&mut self, settlement: &Progress) {
        self.asked.extend(settlement.asked.iter().map(|(id, asked)| (*id, asked.clone())));
        let rejected = |one: &&Unacknowledged| matches!(one.state, UnacknowledgedState::Nacked(_));
        for one in settlement.unsettled.iter().filter(rejected) {
            self.rejections.insert((one.node.clone(), one.type_url.clone()), one.clone());
        }
    }

    /// Iterates over the sessions that have not acknowledged, and all that have rejected.
    fn unsettled<'a>(&'a self, now: &'a Progress) -> impl Iterator<Item = &'a Unacknowledged> {
        let is_rejected =
            |one: &&Unacknowledged| matches!(one.state, UnacknowledgedState::Nacked(_));
        let listed: BTreeSet<(&str, Option<&TypeUrl>)> = (now.unsettled.iter())
            .filter(is_rejected)
            .map(|one| (one.node.as_str(), one.type_url.as_ref()))
            .collect();
        let is_new = move |one: &&Unacknowledged| {
            !listed.contains(&(one.node.as_str(), one.type_url.as_ref()))
        };
        now.unsettled.iter().chain(self.rejections.values().filter(is_new))
    }

    /// Returns the nodes of the sessions that ended with or without an acknowledgment, if the nodes have not reconnected.
    fn ended(&self, now: &Progress, has_acknowledged: bool) -> Vec<&Arc<Node>> {
        let has_ended = |(id, asked): &(&SessionId, &ConcernedSession)| {
            asked.has_acknowledged == has_acknowledged && !now.asked.contains_key(*id)
        };
        let mut ended = self.asked.iter().filter(has_ended).peekable();
        if ended.peek().is_none() {
            return Vec::new();
        }
        let here: BTreeSet<&str> = now.asked.values().map(|asked| asked.node.id.as_str()).collect();
        let nodes = ended.map(|(_, asked)| &asked.node);
        nodes.filter(|node| !here.contains(node.id.as_str())).collect()
    }
}

impl Waits {
    /// Queries the shards repeatedly for the sessions that have not acknowledged `change`. Ends
    /// when all sessions have acknowledged or rejected the change or have lost their assignment, or
    /// at the timeout.
    pub(crate) async fn wait(
        &self,
        shards: &impl Shards,
        change: Change,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Waited {
        let mut result = Waited::default();
        let observe = |waited: Waited| {
            let is_end = waited.is_final || waited.time >= timeout || is_over();
            result = waited;
            if is_end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.watch(shards, Arc::new(change), timeout, observe).await;
        result
    }

    /// Queries the shards repeatedly, and passes on the progress, until `observe` ends it. Pauses at most until the
    /// timeout.
    pub(crate) async fn watch(
        &self,
        shards: &impl Shards,
        change: Arc<Change>,
        timeout: Duration,
        mut observe: impl FnMut(Waited) -> ControlFlow<()>,
    ) {
        let start = Instant::now();
        let _place = Place::take(&self.shared);
        let (mut pause, mut seen) = (PAUSE_MIN, Seen::default());
        loop {
            let asking = self.shared.asking.lock().await;
            let asked_at = Instant::now();
            let settlement = shards.settlement(&change).await;
            let cost = asked_at.elapsed();
            drop(asking);
            seen.update(&settlement);
            if observe(Waited::new(&settlement, &seen, start.elapsed())).is_break() {
                return;
            }
            let left = timeout.saturating_sub(start.elapsed());
            let n_waiting = self.shared.n_waiting.load(Ordering::Relaxed);
            let share = cost.saturating_mul(PAUSE_PER_COST.saturating_mul(n_waiting));
            let until_end = if left.is_zero() { PAUSE_MAX } else { left };
            tokio::time::sleep(pause.max(share).min(until_end)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Waited {
    fn new(settlement: &Progress, seen: &Seen, time: Duration) -> Self {
        // For a shard that is behind, it is unknown which sessions have ended.
        let left = if settlement.is_behind { Vec::new() } else { seen.ended(settlement, false) };
        let gone = seen.ended(settlement, true);
        let n_here = settlement.asked.values().filter(|asked| asked.has_acknowledged).count();
        let n_acknowledged = n_here + gone.len();
        let n_open = settlement.asked.len() - n_here;
        let (mut n_unsettled, mut n_rejected, mut unsettled) = (0, 0, Vec::new());
        for one in seen.unsettled(settlement) {
            n_unsettled += 1;
            n_rejected += usize::from(matches!(one.state, UnacknowledgedState::Nacked(_)));
            if unsettled.len() < LISTED_MAX {
                unsettled.push(one.clone());
            }
        }
        Self {
            unsettled,
            n_unsettled,
            n_rejected,
            is_final: is_final(&settlement.unsettled),
            n_asked: n_acknowledged + n_open + left.len(),
            n_acknowledged,
            n_left: left.len(),
            left: left.into_iter().take(LISTED_MAX).cloned().collect(),
            gone: gone.into_iter().cloned().collect(),
            present: settlement.asked.values().map(|asked| Arc::clone(&asked.node)).collect(),
            time,
        }
    }
}

/// Returns whether no further answer is expected from any session.
fn is_final(unsettled: &[Unacknowledged]) -> bool {
    unsettled.iter().all(|one| match one.state {
        UnacknowledgedState::Nacked(_) | UnacknowledgedState::Unassigned => true,
        UnacknowledgedState::Pending
        | UnacknowledgedState::Behind(_)
        | UnacknowledgedState::Stalled(_) => false,
    })
}

/// The source of the sessions' states.
pub(crate) trait Shards: Sync {
    /// Returns the sessions that `change` concerns, and those that have not acknowledged it.
    fn settlement(&self, change: &Arc<Change>) -> impl Future<Output = Progress> + Send;
}

impl Shards for Fanout {
    async fn settlement(&self, change: &Arc<Change>) -> Progress {
        Self::settlement(self, change).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use chancery_model::Revision;

    use super::*;

    /// Shards with one client that does not answer before `verdict`, and is gone from `end` on.
    struct Fake {
        verdict: Instant,
        end: Option<Instant>,
        nack: bool,
        /// The duration of a query.
        cost: Duration,
        /// The total time that queries took.
        busy: Mutex<Duration>,
    }

    impl Fake {
        fn new(after: Duration, nack: bool) -> Self {
            let verdict = Instant::now() + after;
            Self { verdict, end: None, nack, cost: Duration::ZERO, busy: Mutex::default() }
        }

        fn node() -> Arc<Node> {
            Arc::new(Node { id: "n".to_owned(), ..Node::default() })
        }
    }

    impl Shards for Fake {
        async fn settlement(&self, _change: &Arc<Change>) -> Progress {
            tokio::time::sleep(self.cost).await;
            *self.busy.lock().unwrap() += self.cost;
            if self.end.is_some_and(|end| Instant::now() >= end) {
                return Progress::default();
            }
            let state = match (Instant::now() < self.verdict, self.nack) {
                (true, _) => Some(UnacknowledgedState::Pending),
                (false, true) => Some(UnacknowledgedState::Nacked("no".to_owned())),
                (false, false) => None,
            };
            let asked = ConcernedSession { node: Self::node(), has_acknowledged: state.is_none() };
            let unsettled =
                state.map(|state| Unacknowledged { node: "n".to_owned(), type_url: None, state });
            Progress {
                unsettled: unsettled.into_iter().collect(),
                asked: HashMap::from([(SessionId(7), asked)]),
                is_behind: false,
            }
        }
    }

    const PATIENCE: Duration = Duration::from_secs(100);

    fn change(revision: u64) -> Change {
        Change::anything(Revision(revision))
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_use_a_tenth_of_shard_time() {
        let cost = Duration::from_millis(10);
        let fake = Fake { cost, ..Fake::new(Duration::from_secs(50), false) };
        let waits = Waits::default();
        let waiters =
            (1..=100).map(|revision| waits.wait(&fake, change(revision), PATIENCE, || false));
        for waited in futures::future::join_all(waiters).await {
            assert!(waited.unsettled.is_empty() && waited.n_acknowledged == 1, "{waited:?}");
        }
        // Each waiter queries once at the start and once after the verdict. In between, queries
        // take a tenth of the time.
        let busy = *fake.busy.lock().unwrap();
        assert!(busy <= Duration::from_secs(9), "the shards were busy for {busy:?} of 50 seconds");
        assert_eq!(waits.shared.n_waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_ends_when_all_pending_sessions_have_rejected() {
        let fake = Fake::new(Duration::from_secs(1), true);
        let waited = Waits::default().wait(&fake, change(1), PATIENCE, || false).await;
        assert_eq!(waited.unsettled[0].state, UnacknowledgedState::Nacked("no".to_owned()));
        assert!(waited.time < Duration::from_secs(2), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_leaves_before_answering_is_counted_as_left() {
        let end = Some(Instant::now() + Duration::from_secs(1));
        let fake = Fake { end, ..Fake::new(Duration::from_secs(5), false) };
        let waited = Waits::default().wait(&fake, change(1), PATIENCE, || false).await;
        assert!(waited.unsettled.is_empty() && waited.time < Duration::from_secs(2), "{waited:?}");
        assert_eq!((waited.n_asked, waited.n_acknowledged, waited.n_left), (1, 0, 1));
        // A session that ends after its answer is not counted as left.
        let end = Some(Instant::now() + Duration::from_secs(1));
        let fake = Fake { end, ..Fake::new(Duration::ZERO, false) };
        let waited = Waits::default().wait(&fake, change(1), PATIENCE, || false).await;
        assert_eq!((waited.n_asked, waited.n_acknowledged, waited.n_left), (1, 1, 0));
    }

    /// If the session of a node ends and the node reconnects, the new session counts.
    #[test]
    fn node_that_comes_back_has_not_left() {
        let asked = |id, has_acknowledged| {
            let asked = ConcernedSession { node: Fake::node(), has_acknowledged };
            Progress { asked: HashMap::from([(SessionId(id), asked)]), ..Progress::default() }
        };
        let mut seen = Seen::default();
        seen.update(&asked(1, false));
        assert_eq!(seen.ended(&Progress::default(), false).len(), 1);
        seen.update(&asked(2, true));
        assert_eq!(seen.ended(&asked(2, true), false).len(), 0);
        // Nor does it count twice if the first session had acknowledged.
        seen.update(&asked(3, true));
        let waited = Waited::new(&asked(3, true), &seen, Duration::ZERO);
        assert_eq!((waited.n_asked, waited.n_acknowledged, waited.gone.len()), (1, 1, 0));
        let waited = Waited::new(&Progress::default(), &seen, Duration::ZERO);
        assert_eq!(waited.n_acknowledged, waited.gone.len());
    }

    /// The rejection of a session that ends during the wait is reported, even if its node reconnects.
    #[test]
    fn rejection_of_a_session_that_ends_is_reported() {
        let state = UnacknowledgedState::Nacked("no".to_owned());
        let nacked = Unacknowledged { node: "n".to_owned(), type_url: None, state };
        let progress = |id, unsettled: Vec<Unacknowledged>| {
            let has_acknowledged = unsettled.is_empty();
            let asked = ConcernedSession { node: Fake::node(), has_acknowledged };
            let asked = HashMap::from([(SessionId(id), asked)]);
            Progress { unsettled, asked, is_behind: false }
        };
        let mut seen = Seen::default();
        seen.update(&progress(1, vec![nacked.clone()]));
        let last = progress(2, Vec::new());
        seen.update(&last);
        assert_eq!(Waited::new(&last, &seen, Duration::ZERO).unsettled, [nacked]);
    }
}
