//! The problems of an input, with their places, as text for authors.

use std::{borrow::Cow, fmt};

use chancery_model::{ScopeName, has_private_key};

use crate::{
    clients::{Clients, NONE},
    credentials::KEY_MARK,
};

/// One problem of an input. `Display` formats it as one line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problem {
    /// The file name that the author gave; empty without a file.
    pub file: String,
    /// The number of the document in the file, from 1; `None` if the problem does not concern a single
    /// document.
    pub document: Option<u32>,
    /// The line and column in the file, from 1; `None` if they are unknown.
    pub position: Option<(u32, u32)>,
    /// The resource or assignment: `resources[3] Cluster "web"`.
    pub resource: Option<String>,
    /// The path of the field inside it: `filter_chains[0].filters[0].typed_config.stat_prefix`.
    pub field_path: Option<String>,
    /// The violated rule.
    pub rule: String,
    /// The ID of a validation rule: `string.min_len`; empty for a rule of the manifest's structure.
    pub id: String,
    /// The way to correct the problem; empty if there are several ways.
    pub fix: String,
    /// Whether the problem refuses the resource in the mode `enforce`.
    pub severity: Severity,
    /// The scope for whose clients validation found the problem; `None` for other problems.
    pub scope: Option<ScopeName>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            f.write_str(&self.file)?;
            if let Some((line, column)) = self.position {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
        }
        if let Some(document) = self.document {
            write!(f, "document {document}: ")?;
        }
        for part in [&self.resource, &self.field_path].into_iter().flatten() {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.rule)?;
        if !self.fix.is_empty() {
            write!(f, "; {}", self.fix)?;
        }
        if !self.id.is_empty() {
            write!(f, " [{}]", self.id)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// The maximum length in characters of a path that is shown whole.
const PATH_LETTERS_MAX: usize = 120;
/// The length in characters of each of the two ends that are shown of a longer path.
const PATH_END_LETTERS: usize = 55;

/// Truncates a long path in the middle. The outermost fields show where to look, and the innermost ones
/// which field has the problem.
pub(crate) fn shortened(path: String) -> String {
    let letters = path.chars().count();
    if letters <= PATH_LETTERS_MAX {
        return path;
    }
    let end = |n: usize| path.char_indices().nth(n).map_or(path.len(), |(at, _)| at);
    let (head, tail) = (&path[..end(PATH_END_LETTERS)], &path[end(letters - PATH_END_LETTERS)..]);
    format!("{}…{}", head.trim_end_matches('…'), tail.trim_start_matches('…'))
}

/// A problem inside one resource, without the place of the resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The path of the field; empty for the resource as a whole.
    pub(crate) path: String,
    /// The violated rule.
    pub(crate) rule: String,
    /// The ID of the rule, and what to do. Both are empty for a rule of the manifest's structure.
    pub(crate) id: Cow<'static, str>,
    pub(crate) fix: String,
    pub(crate) severity: Severity,
    /// The clients that the finding concerns; empty for a rule that does not depend on clients.
    pub(crate) clients: Clients,
}

/// Whether a problem refuses the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Severity {
    /// It refuses the resource.
    #[default]
    Error,
    /// Clients accept the resource, but their calls fail. A guard refuses the resource unless the author confirms it.
    Effect,
    /// It is only reported.
    Warning,
}

impl Severity {
    /// Returns the word in answers.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Effect => "effect",
            Self::Warning => "warning",
        }
    }
}

impl Fault {
    pub(crate) fn new(rule: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            rule: rule.into(),
            id: Cow::Borrowed(""),
            fix: String::new(),
            severity: Severity::Error,
            clients: NONE,
        }
    }

    /// Returns a finding that refuses nothing.
    pub(crate) fn warning(id: &'static str, rule: impl Into<String>) -> Self {
        Self { id: Cow::Borrowed(id), severity: Severity::Warning, ..Self::new(rule) }
    }

    /// Returns the path and the rule as one text.
    pub(crate) fn in_words(&self) -> String {
        match self.path.as_str() {
            "" => self.rule.clone(),
            path => format!("{path}: {}", self.rule),
        }
    }

    /// Returns the fault with `field` as a prefix of its path.
    pub(crate) fn within(mut self, field: &str) -> Self {
        let field = if has_private_key(field.as_bytes()) { KEY_MARK } else { field };
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = shortened(format!("{field}{dot}{}", self.path));
        self
    }
}

/// A place in the input.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place<'a> {
    pub(crate) file: &'a str,
    pub(crate) document: Option<u32>,
    pub(crate) resource: Option<String>,
}

