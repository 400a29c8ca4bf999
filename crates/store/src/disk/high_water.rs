//! The high-water mark: a lower bound of the entries and the vote that this replica has
//! acknowledged.
//!
//! RocksDB ends the replay of its WAL at the first damage. This is right for a tail that was never
//! synced, and wrong for any other damage. The mark distinguishes the two. It contains the end of
//! the log and the vote at the last sync. A log or a vote behind the mark has lost acknowledged
//! data.
//!
//! Invariants:
//! - A mark is written after the sync that makes it true, and before anything is acknowledged. The
//!   mark itself is synced less often. If a power cut reverts it to an earlier mark, it is still a
//!   lower bound.
//! - The mark is lowered, durably, before the log is truncated.
//! - One of the two slots is always synced and not being written: a torn write cannot damage both.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use xxhash_rust::xxh3::xxh3_64;

use crate::format::raft::{LogId, Vote, log_id, term_of};
use crate::format::raft_codec::{vote_from_proto, vote_to_proto};
use chancery_raft_proto::v1 as pb;

const MAGIC: &[u8; 8] = b"CHYHIGH1";
/// Each slot has its own page.
const SLOT_LEN: u64 = 4096;
const RECORD_LEN: usize = 81;

/// A lower bound of the acknowledged entries and votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    /// The last entry of the log.
    pub(crate) last: Option<LogId>,
    /// The newest vote that the replica has acknowledged.
    pub(crate) vote: Option<Vote>,
}

/// The open file.
#[derive(Debug)]
pub(crate) struct HighWater {
    file: File,
    cluster_id: [u8; 16],
    mark: Mark,
    sequence: u64,
    /// The slot that is written next, which is never the one that was synced last.
    slot: u64,
    unsynced: bool,
}

/// The reason why a high-water mark cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MarkError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Neither slot contains a valid mark.
    #[error("neither of its two slots has a valid checksum")]
    Damaged,
    /// The file belongs to another data directory.
    #[error("it belongs to cluster {}, not to {}", hex::encode(.found), hex::encode(.expected))]
    Foreign {
        /// The cluster that the file belongs to.
        found: [u8; 16],
        /// The cluster that the directory belongs to.
        expected: [u8; 16],
    },
}

impl HighWater {
    /// Creates the file of a new replica, durably.
    pub(crate) fn create(path: &Path, cluster_id: [u8; 16]) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(2 * SLOT_LEN)?;
        let mut high_water =
            Self { file, cluster_id, mark: Mark::default(), sequence: 0, slot: 0, unsynced: true };
        high_water.write(Mark::default())?;
        high_water.sync()?;
        Ok(high_water)
    }

    /// Reads the file of an existing replica.
    pub(crate) fn open(path: &Path, cluster_id: [u8; 16]) -> Result<Self, MarkError> {
        Self::read(OpenOptions::new().read(true).write(true).open(path)?, cluster_id)
    }

    /// Reads the file of an existing replica. Writes to the returned mark fail.
    pub(crate) fn open_read_only(path: &Path, cluster_id: [u8; 16]) -> Result<Self, MarkError> {
        Self::read(File::open(path)?, cluster_id)
    }

    fn read(file: File, cluster_id: [u8; 16]) -> Result<Self, MarkError> {
        let mut newest: Option<(u64, u64, Mark)> = None;
        for slot in 0..2 {
            let mut record = [0; RECORD_LEN];
            match file.read_exact_at(&mut record, slot * SLOT_LEN) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
                read => read?,
            }
            let Some((sequence, found, mark)) = decode(&record) else { continue };
            if found != cluster_id {
                return Err(MarkError::Foreign { found, expected: cluster_id });
            }
            if newest.is_none_or(|(newest, ..)| newest < sequence) {
                newest = Some((sequence, slot, mark));
            }
        }
        let (sequence, slot, mark) = newest.ok_or(MarkError::Damaged)?;
        Ok(Self { file, cluster_id, mark, sequence, slot: 1 - slot, unsynced: false })
    }

    /// Returns the mark.
    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// Returns whether a written mark is not yet synced.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Writes a mark. The mark survives a crash of the process, but possibly not a power cut.
    pub(crate) fn write(&mut self, mark: Mark) -> io::Result<()> {
        let record = encode(self.sequence + 1, &self.cluster_id, &mark);
        self.file.write_all_at(&record, self.slot * SLOT_LEN)?;
        self.sequence += 1;
        self.mark = mark;
        self.unsynced = true;
        Ok(())
    }

    /// Makes a mark durable that was read from the file, because the file may not have been synced.
    pub(crate) fn resync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Makes the mark durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.file.sync_data()?;
            self.unsynced = false;
            self.slot = 1 - self.slot;
        }
        Ok(())
    }
}

