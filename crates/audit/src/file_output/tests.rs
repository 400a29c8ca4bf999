use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::verify::{Range, verify};

fn open(path: &Path, bytes_max: u64, files_max: usize) -> Opened {
    FileOutput::open(path, Rotation { bytes_max, files_max }).unwrap()
}

/// Appends `n` records.
fn append(opened: &mut Opened, n: usize) {
    for _ in 0..n {
        let line = opened.chain.line("{\"verb\":\"x\"}");
        opened.output.append(opened.chain.next_seq, &line).unwrap();
        opened.chain.append(&line);
    }
}

fn check(path: &Path) -> crate::verify::Report {
    let report = verify(&[path.to_owned()], &Range::default()).unwrap();
    assert_eq!(report.problem, None);
    report
}

#[test]
fn new_file_is_private_and_its_chain_continues_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut opened = open(&path, 1 << 20, 3);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    append(&mut opened, 3);
    drop(opened);
    let mut opened = open(&path, 1 << 20, 3);
    assert_eq!((opened.chain.next_seq, opened.torn.is_none()), (4, true));
    append(&mut opened, 2);
    assert_eq!(check(&path).records, 5);
}

#[test]
fn second_writer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let _first = open(&path, 1 << 20, 3);
    let error = FileOutput::open(&path, Rotation::default()).unwrap_err();
    assert_eq!(error.to_string(), "another process writes to it");
}

#[test]
fn full_file_is_rotated_and_oldest_file_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut opened = open(&path, 300, 3);
    append(&mut opened, 20);
    let rotated = rotated_files(&path).unwrap();
    assert_eq!(rotated.len(), 2, "{rotated:?}");
    for file in rotated.iter().chain([&path]) {
        assert!(fs::metadata(file).unwrap().len() <= 300);
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let report = check(&path);
    assert_eq!(report.last.unwrap().seq, 20);
    assert!(report.first.unwrap() > 10, "{report:?}");
    // A restart between the rename and the creation of the new file continues the chain.
    drop(opened);
    let first = first_seq(&File::open(&path).unwrap()).unwrap().unwrap();
    fs::rename(&path, rotated_path(&path, first)).unwrap();
    let mut opened = open(&path, 300, 4);
    assert_eq!(opened.chain.next_seq, 21);
    append(&mut opened, 1);
    assert_eq!(check(&path).last.unwrap().seq, 21);
}

#[test]
fn failed_rotation_loses_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut opened = open(&path, 300, 3);
    fs::create_dir(rotated_path(&path, 1)).unwrap();
    append(&mut opened, 10);
    fs::remove_dir(rotated_path(&path, 1)).unwrap();
    append(&mut opened, 1);
    assert_eq!(rotated_files(&path).unwrap().len(), 1);
    assert_eq!(check(&path).records, 11);
}

/// A crash during a write leaves a part of a line.
#[test]
fn torn_last_line_is_kept_beside_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut opened = open(&path, 1 << 20, 3);
    append(&mut opened, 2);
    let whole = fs::read(&path).unwrap();
    let line = opened.chain.line("{\"verb\":\"x\"}");
    drop(opened);
    for cut in [1, line.len() / 2, line.len() - 1] {
        fs::write(&path, [&whole[..], &line[..cut]].concat()).unwrap();
        let opened = open(&path, 1 << 20, 3);
        assert_eq!(opened.chain.next_seq, 3, "{cut}");
        assert_eq!(opened.torn.unwrap().details["bytes"], cut, "{cut}");
        assert_eq!(fs::read(&path).unwrap(), whole, "{cut}");
        assert!(fs::read(torn_path(&path)).unwrap().ends_with(&[&line[..cut], b"\n"].concat()));
        fs::remove_file(torn_path(&path)).unwrap();
    }
}

/// A write that fails in the middle, as on a full disk, leaves no trace.
#[test]
fn failed_write_leaves_no_part_of_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut opened = open(&path, 1 << 20, 3);
    append(&mut opened, 1);
    (&opened.output.file).write_all(b"{\"v\":1,").unwrap();
    opened.output.has_torn_end = true;
    append(&mut opened, 1);
    assert_eq!(check(&path).records, 2);
}

type Harm = fn(&Path);

#[test]
fn removed_replaced_and_truncated_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut opened = open(&path, 1 << 20, 3);
    append(&mut opened, 2);
    assert_eq!(opened.output.sync().unwrap(), None);
    let harms: [(&str, Harm); 3] = [
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("replaced", |path| {
            let other = path.with_file_name("other");
            fs::write(&other, "").unwrap();
            fs::rename(other, path).unwrap();
        }),
        ("truncated", |path| File::options().write(true).open(path).unwrap().set_len(0).unwrap()),
    ];
    for (what, harm) in harms {
        harm(&path);
        let event = opened.output.sync().unwrap().unwrap();
        assert_eq!((event.verb, &event.details["what"]), ("audit.file_changed", &what.into()));
        append(&mut opened, 1);
        assert_eq!(opened.output.sync().unwrap(), None);
        assert_eq!(check(&path).first, Some(opened.chain.next_seq - 1), "{what}");
    }
}
