//! The golden files of the chart: the objects and the notes for each file of values.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use super::render::{Case, Chart};

/// The treatment of golden files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Golden {
    /// Fail if a file differs.
    Compare,
    /// Write the files.
    Write,
}

impl Golden {
    pub(super) fn check(self, chart: &Chart, case: &Case) -> Result<()> {
        let dir = chart.dir.join("ci/golden");
        self.file(&dir.join(format!("{}.yaml", case.name)), &case.manifest)?;
        self.file(&dir.join(format!("{}.txt", case.name)), &case.notes)
    }

    /// Compares or writes one file.
    pub(super) fn file(self, path: &Path, text: &str) -> Result<()> {
        if self == Self::Write {
            return fs::write(path, text).with_context(|| format!("write {}", path.display()));
        }
        let golden = fs::read_to_string(path).with_context(|| {
            format!("read {}; `cargo xtask chart --update` writes it", path.display())
        })?;
        match difference(&golden, text) {
            None => Ok(()),
            Some(difference) => bail!(
                "{} differs from the chart: {difference}; if this is right, run `cargo xtask chart --update`",
                path.display()
            ),
        }
    }
}

/// Describes the first difference of two texts.
fn difference(golden: &str, text: &str) -> Option<String> {
    let (mut golden, mut text) = (golden.lines(), text.lines());
    for line in 1.. {
        let (expected, found) = (golden.next(), text.next());
        if expected.is_none() && found.is_none() {
            return None;
        }
        if expected != found {
            let shown =
                |line: Option<&str>| line.map_or("nothing".to_owned(), |line| format!("{line:?}"));
            return Some(format!("line {line} is {} instead of {}", shown(found), shown(expected)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_differing_line_is_named() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb", "a\nc").unwrap(), "line 2 is \"c\" instead of \"b\"");
        assert_eq!(difference("a", "a\nb").unwrap(), "line 2 is \"b\" instead of nothing");
        assert_eq!(difference("a\nb", "a").unwrap(), "line 2 is nothing instead of \"b\"");
    }
}
