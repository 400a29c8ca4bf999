//! The deletion of older backups, for jobs whose file names contain a number that grows.

use std::{
    ffi::OsStr,
    fs, io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use super::files::{failed, parent};
use crate::cli::failure::Failure;

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
    /// Returns the deleted files.
    pub(super) fn delete_older(&self, keep: NonZeroUsize) -> Result<Vec<PathBuf>, Failure> {
        let mut older = self.older().map_err(|error| failed("list", &self.directory, &error))?;
        older.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        let excess = older.split_off(older.len().min(keep.get() - 1));
        excess
            .into_iter()
            .map(|(_, path)| match fs::remove_file(&path) {
                Ok(()) => Ok(path),
                Err(error) => Err(failed("delete the older backup", &path, &error)),
            })
            .collect()
    }

    fn older(&self) -> io::Result<Vec<(u128, PathBuf)>> {
        let mut older = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| self.number_of(name));
            if let Some(number) = number.filter(|number| *number < self.number)
                && entry.file_type()?.is_file()
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
        let deleted = series.delete_older(n(3)).unwrap();
        assert_eq!(deleted, [path("edge-9.bak"), path("edge-8.bak")]);
        assert!(series.delete_older(n(3)).unwrap().is_empty(), "nothing is left to delete");
        let mut expected: Vec<&str> = others.to_vec();
        expected.extend(["edge-010.bak", "edge-99.bak", "edge-100.bak", "edge-1.bak", &huge]);
        expected.sort_unstable();
        assert_eq!(names(), expected);
        assert_eq!(series.delete_older(n(1)).unwrap(), [path("edge-99.bak"), path("edge-010.bak")]);
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
