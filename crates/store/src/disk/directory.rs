//! The data directory: its files, and exclusive access to it.
//!
//! ```text
//! IDENTITY       the IDs of cluster, replica and instance; exists once the replica is complete
//! IDENTITY.new   in place of IDENTITY while the replica is being formed
//! IDENTITY.part  in place of IDENTITY while a backup is being restored
//! HIGHWATER      a lower bound of the acknowledged entries
//! DIVERGED       the reason why the replica must not start again with this data
//! PROBE          written and removed while a failed replica checks its disk
//! LOCK           locked by the process that uses the directory; contains its process ID
//! db/            RocksDB
//! ```
//!
//! Invariant: this module decides whether the directory can be used before it changes anything in
//! it, except that it creates `LOCK`. A directory without `IDENTITY` is cleared only if
//! `IDENTITY.new` shows that forming the replica was interrupted: such a replica has acknowledged
//! nothing. A directory with `IDENTITY.part` is cleared only by the next attempt to restore. A
//! replica that treated it as empty would serve nothing to a fleet that waits for the content of
//! the backup.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{
    OpenError,
    format::identity::{FORMAT_VERSION, Identity, IdentityError},
};

const IDENTITY: &str = "IDENTITY";
const IDENTITY_NEW: &str = "IDENTITY.new";
const IDENTITY_PART: &str = "IDENTITY.part";
const HIGH_WATER: &str = "HIGHWATER";
const DIVERGED: &str = "DIVERGED";
const LOCK: &str = "LOCK";
const DATABASE: &str = "db";
/// A directory that file systems create in their root.
const LOST_AND_FOUND: &str = "lost+found";

/// A directory that this process owns until the value is dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The locked file.
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process shares the open file and its lock between
        // `fork` and `exec`.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, path = %self.path.display(), "cannot unlock the data directory");
        }
    }
}

/// The purpose of a new directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectoryPurpose {
    /// A replica that forms or joins a cluster.
    Replica,
    /// A restored backup.
    Restore,
}

impl DirectoryPurpose {
    /// Returns the file that stands for `IDENTITY` until the directory is complete.
    fn marker(self) -> &'static str {
        match self {
            Self::Replica => IDENTITY_NEW,
            Self::Restore => IDENTITY_PART,
        }
    }
}

/// The content of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing, or the files of an interrupted formation.
    Fresh,
    /// The files of an interrupted restore.
    Unrestored,
    /// The files of a replica with this identity.
    Replica(Identity),
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> OpenError + 'a {
    move |source| OpenError::Io { what, path: path.to_owned(), source }
}

