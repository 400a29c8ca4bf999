//! Project rules: allowed dependencies, file lengths, layout of tests, prose, links, and forbidden content.
//!
//! Each rule is a pure function from text to complaints. [`check`] reads the tree, runs all rules and
//! prints all complaints.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::{
    paths::Paths,
    proc,
    say::say,
    source::{self, Source},
};

mod crate_dependencies;
mod cycles;
mod hostile;
mod layout;
mod links;
mod prose;
mod sleeps;
mod state;

/// The maximum number of lines of a Rust file, including tests.
const LINES_MAX: usize = 700;

/// The files that may be longer: path, limit, reason.
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
    let mut complaints = crate_dependencies::direct(&crate_dependencies::packages(&metadata)?);
    for pure in crate_dependencies::PURE {
        let tree = proc::output(paths.plain_cargo().args([
            "tree",
            "--locked",
            "--package",
            pure,
            "--edges=normal",
            "--prefix=none",
            "--format={p}",
        ]))?;
        complaints.extend(crate_dependencies::reached(pure, &tree));
    }
    complaints.extend(lint_tables(&files));
    complaints.extend(lengths(&files, LONG_FILES));
    complaints.extend(cycles::complaints(&files)?);
    complaints.extend(hostile::complaints(&files));
    complaints.extend(layout::complaints(&files));
    complaints.extend(files.iter().flat_map(machine_paths));
    complaints.extend(files.iter().flat_map(unfinished));
    complaints.extend(links::broken(&files));
    complaints.extend(prose::complaints(&files));
    complaints.extend(sleeps::complaints(&files));
    complaints.extend(state::complaints(&files)?);
    if complaints.is_empty() {
        return Ok(());
    }
    for complaint in &complaints {
        say!("{complaint}");
    }
    bail!("{} violations of project rules", complaints.len())
}

/// Reports packages that do not inherit the workspace's lints.
fn lint_tables(files: &[Source]) -> Vec<String> {
    files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .filter(|file| !has_workspace_lints(&file.text))
        .map(|file| format!("{}: `[lints]` with `workspace = true` is missing", file.path))
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

/// Reports Rust files over their length limit, and exceptions that are no longer necessary.
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
                "{}: {n_lines} lines, at most {max} are allowed; split the file, or add a reason to \
                 LONG_FILES",
                file.path
            ));
        } else if exception.is_some() && n_lines <= LINES_MAX {
            complaints.push(format!(
                "{}: {n_lines} lines no longer need an exception; remove it from LONG_FILES",
                file.path
            ));
        }
    }
    complaints.extend(
        exceptions.keys().map(|path| format!("LONG_FILES names {path}, which does not exist")),
    );
    complaints
}

/// Reports paths that exist on one machine only.
fn machine_paths(file: &Source) -> Vec<String> {
    // The names are split so that this file passes its own rule.
    let roots = [("/ro", "ot/"), ("/wo", "rk/"), ("/Us", "ers/")].map(|(a, b)| format!("{a}{b}"));
    lines_with(file, "path of one machine", |line| {
        roots.iter().any(|root| {
            line.match_indices(root.as_str()).any(|(at, _)| {
                // Only the start of a path counts: `https://host/work/` is allowed.
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}/".contains(c))
            })
        })
    })
}

/// Reports marks of unfinished work in code.
fn unfinished(file: &Source) -> Vec<String> {
    if !file.path.ends_with(".rs") && !file.path.ends_with(".py") {
        return Vec::new();
    }
    let marks = [("TO", "DO"), ("FIX", "ME"), ("XX", "X")].map(|(a, b)| format!("{a}{b}"));
    lines_with(file, "mark of unfinished work", |line| {
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
    fn manifest_without_workspace_lints_is_reported() {
        let good = source("crates/a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n");
        let missing = source("crates/b/Cargo.toml", "[package]\nedition.workspace = true\n");
        let empty = source("crates/c/Cargo.toml", "[lints]\n[dependencies]\nworkspace = true\n");
        let root = source("Cargo.toml", "[workspace]\n");
        let complaints = lint_tables(&[good, missing, empty, root]);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("crates/b") && complaints[1].starts_with("crates/c"));
    }

    #[test]
    fn long_file_needs_exception_and_stale_exception_is_reported() {
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
    fn machine_path_is_reported_and_url_is_not() {
        let root = format!("{}{}", "/ro", "ot/x");
        let bad = source("a.md", &format!("see `{root}`\ncd {root}\nHOME={root}\n"));
        assert_eq!(machine_paths(&bad).len(), 3);
        let work = format!("https://host.example{}", "/wo".to_owned() + "rk/x");
        assert!(machine_paths(&source("a.md", &work)).is_empty());
        assert_eq!(machine_paths(&bad)[1], format!("a.md:2: path of one machine: cd {root}"));
    }

    #[test]
    fn mark_of_unfinished_work_is_reported_as_a_word_in_code() {
        let mark = ["TO", "DO"].concat();
        assert_eq!(unfinished(&source("a.rs", &format!("// {mark}: x\n"))).len(), 1);
        assert!(unfinished(&source("a.rs", &format!("// {mark}S_LEFT\n"))).is_empty());
        assert!(unfinished(&source("a.md", &format!("{mark}\n"))).is_empty());
    }
}
