//! Sessions that wait to be polled, in two lanes.
//!
//! A session that is being brought to a state (it has just come, or the last response was long) is in
//! the lane for bulk, every other in the lane for updates. A turn polls the lane for updates first, and
//! every fourth turn the lane for bulk with a budget of its own: a small update waits for the updates before it and for
//! the bulk of one turn, never for all the clients that are connecting or for one that takes 100,000
//! resources; and bulk gets its part, however many updates there are.
//!
//! Invariant: a session is queued at most once ([`crate::entry::Entry::queued`]); a key whose session is
//! gone is passed over, and those are dropped when they are many. So the queue is bounded by the streams.

use std::collections::{HashSet, VecDeque};

use crate::index::Key;

/// Which lane a session, or an event, waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// It is up to date but for what has just changed.
    Updates,
    /// It is being brought to a state.
    Bulk,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    updates: VecDeque<Key>,
    bulk: VecDeque<Key>,
}

impl Queue {
    pub(crate) fn push(&mut self, key: Key, lane: Lane) {
        match lane {
            Lane::Updates => self.updates.push_back(key),
            Lane::Bulk => self.bulk.push_back(key),
        }
    }

    /// The session of the lane that has waited the longest.
    pub(crate) fn pop(&mut self, lane: Lane) -> Option<Key> {
        match lane {
            Lane::Updates => self.updates.pop_front(),
            Lane::Bulk => self.bulk.pop_front(),
        }
    }

    /// Drops the keys that are not wanted; of several of one session the first stays.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(Key) -> bool) {
        let mut seen = HashSet::new();
        let mut keep = |key: &Key| is_wanted(*key) && seen.insert(*key);
        self.updates.retain(&mut keep);
        self.bulk.retain(&mut keep);
    }

    /// Whether a session waits in the lane for bulk.
    pub(crate) fn has_bulk(&self) -> bool {
        !self.bulk.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.updates.len() + self.bulk.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
