//! The check whether the disk of a failed replica works again.
//!
//! A failed write or sync may have lost data that the database believes to be written, so the open database is never
//! used for writes again. When the disk works again, the process starts again, with all checks of a start.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};

/// The file that the check writes and removes.
const PROBE: &str = "PROBE";
/// The size of that file, and of a read.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes, syncs and reads a file in the data directory. Blocks.
///
/// # Errors
/// Returns the first error of the operating system.
pub(crate) fn write_probe(data_dir: &Path) -> io::Result<()> {
    let path = data_dir.join(PROBE);
    let written = write(&path);
    // Also after an error, which may have left a part of the file.
    let removed = fs::remove_file(&path);
    written.and(removed)?;
    File::open(data_dir)?.sync_all()
}

fn write(path: &Path) -> io::Result<()> {
    let content = vec![0x55; CHUNK_BYTES];
    let mut file = File::create(path)?;
    file.write_all(&content)?;
    file.sync_all()?;
    if fs::read(path)? == content {
        Ok(())
    } else {
        Err(io::Error::other("a file has other content than was written"))
    }
}

/// Reads all files of a directory and its subdirectories. Blocks.
///
/// # Errors
/// Returns the first error of the operating system.
pub(crate) fn read_all(directory: &Path) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read_all(&entry.path())?;
        } else if kind.is_file() {
            let mut file = match File::open(entry.path()) {
                Ok(file) => file,
                // The database removes files that it no longer needs.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            while file.read(&mut chunk)? > 0 {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_leaves_nothing_behind_and_fails_where_nothing_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("db")).unwrap();
        fs::write(dir.path().join("db/000001.log"), b"entries").unwrap();
        write_probe(dir.path()).and_then(|()| read_all(dir.path())).unwrap();
        assert!(!dir.path().join(PROBE).exists());
        // A directory in place of the file: nothing can be written there.
        fs::create_dir(dir.path().join(PROBE)).unwrap();
        assert!(write_probe(dir.path()).is_err());
        assert!(read_all(&dir.path().join("missing")).is_err());
    }
}
