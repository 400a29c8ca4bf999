//! The golden files of the chart: all objects and the notes for one file of values, and the differences from them for
//! the other files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use similar::TextDiff;

use super::render::{Case, Chart};

/// The case whose golden files are complete.
const BASE: &str = "minimal";

/// The treatment of golden files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Golden {
    /// Fail if a file differs.
    Compare,
    /// Write the files.
    Write,
}

impl Golden {
    /// Compares or writes the files of all cases.
    pub(super) fn check(self, chart: &Chart, cases: &[Case]) -> Result<()> {
        let dir = chart.dir.join("ci/golden");
        let base = cases.iter().find(|case| case.name == BASE);
        let base = base.with_context(|| format!("there are no values {BASE}"))?;
        self.file(&dir.join(format!("{BASE}.yaml")), &base.manifest)?;
        self.file(&dir.join(format!("{BASE}.txt")), &base.notes)?;
        let mut others = cases.iter().filter(|case| case.name != BASE);
        others.try_for_each(|case| {
            self.file(&dir.join(format!("{}.diff", case.name)), &differences(base, case))
        })
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

/// Returns the differences of two cases by object. Hunks have no line numbers, so that a change of one object changes only
/// its own hunks.
fn differences(base: &Case, case: &Case) -> String {
    let (originals, objects) = (objects(&base.manifest), objects(&case.manifest));
    let names: BTreeSet<_> = originals.keys().chain(objects.keys()).collect();
    let mut text = String::new();
    for name in names {
        let original = originals.get(name).copied();
        match objects.get(name) {
            Some(object) => text += &hunks(name, original.unwrap_or_default(), object),
            None => text += &format!("== {name}: absent\n"),
        }
    }
    text + &hunks("notes", &base.notes, &case.notes)
}

/// Returns the objects of a manifest by kind and position among those of the kind.
fn objects(manifest: &str) -> BTreeMap<String, &str> {
    let mut objects = BTreeMap::new();
    for object in manifest.split("---\n").filter(|object| !object.trim().is_empty()) {
        let kind = object.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap_or_default();
        let number = (1..).find(|number| !objects.contains_key(&format!("{kind} {number}")));
        objects.insert(format!("{kind} {}", number.unwrap_or(0)), object);
    }
    objects
}

/// Returns the hunks of a text, with one line of context, below its name.
fn hunks(name: &str, original: &str, text: &str) -> String {
    let diff = TextDiff::from_lines(original, text);
    let diff = diff.unified_diff().context_radius(1).missing_newline_hint(false).to_string();
    if diff.is_empty() {
        return diff;
    }
    let lines = diff.lines().map(|line| if line.starts_with("@@ ") { "@@" } else { line });
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    format!("== {name}\n{}", lines.strip_prefix("@@\n").unwrap_or(&lines))
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
    fn only_differences_are_in_the_file_of_another_case() {
        let case = |manifest: &str, notes: &str| Case {
            name: String::new(),
            values: std::path::PathBuf::new(),
            manifest: manifest.to_owned(),
            notes: notes.to_owned(),
        };
        let base = case("---\nkind: A\nx: 1\n---\nkind: B\n---\nkind: A\ny: 1\n", "a\n");
        let other = case("---\nkind: A\nx: 1\n---\nkind: C\n---\nkind: A\ny: 2\n", "a\n");
        assert_eq!(
            differences(&base, &other),
            "== A 2\n kind: A\n-y: 1\n+y: 2\n== B 1: absent\n== C 1\n+kind: C\n"
        );
        assert_eq!(differences(&base, &base), "");
    }

    #[test]
    fn first_differing_line_is_named() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb", "a\nc").unwrap(), "line 2 is \"c\" instead of \"b\"");
        assert_eq!(difference("a", "a\nb").unwrap(), "line 2 is \"b\" instead of nothing");
        assert_eq!(difference("a\nb", "a").unwrap(), "line 2 is nothing instead of \"b\"");
    }
}
