//! How a record is kept: its format version, its checksum, its message.
//!
//! ```text
//! version (1) │ XXH3-64, little endian (8) │ message of chancery.raft.v1
//! ```
//!
//! The checksum covers the column family, the key, the version and the message: a record that has been
//! moved to another key, or whose bytes have changed, is found out, whatever the layers below say.

use bytes::{BufMut, Bytes};
use prost::Message;
use xxhash_rust::xxh3::Xxh3;

/// The only format version so far.
pub(crate) const FORMAT_VERSION: u8 = 1;
/// Bytes before the message.
pub(crate) const HEADER_LEN: usize = 9;

/// A column family. The number is part of the checksum and of snapshots: it never changes.
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
    /// The vote, what is purged, what is applied.
    Meta = 5,
}

impl Family {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Resources, Self::Index, Self::History, Self::Log, Self::Meta];

    /// Its name in RocksDB.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Index => "index",
            Self::History => "history",
            Self::Log => "log",
            Self::Meta => "meta",
        }
    }

    /// The family that belongs to a number in a snapshot.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|family| *family as u32 == number)
    }
}

/// Why a record can not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// It is shorter than a header.
    #[error("it has {len} bytes, fewer than a record's header of {HEADER_LEN}")]
    Short {
        /// Its length.
        len: usize,
    },
    /// Another release wrote it.
    #[error("it has format version {found}, this program knows only {FORMAT_VERSION}")]
    Version {
        /// Its version.
        found: u8,
    },
    /// Its bytes are not those that were written.
    #[error("its checksum is {computed:016x}, not the stored {stored:016x}")]
    Checksum {
        /// What is stored.
        stored: u64,
        /// What its bytes give.
        computed: u64,
    },
    /// It is no message of its type.
    #[error("it can not be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
    /// Its message means nothing to this program.
    #[error("{0}")]
    Content(String),
}

fn hash(family: Family, key: &[u8], version: u8, message: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[family as u8, version]);
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(message);
    hash.digest()
}

/// Makes the record of a message.
pub(crate) fn seal(family: Family, key: &[u8], message: &impl Message) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_LEN + message.encoded_len());
    record.put_u8(FORMAT_VERSION);
    record.put_u64_le(0);
    message.encode(&mut record).expect("a vector grows as needed");
    let checksum = hash(family, key, FORMAT_VERSION, &record[HEADER_LEN..]);
    record[1..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    record
}

/// The length of the record of a message.
pub(crate) fn sealed_len(message: &impl Message) -> usize {
    HEADER_LEN + message.encoded_len()
}

/// The checksum that a record carries; 0 if it is too short to have one.
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
    use chancery_proto::raft::v1 as pb;

    use super::*;

    /// Design 4.1: the format of the first release is readable for ever.
    #[test]
    fn a_record_has_the_bytes_it_had_in_the_first_release() {
        let record = seal(Family::Meta, b"purged", &pb::LogId { term: 3, index: 300 });
        assert_eq!(hex(&record), "01c2ad46a2c60e026b080310ac02");
        let id: pb::LogId = open(Family::Meta, b"purged", record.into()).unwrap();
        assert_eq!((id.term, id.index), (3, 300));
    }

    #[test]
    fn any_flipped_bit_another_key_and_another_family_are_found_out() {
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

    /// A record of a later release is told apart from a damaged one.
    #[test]
    fn a_newer_format_version_is_named() {
        let mut record = seal(Family::Meta, b"k", &pb::LogId::default());
        record[0] = 2;
        let checksum = hash(Family::Meta, b"k", 2, &record[HEADER_LEN..]);
        record[1..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
        let error = open::<pb::LogId>(Family::Meta, b"k", record.into()).unwrap_err();
        assert_eq!(error.to_string(), "it has format version 2, this program knows only 1");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
