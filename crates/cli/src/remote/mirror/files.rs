//! The directory of a mirror.
//!
//! A file is replaced by a rename, after its content is synced (FS-04). A file whose content does not change is
//! not touched (FS-14). The mirror removes only files that its listing names.

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The file that lists what is mirrored: path, type and name, separated by tabs.
const LISTING: &str = "listing.txt";
/// The first line of a listing. A file of this name without it belongs to somebody else.
const LISTING_HEADER: &str = "# chancery mirror: path, type, name";
/// The start of the line of a listing with the incarnation of the cluster whose view the files hold.
const INCARNATION: &str = "# incarnation: ";
/// The start of the names of temporary files.
const TEMPORARY: &str = ".chancery-mirror-";
/// The mode of files without secrets.
pub(super) const USUAL_MODE: u32 = 0o644;
/// The maximum size of a listing in bytes.
const LISTING_BYTES_MAX: u64 = 256 << 20;

/// A directory with mirrored files. It is locked against other mirrors.
pub(super) struct Directory {
    root: PathBuf,
    /// The open directory, which holds the lock.
    lock: File,
}

/// The content of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// The type and the name of each file, by path.
    pub(super) files: BTreeMap<String, String>,
    /// The incarnation of the cluster, if it is known.
    pub(super) incarnation: Option<String>,
}

