//! The history: the author and the summary of each revision.

use std::{fmt, io, str::FromStr, sync::Arc};

use chancery_model::{Revision, Summary, TransactionMeta};
use chancery_proto::raft::v1 as pb;

use crate::{
    disk::high_water::hex,
    format::{
        codec::{meta_from_proto, meta_to_proto},
        identity::fill_random,
    },
};

/// The number of newest revisions that the history keeps.
pub const HISTORY_MAX: usize = 10_000;

/// One revision of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The revision.
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
}

/// The ID of a write request: 16 random bytes. It distinguishes a retry from another write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

impl RequestId {
    /// Returns a new random ID.
    ///
    /// # Errors
    /// Fails if the operating system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// The error for a text that is not a request ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it must be 32 hexadecimal digits")]
pub struct RequestIdError;

impl FromStr for RequestId {
    type Err = RequestIdError;

    /// Parses 32 hexadecimal digits, as [`fmt::Display`] writes them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `from_str_radix` accepts a sign; request IDs do not.
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(RequestIdError);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| RequestIdError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
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
            },
            // Bytes of another length are not a request ID.
            request: record.request_id[..].try_into().ok().map(RequestId),
            request_digest: record.request_digest,
            restored_from: record.restored_from.map(Revision),
        }
    }

    /// Returns the previous revision: one less, unless a restore skipped revisions.
    pub(crate) fn previous(&self) -> Revision {
        self.restored_from.unwrap_or(Revision(self.revision.0.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_request_reads_back_as_it_is_shown() {
        let id = RequestId::random().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(
            "00000000000000000000000000000Aff".parse::<RequestId>().unwrap().0[14..],
            [10, 255]
        );
        let signed = format!("+{}", "0".repeat(31));
        for text in ["", "0", "0x000000000000000000000000000000", signed.as_str()] {
            assert_eq!(text.parse::<RequestId>(), Err(RequestIdError), "{text:?}");
        }
    }
}
