//! The parser for lists of planted bugs.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};

/// A bug that can be planted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// The number, which never changes.
    pub(crate) number: u32,
    /// The pitfall and the requirement.
    pub(crate) why: String,
    /// The wrong behavior.
    pub(crate) breaks: String,
    /// The file inside the workspace.
    pub(crate) file: String,
    /// The suite of the tests that catch the bug.
    pub(crate) suite: String,
    /// These tests, with their modules.
    pub(crate) tests: BTreeSet<String>,
    search: String,
    replacement: String,
}

impl Mutant {
    /// Returns the text of the file with the bug.
    pub(crate) fn planted(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.search).count();
        ensure!(
            found == 1,
            "mutant {}: the text to replace occurs {found} times in {}, instead of once:\n{}",
            self.number,
            self.file,
            self.search
        );
        Ok(text.replacen(&self.search, &self.replacement, 1))
    }
}

/// Parses a list whose numbers ascend from `first`, possibly with gaps. Lines before the first `==` are
/// an introduction.
pub(crate) fn parse(text: &str, first: u32) -> Result<Vec<Mutant>> {
    let mut all: Vec<Mutant> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line_number = at + 1;
        if let Some(head) = line.strip_prefix("== ") {
            all.push(head_of(head).with_context(|| format!("line {line_number}"))?);
            continue;
        }
        let Some(mutant) = all.last_mut() else { continue };
        let add = |to: &mut String, line: &str| {
            if !to.is_empty() {
                to.push('\n');
            }
            to.push_str(line);
        };
        match line.split_at_checked(1) {
            Some(("@", file)) => file.trim().clone_into(&mut mutant.file),
            Some(("?", tests)) => {
                let (suite, tests) = tests
                    .split_once(':')
                    .with_context(|| format!("line {line_number} names no suite"))?;
                suite.trim().clone_into(&mut mutant.suite);
                mutant.tests = tests.split_whitespace().map(str::to_owned).collect();
            }
            Some(("-", rest)) => add(&mut mutant.search, rest),
            Some(("+", rest)) => add(&mut mutant.replacement, rest),
            _ if line.is_empty() => {}
            _ => {
                bail!("line {line_number}: {line:?} does not start with `==`, `@`, `?`, `-` or `+`")
            }
        }
    }
    let mut least = first;
    for mutant in &all {
        let number = mutant.number;
        ensure!(number >= least, "mutant {number} follows mutant {}", least - 1);
        least = number + 1;
        ensure!(!mutant.file.is_empty(), "mutant {number} names no file");
        ensure!(!mutant.tests.is_empty(), "mutant {number} names no tests");
        ensure!(!mutant.search.is_empty(), "mutant {number} has no text to replace");
        ensure!(mutant.search != mutant.replacement, "mutant {number} changes nothing");
    }
    Ok(all)
}

fn head_of(head: &str) -> Result<Mutant> {
    let mut parts = head.splitn(3, " | ");
    let number = parts.next().unwrap_or_default().trim();
    let number = number.parse().with_context(|| format!("{number:?} is not a number"))?;
    let (Some(why), Some(breaks)) = (parts.next(), parts.next()) else {
        bail!("{head:?} is not `number | pitfall, requirement | wrong behavior`");
    };
    Ok(Mutant {
        number,
        why: why.to_owned(),
        breaks: breaks.to_owned(),
        file: String::new(),
        suite: String::new(),
        tests: BTreeSet::new(),
        search: String::new(),
        replacement: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "An introduction.\n\n== 1 | P-01 | breaks a\n@ a.rs\n? lib: a::b c\n-    x\n-    y\n+    z\n";

    #[test]
    fn bug_is_planted_where_its_text_occurs_once() {
        let list = parse(LIST, 1).unwrap();
        assert_eq!(list[0].planted("a\n    x\n    y\nb").unwrap(), "a\n    z\nb");
        let twice = list[0].planted("    x\n    y\n    x\n    y").unwrap_err().to_string();
        assert!(twice.contains("occurs 2 times"), "{twice}");
        assert!(list[0].planted("x\ny").is_err());
        assert_eq!(list[0].suite, "lib");
        assert!(list[0].tests.iter().eq(["a::b", "c"]));
    }

    #[test]
    fn malformed_list_is_rejected() {
        assert!(
            parse("== 2 | P-1 | b\n@ a\n? t: t\n-x\n", 3).is_err(),
            "the number belongs to another list"
        );
        let twice = "== 2 | P-1 | b\n@ a\n? t: t\n-x\n";
        assert!(parse(&twice.repeat(2), 2).is_err(), "the number is not unique");
        assert!(parse(twice, 2).is_ok());
        assert!(parse(twice, 1).is_ok(), "a number may be unused");
        assert!(parse("== 1 | P\n", 1).is_err(), "the wrong behavior is missing");
        assert!(parse("== 1 | P-1 | b\n@ a\n? t: t\n-x\n+x\n", 1).is_err(), "it changes nothing");
        assert!(parse("== 1 | P-1 | b\n@ a\n!x\n", 1).is_err());
        assert!(parse("== 1 | P-1 | b\n@ a\n? lib:\n-x\n", 1).is_err(), "no tests");
    }
}
