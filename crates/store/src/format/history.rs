//! The history: the author and the summary of each revision.

use std::sync::Arc;

use chancery_model::{Revision, Summary, TransactionMeta};
use chancery_raft_proto::v1 as pb;

use crate::format::{
    codec::{meta_from_proto, meta_to_proto},
    history_chain::HistoryHash,
    request_id::RequestId,
};

/// The number of newest revisions that the history keeps.
pub const HISTORY_MAX: usize = 10_000;

/// One revision of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The revision that the transaction created.
    pub revision: Revision,
    /// The author, the reason and the time.
    pub meta: TransactionMeta,
    /// The number of changes of each kind.
    pub summary: Summary,
    /// The ID of the request that made the revision, if the request had one.
    pub request: Option<RequestId>,
    /// The digest of the request's content, see [`crate::format::codec::digest`]; 0 if unknown.
    pub(crate) request_digest: u64,
    /// The revision of the backup, if a restore made this revision. The revisions between the two
    /// do not exist.
    pub restored_from: Option<Revision>,
    /// The hash of the chain before this revision; `None` if the revision is older than the chain.
    pub previous_hash: Option<HistoryHash>,
    /// The hash of this revision.
    pub hash: Option<HistoryHash>,
}

pub(crate) type History = imbl::Vector<Arc<HistoryEntry>>;

pub(crate) fn history_key(revision: Revision) -> [u8; 8] {
    revision.0.to_be_bytes()
}

impl HistoryEntry {
    pub(crate) fn to_proto(&self) -> pb::HistoryRecord {
        pb::HistoryRecord {
            meta: Some(meta_to_proto(&self.meta)),
            changed: self.summary.changed,
            removed: self.summary.removed,
            unchanged: self.summary.unchanged,
            assignments: self.summary.assignments,
            access: self.summary.access,
            request_id: self.request.map(|id| id.0.to_vec().into()).unwrap_or_default(),
            restored_from: self.restored_from.map(|revision| revision.0),
            request_digest: self.request_digest,
        }
    }

    pub(crate) fn from_proto(revision: Revision, record: pb::HistoryRecord) -> Self {
        Self {
            revision,
            meta: meta_from_proto(record.meta.unwrap_or_default()),
            summary: Summary {
                revision,
                changed: record.changed,
                removed: record.removed,
                unchanged: record.unchanged,
                assignments: record.assignments,
                access: record.access,
            },
            // Bytes of another length are not a request ID.
            request: record.request_id[..].try_into().ok().map(RequestId),
            request_digest: record.request_digest,
            restored_from: record.restored_from.map(Revision),
            previous_hash: None,
            hash: None,
        }
    }

    /// Returns the entry as the next one of the chain. `before` is the hash of the previous entry.
    pub(crate) fn chained(self, before: Option<HistoryHash>) -> Self {
        let previous_hash = HistoryHash::begin(before, self.previous(), self.revision);
        let hash = previous_hash.map(|previous| {
            previous.next(self.revision, self.restored_from, &self.meta, &self.summary)
        });
        Self { previous_hash, hash, ..self }
    }

    /// Returns the previous revision: one less, unless a restore skipped revisions.
    #[must_use]
    pub fn previous(&self) -> Revision {
        self.restored_from.unwrap_or(Revision(self.revision.0.saturating_sub(1)))
    }
}
