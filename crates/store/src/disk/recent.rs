//! The newest entries of the log, in memory.
//!
//! Each appended entry is read again soon afterwards: to send it to each of the other replicas, and
//! to apply it. These reads need no database, no checksum and no decoding.
//!
//! Invariants:
//! - The entries are the end of the log, without a gap. The database has the same content for
//!   written entries.
//! - They take [`BYTES_MAX`] bytes at most, except for entries that are not in the database yet. A prepared entry and
//!   all later entries stay until the prepared entry is applied, up to [`PREPARED_BYTES_MAX`].

use std::collections::VecDeque;

use openraft::EntryPayload;

use crate::format::raft::Entry;

/// The maximum size of the kept records, in bytes. A follower that keeps up needs no older
/// entries.
const BYTES_MAX: usize = 4 << 20;

/// The maximum size of the kept records if an entry among them was prepared and is not applied, in bytes.
const PREPARED_BYTES_MAX: usize = 128 << 20;

/// The newest entries.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The entries, each with the length of its record.
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
    /// All entries before this index are in the database.
    written: u64,
}

impl Recent {
    /// Adds an entry that was appended to the log; `len` is the length of its record.
    pub(crate) fn append(&mut self, entry: Entry, len: usize) {
        if self.entries.back().is_some_and(|(last, _)| last.log_id.index + 1 != entry.log_id.index)
        {
            *self = Self { written: self.written, ..Self::default() };
        }
        self.bytes += len;
        self.entries.push_back((entry, len));
        self.shrink();
    }

    /// Records that all entries before an index are in the database.
    pub(crate) fn set_written(&mut self, next: u64) {
        self.written = next;
        self.shrink();
    }

    fn shrink(&mut self) {
        let written = self.written;
        while let Some((first, _)) = self.entries.front() {
            let max = if is_prepared(first) { PREPARED_BYTES_MAX } else { BYTES_MAX };
            if self.bytes <= max || first.log_id.index >= written {
                break;
            }
            self.pop(VecDeque::pop_front);
        }
    }

    /// Returns the index of the first entry in memory.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.front().map(|(entry, _)| entry.log_id.index)
    }

    /// Removes the entries from an index on.
    pub(crate) fn truncate(&mut self, from: u64) {
        self.written = self.written.min(from);
        while self.entries.back().is_some_and(|(entry, _)| entry.log_id.index >= from) {
            self.pop(VecDeque::pop_back);
        }
    }

    /// Removes the entries up to an index.
    pub(crate) fn purge(&mut self, upto: u64) {
        while self.entries.front().is_some_and(|(entry, _)| entry.log_id.index <= upto) {
            self.pop(VecDeque::pop_front);
        }
    }

    /// Returns entries from `from` up to, not including, `to`, at most `bytes` bytes but at least
    /// one entry if there is any. Returns `None` if the first entry is not in memory.
    pub(crate) fn read(&self, from: u64, to: u64, bytes: usize) -> Option<Vec<Entry>> {
        let first = self.first()?;
        let skip = usize::try_from(from.checked_sub(first)?).ok()?;
        if skip >= self.entries.len() {
            return None;
        }
        let mut len = 0;
        let mut read = Vec::new();
        for (entry, record_len) in self.entries.range(skip..) {
            len += record_len;
            if entry.log_id.index >= to || (len > bytes && !read.is_empty()) {
                break;
            }
            read.push(entry.clone());
        }
        Some(read)
    }

    fn pop(&mut self, end: impl Fn(&mut VecDeque<(Entry, usize)>) -> Option<(Entry, usize)>) {
        if let Some((_, len)) = end(&mut self.entries) {
            self.bytes -= len;
        }
    }
}

