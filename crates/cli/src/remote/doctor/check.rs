//! The result of one check.

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    Warning,
    Failed,
    /// The check could not be made.
    Unknown,
}

/// A check with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    /// The finding.
    pub(super) detail: String,
    /// The advice; empty if there is nothing to do.
    pub(super) advice: String,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl Check {
    pub(super) fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Ok, detail, "")
    }

    pub(super) fn warning(
        name: &'static str,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(name, Outcome::Warning, detail, advice)
    }

    pub(super) fn failed(
        name: &'static str,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(name, Outcome::Failed, detail, advice)
    }

    pub(super) fn unknown(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Unknown, detail, "")
    }

    /// Combines findings about the replicas: the worst outcome counts, and the detail has all findings.
    /// Without findings, the check is `ok` with the detail `fine`.
    pub(super) fn of_replicas(
        name: &'static str,
        findings: &[(Outcome, String)],
        fine: impl Into<String>,
        advice: &str,
    ) -> Self {
        let severity = |outcome: Outcome| match outcome {
            Outcome::Ok => 0,
            Outcome::Unknown => 1,
            Outcome::Warning => 2,
            Outcome::Failed => 3,
        };
        let outcomes = findings.iter().map(|(outcome, _)| *outcome);
        let Some(worst) = outcomes.max_by_key(|outcome| severity(*outcome)) else {
            return Self::ok(name, fine);
        };
        let details: Vec<&str> = findings.iter().map(|(_, detail)| detail.as_str()).collect();
        let advice = if severity(worst) > 1 { advice } else { "" };
        Self::new(name, worst, details.join("; "), advice)
    }

    fn new(
        name: &'static str,
        outcome: Outcome,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { name, outcome, detail: detail.into(), advice: advice.into() }
    }
}
