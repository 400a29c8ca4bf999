//! The sessions of a shard: their state, and the index, queue and timers that refer to them.
//!
//! Invariants:
//! - A session is queued at most once. The queue skips keys of ended sessions.
//! - Each session has at most one current entry in each heap of timers.
//! - The key of a session is taken until [`Sessions::remove`]. The caller first removes its interests from the index.

use chancery_protocol::InterestChange;
use slab::Slab;
use tokio::time::Instant;

use crate::{
    messages::{
        session::{Key, Lane, Mark},
        status::{End, EndCode},
    },
    metrics::ShardMetrics,
    placement::placed::ScopeMove,
    stream::handles::Stopped,
    turn::{budget::Budget, clock::Now},
};

pub(crate) mod convergence;
pub(crate) mod effect;
pub(crate) mod entry;
pub(crate) mod index;
pub(crate) mod limits;
pub(crate) mod marking;
pub(crate) mod marks;
pub(crate) mod parts;
pub(crate) mod queue;
pub(crate) mod service;
pub(crate) mod standing;
pub(crate) mod timers;
pub(crate) mod unanswered;

use effect::Schedule;
use entry::Entry;
use index::Index;
use marking::Marking;
use queue::Queue;
use timers::Timers;

/// The number of entries of ended sessions that may stay in a queue, in addition to twice the number of
/// sessions.
pub(crate) const LEFT_OVER_MAX: usize = 1024;

/// The sessions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slab: Slab<Scheduled>,
    index: Index,
    /// The sessions to be polled.
    queue: Queue,
    /// The times at which sessions are to be polled without an event.
    wake_ups: Timers,
    /// The times at which clients become overdue. Each session has at most one entry, which may be too
    /// early: the time only moves later, and the shard checks it again.
    deadlines: Timers,
}

/// A session with its places in the queue and the timers.
#[derive(Debug)]
struct Scheduled {
    entry: Entry,
    /// The time at which the session entered the queue; `None` if it is not queued.
    queued_at: Option<Instant>,
    /// The lane in which the session is queued.
    lane: Lane,
    /// The time of the session's current entry in the timers.
    wake_at: Option<u64>,
    /// The time of the session's entry in the timers for overdue clients.
    overdue_at: Option<u64>,
}

impl Sessions {
    /// Adds the session of a new stream.
    pub(crate) fn insert(&mut self, entry: Entry) -> Key {
        let vacant = self.slab.vacant_entry();
        let key = key(vacant.key());
        entry.slot().set_key(Some(key));
        let scheduled =
            Scheduled { entry, queued_at: None, lane: Lane::Bulk, wake_at: None, overdue_at: None };
        vacant.insert(scheduled);
        key
    }

    /// Removes a session that is no longer in the index.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let Scheduled { entry, .. } = self.slab.try_remove(slab_index(key))?;
        entry.slot().set_key(None);
        Some(entry)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Entry> {
        self.slab.get(slab_index(key)).map(|scheduled| &scheduled.entry)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.slab.get_mut(slab_index(key)).map(|scheduled| &mut scheduled.entry)
    }

    /// Returns the first key after those of all sessions.
    pub(crate) fn end_key(&self) -> Key {
        key(self.slab.capacity())
    }

    /// Returns the index, for looking up sessions.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    // === index ===

    /// Registers or removes interests of a session under the scopes that it sees.
    pub(crate) fn register(&mut self, key: Key, interests: &[InterestChange]) {
        let Some(Scheduled { entry, .. }) = self.slab.get(slab_index(key)) else { return };
        for interest in interests {
            self.index.note(key, entry.placed().scopes(), interest);
        }
    }

    /// Removes all interests of a session.
    pub(crate) fn unregister(&mut self, key: Key, interests: &[InterestChange]) {
        let Some(Scheduled { entry, .. }) = self.slab.get(slab_index(key)) else { return };
        for interest in interests {
            self.index.forget(key, entry.placed().scopes(), interest);
        }
    }

    /// Moves interests of a session to other scopes.
    pub(crate) fn move_interests(
        &mut self,
        key: Key,
        scopes: &ScopeMove,
        interests: &[InterestChange],
    ) {
        for interest in interests {
            self.index.move_interest(key, &scopes.left, &scopes.joined, interest);
        }
    }

    /// Registers at most `n` names of a session that returns from large work. Returns whether no name remains, or `None`
    /// if the session has none to be registered.
    pub(crate) fn register_some(&mut self, key: Key, n: usize) -> Option<bool> {
        let Self { slab, index, .. } = self;
        let registration = slab.get_mut(slab_index(key))?.entry.registration()?;
        let is_done = registration.advance(n, |ScopeMove { left, joined }, interest| {
            index.move_interest(key, left, joined, interest);
        });
        Some(is_done)
    }

    // === marks ===

