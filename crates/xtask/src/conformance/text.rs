//! The text of the conformance page.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{
    cited,
    ids::{FAMILIES, Id},
    required::Required,
};

type Test = cited::Test<Id>;

const INTRO: &str = "\
# Conformance

The tests of each requirement of the xDS protocol and of the Mesh Configuration Protocol (MCP). IDs and levels are those of
the project's requirements.

- **tested**: the named tests cite the requirement and fail if it is violated.
- **reason**: no test, but a written reason. For a MUST, there are two such reasons: it concerns the internals of a
  client, or another component does it. Each MUST that concerns the server has a test.

The [second part](#what-the-tests-show) describes each test. The names start with the crate. To run a test:
`cargo xtask test -p chancery-<crate> <name>`.
";

/// Generates the page, with families and IDs in order.
pub(super) fn page(required: &Required, tests: &[Test]) -> String {
    let mut by_id: BTreeMap<Id, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        for id in &test.ids {
            by_id.entry(*id).or_default().push(test);
        }
    }
    let all: BTreeSet<Id> = required.levels.keys().chain(by_id.keys()).copied().collect();
    let mut page = INTRO.to_owned();
    overview(&mut page, &all, &by_id);
    for (family, (prefix, title)) in FAMILIES.iter().enumerate() {
        let rows: Vec<Id> = all.iter().filter(|id| id.family == family).copied().collect();
        if rows.is_empty() {
            continue;
        }
        line(&mut page, format_args!("\n## {prefix}: {title}\n"));
        line(&mut page, format_args!("| requirement | level | status | test or reason |"));
        line(&mut page, format_args!("|---|---|---|---|"));
        for id in rows {
            let level = required.levels.get(&id).map_or("", |level| level.name());
            let (status, shown) = match (by_id.get(&id), required.reasons.get(&id)) {
                (Some(tests), _) => ("tested", links(tests)),
                (None, Some(reason)) => {
                    ("reason", format!("{} {}", reason.why.title(), cell(&reason.text)))
                }
                (None, None) => ("**missing**", String::new()),
            };
            line(&mut page, format_args!("| {id} | {level} | {status} | {shown} |"));
        }
    }
    what_tests_show(&mut page, tests);
    page
}

/// Appends the number of requirements and tests of each family.
fn overview(page: &mut String, all: &BTreeSet<Id>, by_id: &BTreeMap<Id, Vec<&Test>>) {
    line(page, format_args!("\n| area | requirements | tested | reason | tests |"));
    line(page, format_args!("|---|---|---|---|---|"));
    for (family, (prefix, title)) in FAMILIES.iter().enumerate() {
        let of_family = || all.iter().filter(|id| id.family == family);
        let n = of_family().count();
        if n == 0 {
            continue;
        }
        let cited = || of_family().filter_map(|id| by_id.get(id));
        let n_tested = cited().count();
        let n_tests = cited().flatten().map(|test| &test.path).collect::<BTreeSet<_>>().len();
        line(
            page,
            format_args!("| {prefix}: {title} | {n} | {n_tested} | {} | {n_tests} |", n - n_tested),
        );
    }
}

/// Returns the names of the tests, each as a link to its file.
pub(crate) fn links<I: Ord>(tests: &[&cited::Test<I>]) -> String {
    let mut tests = tests.to_vec();
    tests.sort();
    tests.dedup();
    let links: Vec<String> = tests
        .iter()
        .map(|test| {
            let name = test.path.strip_prefix("chancery-").unwrap_or(&test.path);
            format!("[`{name}`](/{})", test.file)
        })
        .collect();
    links.join("<br>")
}

/// Appends the descriptions of the tests, by file.
fn what_tests_show(page: &mut String, tests: &[Test]) {
    line(page, format_args!("\n## What the tests show"));
    let mut by_file: BTreeMap<&str, BTreeSet<&Test>> = BTreeMap::new();
    for test in tests {
        by_file.entry(&test.file).or_default().insert(test);
    }
    for (file, tests) in by_file {
        line(page, format_args!("\n### {file}\n"));
        line(page, format_args!("| test | shows | cites |"));
        line(page, format_args!("|---|---|---|"));
        for test in tests {
            let name = test.path.rsplit("::").next().unwrap_or(&test.path);
            let ids: Vec<String> = test.ids.iter().map(Id::to_string).collect();
            line(page, format_args!("| `{name}` | {} | {} |", cell(&test.shows), ids.join(", ")));
        }
    }
}

/// Escapes a text for a table cell.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

pub(crate) fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a String cannot fail");
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            cited::{self, tests::TEXT},
            ids::{ids, in_name},
            required::{Level, Reason, Why},
        },
        *,
    };
    use crate::source::Source;

    #[test]
    fn page_has_rows_for_requirements_and_tests() {
        let file = Source { path: "crates/view/src/a/mod.rs".into(), text: TEXT.into() };
        let id = |text| super::super::ids::exact(text).unwrap();
        let required = Required {
            levels: BTreeMap::from([
                (id("DELTA-21"), Level::Must),
                (id("DELTA-22"), Level::MustNot),
                (id("ADS-11"), Level::Should),
                (id("ADS-12"), Level::May),
            ]),
            reasons: BTreeMap::from([(
                id("ADS-12"),
                Reason { why: Why::Declined, text: "a | b".to_owned() },
            )]),
        };
        let page = page(&required, &cited::tests(&file, ids, in_name));
        for row in [
            "| DELTA: Incremental | 2 | 1 | 1 | 1 |",
            "| DELTA-21 | MUST | tested | [`view::a::tests::removal`](/crates/view/src/a/mod.rs) |",
            "| DELTA-22 | MUST NOT | **missing** |  |",
            "| ADS-12 | MAY | reason | Not followed. a \\| b |",
            "| OPS-02 |  | tested | [`view::a::tests::last`](/crates/view/src/a/mod.rs) |",
            "### crates/view/src/a/mod.rs",
            "| `removal` | a removed name is \\| sent once. | DELTA-21 |",
        ] {
            assert!(page.lines().any(|line| line == row), "{row}\nis missing in\n{page}");
        }
    }
}
