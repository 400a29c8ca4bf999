//! The newest result of each planted bug, in a file that is written after each bug.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// The results of this run and of earlier ones, by the numbers of the bugs.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) file: PathBuf,
    lines: BTreeMap<u32, String>,
}

impl Results {
    /// Reads the results of earlier runs from a directory.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let file = dir.join("results.txt");
        let text = if file.exists() {
            fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?
        } else {
            String::new()
        };
        let lines = text.lines().filter_map(|line| {
            let (number, result) = line.split_once(' ')?;
            Some((number.parse().ok()?, result.to_owned()))
        });
        Ok(Self { lines: lines.collect(), file })
    }

    /// Replaces the result of a bug by the first line of a text, and writes the file.
    pub(super) fn record(&mut self, number: u32, result: &str) -> Result<()> {
        self.lines.insert(number, result.lines().next().unwrap_or_default().to_owned());
        let text: String =
            self.lines.iter().map(|(number, result)| format!("{number} {result}\n")).collect();
        fs::write(&self.file, text).with_context(|| format!("write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_earlier_runs_are_kept() {
        let dir = std::env::temp_dir().join(format!("xtask-results-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (number, result) in
            [(12, "NOT CAUGHT"), (3, "caught by a: b\nmore"), (12, "caught by a: c")]
        {
            Results::read(&dir).unwrap().record(number, result).unwrap();
        }
        let text = fs::read_to_string(dir.join("results.txt")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(text, "3 caught by a: b\n12 caught by a: c\n");
    }
}
