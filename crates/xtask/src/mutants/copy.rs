//! The copy of the crates in which bugs are planted and tests run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    group::{Group, Suite},
    list::Mutant,
};
use crate::{paths::Paths, proc};

/// The copied directories, relative to the workspace.
const COPIED: &[&str] = &[
    "crates", // Tests read files of the other directories.
    "corpus", "deploy", "docs", "proto",
];

/// The time limit for a suite, including compilation. A bug that makes a test loop forever exceeds it.
const SUITE_MAX: Duration = Duration::from_secs(300);
/// The time limit for a suite without a planted bug, which may have to compile everything.
const FIRST_MAX: Duration = Duration::from_secs(1800);

/// The tests that caught one planted bug, by suite.
pub(super) type Catches = Vec<(&'static str, BTreeSet<String>)>;

/// A copy of the crates in the target directory.
pub(crate) struct Copy {
    dir: PathBuf,
}

impl Copy {
    /// Creates or updates the copy. Build output of unchanged sources remains valid.
    pub(crate) fn new(paths: &Paths) -> Result<Self> {
        let dir = paths.target.join("mutants");
        for name in COPIED {
            update_dir(&paths.root.join(name), &dir.join(name))?;
        }
        for name in ["Cargo.lock", "README.md"] {
            update(&dir.join(name), &read(&paths.root.join(name))?)?;
        }
        let manifest = text(&paths.root.join("Cargo.toml"))?;
        ensure!(manifest.contains("members = ["), "Cargo.toml has no line `members = [`");
        let manifest: String =
            (manifest.lines())
                .map(|line| {
                    if line.starts_with("members = [") { "members = [\"crates/*\"]" } else { line }
                })
                .map(|line| format!("{line}\n"))
                .collect();
        update(&dir.join("Cargo.toml"), manifest.as_bytes())?;
        Ok(Self { dir })
    }

    /// Plants a bug, and returns the original text of the file.
    pub(crate) fn plant(&self, paths: &Paths, mutant: &Mutant) -> Result<String> {
        let original = text(&paths.root.join(&mutant.file))?;
        let planted = mutant.planted(&original)?;
        update(&self.dir.join(&mutant.file), planted.as_bytes())?;
        Ok(original)
    }

    /// Removes a planted bug.
    pub(crate) fn restore(&self, mutant: &Mutant, original: &str) -> Result<()> {
        update(&self.dir.join(&mutant.file), original.as_bytes())
    }

    /// Runs tests against a planted bug and returns those that fail.
    ///
    /// The tests that the bug names run first. If they pass, the suites run in order: all that always
    /// run, and the others until one of them has a failure.
    pub(crate) fn failing(&self, paths: &Paths, group: &Group, mutant: &Mutant) -> Result<Catches> {
        if let Some(first) = &mutant.first
            && let Some(suite) = group.suite(&first.suite)
            && let Some(failed) = self.run(paths, suite, &first.tests, SUITE_MAX)?
        {
            return Ok(vec![(suite.name, failed)]);
        }
        let mut caught = Catches::new();
        for (at, suite) in group.suites.iter().enumerate() {
            if at >= group.always && !caught.is_empty() {
                break;
            }
            if let Some(failed) = self.run(paths, suite, &BTreeSet::new(), SUITE_MAX)? {
                caught.push((suite.name, failed));
            }
        }
        Ok(caught)
    }

    /// Runs all tests that the bugs need without planting a bug, and returns those that fail.
    pub(crate) fn failing_unplanted(
        &self,
        paths: &Paths,
        group: &Group,
        mutants: &[Mutant],
    ) -> Result<Catches> {
        let mut wanted: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut is_all = false;
        for mutant in mutants {
            match &mutant.first {
                Some(first) => wanted.entry(&first.suite).or_default().extend(first.tests.clone()),
                None => is_all = true,
            }
        }
        let mut caught = Catches::new();
        for suite in group.suites {
            let tests = match wanted.get(suite.name) {
                _ if is_all => BTreeSet::new(),
                Some(tests) => tests.clone(),
                None => continue,
            };
            if let Some(failed) = self.run(paths, suite, &tests, FIRST_MAX)? {
                caught.push((suite.name, failed));
            }
        }
        Ok(caught)
    }

    /// Runs the given tests of a suite, or the whole suite if `tests` is empty.
    ///
    /// Returns the tests that fail, or `None` if all pass.
    fn run(
        &self,
        paths: &Paths,
        suite: &Suite,
        tests: &BTreeSet<String>,
        max: Duration,
    ) -> Result<Option<BTreeSet<String>>> {
        let mut cargo = paths.cargo("test");
        cargo.args(["--offline", "--no-fail-fast", "--quiet", "--package", suite.package]);
        cargo.args(suite.arguments).current_dir(&self.dir);
        if !tests.is_empty() {
            cargo.args(["--", "--exact"]).args(tests);
        }
        cargo.env("CARGO_TARGET_DIR", self.dir.join("target"));
        // Skips the minimization of counterexamples.
        cargo.env("CHANCERY_TEST_BRIEF", "1").env_remove("CHANCERY_TEST_LONG");
        match proc::bounded(&mut cargo, max)? {
            proc::Ran::Succeeded => Ok(None),
            proc::Ran::TooLong => Ok(Some(BTreeSet::from(["no end".to_owned()]))),
            proc::Ran::Failed(output) => {
                let compiles = !output.contains("error: could not compile");
                ensure!(compiles, "the copy does not compile:\n{output}");
                let failed: BTreeSet<_> = failed_tests(&output).map(str::to_owned).collect();
                ensure!(
                    !failed.is_empty(),
                    "{} failed without a failing test:\n{output}",
                    suite.name
                );
                Ok(Some(failed))
            }
        }
    }
}

/// Returns the names below the last `failures:` in libtest's output.
fn failed_tests(output: &str) -> impl Iterator<Item = &str> {
    let names = output.rsplit_once("\nfailures:\n").map_or("", |(_, names)| names);
    names.lines().skip_while(|line| line.is_empty()).map_while(|line| line.strip_prefix("    "))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Writes a file only if its content changes, because cargo compares modification times.
fn update(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Makes the directory `to` an exact copy of `from`.
fn update_dir(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        names.insert(entry.file_name());
        if entry.file_type()?.is_dir() {
            update_dir(&entry.path(), &target)?;
        } else {
            update(&target, &read(&entry.path())?)?;
        }
    }
    for entry in fs::read_dir(to).with_context(|| format!("list {}", to.display()))? {
        let entry = entry?;
        let path = entry.path();
        if names.contains(&entry.file_name()) {
            continue;
        }
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_read_from_end_of_output() {
        let output = "x\n\nfailures:\n\n---- a::b stdout ----\nno\n\n\nfailures:\n    a::b\n    c\n\ntest result\n";
        assert_eq!(failed_tests(output).collect::<Vec<_>>(), ["a::b", "c"]);
        assert_eq!(failed_tests("all good\n").count(), 0);
    }
}
