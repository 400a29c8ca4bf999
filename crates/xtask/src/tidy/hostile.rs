//! The names in `docs/hostile-clients.md`: each row names a test, and all counted limits are named.
//! Every named test must exist.

use std::collections::BTreeSet;

use crate::source::Source;

const PAGE: &str = "docs/hostile-clients.md";
const LIMITS: &str = "crates/fanout/src/metrics.rs";

/// Returns complaints about the page.
pub(super) fn complaints(files: &[Source]) -> Vec<String> {
    let text = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map(|file| file.text.as_str()).ok_or_else(|| format!("{PAGE}: {path} does not exist"))
    };
    let (page, limits) = match (text(PAGE), text(LIMITS)) {
        (Ok(page), Ok(limits)) => (page, limits),
        (page, limits) => return [page, limits].into_iter().filter_map(Result::err).collect(),
    };
    let tests: BTreeSet<(&str, &str)> = files.iter().flat_map(tests).collect();
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let cited: Vec<_> = quoted(line).filter_map(|word| word.split_once("::")).collect();
        let unknown = cited.iter().filter(|test| !tests.contains(*test));
        complaints.extend(
            unknown
                .map(|(module, test)| format!("{PAGE}:{number}: no such test: {module}::{test}")),
        );
        if is_row(line) && cited.is_empty() {
            complaints.push(format!("{PAGE}:{number}: this row names no test"));
        }
    }
    let counted = labels(limits);
    if counted.is_empty() {
        complaints.push(format!("{LIMITS}: `const LIMITS` is missing"));
    }
    let named: BTreeSet<&str> = page.lines().flat_map(quoted).collect();
    let missing = counted.iter().filter(|label| !named.contains(*label));
    complaints.extend(missing.map(|label| format!("{PAGE}: the limit {label} is missing")));
    complaints
}

/// Returns whether a line is a table row, but neither the header nor the separator.
fn is_row(line: &str) -> bool {
    line.starts_with("| ") && !line.ends_with(" test |")
}

/// Returns the texts between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the string literals in the list of limits.
fn labels(code: &str) -> Vec<&str> {
    let list = code.split_once("const LIMITS:").and_then(|(_, rest)| rest.split_once("];"));
    list.map(|(list, _)| list.split('"').skip(1).step_by(2).collect()).unwrap_or_default()
}

/// Returns the tests of a file, each with the file's module.
fn tests(file: &Source) -> Vec<(&str, &str)> {
    let Some(path) = file.path.strip_suffix(".rs") else { return Vec::new() };
    let path = path.strip_suffix("/mod").unwrap_or(path);
    // `decoder/tests.rs` contains the tests of `decoder`.
    let path = path.strip_suffix("/tests").unwrap_or(path);
    let module = path.rsplit('/').next().unwrap_or(path);
    let mut is_test = false;
    let mut found = Vec::new();
    for line in file.text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.ends_with("test]") || line.contains("::test(");
        } else if let Some(name) = function(line)
            && std::mem::take(&mut is_test)
        {
            found.push((module, name));
        }
    }
    found
}

fn function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split_once('(').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(page: &str) -> Vec<Source> {
        let source =
            |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        vec![
            source(PAGE, page),
            source(LIMITS, "const LIMITS: &[&str] = &[\n    \"names\",\n    \"types\",\n];\n"),
            source(
                "crates/a/tests/it/floods.rs",
                "#[tokio::test]\nasync fn a_flood() {}\nfn help() {}\n",
            ),
            source("crates/b/src/peers.rs", "    #[test]\n    fn a_peer() {\n    }\n"),
        ]
    }

    #[test]
    fn page_with_existing_names_has_no_complaints() {
        let page = "| client | limit | test |\n|---|---|---|\n\
                    | bad | `xds.names_max`, `names` | `floods::a_flood`, `peers::a_peer` |\n\
                    More of `types`.\n";
        assert_eq!(complaints(&files(page)), Vec::<String>::new());
    }

    #[test]
    fn name_that_does_not_exist_is_reported() {
        let page = "| client | limit | test |\n|---|---|---|\n\
                    | bad | `names` | `floods::help` |\n\
                    | worse | | none |\n";
        let found = complaints(&files(page));
        let expected = [
            "docs/hostile-clients.md:3: no such test: floods::help",
            "docs/hostile-clients.md:4: this row names no test",
            "docs/hostile-clients.md: the limit types is missing",
        ];
        assert_eq!(found, expected);
        assert_eq!(complaints(&[]).len(), 2);
    }
}
