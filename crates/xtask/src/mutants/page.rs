//! The page of the planted bugs and the tests that catch them.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::{Context as _, Result};

use super::{group::Group, list::Mutant};
use crate::{paths::Paths, say::say};

/// The path of the page.
pub(crate) const PAGE: &str = "docs/mutants.md";

const HEAD: &str = "# Planted bugs

`cargo xtask mutants` plants each of these bugs in a copy of the crates, checks that a test fails, and writes this
page. `--group` selects the bugs of one table. The files `crates/xtask/src/mutants/*.txt` contain the changes.
";

/// Returns the tests that the page names, by the number of the bug.
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

/// Writes the page with all bugs that a known test catches.
pub(crate) fn write(
    paths: &Paths,
    all: &[(&Group, Vec<Mutant>)],
    known: &BTreeMap<u32, String>,
) -> Result<()> {
    let path = paths.root.join(PAGE);
    fs::write(&path, shown(all, known)).with_context(|| format!("write {}", path.display()))?;
    say!("the tests catch all planted bugs; wrote {PAGE}");
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
