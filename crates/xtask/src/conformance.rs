//! `docs/conformance.md`: the tests of each requirement.
//!
//! The command generates the page from the doc comments of test functions (`/// DELTA-21: text`). A
//! requirement without a test needs a written reason.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::{paths::Paths, say::say, source};

mod cited;
mod ids;
mod page;
mod required;

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
    let files = source::files(paths, "crates")?;
    let tests: Vec<cited::Test> = files
        .iter()
        .filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("crates/xtask/"))
        .flat_map(cited::tests)
        .collect();
    Ok(Generated { page: page::page(&required, &tests), problems: required.problems(&tests) })
}
