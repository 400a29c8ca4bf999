//! Tests do not sleep for a guessed time (`docs/CONTRIBUTING.md`, "Tests").
//!
//! A sleep in a loop is the pause between two looks at a condition. Any other sleep in a test needs a comment before it
//! that says what must not happen meanwhile, or what the pause imitates.

use crate::source::Source;

/// The loops, and the functions that call a closure until a condition holds.
const WAITS: &[&str] = &["for", "loop", "until", "wait_for", "wait_until", "while"];

/// Reports sleeps without a loop and without a comment.
pub(super) fn complaints(files: &[Source]) -> Vec<String> {
    let tests = files.iter().filter(|file| is_test(&file.path));
    tests.flat_map(guessed).collect()
}

fn is_test(path: &str) -> bool {
    path.ends_with(".rs") && (path.contains("/tests/") || path.ends_with("/tests.rs"))
}

fn guessed(file: &Source) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let is_sleep = code.contains("sleep(") && !code.starts_with("//") && !code.contains("fn ");
        if !is_sleep {
            continue;
        }
        let is_explained = at > 0 && lines[at - 1].trim_start().starts_with("//");
        if !is_explained && !is_in_loop(&lines[..=at]) {
            found.push(format!(
                "{}:{}: wait for a condition instead of a time, or say in a comment why",
                file.path,
                at + 1
            ));
        }
    }
    found
}

/// Returns whether a block around the last line is a loop.
fn is_in_loop(lines: &[&str]) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut inner = lines.last().map_or(0, |line| indent(line));
    for line in lines.iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < inner {
            inner = indent(line);
            let words = || line.split([' ', '(', '{']);
            if words().any(|word| WAITS.contains(&word)) {
                return true;
            }
            if words().any(|word| word == "fn") {
                return false;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessed_sleep_is_reported() {
        let found = |body: &str| {
            let text = format!("fn a() {{\n{body}\n}}\n");
            complaints(&[Source { path: "a/tests/it/b.rs".to_owned(), text }]).len()
        };
        assert_eq!(found("    thread::sleep(TIME);"), 1);
        assert_eq!(
            found("    // The proxy must not connect meanwhile.\n    thread::sleep(TIME);"),
            0
        );
        assert_eq!(found("    while !is_done() {\n        thread::sleep(TIME);\n    }"), 0);
        assert_eq!(
            found(
                "    loop {\n        match a() {\n            _ => sleep(TIME),\n        }\n    }"
            ),
            0
        );
        assert_eq!(found("    for x in y {}\n    thread::sleep(TIME);"), 1);
    }
}
