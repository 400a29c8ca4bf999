//! The copy of the crates in which bugs are planted and tests run.

use std::{
    collections::BTreeSet,
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

/// The name that stands for the tests of a suite that exceeds its time limit.
const NO_END: &str = "no end";

/// A copy of the crates in the target directory.
pub(crate) struct Copy {
    pub(super) dir: PathBuf,
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

    /// Plants a bug, runs its tests, and removes the bug. Returns a test that fails.
    pub(crate) fn failing(
        &self,
        paths: &Paths,
        group: &Group,
        mutant: &Mutant,
    ) -> Result<Option<String>> {
        let suite = group.suite(&mutant.suite).context("the suite does not exist")?;
        let file = self.dir.join(&mutant.file);
        let original = text(&paths.root.join(&mutant.file))?;
        update(&file, mutant.planted(&original)?.as_bytes())?;
        let failed = self.run(paths, suite, &mutant.tests, SUITE_MAX);
        update(&file, original.as_bytes())?;
        Ok(failed?.into_iter().next())
    }

    /// Runs the tests of all bugs without planting one, and returns those that fail.
    pub(crate) fn failing_unplanted(
        &self,
        paths: &Paths,
        group: &Group,
        mutants: &[Mutant],
    ) -> Result<BTreeSet<String>> {
        let mut failing = BTreeSet::new();
        for suite in group.suites {
            let of_suite = mutants.iter().filter(|mutant| mutant.suite == suite.name);
            let tests: BTreeSet<String> =
                of_suite.flat_map(|mutant| mutant.tests.iter().cloned()).collect();
            if tests.is_empty() {
                continue;
            }
            let failed = self.run(paths, suite, &tests, FIRST_MAX)?;
            failing.extend(if failed.contains(NO_END) { tests } else { failed });
        }
        Ok(failing)
    }

    /// Runs tests of a suite, and returns those that fail.
    fn run(
        &self,
        paths: &Paths,
        suite: &Suite,
        tests: &BTreeSet<String>,
        max: Duration,
    ) -> Result<BTreeSet<String>> {
        let mut cargo = paths.cargo("test");
        cargo.args(["--offline", "--no-fail-fast", "--quiet", "--package", suite.package]);
        cargo.args(suite.arguments).current_dir(&self.dir);
        cargo.args(["--", "--exact"]).args(tests);
        cargo.env("CARGO_TARGET_DIR", self.dir.join("target"));
        // Skips the minimization of counterexamples.
        cargo.env("CHANCERY_TEST_BRIEF", "1").env_remove("CHANCERY_TEST_LONG");
        match proc::bounded(&mut cargo, max)? {
            proc::Ran::Succeeded => Ok(BTreeSet::new()),
            proc::Ran::TooLong => Ok(BTreeSet::from([NO_END.to_owned()])),
            proc::Ran::Failed(output) => {
                let compiles = !output.contains("error: could not compile");
                ensure!(compiles, "the copy does not compile:\n{output}");
                let failed: BTreeSet<_> = failed_tests(&output).map(str::to_owned).collect();
                ensure!(
                    !failed.is_empty(),
                    "{} failed without a failing test:\n{output}",
                    suite.name
                );
                Ok(failed)
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
