//! The requirements in scope, and the reasons for requirements without a test.
//!
//! Two files contain the lists: `requirements.txt` (ID and level) and `reasons.txt`. Both are compiled
//! into the program, so its own tests find a malformed list.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use super::{
    cited,
    ids::{Id, exact},
};

type Test = cited::Test<Id>;

/// The level of a requirement (RFC 2119).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Must,
    MustNot,
    Should,
    ShouldNot,
    May,
}

impl Level {
    const NAMES: &[(&str, Self)] = &[
        ("MUST", Self::Must),
        ("MUST NOT", Self::MustNot),
        ("SHOULD", Self::Should),
        ("SHOULD NOT", Self::ShouldNot),
        ("MAY", Self::May),
    ];

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, level)| *level)
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, level)| *level == self).map_or("", |(name, _)| name)
    }

    fn binds(self) -> bool {
        matches!(self, Self::Must | Self::MustNot)
    }
}

/// The kind of reason why a requirement has no test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The requirement concerns the internals of a client, and the server does not depend on it.
    Client,
    /// By decision, another component does what is required. The reason names it.
    Elsewhere,
    /// The server deliberately does not follow the requirement.
    Declined,
}

impl Why {
    const NAMES: &[(&str, Self)] =
        &[("client", Self::Client), ("elsewhere", Self::Elsewhere), ("declined", Self::Declined)];

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, why)| *why)
    }

    /// Returns the text with which the page starts the reason.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Client => "Client internals.",
            Self::Elsewhere => "Outside of the server.",
            Self::Declined => "Not followed.",
        }
    }
}

/// A written reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) why: Why,
    pub(super) text: String,
}

/// The requirements with their levels, and the reasons for requirements without a test.
#[derive(Debug)]
pub(super) struct Required {
    pub(super) levels: BTreeMap<Id, Level>,
    pub(super) reasons: BTreeMap<Id, Reason>,
}

impl Required {
    /// Parses the lists that are compiled into this program.
    pub(super) fn read() -> Result<Self> {
        Ok(Self {
            levels: levels(include_str!("requirements.txt")).context("requirements.txt")?,
            reasons: reasons(include_str!("reasons.txt")).context("reasons.txt")?,
        })
    }

    /// Returns whether the list of requirements contains this family.
    fn covers(&self, family: usize) -> bool {
        self.levels.keys().any(|id| id.family == family)
    }

    /// Returns all inconsistencies between the lists and the tests.
    pub(super) fn problems(&self, tests: &[Test]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut cited: BTreeSet<Id> = BTreeSet::new();
        for test in tests {
            for id in &test.ids {
                if self.covers(id.family) && !self.levels.contains_key(id) {
                    problems.push(format!("{} cites {id}, which does not exist", test.path));
                }
                cited.insert(*id);
            }
        }
        for (id, level) in &self.levels {
            match (self.reasons.get(id), cited.contains(id)) {
                (None, false) => problems.push(format!(
                    "{id} ({}) has neither a test that cites it nor a reason in reasons.txt",
                    level.name()
                )),
                (Some(_), true) => {
                    problems.push(format!("{id} has a test; remove its reason from reasons.txt"));
                }
                (Some(reason), false) if level.binds() && reason.why == Why::Declined => {
                    problems.push(format!("{id} is a {} and cannot be declined", level.name()));
                }
                _ => {}
            }
        }
        let unknown = self.reasons.keys().filter(|id| !self.levels.contains_key(id));
        problems.extend(unknown.map(|id| format!("reasons.txt has {id}, which does not exist")));
        problems
    }
}

/// Returns the lines of a list without comments and empty lines, with their numbers.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    numbered.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
}

/// Parses lines such as `SVC-01 MUST`.
fn levels(text: &str) -> Result<BTreeMap<Id, Level>> {
    let mut levels = BTreeMap::new();
    for (at, line) in lines(text) {
        let (id, level) = line.split_once(' ').unwrap_or((line, ""));
        let (Some(id), Some(level)) = (exact(id), Level::parse(level)) else {
            bail!("line {at}: {line:?} is not an ID with a level");
        };
        if levels.insert(id, level).is_some() {
            bail!("line {at}: {id} occurs twice");
        }
    }
    Ok(levels)
}

