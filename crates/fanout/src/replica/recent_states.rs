//! The states that the replica had in the last minute.
//!
//! A SotW client that reconnects reports the version that it accepted last, perhaps from another replica. Every replica
//! has the same history of states, so the state with this version says which resources the client has (ADR 14).
//!
//! A task adds the states, and drops them. Shards only look for a state when a client reports an old version.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use chancery_model::{Revision, State};
use chancery_view::Retained;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The time for which a state is kept after the next state has replaced it.
pub(crate) const KEEP: Duration = Duration::from_secs(60);
/// The minimum time between two states that are added. States that are replaced within it are left out, so that the cost
/// does not grow with the rate of writes.
const SPACING: Duration = Duration::from_millis(10);
/// The maximum number of states. Beyond it the oldest is dropped.
const STATES_MAX: usize = 1024;
/// The maximum of what the states keep in memory beside the newest one. Beyond it the oldest is dropped.
const RETAINED_MAX: Retained = Retained { items: 200_000, bytes: 256 << 20 };

/// The newest state and the ones before it.
#[derive(Debug, Default)]
pub(crate) struct RecentStates(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The replaced states, oldest first.
    replaced: VecDeque<Replaced>,
    newest: Option<Arc<State>>,
    /// The sum over all replaced states.
    retained: Retained,
}

#[derive(Debug)]
struct Replaced {
    state: Arc<State>,
    at: Instant,
    /// The parts that the next state does not share.
    retained: Retained,
}

impl RecentStates {
    /// Starts a task that adds the published states until `cancel`, at most one every 10 ms. Nobody watches the task: if
    /// it ends, clients of other replicas receive full states again, which is correct, and what is kept stays bounded.
    pub(crate) fn follow(
        state: watch::Receiver<Arc<State>>,
        tracker: &TaskTracker,
        cancel: CancellationToken,
    ) -> Arc<Self> {
        let states = Arc::new(Self::default());
        tracker.spawn(Arc::clone(&states).watch(state, cancel));
        states
    }

