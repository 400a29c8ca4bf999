//! The table of values in the README of the chart, which is generated from the comments in `values.yaml`.

use std::fs;

use anyhow::{Context as _, Result};

use super::{golden::Golden, render::Chart};

/// The line above the table, which ends with the file.
const MARK: &str = "<!-- The rest of this file is generated from values.yaml. -->\n";

/// Compares or writes the table.
pub(super) fn check(chart: &Chart, golden: Golden) -> Result<()> {
    let read = |name: &str| {
        let path = chart.dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let readme = read("README.md")?;
    let (text, _) = readme.split_once(MARK).context("README.md of the chart lacks its mark")?;
    let expected = format!("{text}{MARK}\n{}", table(&read("values.yaml")?));
    golden.file(&chart.dir.join("README.md"), &expected)
}

/// Returns a row for each value. The comment above a value describes it.
fn table(values: &str) -> String {
    let mut table = String::from("| value | default | meaning |\n|---|---|---|\n");
    // The indentation and the name of each open object.
    let mut open: Vec<(usize, &str)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    // The first paragraph is about the file.
    let (_, values) = values.split_once("\n\n").unwrap_or_default();
    for line in values.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some(words) = text.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        let Some((name, default)) = text.split_once(':') else {
            comment.clear();
            continue;
        };
        open.retain(|(outer, _)| *outer < indent);
        let path = open.iter().map(|(_, name)| *name).chain([name]).collect::<Vec<_>>().join(".");
        let default = default.trim();
        let meaning = comment.join(" ").replace('|', "\\|");
        comment.clear();
        if default.is_empty() {
            open.push((indent, name));
        }
        if !default.is_empty() || !meaning.is_empty() {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            table += &format!("| `{path}` | {default} | {meaning} |\n");
        }
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn table_has_nested_names_and_their_comments() {
        let values = "# The file.\n\n# One\n# text.\na: \"\"\n\n# An object.\nb:\n  c:\n    # Deep.\n    d: {x: 1}\n  e: 2\nf: []\n";
        let rows = "| `a` | `\"\"` | One text. |\n| `b` |  | An object. |\n| `b.c.d` | `{x: 1}` | Deep. |\n\
                    | `b.e` | `2` |  |\n| `f` | `[]` |  |\n";
        assert_eq!(
            super::table(values),
            format!("| value | default | meaning |\n|---|---|---|\n{rows}")
        );
    }
}
