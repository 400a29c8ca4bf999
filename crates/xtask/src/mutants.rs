//! Mutation tests: `cargo xtask mutants` plants bugs in a copy of the crates, whose tests must fail.
//!
//! The lists are data (`mutants/*.txt`). The command never edits the tree: the copy is in the target directory, with a
//! file of results that is written after each bug. `verify` checks, without running tests, that the text of each bug
//! occurs exactly once and that the tests of each bug exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{paths::Paths, say::say, setup};

mod copy;
pub(crate) mod generated;
mod group;
mod list;
mod results;

use copy::Copy;
use group::{GROUPS, Group, LIB};
use list::Mutant;
use results::Results;

/// The selection of bugs to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which<'a> {
    /// All bugs.
    All,
    /// The bugs of one group.
    Group(&'a str),
    /// The bugs with these numbers.
    Only(&'a [u32]),
}

impl Which<'_> {
    fn takes(self, group: &Group, mutant: &Mutant) -> bool {
        match self {
            Self::All => true,
            Self::Group(name) => group.name == name,
            Self::Only(numbers) => numbers.contains(&mutant.number),
        }
    }
}

/// Plants the selected bugs.
pub(crate) fn run(paths: &Paths, which: Which<'_>) -> Result<()> {
    let mut all = load_all(paths)?;
    let complaints = not_plantable(paths, &all)?;
    ensure!(complaints.is_empty(), "planted bugs:\n{}", complaints.join("\n"));
    for (group, mutants) in &mut all {
        mutants.retain(|mutant| which.takes(group, mutant));
    }
    all.retain(|(_, mutants)| !mutants.is_empty());
    ensure!(
        !all.is_empty(),
        "no planted bug matches the selection; the groups are {:?}",
        GROUPS.map(|g| g.name)
    );
    if all.iter().any(|(group, _)| group.needs_rocksdb) {
        setup::build_needs(paths)?;
    }
    let copy = Copy::new(paths)?;
    let mut results = Results::read(&copy.dir)?;
    let mut survivors = Vec::new();
    for (group, mutants) in &all {
        survivors.extend(plant_all(paths, &copy, group, mutants, &mut results)?);
    }
    say!("the results are in {}", results.file.display());
    ensure!(
        survivors.is_empty(),
        "the tests of the planted bugs {survivors:?} do not catch them, or they could not be planted; see above"
    );
    Ok(())
}

/// Plants the bugs of one group, one at a time. Returns the numbers of the bugs that their tests do not catch, and of
/// those that could not be planted.
fn plant_all(
    paths: &Paths,
    copy: &Copy,
    group: &Group,
    mutants: &[Mutant],
    results: &mut Results,
) -> Result<Vec<u32>> {
    say!("mutants of {}: running their tests without a planted bug", group.name);
    let failing = copy.failing_unplanted(paths, group, mutants)?;
    let mut survivors = Vec::new();
    for mutant in mutants {
        let broken = mutant.tests.iter().find(|test| failing.contains(test.as_str()));
        let caught = match broken {
            Some(test) => Err(anyhow!("{test} fails without a planted bug")),
            None => copy.failing(paths, group, mutant),
        };
        let result = match caught {
            Ok(Some(test)) => format!("caught by {}: {test}", mutant.suite),
            Ok(None) => "NOT CAUGHT".to_owned(),
            Err(error) => format!("NOT PLANTED: {error:#}"),
        };
        say!("mutant {}: {}: {result}", mutant.number, mutant.breaks);
        if !result.starts_with("caught") {
            survivors.push(mutant.number);
        }
        results.record(mutant.number, &result)?;
    }
    Ok(survivors)
}

/// Checks that each bug can be planted, and that its tests exist. Runs no tests.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let all = load_all(paths)?;
    let mut complaints = not_plantable(paths, &all)?;
    for (group, mutants) in &all {
        complaints.extend(lost_tests(paths, group, mutants)?);
    }
    ensure!(complaints.is_empty(), "planted bugs:\n{}", complaints.join("\n"));
    Ok(())
}

