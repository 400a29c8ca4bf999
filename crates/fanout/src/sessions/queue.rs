//! Sessions that wait to be polled, in two lanes.
//!
//! A session waits in the bulk lane while its client is loading a state: the stream is new, its last
//! response was long, or a commit changed many names for it. Every other session waits in the updates lane. A turn polls the updates lane
//! first. At least every fourth turn then polls the bulk lane, within a separate budget. A small update
//! therefore waits only for earlier updates and for the bulk work of one turn. It never waits for all
//! connecting clients, nor for a client that loads 100,000 resources. Bulk work gets its part
//! regardless of the number of updates.
//!
//! Invariant: a session is queued at most once ([`super::Sessions`]). The shard skips keys
//! of ended sessions, and drops them when there are many. The queue is therefore bounded by the number
//! of streams.

use std::collections::{HashSet, VecDeque};

use crate::messages::session::{Key, Lane};

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

    /// Removes the session of the lane that has waited longest.
    pub(crate) fn pop(&mut self, lane: Lane) -> Option<Key> {
        match lane {
            Lane::Updates => self.updates.pop_front(),
            Lane::Bulk => self.bulk.pop_front(),
        }
    }

    /// Drops unwanted keys. Of several keys of one session, the first stays.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(Key) -> bool) {
        let mut seen = HashSet::new();
        let mut keep = |key: &Key| is_wanted(*key) && seen.insert(*key);
        self.updates.retain(&mut keep);
        self.bulk.retain(&mut keep);
    }

    /// Returns whether a session waits in the bulk lane.
    pub(crate) fn has_bulk(&self) -> bool {
        !self.bulk.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.updates.len() + self.bulk.len()
    }
}
