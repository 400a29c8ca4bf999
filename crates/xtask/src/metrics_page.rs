//! `docs/metrics.md`: the name, kind and help of every metric.
//!
//! The sources are the `METRICS` table of each crate, and calls such as
//! `describe_gauge!("name", "help")`. A running server describes its metrics with the same texts, so the
//! page and the `/metrics` endpoint are consistent. A metric without a description is an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    paths::Paths,
    say::say,
    source::{self, Source},
};

mod queries;

use queries::{base_name, is_name};

const PAGE: &str = "docs/metrics.md";

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    name: String,
    kind: String,
    help: String,
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
        by_crate
            .entry(name.to_owned())
            .or_default()
            .extend(table(&file.text).with_context(|| format!("read METRICS in {}", file.path))?);
        by_crate.entry(name.to_owned()).or_default().extend(described(&file.text));
    }
    let known: BTreeSet<&str> =
        by_crate.values().flatten().map(|metric| metric.name.as_str()).collect();
    let unknown: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| names_in_code(&file.text))
        .filter(|name| !known.contains(base_name(name)))
        .collect();
    if !unknown.is_empty() {
        bail!("metrics without a description in METRICS or `describe_…!`: {unknown:?}");
    }
    Ok(by_crate)
}

fn page(by_crate: &BTreeMap<String, BTreeSet<Metric>>) -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         The metrics that `GET /metrics` on the admin port returns, in Prometheus' text format. Units are base units (seconds, bytes).\n\
         Labels come from closed sets, never from the names of nodes, streams or resources. `cargo xtask metrics` generates this page\n\
         from the descriptions in the code. [operations.md](operations.md) lists the metrics to watch and to alert on.\n",
    );
    for (name, metrics) in by_crate {
        if metrics.is_empty() {
            continue;
        }
        push(
            &mut page,
            format_args!("\n## {name}\n\n| metric | kind | meaning |\n|---|---|---|\n"),
        );
        for Metric { name, kind, help } in metrics {
            let help = help.trim_end_matches('.').replace('|', "\\|");
            push(&mut page, format_args!("| `{name}` | {kind} | {help} |\n"));
        }
    }
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a String cannot fail");
}

/// Returns the rows of a file's `METRICS` table: name (a literal or a constant of the file), kind,
/// help.
fn table(text: &str) -> Result<Vec<Metric>> {
    let Some((_, rest)) = text.split_once("const METRICS:") else { return Ok(Vec::new()) };
    let (body, _) = rest
        .split_once("= &[")
        .and_then(|(_, rest)| rest.split_once("];"))
        .context("METRICS is not a slice")?;
    let words: Vec<Word> = words(body)
        .into_iter()
        .filter(|word| match word {
            Word::Identifier(name) => !["Metric", "new", "MetricKind"].contains(&name.as_str()),
            Word::Literal(_) => true,
        })
        .collect();
    if !words.len().is_multiple_of(3) {
        bail!("METRICS has {} words, which is not a multiple of three", words.len());
    }
    words
        .chunks(3)
        .map(|row| {
            let [name, Word::Identifier(kind) | Word::Literal(kind), Word::Literal(help)] = row
            else {
                bail!("{row:?} is not name, kind, help");
            };
            let name = match name {
                Word::Literal(name) => name.clone(),
                Word::Identifier(constant) => constant_value(text, constant)?,
            };
            Ok(Metric { name, kind: kind.to_lowercase(), help: help.clone() })
        })
        .collect()
}

/// Returns the metrics of `describe_<kind>!` calls with two literals.
fn described(text: &str) -> Vec<Metric> {
    let words = words(text);
    words
        .windows(3)
        .filter_map(|call| match call {
            [Word::Identifier(describe), Word::Literal(name), Word::Literal(help)] => {
                let kind = describe.strip_prefix("describe_")?.to_owned();
                Some(Metric { name: name.clone(), kind, help: help.clone() })
            }
            _ => None,
        })
        .collect()
}

fn constant_value(text: &str, constant: &str) -> Result<String> {
    text.split_once(&format!("const {constant}: &str ="))
        .and_then(|(_, rest)| rest.split('"').nth(1))
        .map(str::to_owned)
        .ok_or_else(|| anyhow!("no constant {constant} in the same file"))
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
    fn table_rows_are_parsed_in_both_forms() {
        let text = "
const STREAMS: &str = \"chancery_xds_streams\";
/// All.
pub const METRICS: &[Metric] = &[
    // A comment with \"words\".
    Metric::new(
        STREAMS,
        MetricKind::Gauge,
        \"Open, by \\
         \\\"type\\\".\",
    ),
];";
        let rows = table(text).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].name, "chancery_xds_streams");
        assert_eq!(rows[0].kind, "gauge");
        assert_eq!(rows[0].help, "Open, by \"type\".");

        let text =
            "const METRICS: &[(&str, &str, &str)] = &[(\"chancery_a_b\", \"counter\", \"C\")];";
        assert_eq!(table(text).unwrap()[0].kind, "counter");
    }

    #[test]
    fn describe_call_with_literals_counts_and_loop_does_not() {
        let text = "metrics::describe_gauge!(\"chancery_build_info\", \"1\");\n\
             describe_counter!(*name, *help); let x = \"describe\";";
        let rows = described(text);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].name.as_str(), rows[0].kind.as_str()),
            ("chancery_build_info", "gauge")
        );
    }

    #[test]
    fn malformed_table_is_an_error() {
        assert!(table("const METRICS: &[X] = &[a, \"b\"];").is_err());
        assert!(table("const METRICS: &[X] = &[MISSING, Gauge, \"b\"];").is_err());
        assert!(table("no table").unwrap().is_empty());
    }

    #[test]
    fn metric_names_exclude_crates_filters_comments_and_tests() {
        let code = "counter!(\"chancery_xds_requests_total\");\n// \"chancery_xds_in_comment\"\n\
             \"chancery_xds\" \"chancery_server=debug\"\n#[cfg(test)]\n\"chancery_xds_test_only\"\n";
        assert_eq!(names_in_code(code), ["chancery_xds_requests_total"]);
        assert_eq!(base_name("chancery_x_seconds_bucket"), "chancery_x_seconds");
    }
}
