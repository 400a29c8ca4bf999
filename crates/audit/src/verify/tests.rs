use std::{fs, io::Write as _};

use super::*;
use crate::{
    file_output::FileOutput,
    rotation::{Rotation, rotated_path},
    worker::Output as _,
};

struct Log {
    dir: tempfile::TempDir,
    heads: Vec<Head>,
}

impl Log {
    /// Writes `n` records. About three fit into a file.
    fn new(n: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rotation = Rotation { bytes_max: 350, files_max: 100 };
        let mut opened = FileOutput::open(&dir.path().join("audit.jsonl"), rotation).unwrap();
        let mut heads = Vec::new();
        for _ in 0..n {
            let line = opened.chain.line("{\"verb\":\"x\"}");
            opened.output.append(opened.chain.next_seq, &line).unwrap();
            opened.chain.append(&line);
            heads.push(opened.chain.head().unwrap());
        }
        Self { dir, heads }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("audit.jsonl")
    }

    fn files(&self) -> Vec<PathBuf> {
        [rotated_files(&self.path()).unwrap(), vec![self.path()]].concat()
    }

    fn check(&self, range: &Range) -> Report {
        verify(&[self.path()], range).unwrap()
    }

    /// Returns the file and the line of a record, and changes its file.
    fn edit(&self, seq: u64, change: impl FnOnce(&mut Vec<String>, usize)) -> (PathBuf, u64) {
        for path in self.files() {
            let text = fs::read_to_string(&path).unwrap();
            let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
            let own = format!("\"seq\":{seq},");
            if let Some(index) = lines.iter().position(|line| line.contains(&own)) {
                change(&mut lines, index);
                fs::write(&path, lines.concat()).unwrap();
                return (path, index as u64 + 1);
            }
        }
        panic!("no record {seq}");
    }
}

#[test]
fn unchanged_chain_over_several_files_is_valid() {
    let log = Log::new(10);
    assert!(log.files().len() >= 3);
    let report = log.check(&Range::default());
    assert_eq!((report.problem, report.records, report.first), (None, 10, Some(1)));
    assert_eq!(report.last, log.heads.last().copied());
    assert_eq!(report.files, log.files());
    // The order and the repetition of arguments do not matter.
    let mut files = log.files();
    files.reverse();
    assert_eq!(verify(&files, &Range::default()).unwrap().records, 10);
}

#[test]
fn altered_record_is_named_with_file_and_line() {
    for seq in 1..10 {
        let log = Log::new(10);
        let place = log.edit(seq, |lines, at| lines[at] = lines[at].replace("\"x\"", "\"y\""));
        let problem = log.check(&Range::default()).problem.unwrap();
        assert_eq!((problem.kind, problem.seq), (ProblemKind::Altered, Some(seq)));
        assert_eq!(problem.place, Some(place));
        assert!(problem.text.starts_with(&format!("record {seq} has the hash ")), "{problem:?}");
    }
}

/// No later record has the hash of the last one.
#[test]
fn altered_last_record_is_found_by_its_expected_hash() {
    let log = Log::new(10);
    let head = log.heads[9];
    let expected = Range { expected: Some(head), ..Range::default() };
    assert_eq!(log.check(&expected).problem, None);
    let place = log.edit(10, |lines, at| lines[at] = lines[at].replace("\"x\"", "\"y\""));
    assert_eq!(log.check(&Range::default()).problem, None);
    let problem = log.check(&expected).problem.unwrap();
    assert_eq!((problem.kind, problem.place), (ProblemKind::Unexpected, Some(place)));
}

#[test]
fn missing_records_are_named() {
    for seq in 2..10 {
        let log = Log::new(10);
        log.edit(seq, |lines, at| drop(lines.remove(at)));
        let problem = log.check(&Range::default()).problem.unwrap();
        assert_eq!((problem.kind, problem.seq), (ProblemKind::Gap, Some(seq)));
        let text = format!("records {seq} to {seq} are missing before record {}", seq + 1);
        assert_eq!(problem.text, text);
    }
    let log = Log::new(10);
    fs::remove_file(&log.files()[1]).unwrap();
    assert_eq!(log.check(&Range::default()).problem.unwrap().kind, ProblemKind::Gap);
}

#[test]
fn removed_end_is_found_if_a_later_record_is_known() {
    let log = Log::new(10);
    log.edit(10, |lines, at| drop(lines.remove(at)));
    assert_eq!(log.check(&Range::default()).problem, None);
    let expected = Range { expected: Some(log.heads[9]), ..Range::default() };
    for range in [expected, Range { to: Some(10), ..Range::default() }] {
        let problem = log.check(&range).problem.unwrap();
        assert_eq!((problem.kind, problem.seq), (ProblemKind::MissingEnd, Some(10)));
        assert_eq!(problem.text, "record 10 is missing: the last record is 9");
    }
}

