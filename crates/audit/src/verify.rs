//! The check of a chain over the files of a sink.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde::Serialize;

use crate::{
    chain::{Chain, Hash, Head, Link},
    line::LINE_BYTES_MAX,
    recovery::first_seq,
    rotation::rotated_files,
};

/// The maximum number of attempts to open all files, while they rotate.
const OPEN_ATTEMPTS: usize = 10;
/// The maximum number of attempts to read a line that is being written, and the time between two of them.
const LINE_ATTEMPTS: usize = 10;
const LINE_INTERVAL: Duration = Duration::from_millis(20);

/// The records to check, and what is known about them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Range {
    /// The first record to check.
    pub from: Option<u64>,
    /// The last record to check.
    pub to: Option<u64>,
    /// A record that must exist.
    pub expected: Option<Head>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The files, in the order of their records.
    pub files: Vec<PathBuf>,
    /// The number of checked records.
    pub records: u64,
    /// The sequence number of the first checked record.
    pub first: Option<u64>,
    /// The last checked record.
    pub last: Option<Head>,
    /// The first problem.
    pub problem: Option<Problem>,
}

/// The kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// A line is no record.
    Unreadable,
    /// The content of a record differs from its hash in the next record.
    Altered,
    /// Records are missing between two records.
    Gap,
    /// A record has a sequence number that is not greater than the previous one.
    Order,
    /// The last line is incomplete.
    TornEnd,
    /// Records are missing at the beginning.
    MissingStart,
    /// Records are missing at the end.
    MissingEnd,
    /// A record differs from the expected hash.
    Unexpected,
}

/// The first problem of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The way in which the chain is broken.
    pub kind: ProblemKind,
    /// The file and the line, if the problem is about a line.
    pub place: Option<(PathBuf, u64)>,
    /// The sequence number, if it is known.
    pub seq: Option<u64>,
    /// The explanation.
    pub text: String,
}

/// The reason why files cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The files change too fast.
    #[error("the files rotate faster than they can be opened; try again")]
    Rotating,
}

/// Checks the chain of the records in these files and their rotated files.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn verify(paths: &[PathBuf], range: &Range) -> Result<Report, VerifyError> {
    let files = open_all(paths)?;
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
    let range = range.with_expected();
    let mut check =
        Check { range, chain: None, before: None, previous: None, records: 0, first: None };
    let problem = check.run(files)?;
    if problem.as_ref().is_some_and(|problem| problem.kind == ProblemKind::Altered) {
        check.drop_last();
    }
    let last = check.chain.as_ref().and_then(Chain::head).filter(|_| check.records > 0);
    let (records, first) = (check.records, check.first);
    Ok(Report { files: paths, records, first, last, problem })
}

impl Range {
    /// Returns the range with the expected record.
    fn with_expected(&self) -> Self {
        let Some(Head { seq, .. }) = self.expected else { return self.clone() };
        let (from, to) = (self.from.map(|from| from.min(seq)), self.to.map(|to| to.max(seq)));
        Self { from, to, ..self.clone() }
    }

    /// Returns the first record that must exist.
    fn required(&self) -> Option<u64> {
        let required = [self.from, self.to, self.expected.map(|head| head.seq)];
        required.into_iter().flatten().min()
    }
}

struct Source {
    path: PathBuf,
    file: File,
}

/// Opens the files and their rotated files, in the order of their records. An open file can be renamed.
fn open_all(paths: &[PathBuf]) -> Result<Vec<Source>, VerifyError> {
    // The named files that were missing in every attempt. A file that is missing in one attempt may be in rotation.
    let mut absent: Vec<&PathBuf> = paths.iter().collect();
    let mut missing = Vec::new();
    for _ in 0..OPEN_ATTEMPTS {
        let listed = list(paths)?;
        let mut opened = Vec::new();
        missing.clear();
        for path in &listed {
            match File::open(path) {
                Ok(file) => opened.push(Source { path: path.clone(), file }),
                // The oldest file may be deleted at any time, and a rotation begins a new file after it has
                // renamed the previous one.
                Err(source) if source.kind() == io::ErrorKind::NotFound => {
                    missing.push((path.clone(), source));
                }
                Err(source) => return Err(VerifyError::Read { path: path.clone(), source }),
            }
        }
        if missing.is_empty() && list(paths)? == listed {
            return in_order(opened);
        }
        absent.retain(|path| missing.iter().any(|(gone, _)| gone == *path));
        thread::sleep(LINE_INTERVAL);
    }
    let absent = missing.into_iter().find(|(path, _)| absent.contains(&path));
    Err(absent.map_or(VerifyError::Rotating, |(path, source)| VerifyError::Read { path, source }))
}

