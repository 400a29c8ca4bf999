//! The times at which sessions need attention without an event.
//!
//! At most one entry per session is current. Other entries are dropped when their time comes, or when
//! there are many. Moving a time to later costs nothing: the early entry fires, and a new one is set.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::messages::session::Key;

/// Sessions by the time at which they need attention, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, Key)>>);

impl Timers {
    pub(crate) fn set(&mut self, at: u64, key: Key) {
        self.0.push(Reverse((at, key)));
    }

    /// Drops the entries that are not current.
    pub(crate) fn retain(&mut self, mut is_current: impl FnMut(u64, Key) -> bool) {
        self.0.retain(|Reverse((at, key))| is_current(*at, *key));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the time of the earliest entry.
    pub(crate) fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes and returns the next entry that is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<(u64, Key)> {
        (self.next()? <= now).then(|| self.0.pop().map(|Reverse(entry)| entry)).flatten()
    }
}
