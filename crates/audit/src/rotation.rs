//! The names of rotated files: `PATH.SEQ`, where `SEQ` is the sequence number of the first record.
//!
//! A rotated file never changes its name, so that readers can follow the chain while files rotate.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// The number of digits of a sequence number in a name. Names in alphabetical order are in the order of the
/// records.
const DIGITS: usize = 20;

/// The rotation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// The maximum size of a file, in bytes.
    pub bytes_max: u64,
    /// The maximum number of files, including the one that is written. The oldest is deleted.
    pub files_max: usize,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { bytes_max: 64 << 20, files_max: 16 }
    }
}

/// Returns the path of a rotated file.
pub(crate) fn rotated_path(path: &Path, first_seq: u64) -> PathBuf {
    with_suffix(path, &format!(".{first_seq:0DIGITS$}"))
}

/// Returns the path of the file for incomplete lines.
pub(crate) fn torn_path(path: &Path) -> PathBuf {
    with_suffix(path, ".torn")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Returns the directory of a file.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the rotated files of a path, the oldest first.
pub(crate) fn rotated_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(Vec::new());
    };
    let is_rotated = |other: &str| {
        let rest = other.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory(path))? {
        let other = entry?.file_name();
        if other.to_str().is_some_and(is_rotated) {
            names.push(path.with_file_name(other));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_are_listed_in_order_and_other_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let rotated: Vec<_> = [2, 10, 1].map(|seq| rotated_path(&path, seq)).to_vec();
        for file in rotated.iter().chain([
            &path,
            &torn_path(&path),
            &dir.path().join("audit.jsonl.gz"),
            &dir.path().join("audit.jsonl.0000000000000000000x"),
        ]) {
            fs::write(file, "").unwrap();
        }
        let expected = [&rotated[2], &rotated[0], &rotated[1]].map(Clone::clone);
        assert_eq!(rotated_files(&path).unwrap(), expected);
        assert_eq!(directory(Path::new("audit.jsonl")), Path::new("."));
    }
}
