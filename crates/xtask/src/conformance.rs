//! `docs/conformance.md`: which test shows which requirement.
//!
//! The page is made from the doc comments of test functions (`/// DELTA-21: what it shows`), so that
//! it can not say more than the tests do. IDs are those of the project's xDS requirements.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    paths::Paths,
    say::say,
    source::{self, Source},
};

const PAGE: &str = "docs/conformance.md";

/// The families of requirements, in the order of the page. A longer prefix comes before its own
/// beginning.
const FAMILIES: &[(&str, &str)] = &[
    ("SVC", "Services, types and messages"),
    ("SOTW", "State of the world"),
    ("DELTA", "Incremental"),
    ("ADS", "Aggregated streams: order and warming"),
    ("REST", "REST-JSON and files"),
    ("CLI-E", "What Envoy does"),
    ("CLI-G", "What gRPC clients do"),
    ("OPS", "Operating a server"),
];

/// A requirement's ID: family and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    family: usize,
    number: u32,
}

/// One test function, as the page names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    path: String,
    ids: BTreeSet<Id>,
    shows: String,
}

/// Writes the page.
pub(crate) fn write(paths: &Paths) -> Result<()> {
    let page = paths.root.join(PAGE);
    fs::write(&page, generate(paths)?).with_context(|| format!("write {}", page.display()))?;
    say!("wrote {PAGE}");
    Ok(())
}

/// Fails if the page is not what the tests say.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let wanted = generate(paths)?;
    if fs::read_to_string(paths.root.join(PAGE)).is_ok_and(|page| page == wanted) {
        return Ok(());
    }
    bail!("{PAGE} is not what the tests say; run `cargo xtask conformance`")
}

fn generate(paths: &Paths) -> Result<String> {
    let files = source::files(paths, "crates")?;
    let tests: Vec<Test> = files
        .iter()
        .filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("crates/xtask/"))
        .flat_map(tests)
        .collect();
    Ok(page(&tests))
}

/// The whole page, families and IDs in order.
fn page(tests: &[Test]) -> String {
    let mut by_id: BTreeMap<Id, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        for id in &test.ids {
            by_id.entry(*id).or_default().push(test);
        }
    }
    let mut page = format!(
        "# Conformance\n\n\
         Which test shows which requirement. Made by `cargo xtask conformance` from the doc comments of \
         the tests;\n`cargo xtask verify` fails when it is not current. Run one with \
         `cargo xtask test -p <crate> <name>`.\n\n\
         {} requirements, {} tests.\n",
        by_id.len(),
        tests.len()
    );
    for (family, (prefix, title)) in FAMILIES.iter().enumerate() {
        let rows: Vec<_> = by_id.iter().filter(|(id, _)| id.family == family).collect();
        if rows.is_empty() {
            continue;
        }
        push(
            &mut page,
            format_args!(
                "\n## {prefix}: {title}\n\n| requirement | test | shows |\n|---|---|---|\n"
            ),
        );
        for (id, tests) in rows {
            let mut tests = tests.clone();
            tests.sort();
            for test in tests {
                let shows = test.shows.replace('|', "\\|");
                push(
                    &mut page,
                    format_args!("| {prefix}-{:02} | `{}` | {shows} |\n", id.number, test.path),
                );
            }
        }
    }
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a String can not fail");
}

/// The tests of one file that name a requirement.
fn tests(file: &Source) -> Vec<Test> {
    let mut found = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let mut is_test = false;
    // Inline modules that are open, with their indentation.
    let mut modules: Vec<(usize, &str)> = Vec::new();
    for line in file.text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if line == "}" {
            modules.retain(|(at, _)| *at < indent);
        }
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim());
        } else if line.starts_with("#[") || line.starts_with("//") {
            is_test |= line.ends_with("test]") || line.contains("::test(");
        } else if let Some(name) = function_name(line) {
            if is_test {
                let ids = doc.iter().flat_map(|line| ids(line)).chain(name_ids(name)).collect();
                let inner: Vec<&str> = modules.iter().map(|(_, module)| *module).collect();
                let path = test_path(&file.path, &inner, name);
                found.push(Test { path, ids, shows: shows(&doc) });
            }
            (doc, is_test) = (Vec::new(), false);
        } else {
            if let Some(module) = line.strip_prefix("mod ").and_then(|m| m.strip_suffix(" {")) {
                modules.push((indent, module));
            }
            if !line.is_empty() {
                (doc, is_test) = (Vec::new(), false);
            }
        }
    }
    found.retain(|test| !test.ids.is_empty());
    found
}

fn function_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ").unwrap_or(line);
    let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

/// `crate::module::name`, as `cargo test` would show it with the crate in front.
fn test_path(file: &str, inner: &[&str], name: &str) -> String {
    let mut parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    // crates/<name>/{src,tests}/…
    let krate = format!("chancery-{}", parts.get(1).unwrap_or(&""));
    parts.drain(..parts.len().min(3));
    parts.retain(|part| !["lib", "main", "mod"].contains(part));
    [&[krate.as_str()], parts.as_slice(), inner, &[name]].concat().join("::")
}

