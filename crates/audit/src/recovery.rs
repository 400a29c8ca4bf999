//! The end of an existing file: the chain to continue, and the incomplete line that a crash may have left.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use crate::{
    chain::{Chain, Link},
    line::LINE_BYTES_MAX,
    rotation::{rotated_files, torn_path},
};

/// The number of bytes that are read at a time, from the end of a file to its beginning.
const CHUNK: usize = 64 << 10;

/// The end of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The chain after the last record, or `None` if the file has no records.
    pub(crate) chain: Option<Chain>,
    /// The number of bytes up to the end of the last record. The rest is no record.
    pub(crate) len: u64,
}

/// Finds the last record of a file.
pub(crate) fn find_end(file: &File) -> io::Result<End> {
    let mut len = line_end(file, file.metadata()?.len())?;
    while len > 0 {
        // The last line is between two line breaks.
        let start = line_end(file, len - 1)?;
        if let Some(chain) = chain_after(file, start, len - 1)? {
            return Ok(End { chain: Some(chain), len });
        }
        len = start;
    }
    Ok(End { chain: None, len: 0 })
}

/// Returns the chain after the line from `start` to `end`, or `None` if that is no record.
fn chain_after(file: &File, start: u64, end: u64) -> io::Result<Option<Chain>> {
    let Some(len) = usize::try_from(end - start).ok().filter(|len| *len <= LINE_BYTES_MAX) else {
        return Ok(None);
    };
    let mut line = vec![0; len];
    file.read_exact_at(&mut line, start)?;
    Ok(Link::read(&line).ok().map(|(link, _)| Chain::after(link.seq, &line)))
}

/// Returns the position after the last line break before `end`, or 0.
fn line_end(file: &File, end: u64) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut end = end;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let len = usize::try_from(end - start).unwrap_or(CHUNK);
        file.read_exact_at(&mut chunk[..len], start)?;
        if let Some(at) = chunk[..len].iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Returns the sequence number of the first record of a file.
pub(crate) fn first_seq(file: &File) -> io::Result<Option<u64>> {
    let mut start = vec![0; LINE_BYTES_MAX];
    let mut len = 0;
    while len < start.len() {
        match file.read_at(&mut start[len..], len as u64)? {
            0 => break,
            n => len += n,
        }
    }
    let line = start[..len].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(Link::read(line).ok().map(|(link, _)| link.seq))
}

/// Moves the bytes after the last record to the file for incomplete lines. Returns the number of bytes.
pub(crate) fn cut_torn_end(file: &File, path: &Path, end: u64) -> io::Result<u64> {
    let len = file.metadata()?.len();
    if len <= end {
        return Ok(0);
    }
    let torn = OpenOptions::new().append(true).create(true).mode(0o600).open(torn_path(path))?;
    let (mut at, mut chunk) = (end, vec![0; CHUNK]);
    while at < len {
        let n = usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK);
        file.read_exact_at(&mut chunk[..n], at)?;
        io::Write::write_all(&mut &torn, &chunk[..n])?;
        at += n as u64;
    }
    io::Write::write_all(&mut &torn, b"\n")?;
    // The copy must be on disk before the original is gone.
    torn.sync_all()?;
    file.set_len(end)?;
    Ok(len - end)
}

/// Returns the chain after the newest rotated file that has a record.
pub(crate) fn chain_of_rotated(path: &Path) -> io::Result<Option<Chain>> {
    for rotated in rotated_files(path)?.iter().rev() {
        if let Some(chain) = find_end(&File::open(rotated)?)?.chain {
            return Ok(Some(chain));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::*;

    fn end_of(content: &[u8]) -> End {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        find_end(&file).unwrap()
    }

    fn two_records() -> (Vec<u8>, Chain) {
        let mut chain = Chain::EMPTY;
        let mut content = Vec::new();
        for _ in 0..2 {
            let line = chain.line("{\"verb\":\"x\"}");
            chain.append(&line);
            content.extend_from_slice(&line);
        }
        (content, chain)
    }

    #[test]
    fn last_record_is_found_after_every_kind_of_torn_end() {
        let (content, chain) = two_records();
        let len = content.len() as u64;
        let whole = End { chain: Some(chain), len };
        assert_eq!(end_of(&content), whole);
        let zeros = vec![0; 3 * CHUNK + 7];
        for torn in [&b"{\"v\":1,\"se"[..], b"\n", b"\n\n\n", b"garbage\nmore\n", b"{}\n", &zeros] {
            assert_eq!(end_of(&[&content, torn].concat()), whole, "{:?}", &torn[..1]);
        }
        // A line break after zeros completes a line that is no record.
        assert_eq!(end_of(&[&content, &zeros[..], b"\n"].concat()), whole);
        for cut in 1..content.len() {
            let end = end_of(&content[..cut]);
            let is_second = cut as u64 > len / 2 - 1;
            assert_eq!(end.chain.is_some(), is_second, "{cut}");
        }
        assert_eq!(end_of(b""), End { chain: None, len: 0 });
        assert_eq!(end_of(b"no record"), End { chain: None, len: 0 });
    }

    #[test]
    fn torn_end_is_moved_to_the_file_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let (mut content, _) = two_records();
        let len = content.len() as u64;
        let torn = vec![b'x'; CHUNK + 5];
        content.extend_from_slice(&torn);
        fs::write(&path, &content).unwrap();
        let file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        assert_eq!(cut_torn_end(&file, &path, len).unwrap(), torn.len() as u64);
        assert_eq!(cut_torn_end(&file, &path, len).unwrap(), 0);
        assert_eq!(fs::metadata(&path).unwrap().len(), len);
        assert_eq!(fs::read(torn_path(&path)).unwrap(), [&torn[..], b"\n"].concat());
        assert_eq!(first_seq(&file).unwrap(), Some(1));
    }
}
