//! The tests of each requirement.
//!
//! The page comes from the doc comments of test functions (`/// DELTA-21: text`). A requirement without a test needs
//! a written reason.

use anyhow::Result;

use crate::{page::Page, paths::Paths, source};

pub(crate) mod cited;
mod ids;
pub(crate) mod required;
pub(crate) mod text;

/// Returns the page.
pub(crate) fn page(paths: &Paths) -> Result<Page> {
    let required = required::Required::read()?;
    let tests = cited_tests(paths, ids::ids, ids::in_name)?;
    let text = text::page(&required, &tests);
    Ok(Page { name: "conformance.md", text, problems: required.problems(&tests) })
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
