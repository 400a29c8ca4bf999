//! Compares entries that arrive with those that the log holds already.
//!
//! Raft takes two entries with the same log id for the same entry, and skips the second one. If their
//! content differs, some replica has lost entries and reused their log ids, and the states differ from there on.
//! Raft itself never compares them.
//!
//! Invariant: entries beyond the end of the log, the normal case, cost one comparison of indexes.

use crate::{
    log::{LogStore, WeakLogStore},
    raft::{Entry, term_of},
};

/// Bytes of entries that are read from the log at once.
const READ_BYTES: usize = 1 << 20;

/// Two entries with one log id and different content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log holds a different entry {index} of term {term} than replica {from} sent")]
pub(crate) struct OtherEntry {
    pub(crate) index: u64,
    pub(crate) term: u64,
    /// The replica that sends the entry.
    pub(crate) from: u64,
}

impl WeakLogStore {
    /// Checks entries that replica `from` sends against those with the same log ids in the log. Entries of
    /// another term at the same index are not compared: Raft replaces them.
    pub(crate) async fn check(&self, entries: &[Entry], from: u64) -> Result<(), OtherEntry> {
        let Some(log) = self.upgrade() else { return Ok(()) };
        let last = log.last_index();
        let held = entries.partition_point(|entry| Some(entry.log_id.index) <= last);
        if held == 0 {
            return Ok(());
        }
        let held = entries[..held].to_vec();
        let checked = tokio::task::spawn_blocking(move || compare(&log, &held, from));
        // A panic of that task says nothing about the entries.
        checked.await.unwrap_or(Ok(()))
    }
}

fn compare(log: &LogStore, entries: &[Entry], from: u64) -> Result<(), OtherEntry> {
    let Some(last) = entries.last() else { return Ok(()) };
    let mut rest = entries;
    while let Some(first) = rest.first() {
        // An entry that cannot be read stops the replica elsewhere.
        let Ok(held) = log.read(first.log_id.index, last.log_id.index + 1, READ_BYTES) else {
            return Ok(());
        };
        let Some(end) = held.last().map(|entry| entry.log_id.index) else { return Ok(()) };
        for own in &held {
            let sent = at(rest, own.log_id.index).filter(|sent| sent.log_id == own.log_id);
            if sent.is_some_and(|sent| sent.payload != own.payload) {
                let (index, term) = (own.log_id.index, term_of(&own.log_id));
                return Err(OtherEntry { index, term, from });
            }
        }
        rest = &rest[rest.partition_point(|entry| entry.log_id.index <= end)..];
    }
    Ok(())
}

/// The entry at an index, among entries that follow each other.
fn at(entries: &[Entry], index: u64) -> Option<&Entry> {
    let skip = index.checked_sub(entries.first()?.log_id.index)?;
    entries.get(usize::try_from(skip).ok()?)
}
