//! `docs/metrics.md` names the metrics that the code has, all of them, and no other.

use std::collections::BTreeSet;

use crate::source::Source;

const PAGE: &str = "docs/metrics.md";
const PREFIX: &str = "chancery_";

/// Compares the names in code with the names on the page.
pub(super) fn documented(files: &[Source]) -> Vec<String> {
    let in_code: BTreeSet<&str> = files
        .iter()
        .filter(|file| is_product_code(&file.path))
        .flat_map(|file| names_in_code(&file.text))
        .collect();
    let page = files.iter().find(|file| file.path == PAGE);
    let on_page: BTreeSet<&str> = page.map(|page| names_on_page(&page.text)).unwrap_or_default();
    let missing = in_code.difference(&on_page).map(|name| format!("{PAGE}: lacks `{name}`"));
    let stale = on_page.difference(&in_code).map(|name| format!("{PAGE}: `{name}` is in no code"));
    missing.chain(stale).collect()
}

fn is_product_code(path: &str) -> bool {
    path.starts_with("crates/")
        && !path.starts_with("crates/xtask/")
        && path.contains("/src/")
        && path.ends_with(".rs")
}

/// String literals that are a metric's name and nothing else, outside of comments and tests.
fn names_in_code(text: &str) -> Vec<&str> {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .filter(|literal| is_name(literal))
        .collect()
}

/// Names in backticks in the first cell of a table's row.
fn names_on_page(page: &str) -> BTreeSet<&str> {
    page.lines()
        .filter_map(|line| line.trim().strip_prefix("| `")?.split('`').next())
        .filter(|name| is_name(name))
        .collect()
}

fn is_name(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|rest| {
        // `chancery_server=debug` is a log filter, `chancery_proto::x` a path.
        rest.contains('_')
            && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_metric_that_the_page_lacks_and_one_that_no_code_has_are_found() {
        let code = file(
            "crates/xds/src/metrics.rs",
            "counter!(\"chancery_xds_requests_total\");\n// \"chancery_xds_in_comment\"\n\
             const S: &str = \"chancery_xds_streams\";\n#[cfg(test)]\n\"chancery_xds_test_only\"\n",
        );
        let page = file(
            PAGE,
            "| name | what |\n|---|---|\n| `chancery_xds_streams` | open |\n\
             | `chancery_xds_gone_total` | none |\n",
        );
        assert_eq!(
            documented(&[code, page]),
            [
                "docs/metrics.md: lacks `chancery_xds_requests_total`",
                "docs/metrics.md: `chancery_xds_gone_total` is in no code"
            ]
        );
    }

    #[test]
    fn names_of_crates_and_log_filters_are_no_metrics() {
        assert!(!is_name("chancery_server"));
        assert!(!is_name("chancery_server=debug"));
        assert!(is_name("chancery_server_uptime_seconds"));
    }
}
