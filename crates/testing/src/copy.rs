//! A copy of a directory.

use std::{fs, io, path::Path};

/// Copies a directory with its subdirectories.
///
/// # Errors
/// If a file cannot be read or written. The copy is then incomplete.
pub fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