    /// Marks some of the sessions that a change affects. Returns whether all are marked.
    pub(crate) fn mark(
        &mut self,
        marking: &mut Marking,
        budget: &mut Budget,
        metrics: &ShardMetrics,
        now: Now,
    ) -> bool {
        let Self { index, slab, queue, .. } = self;
        let (step, arrived_at) = (marking.step(), marking.arrived_at());
        marking.advance(index, budget, |key, mark: Option<Mark<'_>>| {
            if let Some(scheduled) = slab.get_mut(slab_index(key))
                && scheduled.entry.mark(mark, step, arrived_at, metrics)
            {
                if mark.is_some_and(|mark| mark.is_bulk) {
                    scheduled.lane = Lane::Bulk;
                }
                scheduled.enqueue(key, queue, now);
            }
        })
    }

    // === queue ===

    /// Adds a session to the queue of sessions to poll.
    pub(crate) fn enqueue(&mut self, key: Key, now: Now) {
        if let Some(scheduled) = self.slab.get_mut(slab_index(key)) {
            scheduled.enqueue(key, &mut self.queue, now);
        }
    }

    /// Removes the session of a lane that has waited longest from the queue, and returns the time since which it has
    /// waited. The session is `None` if it has ended. Returns `None` if the lane is empty.
    pub(crate) fn next_to_poll(&mut self, lane: Lane) -> Option<Option<(Key, Instant)>> {
        let key = self.queue.pop(lane)?;
        let queued_at = self.slab.get_mut(slab_index(key)).and_then(|one| one.queued_at.take());
        Some(queued_at.map(|since| (key, since)))
    }

    /// Returns whether a session waits in the bulk lane.
    pub(crate) fn has_bulk(&self) -> bool {
        self.queue.has_bulk()
    }

    /// Returns the number of sessions to poll.
    pub(crate) fn n_queued(&self) -> usize {
        self.queue.len()
    }

    // === timers ===

    /// Applies the schedule of a session that was polled. An earlier timer stays.
    pub(crate) fn schedule(&mut self, key: Key, schedule: Schedule) {
        let Some(scheduled) = self.slab.get_mut(slab_index(key)) else { return };
        scheduled.lane = if schedule.is_bulk { Lane::Bulk } else { Lane::Updates };
        if let Some(wake_at) = schedule.wake_at
            && scheduled.wake_at.is_none_or(|known| wake_at < known)
        {
            scheduled.wake_at = Some(wake_at);
            self.wake_ups.set(wake_at, key);
        }
    }

    /// Sets a timer for the time at which the client will have been silent for too long.
    pub(crate) fn watch_silence(&mut self, key: Key) {
        if let Some(scheduled) = self.slab.get_mut(slab_index(key))
            && scheduled.overdue_at.is_none()
            && let Some(overdue_at) = scheduled.entry.overdue_at()
        {
            scheduled.overdue_at = Some(overdue_at);
            self.deadlines.set(overdue_at, key);
        }
    }

    /// Returns the time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.wake_ups.next().into_iter().chain(self.deadlines.next()).min()
    }

    /// Adds at most `n` sessions whose time has come to the queue.
    pub(crate) fn wake_due(&mut self, n: usize, now: Now) {
        for _ in 0..n {
            let Some((at, key)) = self.wake_ups.due(now.ms) else { break };
            if let Some(scheduled) = self.slab.get_mut(slab_index(key))
                && scheduled.wake_at == Some(at)
            {
                scheduled.wake_at = None;
                scheduled.enqueue(key, &mut self.queue, now);
            }
        }
    }

    /// Removes the next timer of a client that may be overdue, and returns its session. The session is `None` if the
    /// timer is outdated. Returns `None` if no timer is due.
    pub(crate) fn next_overdue(&mut self, now: Now) -> Option<Option<Key>> {
        let (at, key) = self.deadlines.due(now.ms)?;
        let scheduled = self.slab.get_mut(slab_index(key));
        let Some(scheduled) = scheduled.filter(|one| one.overdue_at == Some(at)) else {
            return Some(None);
        };
        scheduled.overdue_at = None;
        Some(Some(key))
    }

    /// Drops entries of ended sessions from the queue and the timers when they outnumber those of live sessions.
    /// Costs O(1) per ended session.
    pub(crate) fn tidy(&mut self) {
        let Self { slab, queue, wake_ups, deadlines, .. } = self;
        let most = 2 * slab.len() + LEFT_OVER_MAX;
        let find = |key| slab.get(slab_index(key));
        if queue.len() > most {
            queue.retain(|key| find(key).is_some_and(|one| one.queued_at.is_some()));
        }
        if wake_ups.len() > most {
            wake_ups.retain(|at, key| find(key).is_some_and(|one| one.wake_at == Some(at)));
        }
        if deadlines.len() > most {
            deadlines.retain(|at, key| find(key).is_some_and(|one| one.overdue_at == Some(at)));
        }
    }
}

impl Scheduled {
    fn enqueue(&mut self, key: Key, queue: &mut Queue, now: Now) {
        if self.queued_at.is_none() {
            self.queued_at = Some(now.instant);
            queue.push(key, self.lane);
        }
    }
}

/// The accesses of tests.
#[cfg(test)]
impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slab.iter().map(|(_, scheduled)| &scheduled.entry)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Entry)> {
        self.slab.iter_mut().map(|(index, scheduled)| (key(index), &mut scheduled.entry))
    }

    /// Returns the numbers of entries in the queue, the timers, and the timers for overdue clients.
    pub(crate) fn n_scheduled(&self) -> [usize; 3] {
        [self.queue.len(), self.wake_ups.len(), self.deadlines.len()]
    }
}

/// Ends all streams when the shard ends for any reason, so that clients reconnect to another replica.
/// Otherwise clients would stay connected and receive no updates.
impl Drop for Sessions {
    fn drop(&mut self) {
        for (_, scheduled) in &self.slab {
            let end = End::new(EndCode::Unavailable, Stopped.to_string());
            scheduled.entry.slot().end(end);
        }
    }
}

fn slab_index(key: Key) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}

/// Converts an index of the slab to a key. There are fewer than 2³² streams: `streams_max` is checked.
fn key(slab_index: usize) -> Key {
    Key::try_from(slab_index).unwrap_or(Key::MAX)
}
