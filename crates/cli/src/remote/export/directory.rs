//! The directory of an export.
//!
//! All files are written next to their places first, in a hidden directory. If the export fails or is interrupted, the
//! directory stays as it was. Each file is then replaced by a rename, unless its content is the same. Files are replaced
//! and removed only if their first line is that of an export.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// The first line of each file.
const HEADER: &str =
    "# Written by `chancery export`, which replaces and removes files with this line.\n";
/// The start of the name of the hidden directory.
const TEMPORARY: &str = ".chancery-export-";
/// The directory with a subdirectory for each scope.
const SCOPES: &str = "scopes";
/// The files that belong to no scope.
const RULES: [&str; 3] = ["assignments.yaml", "access.yaml", "quotas.yaml"];
/// The maximum depth of nested directories that are searched for other files.
const DEPTH_MAX: usize = 64;
/// The maximum number of other files that are named.
const LEFT_MAX: usize = 20;

/// A directory, and the files that are written for it. It is locked against other exports.
pub(super) struct Directory {
    root: PathBuf,
    _lock: File,
    temporary: TempDir,
    /// The temporary file of each path.
    planned: BTreeMap<String, PathBuf>,
    current: Option<BufWriter<File>>,
}

/// The result of an export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Replaced {
    pub(super) written: u64,
    pub(super) unchanged: u64,
    pub(super) removed: u64,
    /// The first files that are not those of an export.
    pub(super) left: Vec<String>,
    pub(super) left_omitted: u64,
}

impl Directory {
    /// Opens or creates a directory. Removes what a killed export has left.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let lock = File::open(root)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another export uses it; wait until it has ended"));
            }
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let is_temporary =
                entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes());
            if is_temporary && entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let temporary = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(root)?;
        let (planned, current) = (BTreeMap::new(), None);
        Ok(Self { root: root.to_owned(), _lock: lock, temporary, planned, current })
    }

    /// Starts the file of a path.
    pub(super) fn begin(&mut self, path: String) -> io::Result<()> {
        self.finish()?;
        let file = self.temporary.path().join(self.planned.len().to_string());
        let mut current = BufWriter::new(File::create_new(&file)?);
        current.write_all(HEADER.as_bytes())?;
        self.current = Some(current);
        if self.planned.insert(path.clone(), file).is_some() {
            return Err(io::Error::other(format!("two parts of the export have the file {path}")));
        }
        Ok(())
    }

    /// Appends to the file that was started last.
    pub(super) fn write(&mut self, text: &str) -> io::Result<()> {
        match &mut self.current {
            Some(current) => current.write_all(text.as_bytes()),
            None => Err(io::Error::other("no file was started")),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.current.take().map_or(Ok(()), |mut current| current.flush())
    }

    /// Moves all files to their places, and removes files of an earlier export. With `only`, removes only those in this
    /// subdirectory.
    pub(super) fn replace(mut self, only: Option<&str>) -> io::Result<Replaced> {
        self.finish()?;
        self.check_places()?;
        let mut replaced = Replaced::default();
        for (path, file) in &self.planned {
            let target = self.root.join(path);
            if is_same(file, &target)? {
                replaced.unchanged += 1;
                continue;
            }
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            File::open(file)?.sync_all()?;
            fs::rename(file, &target)?;
            replaced.written += 1;
        }
        self.remove_stale(only, &mut replaced)?;
        File::open(&self.root)?.sync_all()?;
        Ok(replaced)
    }

    /// Fails if another file is in the place of a planned one.
    fn check_places(&self) -> io::Result<()> {
        for path in self.planned.keys() {
            let in_the_way = |path: &str| {
                io::Error::other(format!(
                    "{path} was not written by `chancery export`; move it, or choose another directory"
                ))
            };
            // The root may be a link. Below it, a link would lead out of the directory.
            for (end, _) in path.match_indices('/') {
                let parent = &path[..end];
                if kind(&self.root.join(parent))?.is_some_and(|kind| !kind.is_dir()) {
                    return Err(in_the_way(parent));
                }
            }
            let target = self.root.join(path);
            if kind(&target)?.is_some() && !is_own(&target)? {
                return Err(in_the_way(path));
            }
        }
        Ok(())
    }

    fn remove_stale(&self, only: Option<&str>, replaced: &mut Replaced) -> io::Result<()> {
        let mut found = Vec::new();
        walk(&self.root, "", DEPTH_MAX, &mut found)?;
        for path in found {
            if self.planned.contains_key(&path) {
                continue;
            }
            let target = self.root.join(&path);
            if !is_place(&path) || !is_own(&target)? {
                match replaced.left.len() {
                    LEFT_MAX => replaced.left_omitted += 1,
                    _ => replaced.left.push(path),
                }
                continue;
            }
            let parent = path.rsplit_once('/').map(|(parent, _)| parent);
            if only.is_some() && only != parent {
                continue;
            }
            fs::remove_file(&target)?;
            replaced.removed += 1;
            if let Some(parent) = parent {
                // A directory with other files stays.
                drop(fs::remove_dir(self.root.join(parent)));
                drop(fs::remove_dir(self.root.join(SCOPES)));
            }
        }
        Ok(())
    }
}

/// Returns whether an export writes files with this path.
fn is_place(path: &str) -> bool {
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), None, None, None) => RULES.contains(&file),
        (Some(SCOPES), Some(_), Some(file), None) => file.ends_with(".yaml"),
        _ => false,
    }
}