fn list(paths: &[PathBuf]) -> Result<Vec<PathBuf>, VerifyError> {
    let mut all = Vec::new();
    for path in paths {
        let rotated = rotated_files(path)
            .map_err(|source| VerifyError::Read { path: path.clone(), source })?;
        all.extend(rotated);
        all.push(path.clone());
    }
    Ok(all)
}

fn in_order(sources: Vec<Source>) -> Result<Vec<Source>, VerifyError> {
    let mut ordered = Vec::new();
    let mut seen = Vec::new();
    for source in sources {
        let unreadable = |error| VerifyError::Read { path: source.path.clone(), source: error };
        let data = source.file.metadata().map_err(unreadable)?;
        let inode = (data.dev(), data.ino());
        // A file may be named twice.
        if !seen.contains(&inode) {
            seen.push(inode);
            // A file without a record is the newest, because it has just been created.
            let first = first_seq(&source.file).map_err(unreadable)?.unwrap_or(u64::MAX);
            ordered.push((first, source));
        }
    }
    ordered.sort_by_key(|(first, _)| *first);
    Ok(ordered.into_iter().map(|(_, source)| source).collect())
}

struct Check {
    range: Range,
    /// The chain up to the last checked record.
    chain: Option<Chain>,
    /// The chain before the last checked record.
    before: Option<Chain>,
    /// The place of the last checked record.
    previous: Option<(PathBuf, u64)>,
    records: u64,
    first: Option<u64>,
}

impl Check {
    /// Returns the first problem.
    fn run(&mut self, sources: Vec<Source>) -> Result<Option<Problem>, VerifyError> {
        let n_sources = sources.len();
        for (index, Source { path, file }) in sources.into_iter().enumerate() {
            let mut reader = BufReader::new(file);
            for number in 1.. {
                let read = read_line(&mut reader, index + 1 == n_sources)
                    .map_err(|source| VerifyError::Read { path: path.clone(), source })?;
                let Some((line, is_complete)) = read else { break };
                let place = (path.clone(), number);
                match self.on_line(&line, is_complete, place) {
                    Ok(true) => {}
                    Ok(false) => return Ok(None),
                    Err(problem) => return Ok(Some(problem)),
                }
            }
        }
        Ok(self.at_end())
    }

    /// Checks a line. Returns whether more lines are to be checked.
    fn on_line(
        &mut self,
        line: &[u8],
        is_complete: bool,
        place: (PathBuf, u64),
    ) -> Result<bool, Problem> {
        let expected_seq = self.chain.map(|chain| chain.next_seq);
        if !is_complete {
            let n = line.len();
            let text = format!("the last line is incomplete: {n} bytes without a line break");
            return Err(problem(ProblemKind::TornEnd, Some(place), expected_seq, text));
        }
        let (link, prev) = Link::read(line).map_err(|error| {
            problem(ProblemKind::Unreadable, Some(place.clone()), expected_seq, error.to_string())
        })?;
        let seq = link.seq;
        if self.range.from.is_some_and(|from| seq < from) {
            return Ok(true);
        }
        match self.chain {
            Some(chain) => self.check_next(&chain, seq, prev, &place)?,
            None => self.check_first(seq, prev, &place)?,
        }
        let chain = Chain::after(seq, line);
        self.check_expected(&chain, seq, &place)?;
        self.before = self.chain.replace(chain);
        self.previous = Some(place);
        self.records += 1;
        self.first.get_or_insert(seq);
        let is_last = self.range.to.is_some_and(|to| seq >= to);
        Ok(!is_last)
    }

    /// Does not count the last record, which the next one shows to be altered.
    fn drop_last(&mut self) {
        self.records = self.records.saturating_sub(1);
        self.chain = self.before;
        self.first = self.first.filter(|_| self.records > 0);
    }