/// The doc comment's first paragraph without the IDs it begins with.
fn shows(doc: &[&str]) -> String {
    let text: Vec<&str> = doc.iter().copied().take_while(|line| !line.is_empty()).collect();
    let text = text.join(" ");
    match text.split_once(": ") {
        Some((ids_only, rest)) if !ids(ids_only).is_empty() => rest.to_owned(),
        _ => text,
    }
}

/// All IDs in a line: `DELTA-21`, and the short forms `SOTW-14, -15` and `SOTW-14 to -17`.
fn ids(line: &str) -> Vec<Id> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((at, family)) = next_family(rest) {
        let before = rest[..at].chars().next_back();
        let prefix_len = FAMILIES[family].0.len();
        let is_word_start = !before.is_some_and(|c| c.is_alphanumeric() || c == '-');
        rest = &rest[at + prefix_len..];
        if !is_word_start {
            continue;
        }
        let Some((mut number, mut tail)) = hyphen_number(rest) else { continue };
        found.push(Id { family, number });
        while let Some((is_range, next, after)) = short_form(tail) {
            let from = if is_range && number < next { number + 1 } else { next };
            found.extend((from..=next).map(|number| Id { family, number }));
            (number, tail) = (next, after);
        }
        rest = tail;
    }
    found
}

/// The first family's prefix in `text`.
fn next_family(text: &str) -> Option<(usize, usize)> {
    FAMILIES
        .iter()
        .enumerate()
        .filter_map(|(family, (prefix, _))| Some((text.find(prefix)?, family)))
        .min()
}

/// `-21…` → 21 and what follows; also `21…` without the hyphen.
fn hyphen_number(text: &str) -> Option<(u32, &str)> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

/// `, -15…`, ` and -15…` or ` to -17…`.
fn short_form(text: &str) -> Option<(bool, u32, &str)> {
    let forms = [(", ", false), (" and ", false), (", and ", false), (" to ", true), ("/", false)];
    forms.into_iter().find_map(|(separator, is_range)| {
        let rest = text.strip_prefix(separator)?;
        if !rest.starts_with('-') {
            return None;
        }
        let (number, after) = hyphen_number(rest)?;
        Some((is_range, number, after))
    })
}

/// An ID in a function's name: `delta_21_resumes_without_resend`.
fn name_ids(name: &str) -> Vec<Id> {
    FAMILIES
        .iter()
        .enumerate()
        .filter_map(|(family, (prefix, _))| {
            let prefix = prefix.to_lowercase().replace('-', "_");
            let rest = name.strip_prefix(&prefix)?.strip_prefix('_')?;
            let number = rest.split('_').next()?.parse().ok()?;
            Some(Id { family, number })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> Vec<String> {
        ids(line).iter().map(|id| format!("{}-{:02}", FAMILIES[id.family].0, id.number)).collect()
    }

    #[test]
    fn ids_are_read_in_all_their_forms() {
        assert_eq!(shown("DELTA-21: an ack"), ["DELTA-21"]);
        assert_eq!(shown("CLI-E-07, CLI-G-3 and OPS-4."), ["CLI-E-07", "CLI-G-03", "OPS-04"]);
        assert_eq!(shown("SOTW-14 to -16, ADS-11"), ["SOTW-14", "SOTW-15", "SOTW-16", "ADS-11"]);
        assert_eq!(shown("SOTW-68, -70, -73"), ["SOTW-68", "SOTW-70", "SOTW-73"]);
    }

    #[test]
    fn what_only_looks_like_an_id_is_none() {
        assert!(shown("LADS-11 and X-SVC-03 and ADS alone, SVC-x").is_empty());
    }

    #[test]
    fn tests_are_found_with_their_modules_ids_and_words() {
        let text = "\
/// SOTW-01: a helper is no test.
fn helper() {}

#[cfg(test)]
mod tests {
    /// DELTA-21: a removed name
    /// is | sent once.
    ///
    /// More.
    #[tokio::test(start_paused = true)]
    async fn removal() {
    }

    mod inner {
        /// No requirement.
        #[test]
        fn other() {}
        #[test]
        fn ads_11_by_name() {}
    }
    /// OPS-02
    #[test]
    fn last() {}
}
";
        let file = Source { path: "crates/view/src/a/mod.rs".into(), text: text.into() };
        let tests = tests(&file);
        let paths: Vec<_> = tests.iter().map(|test| test.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "chancery-view::a::tests::removal",
                "chancery-view::a::tests::inner::ads_11_by_name",
                "chancery-view::a::tests::last"
            ]
        );
        assert_eq!(tests[0].shows, "a removed name is | sent once.");
        let page = page(&tests);
        assert!(page.contains("3 requirements, 3 tests."), "{page}");
        assert!(
            page.contains("| DELTA-21 | `chancery-view::a::tests::removal` | a removed name is \\| sent once. |"),
            "{page}"
        );
    }

    #[test]
    fn the_path_of_a_test_file_has_no_src_and_no_lib() {
        let path = |file| test_path(file, &[], "t");
        assert_eq!(path("crates/view/src/lib.rs"), "chancery-view::t");
        assert_eq!(path("crates/server/tests/envoy.rs"), "chancery-server::envoy::t");
    }
}
