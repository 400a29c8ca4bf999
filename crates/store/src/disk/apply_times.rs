//! When this replica applied its newest entries, for traces of writes.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

use chancery_model::Revision;
use parking_lot::Mutex;

/// The maximum number of batches of entries that are remembered. A trace asks at once.
const BATCHES_MAX: usize = 1024;

/// When this replica applied a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyTime {
    /// When the replica received the entry as committed.
    pub committed: SystemTime,
    /// When the state with the entry was complete, just before it was published.
    pub applied: SystemTime,
}

/// The times of the newest revisions. Off by default: it then costs one load of an atomic per batch of entries.
#[derive(Default)]
pub(crate) struct ApplyTimes {
    is_on: AtomicBool,
    /// The first and the last revision of each batch, the oldest first.
    batches: Mutex<VecDeque<(Revision, Revision, ApplyTime)>>,
}

impl ApplyTimes {
    /// Starts to remember times.
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Returns the time at which a batch of entries arrives, if times are remembered.
    pub(crate) fn now(&self) -> Option<SystemTime> {
        self.is_on.load(Ordering::Relaxed).then(SystemTime::now)
    }

    /// Remembers that the revisions from `first` to `last` are complete.
    pub(crate) fn record(&self, first: Revision, last: Revision, committed: SystemTime) {
        let mut batches = self.batches.lock();
        if batches.len() == BATCHES_MAX {
            batches.pop_front();
        }
        batches.push_back((first, last, ApplyTime { committed, applied: SystemTime::now() }));
    }

    /// Returns the times of a revision, if they are remembered.
    pub(crate) fn of(&self, revision: Revision) -> Option<ApplyTime> {
        let batches = self.batches.lock();
        let mut newest = batches.iter().rev();
        let found = newest.find(|(first, last, _)| (*first..=*last).contains(&revision));
        found.map(|(.., time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_remembered_for_the_newest_batches_if_they_are_on() {
        let times = ApplyTimes::default();
        assert_eq!(times.now(), None);
        times.turn_on();
        let committed = times.now().unwrap();
        let n = BATCHES_MAX as u64;
        for batch in 0..=n {
            times.record(Revision(2 * batch + 1), Revision(2 * batch + 2), committed);
        }
        assert_eq!((times.of(Revision(1)), times.of(Revision(2 * n + 3))), (None, None));
        let newest = times.of(Revision(2 * n + 1)).unwrap();
        assert_eq!(newest.committed, committed);
        assert!(newest.applied >= committed);
        assert!(times.of(Revision(3)).is_some());
    }
}
