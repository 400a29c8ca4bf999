//! A copy of a directory.

use std::{
    fs::{self, DirEntry},
    io,
    path::Path,
};

/// Copies a directory with its subdirectories. Copies the files of a directory before its
/// subdirectories.
///
/// # Errors
/// If a file cannot be read or written. The copy is then incomplete.
pub fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
    let (directories, files): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.path().is_dir());
    let target = |entry: &DirEntry| to.join(entry.file_name());
    for file in &files {
        fs::copy(file.path(), target(file))?;
    }
    directories.iter().try_for_each(|entry| copy_directory(&entry.path(), &target(entry)))
}
