//! The encoding of a stored record: format version, checksum, message.
//!
//! ```text
//! version (1) │ XXH3-64, little endian (8) │ message of chancery.raft.v1
//! ```
//!
//! The checksum covers the column family, the key, the version and the message. It detects changed
//! bytes, and a record that was moved to another key, independently of the layers below.

use bytes::{BufMut, Bytes};
use prost::Message;
use xxhash_rust::xxh3::Xxh3;

/// The only format version.
pub(crate) const FORMAT_VERSION: u8 = 1;
/// The number of bytes before the message.
pub(crate) const HEADER_LEN: usize = 9;

/// A column family. The number is part of the checksum and of snapshots, and never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Family {
    /// Resources by scope, type URL and name.
    Resources = 1,
    /// Scopes, collections and assignments.
    Index = 2,
    /// Revisions.
    History = 3,
    /// The Raft log by index.
    Log = 4,
    /// The vote, the purge position, the applied position.
    Meta = 5,
}

impl Family {
    /// All families.
    pub(crate) const ALL: [Self; 5] =
        [Self::Resources, Self::Index, Self::History, Self::Log, Self::Meta];

    /// Returns the name of the family in RocksDB.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Index => "index",
            Self::History => "history",
            Self::Log => "log",
            Self::Meta => "meta",
        }
    }

    /// Returns the family with a number, as used in snapshots.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|family| *family as u32 == number)
    }
}

/// The reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// The record is shorter than a header.
    #[error("it has {len} bytes, fewer than the {HEADER_LEN} bytes of a header")]
    Short {
        /// The length of the record, in bytes.
        len: usize,
    },
    /// Another release wrote the record.
    #[error(
        "it has format version {found}, but this program supports only version {FORMAT_VERSION}"
    )]
    Version {
        /// The format version of the record.
        found: u8,
    },
    /// The bytes are not those that were written.
    #[error("its checksum is {computed:016x}, not the stored {stored:016x}")]
    Checksum {
        /// The checksum in the record.
        stored: u64,
        /// The checksum of its bytes.
        computed: u64,
    },
    /// The message cannot be decoded.
    #[error("it cannot be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The content of the message is invalid.
    #[error("{0}")]
    Content(String),
}

impl RecordError {
    /// Returns the error of a part that is not valid.
    pub(crate) fn invalid(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Content(format!("{what}: {error}"))
    }

    /// Returns the error of a part that is missing.
    pub(crate) fn missing(what: &str) -> Self {
        Self::Content(format!("{what} is missing; a newer release may have written it"))
    }
}

fn hash(family: Family, key: &[u8], version: u8, message: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[family as u8, version]);
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(message);
    hash.digest()
}

/// Encodes a message as a record.
pub(crate) fn seal(family: Family, key: &[u8], message: &impl Message) -> Vec<u8> {
    let mut record = Vec::new();
    seal_into(&mut record, family, key, message);
    record
}

/// Encodes a message as a record, in place of the content of `record`.
pub(crate) fn seal_into(record: &mut Vec<u8>, family: Family, key: &[u8], message: &impl Message) {
    record.clear();
    record.reserve(HEADER_LEN + message.encoded_len());
    record.put_u8(FORMAT_VERSION);
    record.put_u64_le(0);
    message.encode(record).expect("a vector grows as needed");
    let checksum = hash(family, key, FORMAT_VERSION, &record[HEADER_LEN..]);
    record[1..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the length of the record of a message.
pub(crate) fn sealed_len(message: &impl Message) -> usize {
    HEADER_LEN + message.encoded_len()
}

/// Returns the checksum in a record, or 0 if the record is too short.
pub(crate) fn checksum(record: &[u8]) -> u64 {
    record.get(1..HEADER_LEN).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Checks a record and decodes its message, which shares the record's bytes.
pub(crate) fn open<M: Message + Default>(
    family: Family,
    key: &[u8],
    record: Bytes,
) -> Result<M, RecordError> {
    let len = record.len();
    if len < HEADER_LEN {
        return Err(RecordError::Short { len });
    }
    let (version, stored) = (record[0], checksum(&record));
    let computed = hash(family, key, version, &record[HEADER_LEN..]);
    if computed != stored {
        return Err(RecordError::Checksum { stored, computed });
    }
    if version != FORMAT_VERSION {
        return Err(RecordError::Version { found: version });
    }
    Ok(M::decode(record.slice(HEADER_LEN..))?)
}

#[cfg(test)]
mod tests {
    use chancery_raft_proto::v1 as pb;

    use super::*;

    /// The format of the first release is readable forever.
    #[test]
    fn record_format_of_first_release_is_unchanged() {
        let record = seal(Family::Meta, b"purged", &pb::LogId { term: 3, index: 300 });
        assert_eq!(hex::encode(&record), "01c2ad46a2c60e026b080310ac02");
        let id: pb::LogId = open(Family::Meta, b"purged", record.into()).unwrap();
        assert_eq!((id.term, id.index), (3, 300));
    }

    #[test]
    fn record_with_flipped_bit_or_wrong_key_or_family_is_rejected() {
        let record = seal(Family::Index, b"key", &pb::LogId { term: 1, index: 2 });
        let read = |family, key: &[u8], bytes: &[u8]| {
            open::<pb::LogId>(family, key, Bytes::copy_from_slice(bytes))
        };
        assert!(read(Family::Index, b"key", &record).is_ok());
        assert!(matches!(read(Family::Index, b"kez", &record), Err(RecordError::Checksum { .. })));
        assert!(matches!(read(Family::Meta, b"key", &record), Err(RecordError::Checksum { .. })));
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(Family::Index, b"key", &damaged).is_err(), "bit {bit}");
        }
        for len in 0..record.len() {
            assert!(read(Family::Index, b"key", &record[..len]).is_err(), "length {len}");
        }
    }

    /// A record of a later release is reported as newer, not as damaged.
    #[test]
    fn a_newer_format_version_is_named() {
        let mut record = seal(Family::Meta, b"k", &pb::LogId::default());
        record[0] = 2;
        let checksum = hash(Family::Meta, b"k", 2, &record[HEADER_LEN..]);
        record[1..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
        let error = open::<pb::LogId>(Family::Meta, b"k", record.into()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it has format version 2, but this program supports only version 1"
        );
    }
}