impl Directory {
    /// Opens or creates the directory, with the given subdirectories. Removes the temporary files of a mirror that
    /// was killed.
    pub(super) fn open(root: &Path, subdirectories: &[&str]) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let lock = File::open(root)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another mirror uses it; choose another directory"));
            }
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let listing = root.join(LISTING);
        if listing.symlink_metadata().is_ok() && !is_listing(&listing)? {
            return Err(io::Error::other(format!(
                "its {LISTING} is not that of a mirror; choose another directory"
            )));
        }
        for directory in std::iter::once(root.to_owned())
            .chain(subdirectories.iter().map(|name| root.join(name)))
        {
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // The root may be a link. Below it, a link would lead out of the directory.
            if directory != *root && !directory.symlink_metadata()?.is_dir() {
                let name = directory.display();
                return Err(io::Error::other(format!("{name} is not a directory; remove it")));
            }
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let is_temporary =
                    entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes());
                if is_temporary && entry.file_type()?.is_file() {
                    fs::remove_file(entry.path())?;
                }
            }
        }
        Ok(Self { root: root.to_owned(), lock })
    }

    /// Releases the lock.
    pub(super) fn unlock(&self) {
        // The lock of a file system without locks was never held.
        drop(self.lock.unlock());
    }

    /// Returns whether the path still leads to this directory, with its listing.
    pub(super) fn is_intact(&self) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.lock.metadata().map(identity).ok();
        own.is_some() && own == fs::metadata(&self.root).map(identity).ok() && self.exists(LISTING)
    }

    /// Returns whether there is a file or anything else with this path.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).symlink_metadata().is_ok()
    }

    /// Returns the content of a regular file of at most `bytes_max` bytes.
    pub(super) fn read(&self, path: &str, bytes_max: u64) -> Option<Vec<u8>> {
        let path = self.root.join(path);
        let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
        let mut content = Vec::new();
        let file = is_file.then(|| File::open(path).ok())??;
        file.take(bytes_max + 1).read_to_end(&mut content).ok()?;
        (content.len() as u64 <= bytes_max).then_some(content)
    }

    /// Returns whether a regular file has this content.
    fn holds(&self, path: &str, content: &[u8]) -> bool {
        let len = content.len() as u64;
        let found = self.root.join(path).symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() == len)
            && self.read(path, len).is_some_and(|found| found == content)
    }

    fn mode(&self, path: &str) -> Option<u32> {
        Some(self.root.join(path).symlink_metadata().ok()?.permissions().mode() & 0o777)
    }

    /// Returns whether writing the file would change nothing.
    pub(super) fn is_current(&self, path: &str, content: &[u8], mode: u32) -> bool {
        self.mode(path) == Some(mode) && self.holds(path, content)
    }

    /// Writes a file, unless it has this content. Returns whether it was written.
    pub(super) fn write(&self, path: &str, content: &[u8], mode: u32) -> io::Result<bool> {
        let target = self.root.join(path);
        if self.holds(path, content) {
            if self.mode(path) != Some(mode) {
                fs::set_permissions(&target, Permissions::from_mode(mode))?;
            }
            return Ok(false);
        }
        let parent = target.parent().unwrap_or(&self.root);
        // The mode is set before the content is written, so that secrets are never readable
        // (FS-16).
        let mut file = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(parent)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(&target)?;
        Ok(true)
    }

    /// Removes a file. Returns whether there was one.
    pub(super) fn remove(&self, path: &str) -> io::Result<bool> {
        match fs::remove_file(self.root.join(path)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes renames and removals durable.
    pub(super) fn sync(&self, path: &str) -> io::Result<()> {
        let path = self.root.join(path);
        File::open(path.parent().unwrap_or(&self.root))?.sync_all()
    }

    /// Returns the listing. Skips lines that this program would not write, so that a changed listing cannot name
    /// files elsewhere.
    pub(super) fn listing(&self) -> Listing {
        let content = self.read(LISTING, LISTING_BYTES_MAX).unwrap_or_default();
        let content = String::from_utf8(content).unwrap_or_default();
        let files = content
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .filter(|(path, _)| is_own(path))
            .map(|(path, rest)| (path.to_owned(), rest.to_owned()))
            .collect();
        let incarnation = content.lines().find_map(|line| line.strip_prefix(INCARNATION));
        Listing { files, incarnation: incarnation.map(str::to_owned) }
    }

    pub(super) fn write_listing(&self, listing: &Listing) -> io::Result<()> {
        let mut text = format!("{LISTING_HEADER}\n");
        if let Some(incarnation) = &listing.incarnation {
            text.push_str(&format!("{INCARNATION}{incarnation}\n"));
        }
        text.extend(listing.files.iter().map(|(path, what)| format!("{path}\t{what}\n")));
        self.write(LISTING, text.as_bytes(), USUAL_MODE).map(drop)
    }
}

/// Returns whether a file is a listing of a mirror.
fn is_listing(path: &Path) -> io::Result<bool> {
    if !path.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(path)?.take(LISTING_HEADER.len() as u64).read_to_end(&mut start)?;
    Ok(start == LISTING_HEADER.as_bytes())
}

/// Returns whether a path has the form of the paths that the mirror writes.
fn is_own(path: &str) -> bool {
    let is_name = |name: &str| {
        let is_safe = |b: u8| b.is_ascii_alphanumeric() || b"._-%~".contains(&b);
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_safe)
    };
    match path.split_once('/') {
        Some((directory, name)) => is_name(directory) && is_name(name),
        None => is_name(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn inode(path: &Path) -> u64 {
        path.metadata().unwrap().ino()
    }

    /// FS-04, FS-14, FS-16: a change is a rename of a complete file with its mode; equal content is not written.
    #[test]
    fn file_is_replaced_by_rename_only_when_it_changes() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path(), &["sds"]).unwrap();
        let path = root.path().join("sds/a.json");
        assert!(directory.write("sds/a.json", b"one", 0o600).unwrap());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let first = inode(&path);
        assert!(!directory.write("sds/a.json", b"one", 0o600).unwrap());
        assert_eq!(inode(&path), first);
        // A reader that has the old file open still reads all of it.
        let mut open = File::open(&path).unwrap();
        assert!(directory.write("sds/a.json", b"two", 0o600).unwrap());
        let mut old = String::new();
        open.read_to_string(&mut old).unwrap();
        assert_eq!((old.as_str(), fs::read(&path).unwrap().as_slice()), ("one", b"two".as_slice()));
        assert_ne!(inode(&path), first);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(!directory.write("sds/a.json", b"two", 0o600).unwrap());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let names: Vec<_> = fs::read_dir(root.path().join("sds")).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left: {names:?}");
    }

    #[test]
    fn temporary_files_of_a_killed_mirror_are_removed_and_other_files_stay() {
        let root = tempfile::tempdir().unwrap();
        drop(Directory::open(root.path(), &["eds"]).unwrap());
        fs::write(root.path().join("eds/.chancery-mirror-abc"), "half").unwrap();
        fs::write(root.path().join("eds/mine.json"), "{}").unwrap();
        Directory::open(root.path(), &["eds"]).unwrap();
        assert!(!root.path().join("eds/.chancery-mirror-abc").exists());
        assert!(root.path().join("eds/mine.json").exists());
    }

    #[test]
    fn directory_of_another_mirror_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let first = Directory::open(root.path(), &[]).unwrap();
        let error = Directory::open(root.path(), &[]).map(drop).unwrap_err().to_string();
        assert!(error.contains("another mirror uses it"), "{error}");
        drop(first);
        Directory::open(root.path(), &[]).unwrap();
    }

    #[test]
    fn link_in_place_of_a_subdirectory_is_refused() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(elsewhere.path().join(".chancery-mirror-x"), "mine").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("sds")).unwrap();
        let error = Directory::open(root.path(), &["sds"]).map(drop).unwrap_err().to_string();
        assert!(error.contains("sds is not a directory; remove it"), "{error}");
        assert!(elsewhere.path().join(".chancery-mirror-x").exists());
    }

    #[test]
    fn removed_or_replaced_directory_is_not_intact() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("files");
        let directory = Directory::open(&root, &[]).unwrap();
        directory.write_listing(&Listing::default()).unwrap();
        assert!(directory.is_intact());
        fs::remove_file(root.join(LISTING)).unwrap();
        assert!(!directory.is_intact());
        directory.write_listing(&Listing::default()).unwrap();
        fs::rename(&root, parent.path().join("old")).unwrap();
        assert!(!directory.is_intact());
        let other = Directory::open(&root, &[]).unwrap();
        other.write_listing(&Listing::default()).unwrap();
        assert!(!directory.is_intact() && other.is_intact());
    }

    #[test]
    fn directory_with_a_foreign_listing_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LISTING), "index.html\t12K\n").unwrap();
        let error = Directory::open(root.path(), &["eds"]).map(drop).unwrap_err().to_string();
        assert!(error.contains("listing.txt is not that of a mirror"), "{error}");
        assert!(!root.path().join("eds").exists(), "nothing is changed");
    }

    #[test]
    fn listing_never_names_a_file_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path(), &[]).unwrap();
        let listing = "# chancery mirror: path, type, name\ncds.json\tcds\t*\neds/a%2F.json\teds\ta/\n../x\tcds\t*\n/etc/passwd\tcds\t*\neds/../x\teds\tx\n\
                       eds/..\teds\tx\na/b/c\teds\tx\nnothing\n\tx\n";
        fs::write(root.path().join(LISTING), listing).unwrap();
        let paths: Vec<String> = directory.listing().files.into_keys().collect();
        assert_eq!(paths, ["cds.json", "eds/a%2F.json"]);
    }
}