fn encode(sequence: u64, cluster_id: &[u8; 16], mark: &Mark) -> [u8; RECORD_LEN] {
    let (last_term, last_next) = mark.last.map_or((0, 0), |id| (term_of(&id), id.index + 1));
    let vote = mark.vote.as_ref().map(vote_to_proto);
    // 0: no vote, 1: a vote for a candidate, 2: a committed vote.
    let vote_kind = vote.map_or(0, |vote| 1 + u8::from(vote.committed));
    let vote = vote.unwrap_or_default();
    let mut record = [0; RECORD_LEN];
    record[..8].copy_from_slice(MAGIC);
    record[8..16].copy_from_slice(&sequence.to_le_bytes());
    record[16..32].copy_from_slice(cluster_id);
    record[32..40].copy_from_slice(&last_term.to_le_bytes());
    record[40..48].copy_from_slice(&last_next.to_le_bytes());
    record[48..56].copy_from_slice(&vote.term.to_le_bytes());
    record[56..64].copy_from_slice(&vote.replica_id.to_le_bytes());
    record[64] = vote_kind;
    let checksum = xxh3_64(&record[..73]);
    record[73..].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_LEN]) -> Option<(u64, [u8; 16], Mark)> {
    let number = |at: usize| {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("a slice of eight bytes"))
    };
    if record[..8] != *MAGIC || number(73) != xxh3_64(&record[..73]) {
        return None;
    }
    let vote = |committed| {
        vote_from_proto(&pb::Vote { term: number(48), replica_id: number(56), committed })
    };
    let mark = Mark {
        last: number(40).checked_sub(1).map(|index| log_id(number(32), index)),
        vote: match record[64] {
            0 => None,
            kind => Some(vote(kind == 2)),
        },
    };
    Some((number(8), record[16..32].try_into().ok()?, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(term: u64, index: u64) -> Mark {
        Mark { last: Some(log_id(term, index)), vote: Some(Vote::new_committed(term, 1)) }
    }

    #[test]
    fn newest_high_water_mark_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mut file = HighWater::create(&path, [7; 16]).unwrap();
        assert_eq!(HighWater::open(&path, [7; 16]).unwrap().mark(), Mark::default());
        for step in 1..20 {
            file.write(mark(step, 10 * step)).unwrap();
            if step % 3 == 0 {
                file.sync().unwrap();
            }
            assert_eq!(HighWater::open(&path, [7; 16]).unwrap().mark(), mark(step, 10 * step));
        }
        assert!(matches!(HighWater::open(&path, [8; 16]), Err(MarkError::Foreign { .. })));
    }

    /// Whatever a power cut does to the slot that is being written, the mark that was synced before
    /// survives.
    #[test]
    fn a_torn_write_falls_back_to_the_mark_that_was_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mut file = HighWater::create(&path, [7; 16]).unwrap();
        for step in 1..10 {
            file.write(mark(1, step)).unwrap();
            file.sync().unwrap();
            let whole = std::fs::read(&path).unwrap();
            file.write(mark(2, step)).unwrap();
            file.write(mark(3, step)).unwrap();
            let written = std::fs::read(&path).unwrap();
            for cut in 0..RECORD_LEN {
                // The first `cut` bytes of the slot reached the disk.
                let slot = usize::try_from(file.slot * SLOT_LEN).unwrap();
                let mut torn = whole.clone();
                torn[slot..slot + cut].copy_from_slice(&written[slot..slot + cut]);
                let other = dir.path().join("torn");
                std::fs::write(&other, torn).unwrap();
                assert_eq!(HighWater::open(&other, [7; 16]).unwrap().mark(), mark(1, step));
            }
        }
    }

    /// The format of the first release is readable forever.
    #[test]
    fn high_water_format_of_first_release_is_unchanged() {
        let record = encode(5, &[0xab; 16], &mark(3, 300));
        let (sequence, cluster_id, read) = decode(&record).unwrap();
        assert_eq!((sequence, cluster_id, read), (5, [0xab; 16], mark(3, 300)));
        let first_release = [
            "4348594849474831",                 // magic
            "0500000000000000",                 // sequence
            "abababababababababababababababab", // cluster
            "0300000000000000",                 // term of the last entry
            "2d01000000000000",                 // index of the last entry, plus 1
            "0300000000000000",                 // term of the vote
            "0100000000000000",                 // replica of the vote
            "02",                               // a committed vote
            "0000000000000000",                 // reserved
            "40055e22d3525db1",                 // checksum
        ];
        assert_eq!(hex::encode(record), first_release.concat());
    }
}
