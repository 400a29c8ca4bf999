//! Sessions that wait to be polled, in two lanes.
//!
//! A session that is being brought to a state (it has just come, or the last response was long) is in
//! the lane for bulk, every other in the lane for updates. While both lanes have somebody, each gets
//! half of the work: so a small update waits for the updates before it and for as much bulk, never for
//! all the clients that are connecting or for one that takes 100,000 resources.
//!
//! Invariant: a session is queued at most once ([`crate::entry::Entry::queued`]); a key whose session is
//! gone is passed over, and those are dropped when they are many. So the queue is bounded by the streams.

use std::collections::{HashSet, VecDeque};

use crate::index::Key;

/// Which lane a session waits in.
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
    /// Work that the bulk lane got more than the other, while both had somebody.
    lead: isize,
}

impl Queue {
    pub(crate) fn push(&mut self, key: Key, lane: Lane) {
        match lane {
            Lane::Updates => self.updates.push_back(key),
            Lane::Bulk => self.bulk.push_back(key),
        }
    }

    /// The next one: of the lane that has had less, of updates if both have had the same.
    pub(crate) fn pop(&mut self) -> Option<(Key, Lane)> {
        let lane = match (self.updates.is_empty(), self.bulk.is_empty()) {
            (true, true) => return None,
            (false, true) => Lane::Updates,
            (true, false) => Lane::Bulk,
            (false, false) if self.lead < 0 => Lane::Bulk,
            (false, false) => Lane::Updates,
        };
        let key = match lane {
            Lane::Updates => self.updates.pop_front(),
            Lane::Bulk => self.bulk.pop_front(),
        };
        key.map(|key| (key, lane))
    }

    /// Says what polling the one that was taken last has cost. Who had nobody waiting beside it owes
    /// nothing.
    pub(crate) fn charge(&mut self, lane: Lane, cost: usize) {
        let cost = isize::try_from(cost).unwrap_or(isize::MAX);
        let (others, cost) = match lane {
            Lane::Updates => (&self.bulk, -cost),
            Lane::Bulk => (&self.updates, cost),
        };
        self.lead = if others.is_empty() { 0 } else { self.lead.saturating_add(cost) };
    }

    /// Drops the keys that are not wanted; of several of one session the first stays.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(Key) -> bool) {
        let mut seen = HashSet::new();
        let mut keep = |key: &Key| is_wanted(*key) && seen.insert(*key);
        self.updates.retain(&mut keep);
        self.bulk.retain(&mut keep);
    }

    pub(crate) fn len(&self) -> usize {
        self.updates.len() + self.bulk.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and charges until nobody is left; the keys in order.
    fn drain(queue: &mut Queue, cost: impl Fn(Lane) -> usize) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some((key, lane)) = queue.pop() {
            queue.charge(lane, cost(lane));
            keys.push(key);
        }
        keys
    }

    #[test]
    fn the_lanes_take_turns() {
        let mut queue = Queue::default();
        (0..4).for_each(|key| queue.push(key, Lane::Bulk));
        (10..13).for_each(|key| queue.push(key, Lane::Updates));
        assert_eq!(drain(&mut queue, |_| 1), [10, 0, 11, 1, 12, 2, 3]);
    }

    /// A step of bulk that costs as much as five updates is followed by five updates.
    #[test]
    fn who_costs_more_comes_less_often() {
        let mut queue = Queue::default();
        (0..2).for_each(|key| queue.push(key, Lane::Bulk));
        (10..18).for_each(|key| queue.push(key, Lane::Updates));
        let cost = |lane| if lane == Lane::Bulk { 5 } else { 1 };
        assert_eq!(drain(&mut queue, cost), [10, 0, 11, 12, 13, 14, 15, 1, 16, 17]);
    }

    /// What bulk got while nobody else wanted anything is not held against it.
    #[test]
    fn a_lane_that_was_alone_owes_nothing() {
        let mut queue = Queue::default();
        queue.push(0, Lane::Bulk);
        assert_eq!(drain(&mut queue, |_| 1000), [0]);
        queue.push(1, Lane::Bulk);
        queue.push(10, Lane::Updates);
        queue.push(11, Lane::Updates);
        assert_eq!(drain(&mut queue, |_| 1), [10, 1, 11]);
    }
}