/// Returns whether an entry was prepared and is not applied.
fn is_prepared(entry: &Entry) -> bool {
    matches!(&entry.payload, EntryPayload::Normal(command) if command.is_prepared())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::format::{
        prepared::Preparation,
        raft::{EncodedCommand, log_id},
    };

    fn entry(index: u64) -> Entry {
        Entry { log_id: log_id(1, index), payload: EntryPayload::Blank }
    }

    fn filled(range: std::ops::RangeInclusive<u64>, len: usize) -> Recent {
        let mut recent = Recent { written: u64::MAX, ..Recent::default() };
        range.for_each(|index| recent.append(entry(index), len));
        recent
    }

    fn indices(read: Option<Vec<Entry>>) -> Option<Vec<u64>> {
        read.map(|entries| entries.iter().map(|entry| entry.log_id.index).collect())
    }

    #[test]
    fn read_returns_a_range_of_recent_entries() {
        let recent = filled(5..=9, 10);
        let read = |from, to, bytes| indices(recent.read(from, to, bytes));
        assert_eq!(read(5, 10, usize::MAX), Some(vec![5, 6, 7, 8, 9]));
        assert_eq!(read(7, 9, usize::MAX), Some(vec![7, 8]));
        assert_eq!(read(6, 100, 25), Some(vec![6, 7]));
        assert_eq!(read(6, 100, 1), Some(vec![6]), "at least one");
        assert_eq!(read(4, 10, usize::MAX), None, "the first is not in memory");
        assert_eq!(read(10, 12, usize::MAX), None);
        assert_eq!(indices(Recent::default().read(0, 1, 1)), None);
    }

    /// The database lacks these entries, so readers must find them in memory.
    #[test]
    fn unwritten_entries_stay_in_memory() {
        let mut recent = Recent::default();
        (1..=9).for_each(|index| recent.append(entry(index), BYTES_MAX / 4));
        assert_eq!(indices(recent.read(1, 100, usize::MAX)).map(|all| all.len()), Some(9));
        recent.set_written(4);
        assert_eq!(recent.first(), Some(4));
        recent.set_written(10);
        assert_eq!(recent.first(), Some(6));
    }

    /// Reading it from the database would lose what was prepared.
    #[test]
    fn prepared_entry_stays_until_it_is_applied() {
        let preparation = Arc::new(Preparation::in_progress());
        let command = EncodedCommand::with(Bytes::new(), Arc::clone(&preparation));
        let payload = EntryPayload::Normal(command);
        let mut recent = Recent { written: u64::MAX, ..Recent::default() };
        recent.append(Entry { log_id: log_id(1, 1), payload }, BYTES_MAX + 1);
        recent.append(entry(2), 10);
        assert_eq!(recent.first(), Some(1));
        preparation.finish(None);
        recent.append(entry(3), 10);
        assert_eq!(recent.first(), Some(2), "it is applied");
    }

    #[test]
    fn recent_entries_follow_the_log_and_are_bounded() {
        let mut recent = filled(1..=9, 10);
        recent.truncate(8);
        recent.purge(2);
        assert_eq!(indices(recent.read(3, 100, usize::MAX)), Some(vec![3, 4, 5, 6, 7]));
        assert_eq!(recent.bytes, 50);
        recent.append(entry(8), 10);
        assert_eq!(indices(recent.read(8, 100, usize::MAX)), Some(vec![8]));
        // After a gap, the earlier entries are not the end of the log.
        recent.append(entry(20), 10);
        assert_eq!(indices(recent.read(20, 100, usize::MAX)), Some(vec![20]));
        assert_eq!((indices(recent.read(8, 100, usize::MAX)), recent.bytes), (None, 10));

        let large = filled(1..=9, BYTES_MAX / 4);
        assert_eq!(indices(large.read(6, 100, usize::MAX)), Some(vec![6, 7, 8, 9]));
        assert_eq!(indices(large.read(5, 100, usize::MAX)), None);
        let too_large = filled(1..=1, BYTES_MAX + 1);
        assert_eq!((too_large.entries.len(), too_large.bytes), (0, 0));
    }
}
