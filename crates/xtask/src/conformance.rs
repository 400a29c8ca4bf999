//! `docs/conformance.md`: the tests of each requirement.
//!
//! The command generates the page from the doc comments of test functions (`/// DELTA-21: text`). A
//! requirement without a test needs a written reason.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::{paths::Paths, say::say, source};

pub(crate) mod cited;
mod ids;
pub(crate) mod page;
pub(crate) mod required;

const PAGE: &str = "docs/conformance.md";

/// Writes the page, and prints the problems that `verify` will report.
pub(crate) fn write(paths: &Paths) -> Result<()> {
    let Generated { page, problems } = generate(paths)?;
    let file = paths.root.join(PAGE);
    fs::write(&file, page).with_context(|| format!("write {}", file.display()))?;
    for problem in problems {
        say!("conformance: {problem}");
    }
    say!("wrote {PAGE}");
    Ok(())
}

/// Fails if the page is outdated, or if a requirement has neither a test nor a reason.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let Generated { page, problems } = generate(paths)?;
    if !problems.is_empty() {
        bail!("conformance:\n  {}", problems.join("\n  "));
    }
    if fs::read_to_string(paths.root.join(PAGE)).is_ok_and(|found| found == page) {
        return Ok(());
    }
    bail!("{PAGE} is outdated; run `cargo xtask conformance`")
}

struct Generated {
    page: String,
    problems: Vec<String>,
}

fn generate(paths: &Paths) -> Result<Generated> {
    let required = required::Required::read()?;
    let tests = cited_tests(paths, ids::ids, ids::in_name)?;
    Ok(Generated { page: page::page(&required, &tests), problems: required.problems(&tests) })
}

/// Returns the tests of all crates but this one that cite something.
pub(crate) fn cited_tests<I: Ord>(
    paths: &Paths,
    cited: impl Fn(&str) -> Vec<I>,
    in_name: impl Fn(&str) -> Option<I>,
) -> Result<Vec<cited::Test<I>>> {
    let files = source::files(paths, "crates")?;
    Ok(files
        .iter()
        .filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("crates/xtask/"))
        .flat_map(|file| cited::tests(file, &cited, &in_name))
        .collect())
}
