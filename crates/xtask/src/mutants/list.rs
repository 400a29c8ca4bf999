//! The list of planted bugs, as it is written.

use anyhow::{Context as _, Result, bail, ensure};

/// A bug that can be planted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// Its number, for good.
    pub(crate) number: u32,
    /// The pitfall and the requirement.
    pub(crate) why: String,
    /// What is wrong then.
    pub(crate) breaks: String,
    /// The file inside the workspace.
    pub(crate) file: String,
    search: String,
    replacement: String,
}

impl Mutant {
    /// The text of the file with the bug in it.
    pub(crate) fn planted(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.search).count();
        ensure!(
            found == 1,
            "mutant {}: its text is found {found} times in {}, not once:\n{}",
            self.number,
            self.file,
            self.search
        );
        Ok(text.replacen(&self.search, &self.replacement, 1))
    }
}

/// Reads the list. Lines before the first `==` are for people.
pub(crate) fn parse(text: &str) -> Result<Vec<Mutant>> {
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
            Some(("-", rest)) => add(&mut mutant.search, rest),
            Some(("+", rest)) => add(&mut mutant.replacement, rest),
            _ if line.is_empty() => {}
            _ => bail!("line {line_number}: {line:?} begins with none of == @ - +"),
        }
    }
    for (at, mutant) in all.iter().enumerate() {
        let number = mutant.number;
        ensure!(number as usize == at + 1, "mutant {number} is in place {}", at + 1);
        ensure!(!mutant.file.is_empty(), "mutant {number} names no file");
        ensure!(!mutant.search.is_empty(), "mutant {number} has nothing to look for");
        ensure!(mutant.search != mutant.replacement, "mutant {number} changes nothing");
    }
    Ok(all)
}

fn head_of(head: &str) -> Result<Mutant> {
    let mut parts = head.splitn(3, " | ");
    let number = parts.next().unwrap_or_default().trim();
    let number = number.parse().with_context(|| format!("{number:?} is no number"))?;
    let (Some(why), Some(breaks)) = (parts.next(), parts.next()) else {
        bail!("a planted bug has a number, a pitfall and what is wrong, with | between them");
    };
    Ok(Mutant {
        number,
        why: why.to_owned(),
        breaks: breaks.to_owned(),
        file: String::new(),
        search: String::new(),
        replacement: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "for people\n\n== 1 | P-01 | breaks a\n@ a.rs\n-    x\n-    y\n+    z\n";

    #[test]
    fn a_bug_is_planted_where_its_text_is_found_once() {
        let list = parse(LIST).unwrap();
        assert_eq!(list[0].planted("a\n    x\n    y\nb").unwrap(), "a\n    z\nb");
        let twice = list[0].planted("    x\n    y\n    x\n    y").unwrap_err().to_string();
        assert!(twice.contains("found 2 times"), "{twice}");
        assert!(list[0].planted("x\ny").is_err());
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        assert!(parse("== 2 | P | b\n@ a\n-x\n").is_err(), "numbers begin at 1");
        assert!(parse("== 1 | P\n").is_err(), "nothing is wrong");
        assert!(parse("== 1 | P | b\n@ a\n-x\n+x\n").is_err(), "it changes nothing");
        assert!(parse("== 1 | P | b\n@ a\n?x\n").is_err());
    }
}
