//! The revisions whose replaced records are kept.
//!
//! Pure. Each entry of the log names the retention, so all replicas keep the same revisions at equal revisions. A
//! replica that lacks records, because it ran an older release when a revision was applied, keeps later revisions only.

use chancery_model::Revision;
use imbl::Vector;

use crate::format::{
    content::{Replaced, Retention},
    history::{HISTORY_MAX, History},
};

/// The revisions whose replaced records are kept, without the records. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KeptContent {
    /// The oldest revision that can be read.
    from: Revision,
    /// The revisions after `from`, oldest first.
    revisions: Vector<Replaced>,
    /// The size of their records, in bytes.
    bytes: u64,
    /// The size of all records that were dropped since the replica started, in bytes.
    dropped_bytes: u64,
}

impl KeptContent {
    /// Returns the newest revisions of a history without a gap in `found`, the sizes in a database, ordered by revision.
    /// Revisions up to `from` were dropped.
    pub(crate) fn load(history: &History, found: Vec<Replaced>, from: Revision) -> Self {
        let newest = history.back().map_or(Revision(0), |newest| newest.revision);
        // A snapshot that was not installed may have left later ones.
        let found = found.into_iter().rev().skip_while(|replaced| replaced.revision > newest);
        let mut found = found.peekable();
        let mut kept = Self { from: newest, ..Self::default() };
        for entry in history.iter().rev().take_while(|entry| entry.revision > from) {
            let Some(replaced) = found.next_if(|replaced| replaced.revision == entry.revision)
            else {
                break;
            };
            kept.bytes += replaced.bytes;
            kept.revisions.push_front(replaced);
            kept.from = entry.previous();
        }
        kept
    }

    /// Returns the oldest revision whose content can be found.
    pub(crate) fn from(&self) -> Revision {
        self.from
    }

    /// Returns the kept revisions after [`KeptContent::from`], oldest first.
    pub(crate) fn revisions(&self) -> &Vector<Replaced> {
        &self.revisions
    }

    /// Returns the size of the records that were dropped since the replica started, in bytes.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Adds the newest revision, and drops the oldest ones as `retention` says.
    pub(crate) fn add(&mut self, replaced: Replaced, retention: &Retention) {
        let age_ms = u64::try_from(retention.age.as_millis()).unwrap_or(u64::MAX);
        let revisions_max = usize::try_from(retention.revisions).unwrap_or(HISTORY_MAX);
        let revisions_max = revisions_max.min(HISTORY_MAX);
        self.bytes += replaced.bytes;
        self.revisions.push_back(replaced);
        while self.revisions.len() > 1
            && let Some(oldest) = self.revisions.front().copied()
        {
            let age = replaced.time_ms.saturating_sub(oldest.time_ms);
            let is_old = age_ms > 0 && age > age_ms;
            if self.revisions.len() <= revisions_max && self.bytes <= retention.bytes && !is_old {
                break;
            }
            self.revisions.pop_front();
            self.from = oldest.revision;
            self.bytes -= oldest.bytes;
            self.dropped_bytes += oldest.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use chancery_model::{Summary, TransactionMeta};

    use super::*;
    use crate::HistoryEntry;

    fn replaced(revision: u64) -> Replaced {
        Replaced { revision: Revision(revision), records: 1, bytes: 10, time_ms: 1000 * revision }
    }

    fn with(retention: Retention, revisions: u64) -> (u64, usize) {
        let mut kept = KeptContent::default();
        (1..=revisions).for_each(|revision| kept.add(replaced(revision), &retention));
        let sum: u64 = kept.revisions.iter().map(|one| one.bytes).sum();
        assert_eq!((kept.bytes, kept.dropped_bytes), (sum, 10 * revisions - sum));
        (kept.from.0, kept.revisions.len())
    }

    #[test]
    fn by_default_all_revisions_of_the_history_are_kept() {
        assert_eq!(Retention::default().revisions, HISTORY_MAX as u64);
    }

    #[test]
    fn oldest_revisions_are_dropped_by_number_size_and_age() {
        let all = Retention { revisions: 100, bytes: 1000, age: Duration::ZERO };
        assert_eq!(with(all, 20), (0, 20));
        assert_eq!(with(Retention { revisions: 5, ..all }, 20), (15, 5));
        assert_eq!(with(Retention { bytes: 39, ..all }, 20), (17, 3));
        assert_eq!(with(Retention { age: Duration::from_secs(4), ..all }, 20), (15, 5));
        assert_eq!(with(Retention { bytes: 0, revisions: 0, ..all }, 20), (19, 1), "the newest");
        assert_eq!(with(Retention { revisions: u64::MAX, bytes: u64::MAX, ..all }, 10_001).0, 1);
    }

    #[test]
    fn loading_stops_at_a_revision_without_records() {
        let entry = |revision| {
            Arc::new(HistoryEntry {
                revision: Revision(revision),
                meta: TransactionMeta::default(),
                summary: Summary::default(),
                request: None,
                request_digest: 0,
                restored_from: None,
                previous_hash: None,
                hash: None,
            })
        };
        let history: History = (1..=9).map(entry).collect();
        let load = |found: &[u64], from| {
            let found = found.iter().copied().map(replaced).collect();
            let kept = KeptContent::load(&history, found, Revision(from));
            (kept.from.0, kept.revisions.len(), kept.bytes)
        };
        assert_eq!(load(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0), (0, 9, 90));
        assert_eq!(load(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 4), (4, 5, 50), "dropped, but not deleted");
        assert_eq!(load(&[1, 2, 3, 6, 7, 8, 9], 0), (5, 4, 40), "an older release ran");
        assert_eq!(load(&[1, 2, 3], 0), (9, 0, 0));
        assert_eq!(load(&[], 0), (9, 0, 0));
    }
}
