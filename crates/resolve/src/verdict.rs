//! The result of a condition: it holds, it does not hold, or it is not decided.

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The condition holds.
    Yes,
    /// The condition does not hold, for this reason.
    No(String),
    /// The condition depends on a fact that is not known. The field is the place of the condition.
    Unknown { field: String, reason: String },
}

impl Verdict {
    /// Creates a verdict from a known result.
    pub(crate) fn of(holds: bool, reason: impl FnOnce() -> String) -> Self {
        if holds { Self::Yes } else { Self::No(reason()) }
    }

    /// Creates a verdict for a condition in a field that is not decided.
    pub(crate) fn unknown(field: &str, reason: impl Into<String>) -> Self {
        Self::Unknown { field: field.to_owned(), reason: reason.into() }
    }

    /// Inverts the verdict.
    pub(crate) fn inverted(self, reason: impl FnOnce() -> String) -> Self {
        match self {
            Self::Yes => Self::No(reason()),
            Self::No(_) => Self::Yes,
            unknown @ Self::Unknown { .. } => unknown,
        }
    }

    /// Puts a field before the place of a condition that is not decided.
    pub(crate) fn within(self, outer: &str) -> Self {
        match self {
            Self::Unknown { field, reason } => {
                let dot = if field.is_empty() { "" } else { "." };
                Self::Unknown { field: format!("{outer}{dot}{field}"), reason }
            }
            known => known,
        }
    }

    /// Returns the verdict on a list of conditions that must all hold. Conditions after one that does not hold are not
    /// evaluated.
    pub(crate) fn all(verdicts: impl IntoIterator<Item = Self>) -> Self {
        let mut result = Self::Yes;
        for verdict in verdicts {
            match verdict {
                Self::Yes => {}
                no @ Self::No(_) => return no,
                unknown @ Self::Unknown { .. } if result == Self::Yes => result = unknown,
                Self::Unknown { .. } => {}
            }
        }
        result
    }

    /// Returns the verdict on a list of conditions of which one must hold.
    pub(crate) fn any(verdicts: impl IntoIterator<Item = Self>) -> Self {
        let mut result = Self::No("none of the alternatives holds".to_owned());
        for verdict in verdicts {
            match verdict {
                Self::Yes => return Self::Yes,
                Self::No(_) => {}
                unknown @ Self::Unknown { .. } => result = unknown,
            }
        }
        result
    }
}