    async fn watch(
        self: Arc<Self>,
        mut state: watch::Receiver<Arc<State>>,
        cancel: CancellationToken,
    ) {
        loop {
            let newest = Arc::clone(&state.borrow_and_update());
            let (states, now) = (Arc::clone(&self), Instant::now());
            // Comparing and freeing large states would hold up a thread of the runtime.
            if spawn_blocking(move || states.note(&newest, now)).await.is_err() {
                return;
            }
            let expiry = self.0.lock().replaced.front().map(|oldest| oldest.at + KEEP);
            let expires = async {
                match expiry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let next = async {
                sleep_until(now + SPACING).await;
                state.changed().await
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = expires => {}
                changed = next => if changed.is_err() { return },
            }
        }
    }

    /// Adds a state, and drops old ones. Only one task may call it.
    pub(crate) fn note(&self, state: &Arc<State>, now: Instant) {
        let before = self.0.lock().newest.clone();
        let step = before.map(|before| {
            let same_history = state.follows(&before) && shares_parts(&before, state);
            let retained = same_history.then(|| Retained::between(&before, state, RETAINED_MAX));
            (before, retained)
        });
        let mut inner = self.0.lock();
        inner.newest = Some(Arc::clone(state));
        let mut dropped = VecDeque::new();
        match step {
            // Another form of the same state, or the first one.
            Some((before, Some(_))) if before.revision == state.revision => {}
            None => {}
            Some((before, Some(retained))) => {
                inner.retained.add(retained);
                inner.replaced.push_back(Replaced { state: before, at: now, retained });
            }
            Some((_, None)) => {
                dropped = std::mem::take(&mut inner.replaced);
                inner.retained = Retained::default();
            }
        }
        while inner.must_drop(now)
            && let Some(oldest) = inner.replaced.pop_front()
        {
            inner.retained.remove(oldest.retained);
            dropped.push_back(oldest);
        }
        drop(inner);
        // Without the lock, because it may take long.
        drop(dropped);
    }

    /// Returns the oldest kept state at `revision` or later.
    pub(crate) fn at(&self, revision: Revision, now: Instant) -> Option<Arc<State>> {
        let inner = self.0.lock();
        let first = inner.replaced.partition_point(|one| one.state.revision < revision);
        match inner.replaced.get(first) {
            Some(replaced) => (!replaced.has_expired(now)).then(|| Arc::clone(&replaced.state)),
            None => inner.newest.clone().filter(|newest| newest.revision >= revision),
        }
    }
}

impl Inner {
    fn must_drop(&self, now: Instant) -> bool {
        self.replaced.len() >= STATES_MAX
            || self.retained.exceeds(RETAINED_MAX)
            || self.replaced.front().is_some_and(|oldest| oldest.has_expired(now))
    }
}

impl Replaced {
    fn has_expired(&self, now: Instant) -> bool {
        self.at + KEEP <= now
    }
}

/// Returns whether two states can share their resources. A state from a snapshot shares nothing with the state before it.
fn shares_parts(old: &State, new: &State) -> bool {
    Arc::ptr_eq(&old.assignments, &new.assignments)
        || Arc::ptr_eq(&old.access, &new.access)
        || Arc::ptr_eq(&old.keys, &new.keys)
        || Arc::ptr_eq(&old.quotas, &new.quotas)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{
        Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, Transaction, TypeUrl,
        Upsert,
    };

    use super::*;

    /// Writes resources with bodies of `bytes` bytes.
    fn put(state: &State, names: std::ops::Range<usize>, bytes: usize) -> Arc<State> {
        let body = vec![u8::try_from(state.revision.0 % 250).unwrap(); bytes];
        let upserts = names.map(|n| {
            let key = ResourceKey {
                type_url: TypeUrl::from_static("type.googleapis.com/t.T"),
                name: ResourceName::new(&n.to_string()).unwrap(),
            };
            let draft = ResourceDraft::new(key, Bytes::from(body.clone()));
            Upsert { scope: ScopeName::new("s").unwrap(), draft }
        });
        let transaction = Transaction { upserts: upserts.collect(), ..Transaction::default() };
        Arc::new(state.apply(&transaction).state)
    }

    fn first() -> Arc<State> {
        Arc::new(State::new(Incarnation(1)))
    }

    fn found(states: &RecentStates, revision: u64, now: Instant) -> Option<u64> {
        states.at(Revision(revision), now).map(|state| state.revision.0)
    }

    fn retained(states: &RecentStates) -> (usize, Retained) {
        let inner = states.0.lock();
        (inner.replaced.len(), inner.retained)
    }

    #[test]
    fn oldest_state_at_or_after_a_revision_is_returned_until_it_expires() {
        let (states, start) = (RecentStates::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(found(&states, 0, start), None);
        let one = put(&first(), 0..1, 1);
        let three = put(&put(&one, 0..1, 1), 0..1, 1);
        let four = put(&three, 0..1, 1);
        states.note(&one, at(0));
        states.note(&three, at(100));
        states.note(&four, at(110));
        let all = |now| [0, 1, 2, 3, 4, 5].map(|revision| found(&states, revision, now));
        let (all_kept, some) =
            ([Some(1), Some(1), Some(3), Some(3), Some(4), None], [Some(3), Some(3)]);
        assert_eq!(all(at(159)), all_kept, "a state counts from when it was replaced");
        assert_eq!(all(at(160)), [None, None, Some(3), Some(3), Some(4), None]);
        states.note(&four, at(160));
        assert_eq!(all(at(160))[..2], some, "the expired state is dropped");
        states.note(&four, at(170));
        assert_eq!(all(at(170)), [Some(4), Some(4), Some(4), Some(4), Some(4), None]);
        assert_eq!(retained(&states), (0, Retained::default()));
    }

    #[test]
    fn recent_states_are_bounded_in_number() {
        let (states, now) = (RecentStates::default(), Instant::now());
        let mut state = first();
        for _ in 0..STATES_MAX + 10 {
            state = put(&state, 0..1, 1);
            states.note(&state, now);
        }
        assert_eq!(retained(&states).0, STATES_MAX - 1);
        assert_eq!(found(&states, 0, now), Some(11));
    }

    #[test]
    fn recent_states_are_bounded_in_changed_resources_and_bytes() {
        const MIB: usize = 1 << 20;
        // The number of resources, and the length of their bodies.
        for (n, bytes) in [(50_000, 1), (8, 8 * MIB)] {
            let (states, now) = (RecentStates::default(), Instant::now());
            let mut state = first();
            for _ in 0..8 {
                state = put(&state, 0..n, bytes);
                states.note(&state, now);
                assert!(!retained(&states).1.exceeds(RETAINED_MAX));
            }
            let n_kept = retained(&states).0;
            assert!((3..7).contains(&n_kept), "{n_kept} states with {n} changes are kept");
            assert_eq!(found(&states, 0, now), Some(8 - n_kept as u64), "the oldest goes first");
            let huge = put(&state, 0..RETAINED_MAX.items + 1, 1);
            states.note(&huge, now);
            states.note(&put(&huge, 0..RETAINED_MAX.items + 1, 2), now);
            assert_eq!(retained(&states), (0, Retained::default()), "one step is too large");
        }
    }

    #[test]
    fn state_of_another_history_clears_recent_states() {
        let now = Instant::now();
        let two = put(&put(&first(), 0..1, 1), 0..1, 2);
        let next = put(&two, 0..1, 3);
        let restored = State { incarnation: Incarnation(2), ..State::clone(&next) };
        let older = put(&first(), 0..1, 1);
        // A snapshot has the same content, but shares nothing.
        let mut snapshot = State::clone(&next);
        snapshot.assignments = Arc::new((*next.assignments).clone());
        snapshot.access = Arc::new((*next.access).clone());
        snapshot.keys = Arc::new((*next.keys).clone());
        snapshot.quotas = Arc::new((*next.quotas).clone());
        for (other, clears) in [
            (Arc::clone(&next), false),
            (Arc::new(restored), true),
            (older, true),
            (Arc::new(snapshot), true),
        ] {
            let states = RecentStates::default();
            states.note(&two, now);
            states.note(&other, now);
            let expected = if clears { (0, other.revision.0) } else { (1, two.revision.0) };
            assert_eq!((retained(&states).0, found(&states, 0, now).unwrap()), expected);
        }
    }

    /// States arrive without a call of a shard, and expire without a new state.
    #[tokio::test(start_paused = true)]
    async fn followed_states_are_added_and_expire() {
        let (one, tracker, cancel) = (first(), TaskTracker::new(), CancellationToken::new());
        let (sender, receiver) = watch::channel(Arc::clone(&one));
        let states = RecentStates::follow(receiver, &tracker, cancel.clone());
        let second = || tokio::time::sleep(Duration::from_secs(1));
        second().await;
        sender.send_replace(put(&one, 0..1, 1));
        second().await;
        assert_eq!(found(&states, 0, Instant::now()), Some(0));
        tokio::time::sleep(KEEP).await;
        assert_eq!(retained(&states), (0, Retained::default()));
        assert_eq!(found(&states, 0, Instant::now()), Some(1));
        cancel.cancel();
        tracker.close();
        tracker.wait().await;
    }
}
