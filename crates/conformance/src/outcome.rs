//! The ways in which a case ends.

/// The [`Failed::requirement`] of a case whose adapter could not publish.
pub(crate) const ADAPTER: &str = "adapter";

/// A violation of a requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The ID of the requirement, or `adapter` if the adapter could not publish.
    pub requirement: String,
    /// The expected behavior.
    pub expected: String,
    /// The observed behavior.
    pub observed: String,
}

/// The reason why a case ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    Failed(Failed),
    /// The server does not offer what the case needs.
    Skipped(String),
}

/// The end of a case.
pub(crate) type Outcome = Result<(), Stop>;

/// Creates the end of a case that observed a violation.
pub(crate) fn violation<T>(
    requirement: &str,
    expected: impl Into<String>,
    observed: impl Into<String>,
) -> Result<T, Stop> {
    let (expected, observed) = (expected.into(), observed.into());
    Err(Stop::Failed(Failed { requirement: requirement.into(), expected, observed }))
}

/// Fails with the text of the expectation unless it holds.
pub(crate) fn ensure(
    requirement: &str,
    holds: bool,
    expected: impl Into<String>,
    observed: impl FnOnce() -> String,
) -> Outcome {
    if holds { Ok(()) } else { violation(requirement, expected, observed()) }
}