/// Parses lines such as `SVC-12 declined: text`. An indented line continues the previous line.
fn reasons(text: &str) -> Result<BTreeMap<Id, Reason>> {
    let mut reasons: BTreeMap<Id, Reason> = BTreeMap::new();
    let mut last = None;
    for (at, line) in lines(text) {
        if line.starts_with(' ') {
            let Some(reason) = last.and_then(|id| reasons.get_mut(&id)) else {
                bail!("line {at}: {line:?} does not continue a reason");
            };
            reason.text = format!("{} {}", reason.text, line.trim());
            continue;
        }
        let parts = line.split_once(": ").and_then(|(head, text)| {
            let (id, why) = head.split_once(' ')?;
            Some((exact(id)?, Why::parse(why)?, text.trim()))
        });
        let Some((id, why, text)) = parts else {
            bail!("line {at}: {line:?} is not `ID client|elsewhere|declined: text`");
        };
        let reason = Reason { why, text: text.to_owned() };
        if reasons.insert(id, reason).is_some() {
            bail!("line {at}: {id} occurs twice");
        }
        last = Some(id);
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required(list: &str, why: &str) -> Required {
        Required { levels: levels(list).unwrap(), reasons: reasons(why).unwrap() }
    }

    fn test(name: &str, ids: &str) -> Test {
        Test {
            path: name.to_owned(),
            file: "crates/a/src/lib.rs".to_owned(),
            ids: super::super::ids::ids(ids).into_iter().collect(),
            shows: String::new(),
        }
    }

    #[test]
    fn compiled_in_lists_are_valid() {
        let required = Required::read().unwrap();
        for (family, count) in
            [("SVC", 27), ("SOTW", 89), ("DELTA", 69), ("ADS", 27), ("CLI-E", 42), ("CLI-G", 30)]
        {
            let of_family = required
                .levels
                .keys()
                .filter(|id| super::super::ids::FAMILIES[id.family].0 == family);
            assert_eq!(of_family.count(), count, "{family}");
        }
    }

    #[test]
    fn requirement_needs_either_test_or_reason() {
        let required = required(
            "SVC-01 MUST\nSVC-02 SHOULD NOT\nSVC-03 MAY\n\n# more\nSVC-04 MUST NOT\n",
            "SVC-03 declined: nobody\n  asks.\nSVC-04 client: no v2.\n",
        );
        assert_eq!(required.reasons.values().next().unwrap().text, "nobody asks.");
        assert!(required.problems(&[test("t", "SVC-01, -02")]).is_empty());
        assert_eq!(
            required.problems(&[test("t", "SVC-01, -03")]),
            [
                "SVC-02 (SHOULD NOT) has neither a test that cites it nor a reason in reasons.txt",
                "SVC-03 has a test; remove its reason from reasons.txt",
            ]
        );
    }

    #[test]
    fn must_requirement_cannot_be_declined() {
        let required =
            required("SVC-01 MUST\nSVC-02 SHOULD\n", "SVC-01 declined: x\nSVC-02 declined: y");
        assert_eq!(required.problems(&[]), ["SVC-01 is a MUST and cannot be declined"]);
    }

    #[test]
    fn unknown_id_of_known_family_is_reported() {
        let required = required("SVC-01 MUST\n", "SVC-09 client: x");
        assert_eq!(
            required.problems(&[test("t", "SVC-01 to -02, OPS-99")]),
            [
                "t cites SVC-02, which does not exist",
                "reasons.txt has SVC-09, which does not exist"
            ]
        );
    }

    #[test]
    fn malformed_list_is_rejected_with_line_number() {
        for list in ["SVC-1 MUST", "SVC-01", "SVC-01 WANT", "SVC-01 MUST\nSVC-01 MAY"] {
            assert!(levels(list).unwrap_err().to_string().starts_with("line "), "{list}");
        }
        for list in [
            "SVC-01: x",
            "SVC-01 maybe: x",
            "  x",
            "SVC-01 client: x\nSVC-01 client: y",
            "SVC-01 later: x",
        ] {
            assert!(reasons(list).unwrap_err().to_string().starts_with("line "), "{list}");
        }
    }
}
