//! The requirements in scope, and the reasons for those without a test.
//!
//! Two lists beside this file: `requirements.txt` (ID and level, no text) and `reasons.txt`. Both are
//! part of the program, so that a list it can not read is found by its own tests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use super::{
    cited::Test,
    ids::{Id, exact},
};

/// How much a requirement binds.
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

/// Why a requirement has no test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It is not built yet; the reason says what happens today.
    Later,
    /// It is about the inside of a client, and nothing the server does depends on it.
    Client,
    /// It is not followed.
    Declined,
}

impl Why {
    const NAMES: &[(&str, Self)] =
        &[("later", Self::Later), ("client", Self::Client), ("declined", Self::Declined)];

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, why)| *why)
    }

    /// How the page begins the reason.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Later => "Not built yet.",
            Self::Client => "Inside the client.",
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

/// What has to be shown, and what is said in place of a test.
#[derive(Debug)]
pub(super) struct Required {
    pub(super) levels: BTreeMap<Id, Level>,
    pub(super) reasons: BTreeMap<Id, Reason>,
}

impl Required {
    /// The lists that are part of this program.
    pub(super) fn read() -> Result<Self> {
        Ok(Self {
            levels: levels(include_str!("requirements.txt")).context("requirements.txt")?,
            reasons: reasons(include_str!("reasons.txt")).context("reasons.txt")?,
        })
    }

    /// Whether the IDs of this family are all in the list.
    fn covers(&self, family: usize) -> bool {
        self.levels.keys().any(|id| id.family == family)
    }

    /// All that keeps the page from being true.
    pub(super) fn problems(&self, tests: &[Test]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut cited: BTreeSet<Id> = BTreeSet::new();
        for test in tests {
            for id in &test.ids {
                if self.covers(id.family) && !self.levels.contains_key(id) {
                    problems.push(format!("{} cites {id}, which there is not", test.path));
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
                    problems
                        .push(format!("{id} has a test now: take its reason out of reasons.txt"));
                }
                (Some(reason), false) if level.binds() && reason.why == Why::Declined => {
                    problems.push(format!("{id} is a {}: it can not be declined", level.name()));
                }
                _ => {}
            }
        }
        let unknown = self.reasons.keys().filter(|id| !self.levels.contains_key(id));
        problems.extend(unknown.map(|id| format!("reasons.txt has {id}, which there is not")));
        problems
    }
}

/// The lines of a list that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    numbered.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
}

/// Reads `SVC-01 MUST`.
fn levels(text: &str) -> Result<BTreeMap<Id, Level>> {
    let mut levels = BTreeMap::new();
    for (at, line) in lines(text) {
        let (id, level) = line.split_once(' ').unwrap_or((line, ""));
        let (Some(id), Some(level)) = (exact(id), Level::parse(level)) else {
            bail!("line {at}: {line:?} is no ID with a level");
        };
        if levels.insert(id, level).is_some() {
            bail!("line {at}: {id} is there twice");
        }
    }
    Ok(levels)
}

/// Reads `SVC-12 declined: why it is so`; what is indented belongs to the line before.
fn reasons(text: &str) -> Result<BTreeMap<Id, Reason>> {
    let mut reasons: BTreeMap<Id, Reason> = BTreeMap::new();
    let mut last = None;
    for (at, line) in lines(text) {
        if line.starts_with(' ') {
            let Some(reason) = last.and_then(|id| reasons.get_mut(&id)) else {
                bail!("line {at}: {line:?} belongs to no reason");
            };
            reason.text = format!("{} {}", reason.text, line.trim());
            continue;
        }
        let parts = line.split_once(": ").and_then(|(head, text)| {
            let (id, why) = head.split_once(' ')?;
            Some((exact(id)?, Why::parse(why)?, text.trim()))
        });
        let Some((id, why, text)) = parts else {
            bail!("line {at}: {line:?} is not `ID later|client|declined: text`");
        };
        let reason = Reason { why, text: text.to_owned() };
        if reasons.insert(id, reason).is_some() {
            bail!("line {at}: {id} is there twice");
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
    fn the_lists_of_this_program_can_be_read() {
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
    fn each_requirement_needs_a_test_or_a_reason_and_not_both() {
        let required = required(
            "SVC-01 MUST\nSVC-02 SHOULD NOT\nSVC-03 MAY\n\n# more\nSVC-04 MUST NOT\n",
            "SVC-03 declined: nobody\n  asks.\nSVC-04 later: no v2.\n",
        );
        assert_eq!(required.reasons.values().next().unwrap().text, "nobody asks.");
        assert!(required.problems(&[test("t", "SVC-01, -02")]).is_empty());
        assert_eq!(
            required.problems(&[test("t", "SVC-01, -03")]),
            [
                "SVC-02 (SHOULD NOT) has neither a test that cites it nor a reason in reasons.txt",
                "SVC-03 has a test now: take its reason out of reasons.txt",
            ]
        );
    }

    #[test]
    fn a_must_is_never_declined() {
        let required =
            required("SVC-01 MUST\nSVC-02 SHOULD\n", "SVC-01 declined: x\nSVC-02 declined: y");
        assert_eq!(required.problems(&[]), ["SVC-01 is a MUST: it can not be declined"]);
    }

    #[test]
    fn ids_that_do_not_exist_are_found_where_the_family_is_in_scope() {
        let required = required("SVC-01 MUST\n", "SVC-09 client: x");
        assert_eq!(
            required.problems(&[test("t", "SVC-01 to -02, OPS-99")]),
            ["t cites SVC-02, which there is not", "reasons.txt has SVC-09, which there is not"]
        );
    }

    #[test]
    fn a_list_that_is_no_list_is_refused_with_the_line() {
        for list in ["SVC-1 MUST", "SVC-01", "SVC-01 WANT", "SVC-01 MUST\nSVC-01 MAY"] {
            assert!(levels(list).unwrap_err().to_string().starts_with("line "), "{list}");
        }
        for list in ["SVC-01: x", "SVC-01 maybe: x", "  x", "SVC-01 later: x\nSVC-01 later: y"] {
            assert!(reasons(list).unwrap_err().to_string().starts_with("line "), "{list}");
        }
    }
}
