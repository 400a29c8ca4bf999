//! Relative links of the documents, to other documents and to the code.

use std::collections::BTreeSet;

use crate::source::Source;

/// Reports relative links of Markdown files whose target does not exist in the tree.
pub(super) fn broken(files: &[Source]) -> Vec<String> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for file in files {
        known.insert(&file.path);
        known.extend(file.path.match_indices('/').map(|(at, _)| &file.path[..at]));
    }
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (number, line) in (1..).zip(file.text.lines()) {
            for target in targets(line) {
                match resolve(&file.path, target) {
                    Some(path) if path.is_empty() || known.contains(path.as_str()) => {}
                    _ => complaints.push(format!("{}:{number}: no such file: {target}", file.path)),
                }
            }
        }
    }
    complaints
}

/// Returns the relative targets of the links in a line: `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        let target = &rest[..rest.find(')')?];
        (!target.contains("://") && !target.starts_with("mailto:")).then_some(target)
    })
}

/// Resolves the target of a link in `file` to a path in the tree.
///
/// Returns `None` if the target is outside the tree, and an empty path for an anchor in `file`.
fn resolve(file: &str, target: &str) -> Option<String> {
    let target = target.split('#').next().unwrap_or_default();
    if target.is_empty() {
        return Some(String::new());
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn link_to_missing_file_is_reported() {
        let tree = |text: &str| {
            broken(&[
                source("docs/a.md", text),
                source("docs/adr/0001-x.md", ""),
                source("b.rs", ""),
            ])
        };
        assert_eq!(tree("[x](adr/0001-x.md) and [y](../b.rs), [z](adr), [h](#here)"), [""; 0]);
        assert_eq!(tree("[out](https://example.com/none) [mail](mailto:a@b.c)"), [""; 0]);
        assert_eq!(tree("\n[gone](c.md#part)"), ["docs/a.md:2: no such file: c.md#part"]);
        assert_eq!(tree("[up](../../x)"), ["docs/a.md:1: no such file: ../../x"]);
    }
}
