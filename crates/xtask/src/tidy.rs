//! Our own rules: who may use whom, how long a file may be, what has no place in the tree.
//!
//! Each rule is a plain function from text to complaints; [`check`] reads the tree, runs them all
//! and shows all complaints at once.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::{
    paths::Paths,
    proc,
    say::say,
    source::{self, Source},
};

mod edges;
mod hostile;
mod links;

/// Longest Rust file, tests included.
const LINES_MAX: usize = 700;

/// Files that may be longer: path, limit, why.
const LONG_FILES: &[(&str, usize, &str)] = &[];

/// Runs every rule.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let files = source::files(paths, "")?;
    let metadata = proc::output(paths.plain_cargo().args([
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--locked",
    ]))?;
    let mut complaints = edges::direct(&edges::packages(&metadata)?);
    for pure in edges::PURE {
        let tree = proc::output(paths.plain_cargo().args([
            "tree",
            "--locked",
            "--package",
            pure,
            "--edges=normal",
            "--prefix=none",
            "--format={p}",
        ]))?;
        complaints.extend(edges::reached(pure, &tree));
    }
    complaints.extend(lint_tables(&files));
    complaints.extend(lengths(&files, LONG_FILES));
    complaints.extend(hostile::complaints(&files));
    complaints.extend(files.iter().flat_map(machine_paths));
    complaints.extend(files.iter().flat_map(unfinished));
    complaints.extend(links::broken(&files));
    if complaints.is_empty() {
        return Ok(());
    }
    for complaint in &complaints {
        say!("{complaint}");
    }
    bail!("{} of our own rules are broken", complaints.len())
}

/// Every package takes the workspace's lints.
fn lint_tables(files: &[Source]) -> Vec<String> {
    files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .filter(|file| !has_workspace_lints(&file.text))
        .map(|file| format!("{}: lacks `[lints]` with `workspace = true`", file.path))
        .collect()
}

fn has_workspace_lints(manifest: &str) -> bool {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.replace(' ', "") == "workspace=true")
}

/// No Rust file is longer than it may be, and no exception outlives its reason.
fn lengths(files: &[Source], exceptions: &[(&str, usize, &str)]) -> Vec<String> {
    let mut exceptions: BTreeMap<&str, usize> =
        exceptions.iter().map(|(path, max, _)| (*path, *max)).collect();
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let n_lines = file.text.lines().count();
        let exception = exceptions.remove(file.path.as_str());
        let max = exception.unwrap_or(LINES_MAX);
        if n_lines > max {
            complaints.push(format!(
                "{}: {n_lines} lines, at most {max} are allowed; find the seam, or give a reason \
                 in LONG_FILES",
                file.path
            ));
        } else if exception.is_some() && n_lines <= LINES_MAX {
            complaints.push(format!(
                "{}: {n_lines} lines need no exception any more; take it out of LONG_FILES",
                file.path
            ));
        }
    }
    complaints.extend(
        exceptions.keys().map(|path| format!("LONG_FILES names {path}, which is not there")),
    );
    complaints
}

/// No path of somebody's machine.
fn machine_paths(file: &Source) -> Vec<String> {
    // In two parts, so that this file passes its own rule.
    let roots = [("/ro", "ot/"), ("/wo", "rk/"), ("/Us", "ers/")].map(|(a, b)| format!("{a}{b}"));
    lines_with(file, "a path of one machine", |line| {
        roots.iter().any(|root| {
            line.match_indices(root.as_str()).any(|(at, _)| {
                // Only at the start of a path: `https://host/work/` is none.
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}/".contains(c))
            })
        })
    })
}

/// No mark of unfinished work in code.
fn unfinished(file: &Source) -> Vec<String> {
    if !file.path.ends_with(".rs") && !file.path.ends_with(".py") {
        return Vec::new();
    }
    let marks = [("TO", "DO"), ("FIX", "ME"), ("XX", "X")].map(|(a, b)| format!("{a}{b}"));
    lines_with(file, "a mark of unfinished work", |line| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| marks.iter().any(|mark| word == mark))
    })
}

fn lines_with(file: &Source, what: &str, is_bad: impl Fn(&str) -> bool) -> Vec<String> {
    file.text
        .lines()
        .enumerate()
        .filter(|(_, line)| is_bad(line))
        .map(|(index, line)| format!("{}:{}: {what}: {}", file.path, index + 1, line.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_manifest_without_the_workspace_lints_is_found() {
        let good = source("crates/a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n");
        let none = source("crates/b/Cargo.toml", "[package]\nedition.workspace = true\n");
        let other = source("crates/c/Cargo.toml", "[lints]\n[dependencies]\nworkspace = true\n");
        let root = source("Cargo.toml", "[workspace]\n");
        let complaints = lint_tables(&[good, none, other, root]);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("crates/b") && complaints[1].starts_with("crates/c"));
    }

    #[test]
    fn a_long_file_needs_a_reason_and_a_reason_needs_a_long_file() {
        let long = source("a.rs", &"x\n".repeat(LINES_MAX + 1));
        let short = source("b.rs", &"x\n".repeat(LINES_MAX));
        let text = source("c.md", &"x\n".repeat(2 * LINES_MAX));
        let files = [long, short, text];
        let complaints = lengths(&files, &[]);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].starts_with("a.rs: 701 lines"));
        assert!(lengths(&files, &[("a.rs", 800, "generated")]).is_empty());
        let stale = [("a.rs", 800, ""), ("b.rs", 800, ""), ("gone.rs", 800, "")];
        assert_eq!(lengths(&files, &stale).len(), 2);
    }

    #[test]
    fn machine_paths_are_found_and_addresses_are_not() {
        let root = format!("{}{}", "/ro", "ot/x");
        let bad = source("a.md", &format!("see `{root}`\ncd {root}\nHOME={root}\n"));
        assert_eq!(machine_paths(&bad).len(), 3);
        let work = format!("https://host.example{}", "/wo".to_owned() + "rk/x");
        assert!(machine_paths(&source("a.md", &work)).is_empty());
        assert_eq!(machine_paths(&bad)[1], format!("a.md:2: a path of one machine: cd {root}"));
    }

    #[test]
    fn marks_of_unfinished_work_are_found_as_words_in_code() {
        let mark = ["TO", "DO"].concat();
        assert_eq!(unfinished(&source("a.rs", &format!("// {mark}: x\n"))).len(), 1);
        assert!(unfinished(&source("a.rs", &format!("// {mark}S_LEFT\n"))).is_empty());
        assert!(unfinished(&source("a.md", &format!("{mark}\n"))).is_empty());
    }
}