#[test]
fn removed_oldest_file_is_a_problem_only_if_its_records_are_required() {
    let log = Log::new(10);
    fs::remove_file(&log.files()[0]).unwrap();
    let report = log.check(&Range::default());
    assert_eq!(report.problem, None);
    let first = report.first.unwrap();
    assert!(first > 1);
    let problem = log.check(&Range { from: Some(1), ..Range::default() }).problem.unwrap();
    assert_eq!((problem.kind, problem.seq), (ProblemKind::MissingStart, Some(1)));
    let before = Range { expected: Some(log.heads[0]), ..Range::default() };
    assert_eq!(log.check(&before).problem.unwrap().kind, ProblemKind::MissingStart);
}

#[test]
fn range_limits_the_checked_records() {
    let log = Log::new(10);
    log.edit(2, |lines, at| lines[at] = lines[at].replace("\"x\"", "\"y\""));
    let report = log.check(&Range { from: Some(3), to: Some(7), expected: None });
    assert_eq!((report.problem, report.records, report.first), (None, 5, Some(3)));
    assert_eq!(report.last, Some(log.heads[6]));
    let expected = Some(log.heads[8]);
    let report = log.check(&Range { from: Some(3), to: Some(7), expected });
    assert_eq!((report.problem, report.records), (None, 7), "the expected record is checked, too");
    let beyond = log.check(&Range { from: Some(11), ..Range::default() });
    assert_eq!(beyond.problem.unwrap().kind, ProblemKind::MissingEnd);
}

#[test]
fn forged_first_record_swapped_lines_and_garbage_are_found() {
    let log = Log::new(10);
    log.edit(1, |lines, at| lines[at] = lines[at].replace("\"prev\":\"00", "\"prev\":\"10"));
    assert_eq!(log.check(&Range::default()).problem.unwrap().kind, ProblemKind::Altered);
    let log = Log::new(10);
    log.edit(1, |lines, _| lines.swap(1, 2));
    assert_eq!(log.check(&Range::default()).problem.unwrap().kind, ProblemKind::Gap);
    let log = Log::new(10);
    log.edit(2, |lines, at| lines.insert(at, lines[at].clone()));
    let problem = log.check(&Range::default()).problem.unwrap();
    assert_eq!(
        (problem.kind, problem.text.as_str()),
        (ProblemKind::Order, "record 2 follows record 2")
    );
    let log = Log::new(10);
    let (path, line) = log.edit(5, |lines, at| lines.insert(at, "\0\0garbage\n".to_owned()));
    let problem = log.check(&Range::default()).problem.unwrap();
    assert_eq!((problem.kind, problem.seq), (ProblemKind::Unreadable, Some(5)));
    assert!(problem.line().starts_with(&format!("{}:{line}: ", path.display())), "{problem:?}");
}

#[test]
fn torn_end_is_a_problem_unless_the_rest_of_the_line_follows() {
    let log = Log::new(4);
    let mut file = File::options().append(true).open(log.path()).unwrap();
    file.write_all(b"{\"v\":1,").unwrap();
    let problem = log.check(&Range::default()).problem.unwrap();
    assert_eq!((problem.kind, problem.seq), (ProblemKind::TornEnd, Some(5)));
    let endless = vec![b' '; LINE_BYTES_MAX + 1];
    file.write_all(&endless).unwrap();
    assert_eq!(log.check(&Range::default()).problem.unwrap().kind, ProblemKind::TornEnd);
}

/// Rotation may delete a rotated file after it was listed and before it is opened. A dangling symbolic link is listed, but
/// cannot be opened either.
#[test]
fn only_a_named_file_is_reported_as_missing() {
    let log = Log::new(1);
    let rotated = rotated_path(&log.path(), 1);
    std::os::unix::fs::symlink("nothing", rotated).unwrap();
    let error = verify(&[log.path()], &Range::default()).unwrap_err();
    assert!(matches!(error, VerifyError::Rotating), "{error}");
    fs::remove_file(log.path()).unwrap();
    let error = verify(&[log.path()], &Range::default()).unwrap_err();
    assert!(matches!(&error, VerifyError::Read { path, .. } if *path == log.path()), "{error}");
}

/// A check sees a valid chain at any time, whatever the server writes and rotates meanwhile.
#[test]
fn check_during_rotation_finds_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let rotation = Rotation { bytes_max: 2000, files_max: 4 };
    let mut opened = FileOutput::open(&path, rotation).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let line = opened.chain.line("{\"verb\":\"x\"}");
                opened.output.append(opened.chain.next_seq, &line).unwrap();
                opened.chain.append(&line);
            }
        });
        let mut n_valid = 0;
        for _ in 0..100 {
            match verify(std::slice::from_ref(&path), &Range::default()) {
                Ok(report) => {
                    if report.problem.is_some() {
                        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                    assert_eq!(report.problem, None);
                    n_valid += 1;
                }
                Err(error @ VerifyError::Read { .. }) => panic!("{error}"),
                Err(VerifyError::Rotating) => {}
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(n_valid > 0);
    });
}