/// Reports the bugs whose text does not occur exactly once.
fn not_plantable(paths: &Paths, all: &[(&Group, Vec<Mutant>)]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for mutant in all.iter().flat_map(|(_, mutants)| mutants) {
        let path = paths.root.join(&mutant.file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        complaints.extend(mutant.planted(&text).err().map(|error| error.to_string()));
    }
    Ok(complaints)
}

/// Reports the bugs that name a suite or a test that does not exist.
fn lost_tests(paths: &Paths, group: &Group, mutants: &[Mutant]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    let mut sources = BTreeMap::new();
    for mutant in mutants {
        let Some(suite) = group.suite(&mutant.suite) else {
            complaints.push(format!("mutant {}: no such suite: {:?}", mutant.number, mutant.suite));
            continue;
        };
        let source = match sources.get(suite.package) {
            Some(source) => source,
            None => {
                let name = suite.package.trim_start_matches("chancery-");
                let dir = paths.root.join("crates").join(name);
                let mut files = Vec::new();
                read_all(&dir.join("src"), LIB, "", &mut files)?;
                for entry in fs::read_dir(dir.join("tests")).into_iter().flatten() {
                    let path = entry?.path();
                    let target = path.file_name().unwrap_or_default().to_string_lossy();
                    read_all(&path, &target, "", &mut files)?;
                }
                sources.entry(suite.package).or_insert(files)
            }
        };
        let lost = mutant.tests.iter().filter(|test| {
            !source.iter().any(|file| suite.has_target(&file.target) && file.has(test))
        });
        let lost = lost.map(|test| format!("mutant {}: no such test: {test}", mutant.number));
        complaints.extend(lost);
    }
    Ok(complaints)
}

/// A Rust file of a package.
struct Source {
    /// [`LIB`], or the name of an integration test.
    target: String,
    /// The path of its module in the target, such as `stream::slot`.
    module: String,
    text: String,
}

impl Source {
    /// Returns whether the file has a test with this path. `cargo test` passes if a path selects no test.
    fn has(&self, test: &str) -> bool {
        let (module, name) = test.rsplit_once("::").unwrap_or(("", test));
        let is_here = match module.strip_prefix(self.module.as_str()) {
            Some("") => true,
            Some(inner) => {
                let inner = inner.trim_start_matches("::");
                self.text.contains(&format!("mod {inner} {{"))
            }
            None => false,
        };
        is_here && self.text.contains(&format!("fn {name}("))
    }
}

/// Reads all Rust files below the directory of a module.
fn read_all(dir: &Path, target: &str, module: &str, files: &mut Vec<Source>) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let inner = match (stem.as_ref(), module) {
            ("lib" | "main" | "mod", _) => module.to_owned(),
            (_, "") => stem.into_owned(),
            _ => format!("{module}::{stem}"),
        };
        if path.is_dir() {
            read_all(&path, target, &inner, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("read {}", path.display()))?;
            files.push(Source { target: target.to_owned(), module: inner, text });
        }
    }
    Ok(())
}

/// Reads the lists of planted bugs. Rejects a number that occurs twice, in one list or in two.
fn load_all(paths: &Paths) -> Result<Vec<(&'static Group, Vec<Mutant>)>> {
    let load = |group: &'static Group| {
        let path = paths.root.join(group.list);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mutants = list::parse(&text, group.first).with_context(|| group.list.to_owned())?;
        Ok((group, mutants))
    };
    let all = GROUPS.iter().map(load).collect::<Result<Vec<_>>>()?;
    let mut numbers = BTreeSet::new();
    for mutant in all.iter().flat_map(|(_, mutants)| mutants) {
        ensure!(
            numbers.insert(mutant.number),
            "two planted bugs have the number {}",
            mutant.number
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check accepted a test path if any module had a test with the same name.
    #[test]
    fn test_is_found_only_in_its_module() {
        let text = "fn a() {}\nmod tests {\n    fn b() {}\n}\n".to_owned();
        let file = Source { target: LIB.to_owned(), module: "stream::slot".to_owned(), text };
        for test in ["stream::slot::tests::b", "stream::slot::a"] {
            assert!(file.has(test), "{test}");
        }
        for test in ["b", "tests::b", "stream::slot::other::b", "stream::slot::tests::c"] {
            assert!(!file.has(test), "{test}");
        }
        let root = Source { module: String::new(), text: "fn a() {}".to_owned(), ..file };
        assert!(root.has("a") && !root.has("x::a"));
    }
}
