//! The findings of an analysis, of which a limited number is kept.

use chancery_admin_proto::v1 as pb;
use chancery_model::{ResourceKey, ScopeName};

use crate::resources::variant_text;

/// The maximum number of findings in an answer.
const FINDINGS_MAX: usize = 1000;

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

    /// Returns a finding about no object.
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

/// The findings of an analysis. Of each severity, the first ones are kept and all are counted.
#[derive(Debug, Default)]
pub(super) struct Findings {
    warnings: Kept,
    infos: Kept,
}

#[derive(Debug, Default)]
struct Kept {
    first: Vec<pb::AnalysisFinding>,
    n: usize,
}

impl Findings {
    pub(super) fn add(&mut self, finding: pb::AnalysisFinding) {
        let is_warning = finding.severity == Severity::Warning.word();
        let kept = if is_warning { &mut self.warnings } else { &mut self.infos };
        kept.n += 1;
        if kept.first.len() < FINDINGS_MAX {
            kept.first.push(finding);
        }
    }

    /// Returns the answer with the findings: the warnings first.
    pub(super) fn into_response(self) -> pb::AnalyzeResponse {
        let (warnings, n) = (self.warnings.n, self.warnings.n + self.infos.n);
        let sorted = |mut kept: Kept| {
            kept.first.sort_by(|a, b| place(a).cmp(&place(b)));
            kept.first
        };
        let mut findings = sorted(self.warnings);
        findings.extend(sorted(self.infos));
        findings.truncate(FINDINGS_MAX);
        pb::AnalyzeResponse {
            findings_omitted: (n - findings.len()) as u64,
            findings,
            warnings: warnings as u64,
            ..pb::AnalyzeResponse::default()
        }
    }
}

/// Returns the key of a finding in the order of the answer.
fn place(finding: &pb::AnalysisFinding) -> [&str; 6] {
    let pb::AnalysisFinding { scope, type_url, name, variant, field_path, rule_id, .. } = finding;
    [scope, type_url, name, variant, rule_id, field_path]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_limited_and_counts_all_findings() {
        let rule = |severity| Rule { id: "a.b", severity, fix: "" };
        let mut findings = Findings::default();
        for n in (0..1200).rev() {
            let scope = ScopeName::new(&format!("s{n:04}")).unwrap();
            findings.add(rule(Severity::Info).of_scope(&scope, String::new()));
        }
        for n in [2, 1] {
            let scope = ScopeName::new(&format!("z{n}")).unwrap();
            findings.add(rule(Severity::Warning).of_scope(&scope, String::new()));
        }
        let answer = findings.into_response();
        assert_eq!(
            (answer.findings.len(), answer.findings_omitted, answer.warnings),
            (1000, 202, 2)
        );
        let first: Vec<&str> = answer.findings[..3].iter().map(|one| one.scope.as_str()).collect();
        assert_eq!(first, ["z1", "z2", "s0200"]);
    }
}