impl Directory {
    /// Takes the directory for this process, and creates it if it does not exist. A replica in the
    /// directory must have the ID `replica_id`; `None` accepts any ID.
    pub(crate) fn open(path: &Path, replica_id: Option<u64>) -> Result<(Self, Found), OpenError> {
        match fs::metadata(path) {
            Ok(metadata) if !metadata.is_dir() => {
                return Err(OpenError::NotADirectory { path: path.to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(path)
                    .map_err(io_error("create the data directory", path))?;
                if let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
                    sync_directory(parent)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(OpenError::NotADirectory { path: path.to_owned() });
            }
            Err(error) => {
                return Err(io_error("read the metadata of the data directory", path)(error));
            }
        }
        // Inspect once before creating anything, and once when no other process can change the
        // directory.
        inspect(path, replica_id)?;
        let lock = lock(path)?;
        let found = inspect(path, replica_id)?;
        Ok((Self { path: path.to_owned(), lock }, found))
    }

    /// Takes the directory of a stopped replica for this process.
    pub(crate) fn open_existing(path: &Path) -> Result<(Self, Identity), OpenError> {
        let replica = |found| match found {
            Found::Replica(identity) => Ok(identity),
            Found::Unrestored => Err(OpenError::Unrestored { path: path.to_owned() }),
            Found::Fresh => Err(OpenError::NoReplica { path: path.to_owned() }),
        };
        if !path.is_dir() {
            return Err(OpenError::NotADirectory { path: path.to_owned() });
        }
        replica(inspect(path, None)?)?;
        let lock = lock(path)?;
        let identity = replica(inspect(path, None)?)?;
        Ok((Self { path: path.to_owned(), lock }, identity))
    }

    /// Returns the reason why the replica must not start again with this data; `None` if it may.
    pub(crate) fn diverged(&self) -> Result<Option<String>, OpenError> {
        let reason = read(&self.path, DIVERGED)?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).trim_end().to_owned()))
    }

    /// Returns the path of the data directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the database.
    pub(crate) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Returns the path of the high-water mark.
    pub(crate) fn high_water(&self) -> PathBuf {
        self.path.join(HIGH_WATER)
    }

    /// Starts to create a replica. Removes the files of an interrupted attempt.
    pub(crate) fn begin(
        &self,
        identity: Identity,
        making: DirectoryPurpose,
    ) -> Result<(), OpenError> {
        let new = self.path.join(making.marker());
        // Clear first, then write the marker. An interrupted start then leaves either only a marker
        // or a whole marker. A truncated marker is then never beside the files of a replica, so its
        // unreadable content does not matter.
        self.clear()?;
        sync_directory(&self.path)?;
        write_durably(&new, identity.to_text().as_bytes())?;
        if making == DirectoryPurpose::Restore {
            sync_directory(&self.path)?;
            let other = self.path.join(IDENTITY_NEW);
            change("remove", &other, || absent_ok(fs::remove_file(&other)))?;
        }
        sync_directory(&self.path)
    }

    fn clear(&self) -> Result<(), OpenError> {
        let database = self.database();
        change("remove the database of an interrupted start", &database, || {
            absent_ok(fs::remove_dir_all(&database))
        })?;
        let high_water = self.high_water();
        change("remove the high-water mark of an interrupted start", &high_water, || {
            absent_ok(fs::remove_file(&high_water))
        })
    }

    /// Clears the directory after a failed attempt to create a replica.
    pub(crate) fn abandon(&self, making: DirectoryPurpose) -> Result<(), OpenError> {
        self.clear()?;
        let new = self.path.join(making.marker());
        change("remove", &new, || absent_ok(fs::remove_file(&new)))?;
        sync_directory(&self.path)
    }

    /// Removes the directory if it contains only its lock.
    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_file(self.path.join(LOCK))?;
        fs::remove_dir(&self.path)
    }

    /// Marks the replica as complete. Afterwards nothing in the directory may be lost.
    pub(crate) fn finish(&self, making: DirectoryPurpose) -> Result<(), OpenError> {
        let new = self.path.join(making.marker());
        // `IDENTITY` vouches for the other files, so they must be durable first.
        sync_directory(&self.path)?;
        change("rename", &new, || fs::rename(&new, self.path.join(IDENTITY)))?;
        sync_directory(&self.path)
    }

    /// Returns the size of the directory on disk, in bytes.
    pub(crate) fn disk_bytes(path: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(path) else { return 0 };
        entries
            .filter_map(Result::ok)
            .map(|entry| match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => Self::disk_bytes(&entry.path()),
                Ok(metadata) => metadata.len(),
                Err(_) => 0,
            })
            .sum()
    }
}

fn absent_ok(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), OpenError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(io_error("sync the directory", path))
}

fn write_durably(path: &Path, content: &[u8]) -> Result<(), OpenError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = change("write", path, || options.open(path))?;
    change("write", path, || file.write_all(content).and_then(|()| file.sync_all()))
}

/// Changes a data directory. In tests, the directory may be watched.
pub(crate) fn change<T>(
    what: &'static str,
    path: &Path,
    change: impl FnOnce() -> io::Result<T>,
) -> Result<T, OpenError> {
    #[cfg(test)]
    crate::failpoint::step(path, crate::failpoint::Step::Change).map_err(io_error(what, path))?;
    change().map_err(io_error(what, path))
}

/// Returns the data directory that encloses a path, whether or not the path exists. A data
/// directory at the path itself does not count.
pub(crate) fn around(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let mut there = absolute.ancestors().filter_map(|path| path.canonicalize().ok());
    let existing = there.next()?;
    let above = existing.ancestors().skip(usize::from(path.exists()));
    above.into_iter().find(|path| is_data_directory(path)).map(Path::to_owned)
}