impl Place<'_> {
    pub(crate) fn problem(&self, field_path: &str, rule: impl Into<String>) -> Problem {
        Problem {
            file: self.file.to_owned(),
            document: self.document,
            position: None,
            resource: self.resource.clone(),
            field_path: (!field_path.is_empty()).then(|| field_path.to_owned()),
            rule: rule.into(),
            ..Problem::default()
        }
    }

    pub(crate) fn problem_of(&self, fault: Fault) -> Problem {
        let Fault { path, rule, id, fix, severity, clients: _ } = fault;
        Problem { id: id.into_owned(), fix, severity, ..self.problem(&path, rule) }
    }
}

/// Formats a place like [`Problem`] does, for "first defined in …".
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if !self.file.is_empty() {
            f.write_str(self.file)?;
            separator = ": ";
        }
        if let Some(document) = self.document {
            write!(f, "{separator}document {document}")?;
            separator = ": ";
        }
        match &self.resource {
            Some(resource) => write!(f, "{separator}{resource}"),
            None => Ok(()),
        }
    }
}

/// The maximum number of reported problems of one input.
///
/// An author corrects no more at a time. Without the limit, a million invalid resources could cost a gigabyte
/// of text.
const PROBLEMS_MAX: usize = 1000;

/// The problems found so far.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Problem>);

impl Report {
    pub(crate) fn add(&mut self, problem: Problem) {
        if self.0.len() < PROBLEMS_MAX {
            self.0.push(problem);
        }
    }

    pub(crate) fn add_faults(&mut self, place: &Place<'_>, faults: Vec<Fault>) {
        for fault in faults {
            self.add(place.problem_of(fault));
        }
    }

    /// Adds what validation found for the clients of a scope.
    pub(crate) fn add_findings(
        &mut self,
        place: &Place<'_>,
        scope: &ScopeName,
        faults: Vec<Fault>,
    ) {
        for fault in faults {
            self.add(Problem { scope: Some(scope.clone()), ..place.problem_of(fault) });
        }
    }

    pub(crate) fn has_problems(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns whether the report accepts no further problems.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= PROBLEMS_MAX
    }

    /// Returns `value` if there are no problems.
    pub(crate) fn finish<T>(mut self, value: T) -> Result<T, Vec<Problem>> {
        if self.0.is_empty() {
            return Ok(value);
        }
        if self.is_full() {
            let rule =
                format!("these are the first {PROBLEMS_MAX} problems; nothing after them was read");
            self.0.push(Problem { rule, ..Problem::default() });
        }
        Err(self.0)
    }

    /// Returns the problems, which do not refuse the input.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.0
    }
}

/// The maximum length of a word for which a suggestion is searched.
const SUGGESTION_BYTES_MAX: usize = 200;

/// Returns the known word that is closest to `word`, if any is close.
pub(crate) fn suggestion<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the letters may differ. Longer words are not typing errors.
    if word.len() > SUGGESTION_BYTES_MAX {
        return None;
    }
    let most = (word.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(word.len()) <= most)
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestion_is_a_close_name_or_absent() {
        let known = ["stream_idle_timeout", "stat_prefix", "name", "http_filters"];
        for (word, expected) in [
            ("stream_idle_timeuot", Some("stream_idle_timeout")),
            ("nmae", Some("name")),
            ("http_filter", Some("http_filters")),
            ("route_config", None),
            ("", None),
        ] {
            assert_eq!(suggestion(word, known), expected, "{word}");
        }
    }

    #[test]
    fn long_field_path_is_cut_in_the_middle() {
        let mut fault = Fault::new("x").within("port");
        for _ in 0..90 {
            fault = fault.within("struct_value").within("fields[\"a\"]");
        }
        let fault = fault.within("metadata");
        assert!(fault.path.chars().count() <= PATH_LETTERS_MAX, "{}", fault.path);
        assert!(fault.path.starts_with("metadata.fields[\"a\"].struct_value."), "{}", fault.path);
        assert!(fault.path.ends_with("struct_value.port"), "{}", fault.path);
        assert_eq!(fault.path.matches('…').count(), 1, "{}", fault.path);
        assert_eq!(Fault::new("x").within("a").within("b").path, "b.a");
    }

    #[test]
    fn problem_is_shown_on_one_line_with_all_known_details() {
        let problem = Problem {
            file: "web.yaml".into(),
            document: Some(2),
            resource: Some("resources[3] Cluster \"web\"".into()),
            field_path: Some("lb_policy".into()),
            rule: "x".into(),
            ..Problem::default()
        };
        assert_eq!(
            problem.to_string(),
            "web.yaml: document 2: resources[3] Cluster \"web\": lb_policy: x"
        );
        let problem =
            Problem { position: Some((3, 7)), resource: None, field_path: None, ..problem };
        assert_eq!(problem.to_string(), "web.yaml:3:7: document 2: x");
        assert_eq!(Problem { rule: "x".into(), ..Problem::default() }.to_string(), "x");
    }
}
