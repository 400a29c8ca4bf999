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
use group::{GROUPS, Group};
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
                let mut source = String::new();
                read_all(&paths.root.join("crates").join(name), &mut source)?;
                sources.entry(suite.package).or_insert(source)
            }
        };
        let lost = mutant.tests.iter().filter(|test| {
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
