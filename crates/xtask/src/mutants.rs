//! Mutation tests: `cargo xtask mutants` plants bugs in a copy of the crates, whose tests must fail.
//!
//! The lists are data (`mutants/*.txt`), and the result is a page (`docs/mutants.md`). The command
//! never edits the tree: the copy is in the target directory. `verify` checks, without running tests,
//! that the text of each bug occurs exactly once and that the tests of each bug exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{paths::Paths, say::say, setup};

mod copy;
mod group;
mod list;
mod page;

use copy::Copy;
use group::{GROUPS, Group};
use list::Mutant;

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

/// Plants the selected bugs and writes the page. The rows of other bugs keep their tests.
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
    let mut known = page::known(paths)?;
    if all.iter().any(|(group, _)| group.needs_rocksdb) {
        setup::build_needs(paths)?;
    }
    let copy = Copy::new(paths)?;
    let mut survivors = Vec::new();
    for (group, mutants) in &all {
        survivors.extend(plant_all(paths, &copy, group, mutants, &mut known)?);
    }
    if !survivors.is_empty() {
        bail!(
            "no test catches the planted bugs {survivors:?}, or they could not be planted; see above"
        );
    }
    page::write(paths, &load_all(paths)?, &known)
}

/// Plants the bugs of one group, one at a time, and inserts the tests that catch them into `known`.
/// Returns the numbers of the bugs that no test catches, and of those that could not be planted.
fn plant_all(
    paths: &Paths,
    copy: &Copy,
    group: &Group,
    mutants: &[Mutant],
    known: &mut BTreeMap<u32, String>,
) -> Result<Vec<u32>> {
    say!("mutants of {}: running the tests without a planted bug", group.name);
    let failing = copy.failing_unplanted(paths, group, mutants)?;
    ensure!(failing.is_empty(), "tests fail without a planted bug: {failing:?}");
    let mut survivors = Vec::new();
    for mutant in mutants {
        let original = copy.plant(paths, mutant)?;
        let caught = copy.failing(paths, group, mutant);
        copy.restore(mutant, &original)?;
        let caught = match caught {
            Ok(caught) => caught,
            Err(error) => {
                say!("mutant {}: NOT PLANTED: {error:#}", mutant.number);
                survivors.push(mutant.number);
                continue;
            }
        };
        // The page keeps its tests as long as they still catch the bug.
        let named = known.get(&mutant.number).cloned().unwrap_or_default();
        let tests = caught.iter().filter_map(|(suite, failed)| {
            let shown = |test: &String| format!("`{suite}: {test}`");
            let kept = failed.iter().map(shown).find(|test| named.contains(test.as_str()));
            kept.or_else(|| failed.first().map(shown))
        });
        let tests = tests.collect::<Vec<_>>().join(", ");
        if tests.is_empty() {
            say!("mutant {}: {}: NOT CAUGHT", mutant.number, mutant.breaks);
            survivors.push(mutant.number);
        } else {
            say!("mutant {}: {}: caught by {tests}", mutant.number, mutant.breaks);
            known.insert(mutant.number, tests);
        }
    }
    Ok(survivors)
}

/// Checks that each bug can be planted, that its tests exist, and that the page lists all bugs. Runs
/// no tests.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let all = load_all(paths)?;
    let mut complaints = not_plantable(paths, &all)?;
    for (group, mutants) in &all {
        complaints.extend(lost_tests(paths, group, mutants)?);
    }
    let listed: BTreeSet<u32> = page::known(paths)?.into_keys().collect();
    let mutants = all.iter().flat_map(|(_, mutants)| mutants);
    let existing: BTreeSet<u32> = mutants.map(|mutant| mutant.number).collect();
    if listed != existing {
        let difference: Vec<_> = listed.symmetric_difference(&existing).collect();
        complaints.push(format!(
            "{} and the lists differ in {difference:?}; `cargo xtask mutants` writes the page",
            page::PAGE
        ));
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
        let Some(first) = &mutant.first else { continue };
        let Some(suite) = group.suite(&first.suite) else {
            complaints.push(format!("mutant {}: no such suite: {:?}", mutant.number, first.suite));
            continue;
        };
        let source = match sources.get(suite.package) {
            Some(source) => source,
            None => {
                let name = suite.package.trim_start_matches("chancery-");
                let mut source = String::new();
                read_all(&paths.root.join("crates").join(name), &mut source)?;
                sources.entry(suite.package).or_insert(source)
            }
        };
        let lost = first.tests.iter().filter(|test| {
            let name = test.rsplit("::").next().unwrap_or_default();
            !source.contains(&format!("fn {name}("))
        });
        let lost = lost.map(|test| format!("mutant {}: no such test: {test}", mutant.number));
        complaints.extend(lost);
    }
    Ok(complaints)
}

/// Appends the text of all Rust files below a directory.
fn read_all(dir: &Path, text: &mut String) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read_all(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path);
            text.push_str(&source.with_context(|| format!("read {}", path.display()))?);
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
