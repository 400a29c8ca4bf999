//! The history: who changed what, revision by revision.

use std::sync::Arc;

use chancery_model::{Revision, Summary, TransactionMeta};
use chancery_proto::raft::v1 as pb;

use crate::codec::{meta_from_proto, meta_to_proto};

/// So many revisions are kept; an older one is forgotten when a new one comes.
pub const HISTORY_MAX: usize = 10_000;

/// One revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The revision.
    pub revision: Revision,
    /// Who, why, when.
    pub meta: TransactionMeta,
    /// What it changed.
    pub summary: Summary,
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
            },
        }
    }
}
