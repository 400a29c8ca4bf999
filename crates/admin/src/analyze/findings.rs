//! The findings of an analysis, of which a limited number is kept.

use std::collections::BTreeMap;

use chancery_admin_proto::v1 as pb;
use chancery_model::{ResourceKey, ScopeName};

use crate::{AdminError, page::Page, resources::variant_text};

/// The default number of findings in an answer.
const FINDINGS_DEFAULT: usize = 1000;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    Warning,
    /// Something that this replica does not know decides.
    Info,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A rule: its ID, its severity, and the way to correct its findings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    pub(super) fix: &'static str,
}

impl Rule {
    /// Returns a finding about an assignment.
    pub(super) fn of_assignment(self, name: &str, message: String) -> pb::AnalysisFinding {
        pb::AnalysisFinding { name: name.to_owned(), ..self.with(message) }
    }

    /// Returns a finding about a node.
    pub(super) fn of_node(self, id: &str, message: String) -> pb::AnalysisFinding {
        pb::AnalysisFinding { name: id.to_owned(), ..self.with(message) }
    }

    /// Returns a finding about a scope.
    pub(super) fn of_scope(self, scope: &ScopeName, message: String) -> pb::AnalysisFinding {
        pb::AnalysisFinding { scope: scope.to_string(), ..self.with(message) }
    }

    /// Returns a finding about a resource.
    pub(super) fn of_resource(
        self,
        scope: &ScopeName,
        key: &ResourceKey,
        message: String,
    ) -> pb::AnalysisFinding {
        pb::AnalysisFinding {
            type_url: key.type_url.to_string(),
            name: key.name.base().to_owned(),
            variant: variant_text(&key.name),
            ..self.of_scope(scope, message)
        }
    }

    /// Returns a finding about no object, or about several.
    pub(super) fn with(self, message: String) -> pb::AnalysisFinding {
        pb::AnalysisFinding {
            rule_id: self.id.to_owned(),
            severity: self.severity.word().to_owned(),
            message,
            fix: self.fix.to_owned(),
            ..pb::AnalysisFinding::default()
        }
    }
}

/// The key of a finding in the order of the answer: whether it is no warning, and its place.
type Key = (bool, [String; 6]);

/// The findings of an analysis. Those of one page are kept and all are counted.
#[derive(Debug)]
pub(super) struct Findings {
    page: Page<Key>,
    kept: BTreeMap<Key, pb::AnalysisFinding>,
    /// The number of findings from the first one of the page.
    n: usize,
    n_warnings: usize,
}

impl Findings {
    /// Creates an empty page.
    pub(super) fn new(request: &pb::AnalyzeRequest) -> Result<Self, AdminError> {
        let page = Page::parse("analyze", request.limit, &request.cursor, FINDINGS_DEFAULT)?;
        Ok(Self { page, kept: BTreeMap::new(), n: 0, n_warnings: 0 })
    }

    /// Adds a finding. A rule has at most one about each field.
    pub(super) fn add(&mut self, finding: pb::AnalysisFinding) {
        let is_warning = finding.severity == Severity::Warning.word();
        self.n_warnings += usize::from(is_warning);
        let key = (!is_warning, place(&finding));
        if self.page.after().is_some_and(|after| key <= *after) {
            return;
        }
        self.n += 1;
        self.kept.insert(key, finding);
        if self.kept.len() > self.page.limit() {
            self.kept.pop_last();
        }
    }

    /// Returns the answer with the findings: the warnings first.
    pub(super) fn into_response(self) -> pb::AnalyzeResponse {
        let n_omitted = self.n - self.kept.len();
        let last = self.kept.last_key_value().filter(|_| n_omitted > 0);
        pb::AnalyzeResponse {
            findings_omitted: n_omitted as u64,
            next: last.map(|(key, _)| self.page.cursor(key)).unwrap_or_default(),
            warnings: self.n_warnings as u64,
            findings: self.kept.into_values().collect(),
            ..pb::AnalyzeResponse::default()
        }
    }
}

fn place(finding: &pb::AnalysisFinding) -> [String; 6] {
    let pb::AnalysisFinding { scope, type_url, name, variant, field_path, rule_id, .. } = finding;
    [scope, type_url, name, variant, rule_id, field_path].map(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_limited_and_counts_all_findings() {
        let rule = |severity| Rule { id: "a.b", severity, fix: "" };
        let answer = |limit, cursor: &str| {
            let cursor = cursor.to_owned();
            let request = pb::AnalyzeRequest { limit, cursor, ..Default::default() };
            let mut findings = Findings::new(&request).unwrap();
            for n in (0..1200).rev() {
                let scope = ScopeName::new(&format!("s{n:04}")).unwrap();
                findings.add(rule(Severity::Info).of_scope(&scope, String::new()));
            }
            for n in [2, 1] {
                let scope = ScopeName::new(&format!("z{n}")).unwrap();
                findings.add(rule(Severity::Warning).of_scope(&scope, String::new()));
            }
            findings.into_response()
        };
        let first = answer(0, "");
        assert_eq!((first.findings.len(), first.findings_omitted, first.warnings), (1000, 202, 2));
        let scopes: Vec<&str> = first.findings[..3].iter().map(|one| one.scope.as_str()).collect();
        assert_eq!(scopes, ["z1", "z2", "s0000"]);
        let second = answer(200, &first.next);
        let of_end = (second.findings.len(), second.findings_omitted, second.warnings);
        assert_eq!(of_end, (200, 2, 2));
        let third = answer(200, &second.next);
        assert_eq!((third.findings.len(), third.next.as_str()), (2, ""));
        let walked: Vec<_> =
            [first, second, third].into_iter().flat_map(|one| one.findings).collect();
        assert_eq!(walked, answer(10_000, "").findings);
    }
}
