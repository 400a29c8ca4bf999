//! The part of the state that a freeze holds.

use std::fmt;

use crate::ScopeName;

/// The part of the state that a freeze holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FreezeTarget {
    /// All scopes, those that do not exist yet, and the assignments.
    All,
    /// One scope.
    Scope(ScopeName),
}

impl FreezeTarget {
    /// Returns the scope; `None` for all.
    #[must_use]
    pub fn scope(&self) -> Option<&ScopeName> {
        match self {
            Self::All => None,
            Self::Scope(scope) => Some(scope),
        }
    }
}

impl fmt::Display for FreezeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all scopes"),
            Self::Scope(scope) => write!(f, "scope {scope:?}"),
        }
    }
}
