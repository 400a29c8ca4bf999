//! Compares entries that arrive with the entries that the log already holds.
//!
//! Raft treats two entries with the same log ID as the same entry, and skips the second one without
//! comparing them. If their content differs, a replica has lost entries and reused their log IDs,
//! and the states differ from there on.
//!
//! Invariant: entries beyond the end of the log, the normal case, cost one comparison of indexes.

use crate::{
    disk::log::{LogStore, WeakLogStore},
    format::raft::{Entry, term_of},
};

/// The size of entries that are read from the log at once, in bytes.
const READ_BYTES: usize = 1 << 20;

/// Two entries with one log ID and different content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log holds a different entry {index} of term {term} than replica {from} sent")]
pub(crate) struct EntryMismatch {
    pub(crate) index: u64,
    pub(crate) term: u64,
    /// The ID of the replica that sent the entry.
    pub(crate) from: u64,
}

/// Checks entries that replica `from` sends against the entries with the same log IDs in the
/// log. Does not compare entries of another term at the same index: Raft replaces them.
pub(crate) async fn check(
    log: &WeakLogStore,
    entries: &[Entry],
    from: u64,
) -> Result<(), EntryMismatch> {
    let Some(log) = log.upgrade() else { return Ok(()) };
    let last = log.last_index();
    let held = entries.partition_point(|entry| Some(entry.log_id.index) <= last);
    if held == 0 {
        return Ok(());
    }
    let held = entries[..held].to_vec();
    let checked = tokio::task::spawn_blocking(move || compare(&log, &held, from));
    // A panic of the task says nothing about the entries.
    checked.await.unwrap_or(Ok(()))
}

fn compare(log: &LogStore, entries: &[Entry], from: u64) -> Result<(), EntryMismatch> {
    let Some(last) = entries.last() else { return Ok(()) };
    let mut rest = entries;
    while let Some(first) = rest.first() {
        // An unreadable entry stops the replica elsewhere.
        let Ok(held) = log.read(first.log_id.index, last.log_id.index + 1, READ_BYTES) else {
            return Ok(());
        };
        let Some(end) = held.last().map(|entry| entry.log_id.index) else { return Ok(()) };
        for own in &held {
            let sent = at(rest, own.log_id.index).filter(|sent| sent.log_id == own.log_id);
            if sent.is_some_and(|sent| sent.payload != own.payload) {
                let (index, term) = (own.log_id.index, term_of(&own.log_id));
                return Err(EntryMismatch { index, term, from });
            }
        }
        rest = &rest[rest.partition_point(|entry| entry.log_id.index <= end)..];
    }
    Ok(())
}

/// Returns the entry at an index, from consecutive entries.
fn at(entries: &[Entry], index: u64) -> Option<&Entry> {
    let skip = index.checked_sub(entries.first()?.log_id.index)?;
    entries.get(usize::try_from(skip).ok()?)
}
