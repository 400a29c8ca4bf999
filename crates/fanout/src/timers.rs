//! When a session has to be looked at though nothing happens to it.
//!
//! At most one entry per session is current; an entry that is not is dropped when its time comes, or when
//! there are many of them. A time that moves later costs nothing: the early entry fires, and is put back.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::index::Key;

/// Sessions by the time at which they want to be polled, in milliseconds.
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

    /// The earliest time at which something is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// The next entry that is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<(u64, Key)> {
        (self.next()? <= now).then(|| self.0.pop().map(|Reverse(entry)| entry)).flatten()
    }
}