/// Returns the kind of a file without following links; `None` if it does not exist.
fn kind(path: &Path) -> io::Result<Option<fs::FileType>> {
    match path.symlink_metadata() {
        Ok(found) => Ok(Some(found.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a file was written by an export.
fn is_own(path: &Path) -> io::Result<bool> {
    if !kind(path)?.is_some_and(|kind| kind.is_file()) {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(path)?.take(HEADER.len() as u64).read_to_end(&mut start)?;
    Ok(start == HEADER.as_bytes())
}

/// Returns whether two files have the same content. The second one may not exist.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    if !kind(other)?.is_some_and(|kind| kind.is_file())
        || one.metadata()?.len() != other.metadata()?.len()
    {
        return Ok(false);
    }
    let (mut one, mut other) =
        (BufReader::new(File::open(one)?), BufReader::new(File::open(other)?));
    let (mut left, mut right) = ([0; 8192], [0; 8192]);
    loop {
        let n = one.read(&mut left)?;
        if n == 0 {
            return Ok(other.read(&mut right)? == 0);
        }
        match other.read_exact(&mut right[..n]) {
            Ok(()) if left[..n] == right[..n] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Finds all files below a directory, except hidden ones, sorted in each directory. Does not follow links.
fn walk(directory: &Path, path: &str, depth: usize, found: &mut Vec<String>) -> io::Result<()> {
    let mut entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let name = name.to_string_lossy();
        let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
        if entry.file_type()?.is_dir() && depth > 0 {
            walk(&entry.path(), &path, depth - 1, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn export(root: &Path, files: &[(&str, &str)], only: Option<&str>) -> io::Result<Replaced> {
        let mut directory = Directory::open(root)?;
        for (path, text) in files {
            directory.begin((*path).to_owned())?;
            directory.write(text)?;
        }
        directory.replace(only)
    }

    fn replaced(written: u64, unchanged: u64, removed: u64) -> Replaced {
        Replaced { written, unchanged, removed, ..Replaced::default() }
    }

    fn inode(path: &Path) -> u64 {
        path.metadata().unwrap().ino()
    }

    #[test]
    fn files_are_replaced_only_if_they_change_and_stale_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("new");
        let files = [
            ("access.yaml", "a\n"),
            ("scopes/x/cluster.yaml", "x\n"),
            ("scopes/y/cluster.yaml", "y\n"),
        ];
        assert_eq!(export(&root, &files, None).unwrap(), replaced(3, 0, 0));
        let text = fs::read_to_string(root.join("scopes/x/cluster.yaml")).unwrap();
        assert_eq!(text, format!("{HEADER}x\n"));
        let before = inode(&root.join("access.yaml"));
        assert_eq!(export(&root, &files, None).unwrap(), replaced(0, 3, 0));
        let files = [("access.yaml", "a\n"), ("scopes/x/cluster.yaml", "z\n")];
        assert_eq!(export(&root, &files, None).unwrap(), replaced(1, 1, 1));
        assert_eq!(inode(&root.join("access.yaml")), before);
        assert!(!root.join("scopes/y").exists());
        let names: Vec<String> = fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names.len(), 2, "no temporary files: {names:?}");
    }

    #[test]
    fn other_files_stay_and_are_listed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("scopes/x")).unwrap();
        fs::create_dir_all(root.join(".git")).unwrap();
        for (path, text) in [
            ("README.md", "read me\n"),
            ("scopes/x/mine.yaml", "scope: x\n"),
            (".git/config", "hidden\n"),
            // A file with the header that an export does not write there.
            ("copy.yaml", HEADER),
        ] {
            fs::write(root.join(path), text).unwrap();
        }
        let done = export(root, &[("scopes/x/cluster.yaml", "x\n")], None).unwrap();
        assert_eq!(done.left, ["README.md", "copy.yaml", "scopes/x/mine.yaml"]);
        let done = export(root, &[], None).unwrap();
        assert_eq!((done.removed, done.left.len()), (1, 3));
        assert!(root.join(".git/config").exists() && root.join("scopes/x/mine.yaml").exists());
    }

    #[test]
    fn nothing_changes_if_another_file_is_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::write(root.join("quotas.yaml"), "quotas: []\n").unwrap();
        let files = [("access.yaml", "a\n"), ("quotas.yaml", "q\n")];
        let error = export(root, &files, None).unwrap_err().to_string();
        assert!(error.starts_with("quotas.yaml was not written by `chancery export`"), "{error}");
        assert!(!root.join("access.yaml").exists());
        fs::remove_file(root.join("quotas.yaml")).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), root.join(SCOPES)).unwrap();
        let error = export(root, &[("scopes/x/cluster.yaml", "x\n")], None).unwrap_err();
        assert!(error.to_string().starts_with("scopes was not written"), "{error}");
    }

    #[test]
    fn export_of_one_scope_keeps_the_files_of_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let files = [
            ("access.yaml", "a"),
            ("scopes/x/a.yaml", "1"),
            ("scopes/x/b.yaml", "2"),
            ("scopes/y/a.yaml", "3"),
        ];
        export(root, &files, None).unwrap();
        let done = export(root, &[("scopes/x/a.yaml", "1")], Some("scopes/x")).unwrap();
        assert_eq!(done, replaced(0, 1, 1));
        assert!(root.join("access.yaml").exists() && root.join("scopes/y/a.yaml").exists());
    }

    #[test]
    fn only_one_export_uses_a_directory_and_a_killed_one_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let first = Directory::open(root).unwrap();
        let error = Directory::open(root).err().unwrap().to_string();
        assert!(error.starts_with("another export uses it"), "{error}");
        let left = first.temporary.path().to_owned();
        drop(first);
        fs::create_dir(&left).unwrap();
        drop(Directory::open(root).unwrap());
        assert!(!left.exists());
    }
}
