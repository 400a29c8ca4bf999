//! A check of RocksDB's log files before RocksDB reads them.
//!
//! RocksDB 11.8 can replay a damaged log forever: it treats a header that claims to be of a
//! recycled log file as an old record, again and again. This program never recycles log files, so
//! such a header is always damage. It is not a tail that a power cut leaves: such a tail is
//! truncated, or zeros.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The file is a sequence of blocks; no header crosses the end of a block.
const BLOCK_LEN: usize = 32 << 10;
/// Checksum (4), length (2), type (1).
const HEADER_LEN: usize = 7;
/// The record types of recycled log files.
const RECYCLED: [u8; 6] = [5, 6, 7, 8, 11, 131];
/// The types after which RocksDB continues: full, first, middle, last, and types that it may
/// ignore.
const PASSED: [std::ops::RangeInclusive<u8>; 2] = [1..=4, 128..=255];

/// The position of a record of a recycled file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrongType {
    pub(crate) path: PathBuf,
    pub(crate) offset: usize,
    pub(crate) found: u8,
}

/// Checks all log files and manifests in the directory of a database.
pub(crate) fn check(database: &Path) -> io::Result<Option<WrongType>> {
    for entry in fs::read_dir(database)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".log") || name.starts_with("MANIFEST-") {
            let content = fs::read(&path)?;
            if let Some((offset, found)) = wrong_type(&content) {
                return Ok(Some(WrongType { path, offset, found }));
            }
        }
    }
    Ok(None)
}

/// Returns the first header of a recycled file that RocksDB would reach.
fn wrong_type(content: &[u8]) -> Option<(usize, u8)> {
    let mut offset = 0;
    loop {
        let rest = BLOCK_LEN - offset % BLOCK_LEN;
        if rest < HEADER_LEN {
            offset += rest;
            continue;
        }
        let header = content.get(offset..offset + HEADER_LEN)?;
        let (len, found) = (u16::from_le_bytes([header[4], header[5]]), header[6]);
        if RECYCLED.contains(&found) {
            return Some((offset, found));
        }
        if !PASSED.iter().any(|passed| passed.contains(&found)) {
            return None;
        }
        offset += HEADER_LEN + usize::from(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(len: u16, kind: u8) -> Vec<u8> {
        let mut record = vec![0xab; HEADER_LEN + usize::from(len)];
        record[4..6].copy_from_slice(&len.to_le_bytes());
        record[6] = kind;
        record
    }

    #[test]
    fn invalid_record_type_is_detected_and_torn_tail_is_accepted() {
        assert_eq!(wrong_type(&[]), None);
        let whole = [record(100, 1), record(0, 2), record(7, 4)].concat();
        for len in 0..=whole.len() {
            assert_eq!(wrong_type(&whole[..len]), None);
        }
        assert_eq!(wrong_type(&[whole.clone(), vec![0; 40_000]].concat()), None);
        for kind in RECYCLED {
            let bad = [whole.clone(), record(1, kind)].concat();
            assert_eq!(wrong_type(&bad), Some((whole.len(), kind)));
        }
    }

    #[test]
    fn a_header_never_crosses_the_end_of_a_block() {
        let len = u16::try_from(BLOCK_LEN - HEADER_LEN - 5).unwrap();
        let two_blocks = [record(len, 1), vec![9; 5], record(3, 1), record(3, 7)].concat();
        assert_eq!(wrong_type(&two_blocks), Some((BLOCK_LEN + HEADER_LEN + 3, 7)));
    }
}
