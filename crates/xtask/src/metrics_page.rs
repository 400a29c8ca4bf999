//! `docs/metrics.md`: the name, kind and help of every metric.
//!
//! The sources are the rows `Metric::new("name", MetricKind::Gauge, "help")` of the `METRICS` tables. A
//! running server describes its metrics with the same texts, so the page and the `/metrics` endpoint are
//! consistent. A metric without a row is an error. The labels come from the code that records the metrics.

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

mod labels;
mod queries;

use queries::{base_name, is_name};

const PAGE: &str = "docs/metrics.md";

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    name: String,
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// The kind and the labels of a metric, for checks of queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) kind: String,
    pub(crate) labels: BTreeSet<String>,
}

/// Returns all metrics by name.
pub(crate) fn known(paths: &Paths) -> Result<BTreeMap<String, Known>> {
    let metrics = collect(paths)?.into_values().flatten();
    Ok(metrics.map(|Metric { name, kind, labels, .. }| (name, Known { kind, labels })).collect())
}

/// Writes the page.
pub(crate) fn write(paths: &Paths) -> Result<()> {
    let page = paths.root.join(PAGE);
    fs::write(&page, generate(paths)?).with_context(|| format!("write {}", page.display()))?;
    say!("wrote {PAGE}");
    Ok(())
}

/// Fails if the page is outdated, or if a query in a document does not fit the metrics.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let by_crate = collect(paths)?;
    let metrics: BTreeMap<&str, &str> = (by_crate.values().flatten())
        .map(|metric| (metric.name.as_str(), metric.kind.as_str()))
        .collect();
    let documents = source::files(paths, "docs")?;
    let documents = documents.iter().filter(|file| file.path.ends_with(".md"));
    let wrong: Vec<String> = documents
        .flat_map(|file| {
            queries::wrong(&file.text, &metrics).map(|line| format!("{}:{line}", file.path))
        })
        .collect();
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    let wanted = page(&by_crate);
    if fs::read_to_string(paths.root.join(PAGE)).is_ok_and(|page| page == wanted) {
        return Ok(());
    }
    bail!("{PAGE} is outdated; run `cargo xtask metrics`")
}

fn generate(paths: &Paths) -> Result<String> {
    Ok(page(&collect(paths)?))
}

/// Returns all metrics by crate.
fn collect(paths: &Paths) -> Result<BTreeMap<String, BTreeSet<Metric>>> {
    let files = source::files(paths, "crates")?;
    let files: Vec<&Source> = files
        .iter()
        .filter(|file| file.path.ends_with(".rs") && file.path.contains("/src/"))
        .filter(|file| !file.path.starts_with("crates/xtask/"))
        .collect();
    let mut by_crate: BTreeMap<String, BTreeSet<Metric>> = BTreeMap::new();
    for file in &files {
        let name = file.path.split('/').nth(1).unwrap_or_default();
        by_crate.entry(name.to_owned()).or_default().extend(rows(&file.text));
    }
    let mut labels = BTreeMap::new();
    files.iter().for_each(|file| labels::collect(&file.text, &mut labels));
    by_crate = by_crate
        .into_iter()
        .map(|(name, metrics)| {
            let with_labels = |metric: Metric| {
                let labels = labels.get(&metric.name).cloned().unwrap_or_default();
                Metric { labels, ..metric }
            };
            (name, metrics.into_iter().map(with_labels).collect())
        })
        .collect();
    let known: BTreeSet<&str> =
        by_crate.values().flatten().map(|metric| metric.name.as_str()).collect();
    let unknown: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| names_in_code(&file.text))
        .filter(|name| !known.contains(base_name(name)))
        .collect();
    if !unknown.is_empty() {
        bail!("metrics without a row `Metric::new(…)` in METRICS: {unknown:?}");
    }
    Ok(by_crate)
}

fn page(by_crate: &BTreeMap<String, BTreeSet<Metric>>) -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         The metrics that `GET /metrics` on the admin port returns, in Prometheus' text format. Units are base units (seconds, bytes).\n\
         Labels come from closed sets, never from the names of nodes, streams or resources. `cargo xtask metrics` generates this page\n\
         from the code. [monitoring.md](monitoring.md) describes alerts and dashboards.\n",
    );
    for (name, metrics) in by_crate {
        if metrics.is_empty() {
            continue;
        }
        push(
            &mut page,
            format_args!(
                "\n## {name}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
            ),
        );
        for Metric { name, kind, help, labels } in metrics {
            let help = help.trim_end_matches('.').replace('|', "\\|");
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = labels.join(", ");
            push(&mut page, format_args!("| `{name}` | {kind} | {labels} | {help} |\n"));
        }
    }
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a String cannot fail");
}

/// Returns the metrics of the rows `Metric::new("name", MetricKind::Gauge, "help")`.
fn rows(text: &str) -> Vec<Metric> {
    words(text)
        .windows(6)
        .filter_map(|row| match row {
            [
                Word::Identifier(metric),
                Word::Identifier(new),
                Word::Literal(name),
                Word::Identifier(kinds),
                Word::Identifier(kind),
                Word::Literal(help),
            ] if metric == "Metric" && new == "new" && kinds == "MetricKind" => Some(Metric {
                name: name.clone(),
                kind: kind.to_lowercase(),
                help: help.clone(),
                labels: BTreeSet::new(),
            }),
            _ => None,
        })
        .collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Identifier(String),
    Literal(String),
}

/// Returns the identifiers and string literals of Rust source, without comments.
fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '"' {
            let mut literal = String::new();
            while let Some(c) = chars.next().filter(|c| *c != '"') {
                match (c, chars.peek()) {
                    // A line continuation.
                    ('\\', Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                    ('\\', Some(_)) => literal.extend(chars.next()),
                    _ => literal.push(c),
                }
            }
            words.push(Word::Literal(literal));
        } else if c == '/' && chars.peek() == Some(&'/') {
            while chars.next_if(|c| *c != '\n').is_some() {}
        } else if c.is_alphabetic() || c == '_' {
            let mut name = String::from(c);
            while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                name.push(c);
            }
            words.push(Word::Identifier(name));
        }
    }
    words
}

/// Returns the string literals that consist of a metric's name, outside comments and tests.
fn names_in_code(text: &str) -> Vec<&str> {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .filter(|literal| is_name(literal))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_literal_names_and_helps() {
        let text = "
pub const METRICS: &[Metric] = &[
    // A comment with \"words\".
    Metric::new(
        \"chancery_xds_streams\",
        MetricKind::Gauge,
        \"Open, by \\
         \\\"type\\\".\",
    ),
    Metric::new(NAME, MetricKind::Gauge, \"b\"),
];
pub const fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Self {}";
        let rows = rows(text);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].name, "chancery_xds_streams");
        assert_eq!(rows[0].kind, "gauge");
        assert_eq!(rows[0].help, "Open, by \"type\".");
    }

    #[test]
    fn metric_names_exclude_crates_filters_comments_and_tests() {
        let code = "counter!(\"chancery_xds_requests_total\");\n// \"chancery_xds_in_comment\"\n\
             \"chancery_xds\" \"chancery_server=debug\"\n#[cfg(test)]\n\"chancery_xds_test_only\"\n";
        assert_eq!(names_in_code(code), ["chancery_xds_requests_total"]);
        assert_eq!(base_name("chancery_x_seconds_bucket"), "chancery_x_seconds");
    }
}