/// Returns whether a directory declares that it is a data directory, or is becoming one. RocksDB
/// also has a file named `IDENTITY`, so the content decides.
fn is_data_directory(path: &Path) -> bool {
    let says = |name| {
        fs::read(path.join(name))
            .is_ok_and(|content| content.starts_with(b"chancery data directory"))
    };
    [IDENTITY, IDENTITY_NEW, IDENTITY_PART].into_iter().any(says)
}

/// Records durably that the replica must not start again with the data in a directory.
pub(crate) fn mark_diverged(path: &Path, reason: &str) -> Result<(), OpenError> {
    let file = path.join(DIVERGED);
    let written = File::create(&file).and_then(|mut file| {
        writeln!(file, "{reason}")?;
        file.sync_all()
    });
    written.map_err(io_error("write", &file))?;
    sync_directory(path)
}

/// Returns the content of a file in a directory; `None` if there is no such file.
fn read(path: &Path, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
    match fs::read(path.join(name)) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", &path.join(name))(error)),
    }
}

/// Determines what a directory contains, without changing the directory.
fn inspect(path: &Path, replica_id: Option<u64>) -> Result<Found, OpenError> {
    if let Some(content) = read(path, IDENTITY)? {
        let identity = Identity::parse(&content).map_err(|error| match error {
            IdentityError::Newer(found) => {
                OpenError::NewerFormat { path: path.to_owned(), found, supported: FORMAT_VERSION }
            }
            IdentityError::Damaged(detail) => damaged(path, "the file IDENTITY", detail),
        })?;
        if let Some(configured) = replica_id.filter(|id| *id != identity.replica_id) {
            let (path, found) = (path.to_owned(), identity.replica_id);
            return Err(OpenError::ReplicaId { path, found, configured });
        }
        for part in [HIGH_WATER, DATABASE] {
            if !path.join(part).exists() {
                return Err(damaged(path, "a part is missing", part));
            }
        }
        return Ok(Found::Replica(identity));
    }
    let entries = fs::read_dir(path).map_err(io_error("list the data directory", path))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("list the data directory", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ![LOCK, LOST_AND_FOUND, IDENTITY_NEW, IDENTITY_PART].contains(&&*name) {
            names.push(name);
        }
    }
    names.sort();
    let is_whole = |content: Option<Vec<u8>>| content.is_some_and(|c| Identity::parse(&c).is_ok());
    let part = read(path, IDENTITY_PART)?;
    let unrestored = part.is_some();
    let interrupted = is_whole(part) || is_whole(read(path, IDENTITY_NEW)?);
    let own = |name: &String| interrupted && (name == DATABASE || name == HIGH_WATER);
    match names.into_iter().find(|name| !own(name)) {
        Some(found) => Err(OpenError::Foreign { path: path.to_owned(), found }),
        None if unrestored => Ok(Found::Unrestored),
        None => Ok(Found::Fresh),
    }
}

/// Returns an error for a damaged part of a directory.
pub(crate) fn damaged(path: &Path, what: &str, detail: impl ToString) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), what: what.to_owned(), detail: detail.to_string() }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let name = path.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&name).map_err(io_error("open the lock file", &name))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = file.read_to_string(&mut text);
            let holder = match text.trim() {
                pid if read.is_ok() && !pid.is_empty() => format!("process {pid}"),
                _ => "another process".to_owned(),
            };
            return Err(OpenError::InUse { path: path.to_owned(), holder });
        }
        Err(TryLockError::Error(error)) => {
            return Err(io_error("lock", &name)(error));
        }
    }
    // The process ID is only for people, so a full disk is no reason to fail. The kernel holds the
    // lock itself, and releases it when the process ends.
    if let Err(error) = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())) {
        tracing::warn!(%error, path = %name.display(), "cannot write the process ID to the lock file");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process between `fork` and `exec` has such a copy.
    #[test]
    fn directory_is_free_once_dropped_although_a_copy_of_its_lock_file_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, _) = Directory::open(dir.path(), None).unwrap();
        let copy = directory.lock.try_clone().unwrap();
        let refused = Directory::open(dir.path(), None).unwrap_err();
        assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
        drop(directory);
        Directory::open(dir.path(), None).unwrap();
        drop(copy);
    }
}
