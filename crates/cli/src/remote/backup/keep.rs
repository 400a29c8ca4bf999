//! The deletion of older backups, for jobs whose file names contain a number that grows.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use chancery_store::{BackupCheck, ClusterId};

use super::files::parent;
use crate::failure::Failure;

/// The number of bytes in which a backup must have its header.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// The names of a series of backups: the same text around a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Series {
    directory: PathBuf,
    /// The parts of the name before and after its last number.
    prefix: String,
    suffix: String,
    number: u128,
}

impl Series {
    /// Reads the series from the name of its newest backup.
    pub(super) fn of(file: &Path, keep: NonZeroUsize) -> Result<Self, Failure> {
        let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let numbered = name.rfind(|c: char| c.is_ascii_digit()).and_then(|last| {
            let end = last + 1;
            let start = name[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let number = name[start..end].parse().ok()?;
            Some((name[..start].to_owned(), number, name[end..].to_owned()))
        });
        let Some((prefix, number, suffix)) = numbered else {
            return Err(Failure::new(format_args!(
                "cannot keep {keep} backups: the name of {} has no number; use a name such as backup-20260131.bak",
                file.display()
            )));
        };
        Ok(Self { directory: parent(file).to_owned(), prefix, suffix, number })
    }

    /// Deletes the backups with lower numbers, except those with the highest ones, so that `keep` remain with the newest.
    /// Returns the deleted files, and the reasons why others are not deleted. Files of the series that are no backups of
    /// the cluster are neither counted nor deleted.
    pub(super) fn delete_older(
        &self,
        keep: NonZeroUsize,
        is_of_cluster: impl Fn(&Path) -> bool,
    ) -> (Vec<PathBuf>, Vec<String>) {
        let mut problems = Vec::new();
        let mut older = self.older(is_of_cluster).unwrap_or_else(|error| {
            problems.push(format!("cannot list {}: {error}", self.directory.display()));
            Vec::new()
        });
        older.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        let mut excess = older.split_off(older.len().min(keep.get() - 1));
        excess.retain(|(_, path)| match fs::remove_file(path) {
            Ok(()) => true,
            // Another backup has deleted it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                problems
                    .push(format!("cannot delete the older backup {}: {error}", path.display()));
                false
            }
        });
        (excess.into_iter().map(|(_, path)| path).collect(), problems)
    }

    fn older(&self, is_of_cluster: impl Fn(&Path) -> bool) -> io::Result<Vec<(u128, PathBuf)>> {
        let mut older = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| self.number_of(name));
            if let Some(number) = number.filter(|number| *number < self.number)
                && entry.file_type()?.is_file()
                && is_of_cluster(&entry.path())
            {
                older.push((number, entry.path()));
            }
        }
        Ok(older)
    }

    /// Returns the number in the name of a backup of this series.
    fn number_of(&self, name: &str) -> Option<u128> {
        let digits = name.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
    }
}

/// Returns the cluster in the header of a backup. Returns `None` for other files.
pub(super) fn cluster_of(path: &Path) -> Option<ClusterId> {
    let mut file = File::open(path).ok()?.take(HEADER_BYTES_MAX);
    let mut check = BackupCheck::default();
    let mut piece = [0; 4096];
    while check.header().is_none() {
        match file.read(&mut piece).ok()? {
            0 => return None,
            n => check.push(&piece[..n]).ok()?,
        }
    }
    check.header().map(|info| info.cluster_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(keep: usize) -> NonZeroUsize {
        NonZeroUsize::new(keep).unwrap()
    }

    #[test]
    fn only_the_newest_backups_of_the_series_remain() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let names = || {
            let entries = fs::read_dir(directory.path()).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // Others: another text, no number, a higher number, more digits than a number has, and a directory.
        let others = ["edge-101.bak", "edge-9.tmp", "edge-.bak", "edge-x9.bak", "other-9.bak"];
        let huge = format!("edge-{}.bak", "9".repeat(50));
        for name in
            ["edge-8.bak", "edge-9.bak", "edge-010.bak", "edge-99.bak", "edge-100.bak", &huge]
        {
            fs::write(path(name), name).unwrap();
        }
        others.iter().for_each(|name| fs::write(path(name), name).unwrap());
        fs::create_dir(path("edge-1.bak")).unwrap();

        let series = Series::of(&path("edge-100.bak"), n(3)).unwrap();
        // A file that is no backup of the cluster.
        fs::write(path("edge-7.bak"), "foreign").unwrap();
        let delete = |keep| {
            let (deleted, problems) =
                series.delete_older(keep, |path| !path.ends_with("edge-7.bak"));
            assert!(problems.is_empty(), "{problems:?}");
            deleted
        };
        assert_eq!(delete(n(3)), [path("edge-9.bak"), path("edge-8.bak")]);
        assert!(delete(n(3)).is_empty(), "nothing is left to delete");
        fs::remove_file(path("edge-7.bak")).unwrap();
        let mut expected: Vec<&str> = others.to_vec();
        expected.extend(["edge-010.bak", "edge-99.bak", "edge-100.bak", "edge-1.bak", &huge]);
        expected.sort_unstable();
        assert_eq!(names(), expected);
        assert_eq!(delete(n(1)), [path("edge-99.bak"), path("edge-010.bak")]);
    }

    #[test]
    fn directory_that_cannot_be_read_is_a_problem() {
        let series = Series::of(Path::new("/none/edge-1.bak"), n(1)).unwrap();
        let (deleted, problems) = series.delete_older(n(1), |_| true);
        let problem = "cannot list /none: No such file or directory (os error 2)";
        assert_eq!((deleted, problems), (vec![], vec![problem.to_owned()]));
    }

    #[test]
    fn file_without_a_header_is_no_backup() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        for content in ["", "report", "CHYBACK1", "CHYBACK1 and no header"] {
            fs::write(&path, content).unwrap();
            assert_eq!(cluster_of(&path), None, "{content}");
        }
        assert_eq!(cluster_of(directory.path()), None);
    }

    #[test]
    fn name_without_a_number_is_refused() {
        let refused = Series::of(Path::new("/b/daily.bak"), n(7)).unwrap_err();
        assert_eq!(
            refused.lines,
            [
                "cannot keep 7 backups: the name of /b/daily.bak has no number; use a name such as backup-20260131.bak"
            ]
        );
        assert!(Series::of(Path::new("-"), n(7)).is_err());
        let series = Series::of(Path::new("2026-01-31.bak"), n(7)).unwrap();
        assert_eq!((series.prefix.as_str(), series.number), ("2026-01-", 31));
    }
}
