//! The page that says which test catches which planted bug.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::{Context as _, Result};

use super::{group::Group, list::Mutant};
use crate::{paths::Paths, say::say};

/// The page.
pub(crate) const PAGE: &str = "docs/mutants.md";

const HEAD: &str = "# Planted bugs

Bugs that are put into a copy of the crates, one at a time, and the test that catches each. `cargo xtask mutants` plants
them all and writes this page, `--group` those of one table; `crates/xtask/src/mutants/*.txt` has the changes.
";

/// What the page says: the tests, by the number of the bug.
pub(crate) fn known(paths: &Paths) -> Result<BTreeMap<u32, String>> {
    let path = paths.root.join(PAGE);
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let number = cells.next()?.parse().ok()?;
        let test = cells.last()?.strip_suffix(" |")?;
        Some((number, test.to_owned()))
    });
    Ok(rows.collect())
}

/// Writes the page: of each bug that is known to be caught, what catches it.
pub(crate) fn write(
    paths: &Paths,
    all: &[(&Group, Vec<Mutant>)],
    known: &BTreeMap<u32, String>,
) -> Result<()> {
    let path = paths.root.join(PAGE);
    fs::write(&path, shown(all, known)).with_context(|| format!("write {}", path.display()))?;
    say!("all of them are caught; wrote {PAGE}");
    Ok(())
}

fn shown(all: &[(&Group, Vec<Mutant>)], known: &BTreeMap<u32, String>) -> String {
    let mut page = HEAD.to_owned();
    for (group, mutants) in all {
        let _ = write!(page, "\n## {}\n\n{}\n", group.name, group.about);
        page.push_str(
            "\n| number | pitfall, requirement | what is wrong | caught by |\n|---|---|---|---|\n",
        );
        for Mutant { number, why, breaks, .. } in mutants {
            if let Some(tests) = known.get(number) {
                let _ = writeln!(page, "| {number} | {why} | {breaks} | {tests} |");
            }
        }
    }
    page
}
