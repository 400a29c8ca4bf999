//! The tests that cite requirements or attacks, found in the source.

use std::collections::BTreeSet;

use crate::source::Source;

/// One test function that cites something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test<I> {
    /// The name that `cargo test` prints, with the crate as prefix.
    pub(crate) path: String,
    /// The file of the test.
    pub(crate) file: String,
    pub(crate) ids: BTreeSet<I>,
    /// The doc comment without the IDs.
    pub(crate) shows: String,
}

/// Returns the tests of one file that cite something. `cited` returns the IDs in a text, which is the first paragraph of
/// a doc comment. `in_name` returns the ID at the start of the name of a test.
pub(crate) fn tests<I: Ord>(
    file: &Source,
    cited: impl Fn(&str) -> Vec<I>,
    in_name: impl Fn(&str) -> Option<I>,
) -> Vec<Test<I>> {
    let mut found = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let mut is_test = false;
    // The enclosing inline modules, with their indentation.
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
                let text = first_paragraph(&doc);
                let inner: Vec<&str> = modules.iter().map(|(_, module)| *module).collect();
                found.push(Test {
                    path: test_path(&file.path, &inner, name),
                    file: file.path.clone(),
                    ids: cited(&text).into_iter().chain(in_name(name)).collect(),
                    shows: shows(text, |text| !cited(text).is_empty()),
                });
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

/// Returns `crate::module::name`: the name that `cargo test` prints, with the crate as prefix.
fn test_path(file: &str, inner: &[&str], name: &str) -> String {
    let mut parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    // crates/<name>/{src,tests}/…
    let krate = format!("chancery-{}", parts.get(1).unwrap_or(&""));
    parts.drain(..parts.len().min(3));
    parts.retain(|part| !["lib", "main", "mod"].contains(part));
    [&[krate.as_str()], parts.as_slice(), inner, &[name]].concat().join("::")
}

fn first_paragraph(doc: &[&str]) -> String {
    let lines: Vec<&str> = doc.iter().copied().take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// Returns the text without the IDs at its start.
fn shows(text: String, cites: impl Fn(&str) -> bool) -> String {
    match text.split_once(": ") {
        Some((ids_only, rest)) if cites(ids_only) => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::ids::{Id, ids, in_name},
        *,
    };

    pub(in super::super) const TEXT: &str = "\
/// SOTW-01: a helper, not a test.
fn helper() {}

#[cfg(test)]
mod tests {
    /// DELTA-21: a removed name
    /// is | sent once.
    ///
    /// Unlike SOTW-40.
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

    #[test]
    fn citing_tests_are_found_with_module_ids_and_text() {
        let file = Source { path: "crates/view/src/a/mod.rs".into(), text: TEXT.into() };
        let tests = tests(&file, ids, in_name);
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
        let cited: Vec<_> = tests[0].ids.iter().map(Id::to_string).collect();
        assert_eq!(cited, ["DELTA-21"], "an ID in a later paragraph does not count");
    }

    #[test]
    fn test_path_omits_src_and_lib() {
        let path = |file| test_path(file, &[], "t");
        assert_eq!(path("crates/view/src/lib.rs"), "chancery-view::t");
        assert_eq!(path("crates/server/tests/envoy.rs"), "chancery-server::envoy::t");
    }
}
