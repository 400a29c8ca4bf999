//! A file as the output of records.
//!
//! Invariants:
//! - A line is in the file entirely or not at all, also on a full disk.
//! - Only one process writes to a file.
//! - A rotation loses no line: if a step of it fails, the current file continues to grow.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use tracing::warn;

use crate::{
    chain::Chain,
    event::Event,
    recovery::{End, chain_of_rotated, cut_torn_end, find_end, first_seq},
    rotation::{Rotation, directory, rotated_files, rotated_path, torn_path},
    worker::Output,
};

/// The word for a file that is shorter than before.
const TRUNCATED: &str = "truncated";

/// An open file.
#[derive(Debug)]
pub(crate) struct FileOutput {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    /// The length up to the end of the last line.
    len: u64,
    /// Whether bytes of a failed write may follow the last line.
    has_torn_end: bool,
    /// The sequence number of the first record of the file.
    first_seq: u64,
}

/// A file that has been opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) output: FileOutput,
    /// The chain to continue.
    pub(crate) chain: Chain,
    /// The event about an incomplete line.
    pub(crate) torn: Option<Event>,
}

impl FileOutput {
    /// Opens or creates a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read and written, or another process writes to it.
    pub(crate) fn open(path: &Path, rotation: Rotation) -> io::Result<Opened> {
        let file = create(path)?;
        let End { chain, len } = find_end(&file)?;
        let n_torn = cut_torn_end(&file, path, len)?;
        let chain = match chain {
            Some(chain) => Some(chain),
            None => chain_of_rotated(path)?,
        };
        let chain = chain.unwrap_or(Chain::EMPTY);
        let torn = (n_torn > 0).then(|| {
            let side = torn_path(path).display().to_string();
            warn!(bytes = n_torn, "the end of {} is no record; moved it to {side}", path.display());
            Event::internal("audit.torn").detail("bytes", n_torn).detail("moved_to", side)
        });
        let first_seq = first_seq(&file)?.unwrap_or_default();
        sync_directory(path)?;
        let path = path.to_owned();
        let output = Self { path, rotation, file, len, has_torn_end: false, first_seq };
        Ok(Opened { output, chain, torn })
    }

    /// Moves the file to its rotated name, and begins a new one.
    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        let rotated = rotated_path(&self.path, self.first_seq);
        if rotated.try_exists()? {
            let error = format!("{} exists already", rotated.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, error));
        }
        fs::rename(&self.path, &rotated)?;
        match create(&self.path) {
            Ok(file) => (self.file, self.len) = (file, 0),
            Err(error) => {
                // Later records belong after those of the present file.
                fs::rename(&rotated, &self.path)?;
                return Err(error);
            }
        }
        sync_directory(&self.path)?;
        self.delete_oldest()
    }

    fn delete_oldest(&self) -> io::Result<()> {
        let rotated = rotated_files(&self.path)?;
        let n_kept = self.rotation.files_max.saturating_sub(1);
        for oldest in rotated.iter().take(rotated.len().saturating_sub(n_kept)) {
            fs::remove_file(oldest)?;
        }
        Ok(())
    }

    /// Removes the bytes of a failed write.
    fn remove_torn_end(&mut self) -> io::Result<()> {
        if self.has_torn_end {
            self.file.set_len(self.len)?;
            self.has_torn_end = false;
        }
        Ok(())
    }

    /// Returns what somebody else has done to the file, if anything.
    fn interference(&self) -> io::Result<Option<&'static str>> {
        let own = self.file.metadata()?;
        if own.len() < self.len {
            return Ok(Some(TRUNCATED));
        }
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => Ok(None),
            Ok(_) => Ok(Some("replaced")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some("removed")),
            Err(error) => Err(error),
        }
    }
}

impl Output for FileOutput {
    fn append(&mut self, seq: u64, line: &[u8]) -> io::Result<()> {
        self.remove_torn_end()?;
        if self.len > 0
            && self.len + line.len() as u64 > self.rotation.bytes_max
            && let Err(error) = self.rotate()
        {
            warn!(%error, "cannot rotate {}; it continues to grow", self.path.display());
        }
        if self.len == 0 {
            self.first_seq = seq;
        }
        self.has_torn_end = true;
        self.file.write_all(line)?;
        self.has_torn_end = false;
        self.len += line.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<Option<Event>> {
        self.file.sync_data()?;
        let Some(what) = self.interference()? else { return Ok(None) };
        if what == TRUNCATED {
            (self.len, self.first_seq) = read_end(&self.file, &self.path)?;
        } else {
            *self = Self::open(&self.path, self.rotation)?.output;
        }
        warn!("{} was {what} while the audit log was writing to it", self.path.display());
        Ok(Some(Event::internal("audit.file_changed").detail("what", what)))
    }
}

/// Returns the length up to the end of the last record, and the sequence number of the first record.
fn read_end(file: &File, path: &Path) -> io::Result<(u64, u64)> {
    let End { len, .. } = find_end(file)?;
    cut_torn_end(file, path, len)?;
    // The first record of an empty file sets its number.
    Ok((len, first_seq(file)?.unwrap_or_default()))
}

/// Opens or creates a file that only this process writes to.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => io::Error::other("another process writes to it"),
        fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

#[cfg(test)]
mod tests;