    fn check_first(&self, seq: u64, prev: Hash, place: &(PathBuf, u64)) -> Result<(), Problem> {
        if let Some(first) = self.range.required().filter(|first| *first < seq) {
            let text = format!("records {first} to {} are missing at the beginning", seq - 1);
            return Err(problem(ProblemKind::MissingStart, Some(place.clone()), Some(first), text));
        }
        if seq == 1 && !Chain::EMPTY.precedes(seq, prev) {
            let text = format!("`prev` of the first record is {prev}, not zeros");
            return Err(problem(ProblemKind::Altered, Some(place.clone()), Some(1), text));
        }
        Ok(())
    }

    fn check_next(
        &self,
        chain: &Chain,
        seq: u64,
        prev: Hash,
        place: &(PathBuf, u64),
    ) -> Result<(), Problem> {
        if chain.precedes(seq, prev) {
            return Ok(());
        }
        let expected = chain.next_seq;
        let place = Some(place.clone());
        if seq > expected {
            let text = format!("records {expected} to {} are missing before record {seq}", seq - 1);
            return Err(problem(ProblemKind::Gap, place, Some(expected), text));
        }
        if seq < expected {
            let text = format!("record {seq} follows record {}", expected - 1);
            return Err(problem(ProblemKind::Order, place, Some(seq), text));
        }
        let head = chain.head().map(|head| head.hash).unwrap_or_default();
        let altered = expected - 1;
        let text = format!(
            "record {altered} has the hash {head}, but `prev` of record {seq} is {prev}: one of them was altered"
        );
        Err(problem(ProblemKind::Altered, self.previous.clone(), Some(altered), text))
    }

    fn check_expected(
        &self,
        chain: &Chain,
        seq: u64,
        place: &(PathBuf, u64),
    ) -> Result<(), Problem> {
        let Some(expected) = self.range.expected.filter(|expected| expected.seq == seq) else {
            return Ok(());
        };
        match chain.head().filter(|head| *head != expected) {
            None => Ok(()),
            Some(head) => {
                let text =
                    format!("record {seq} has the hash {}, not {}", head.hash, expected.hash);
                let place = Some(place.clone());
                Err(problem(ProblemKind::Unexpected, place, Some(seq), text))
            }
        }
    }

    /// Returns the problem of a chain that ends here.
    fn at_end(&self) -> Option<Problem> {
        let end = self.chain.map_or(0, |chain| chain.next_seq - 1);
        let wanted = [self.range.to, self.range.from, self.range.expected.map(|head| head.seq)];
        let wanted = wanted.into_iter().flatten().max().filter(|wanted| *wanted > end)?;
        let text = match end {
            0 => format!("record {wanted} is missing: there are no records up to it"),
            end => format!("record {wanted} is missing: the last record is {end}"),
        };
        Some(problem(ProblemKind::MissingEnd, self.previous.clone(), Some(end + 1), text))
    }
}

fn problem(
    kind: ProblemKind,
    place: Option<(PathBuf, u64)>,
    seq: Option<u64>,
    text: String,
) -> Problem {
    Problem { kind, place, seq, text }
}

/// Reads a line without its line break. Also returns whether it has one. A line that is too long is returned as
/// incomplete, with its beginning.
fn read_line(reader: &mut BufReader<File>, is_newest: bool) -> io::Result<Option<(Vec<u8>, bool)>> {
    let mut line = Vec::new();
    for _ in 0..LINE_ATTEMPTS {
        let left = LINE_BYTES_MAX.saturating_sub(line.len()) as u64;
        reader.by_ref().take(left).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            line.pop();
            return Ok(Some((line, true)));
        }
        if line.is_empty() {
            return Ok(None);
        }
        if !is_newest || line.len() >= LINE_BYTES_MAX {
            break;
        }
        // The server may be writing the line.
        thread::sleep(LINE_INTERVAL);
    }
    Ok(Some((line, false)))
}

impl Problem {
    /// Returns the problem as one line: file, line, explanation.
    #[must_use]
    pub fn line(&self) -> String {
        match &self.place {
            Some((path, line)) => format!("{}:{line}: {}", Path::display(path), self.text),
            None => self.text.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
