//! The last records of a file, and those that follow.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{line::LINE_BYTES_MAX, rotation::rotated_files};

/// A line of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TailRecord {
    /// The line, without its line break.
    pub line: String,
    /// The line as JSON; `null` for other text.
    pub json: Value,
}

impl TailRecord {
    fn new(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line).into_owned();
        let json = serde_json::from_str(&line).unwrap_or_default();
        Self { line, json }
    }

    /// Returns the text of a key, or an empty text.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.json.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

/// The position in a file that grows and rotates.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    reader: BufReader<File>,
    /// The beginning of a line whose end is not written yet.
    partial: Vec<u8>,
}

/// Returns the last `n` records of a file, and the position after them.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn last_records(path: &Path, n: usize) -> io::Result<(Vec<TailRecord>, Follow)> {
    let mut last = VecDeque::new();
    let mut take = |record| {
        last.push_back(record);
        if last.len() > n {
            last.pop_front();
        }
    };
    let reader = BufReader::new(File::open(path)?);
    let mut follow = Follow { path: path.to_owned(), reader, partial: Vec::new() };
    if let Some(newest) = rotated_files(path)?.last() {
        let reader = BufReader::new(File::open(newest)?);
        let mut rotated = Follow { path: newest.clone(), reader, partial: Vec::new() };
        rotated.read_lines()?.into_iter().for_each(&mut take);
    }
    follow.read_lines()?.into_iter().for_each(&mut take);
    Ok((last.into(), follow))
}

impl Follow {
    /// Returns the records since the last call.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn next_records(&mut self) -> io::Result<Vec<TailRecord>> {
        let mut records = self.read_lines()?;
        let own = self.reader.get_ref().metadata()?;
        let is_rotated = fs::metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) != (own.dev(), own.ino()));
        if is_rotated {
            // The rest of the rotated file comes first.
            records.extend(self.read_lines()?);
            self.reader = BufReader::new(File::open(&self.path)?);
            self.partial.clear();
            records.extend(self.read_lines()?);
        }
        Ok(records)
    }

    fn read_lines(&mut self) -> io::Result<Vec<TailRecord>> {
        let mut records = Vec::new();
        loop {
            self.reader.read_until(b'\n', &mut self.partial)?;
            let Some(line) = self.partial.strip_suffix(b"\n") else { break };
            let line = &line[..line.len().min(LINE_BYTES_MAX)];
            records.push(TailRecord::new(line));
            self.partial.clear();
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, path::Path};

    use super::*;
    use crate::rotation::rotated_path;

    fn add(path: &Path, text: &str) {
        File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    #[test]
    fn last_records_and_those_that_follow_are_returned_across_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        add(&rotated_path(&path, 1), "{\"verb\":\"1\"}\n{\"verb\":\"2\"}\n");
        add(&path, "{\"verb\":\"3\"}\n{\"ve");
        let verbs = |records: &[TailRecord]| {
            records.iter().map(|record| record.text("verb").to_owned()).collect::<Vec<_>>()
        };
        let (last, mut follow) = last_records(&path, 2).unwrap();
        assert_eq!(verbs(&last), ["2", "3"]);
        assert_eq!(follow.next_records().unwrap(), []);
        add(&path, "rb\":\"4\"}\n");
        fs::rename(&path, rotated_path(&path, 3)).unwrap();
        add(&path, "{\"verb\":\"5\"}\nno record\n");
        let next = follow.next_records().unwrap();
        assert_eq!(verbs(&next), ["4", "5", ""]);
        assert_eq!((next[2].line.as_str(), &next[2].json), ("no record", &Value::Null));
    }
}
