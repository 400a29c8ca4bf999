//! The records that revisions replaced: their keys, and how long they are kept.
//!
//! They are in the family of the history, under a prefix that no generation of the state has. A release that does not
//! know them therefore ignores them:
//!
//! ```text
//! ff ff ff fe │ 0 │ revision (8)                      → ReplacedRecord
//! ff ff ff fe │ 1 │ revision (8) │ family (1) │ key   → the record before the revision, or ABSENT
//! ```
//!
//! A replaced record is stored as it was in the state, so a sealed resource stays sealed.

use std::time::Duration;

use chancery_model::Revision;
use chancery_raft_proto::v1 as pb;

use crate::format::record::{self, Family, RecordError};

/// The prefix of the keys, in place of a generation.
pub(crate) const CONTENT: u32 = u32::MAX - 1;
/// The value in place of a record that did not exist.
pub(crate) const ABSENT: &[u8] = &[0];

const REVISIONS: u8 = 0;
const RECORDS: u8 = 1;

/// The limits of the replaced records that the history keeps. It always keeps those of the newest revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The maximum number of revisions.
    pub revisions: u64,
    /// The maximum size of the replaced records, in bytes.
    pub bytes: u64,
    /// The maximum age of a revision, by the times of the transactions; zero for no limit.
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { revisions: 10_000, bytes: 1 << 30, age: Duration::from_secs(30 * 24 * 60 * 60) }
    }
}

impl Retention {
    pub(crate) fn to_proto(self) -> pb::Retention {
        let age_ms = u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX);
        pb::Retention { revisions: self.revisions, bytes: self.bytes, age_ms }
    }

    /// Reads the retention of a command. Entries of older releases have none.
    pub(crate) fn of_command(message: Option<pb::Retention>) -> Self {
        let Some(pb::Retention { revisions, bytes, age_ms }) = message else {
            return Self::default();
        };
        Self { revisions, bytes, age: Duration::from_millis(age_ms) }
    }
}

/// The number, size and time of the records that a revision replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) revision: Revision,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) time_ms: u64,
}

impl Replaced {
    /// Returns the sealed record.
    pub(crate) fn seal(&self) -> Vec<u8> {
        let Self { revision, records, bytes, time_ms } = *self;
        let message = pb::ReplacedRecord { records, bytes, time_ms };
        record::seal(Family::History, &revision_key(revision), &message)
    }

    /// Reads the record at a key, see [`revision_key`].
    pub(crate) fn open(key: &[u8], record: bytes::Bytes) -> Result<Self, RecordError> {
        let invalid = || RecordError::Content("its key is not that of a revision".to_owned());
        let Some((&REVISIONS, revision)) = key.split_first() else { return Err(invalid()) };
        let revision = revision.try_into().map_err(|_| invalid())?;
        let message: pb::ReplacedRecord = record::open(Family::History, key, record)?;
        let pb::ReplacedRecord { records, bytes, time_ms } = message;
        Ok(Self { revision: Revision(u64::from_be_bytes(revision)), records, bytes, time_ms })
    }
}

/// Returns the key of the [`Replaced`] of a revision, without the prefix.
pub(crate) fn revision_key(revision: Revision) -> [u8; 9] {
    numbered(REVISIONS, revision)
}

/// Returns the beginning of the keys of the records that a revision replaced, without the prefix.
pub(crate) fn records_key(revision: Revision) -> [u8; 9] {
    numbered(RECORDS, revision)
}

/// Returns the beginnings of the two ranges of keys, without the prefix.
pub(crate) fn tables() -> [[u8; 1]; 2] {
    [[REVISIONS], [RECORDS]]
}

/// Overwrites `to` with the key of a record that a revision replaced, without the prefix.
pub(crate) fn put_record_key(to: &mut Vec<u8>, revision: Revision, family: Family, key: &[u8]) {
    to.clear();
    to.extend_from_slice(&records_key(revision));
    to.push(family as u8);
    to.extend_from_slice(key);
}

/// Returns revision, family and original key of a key that [`put_record_key`] has written.
pub(crate) fn split_record_key(key: &[u8]) -> Option<(Revision, Family, &[u8])> {
    let (&table, rest) = key.split_first()?;
    let (revision, rest) = rest.split_first_chunk()?;
    let (&family, key) = rest.split_first()?;
    let family = Family::from_number(family.into())?;
    (table == RECORDS).then_some((Revision(u64::from_be_bytes(*revision)), family, key))
}

fn numbered(table: u8, revision: Revision) -> [u8; 9] {
    let mut key = [table; 9];
    key[1..].copy_from_slice(&revision.0.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_revisions_and_can_be_split() {
        let mut key = Vec::new();
        put_record_key(&mut key, Revision(258), Family::Index, b"a key");
        assert_eq!(split_record_key(&key), Some((Revision(258), Family::Index, &b"a key"[..])));
        assert!(
            key[..] > records_key(Revision(258))[..] && key[..] < records_key(Revision(259))[..]
        );
        assert!(split_record_key(&revision_key(Revision(258))).is_none());
        assert!(split_record_key(&key[..9]).is_none());
    }

    #[test]
    fn size_of_a_revision_survives_its_record() {
        let size = Replaced { revision: Revision(7), records: 2, bytes: 300, time_ms: 9 };
        let record = size.seal();
        assert_eq!(
            Replaced::open(&revision_key(Revision(7)), record.clone().into()).unwrap(),
            size
        );
        assert!(Replaced::open(&revision_key(Revision(8)), record.into()).is_err());
    }
}
