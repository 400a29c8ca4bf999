//! A case: one behavior of the protocol.

use std::{future::Future, pin::Pin, sync::Arc};

use crate::{ctx::Ctx, outcome::Outcome, stream::StreamService};

/// The origin of the rule that a case checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// A specification text states the rule.
    Protocol,
    /// No specification states the rule clearly, but deployed clients need it.
    Practice,
    /// A decision of Chancery, where specifications are silent.
    Decision,
}

impl Basis {
    /// All values with their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Protocol, "protocol"), (Self::Practice, "practice"), (Self::Decision, "decision")];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(basis, _)| *basis == self).map_or("", |(_, name)| name)
    }
}

pub(crate) type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The function that checks a behavior.
pub(crate) type Check = Arc<dyn Fn(Ctx) -> Running + Send + Sync>;

/// One behavior.
#[derive(Clone)]
pub struct Case {
    /// The unique name: words separated by slashes.
    pub name: String,
    /// The IDs of the requirements that the case shows.
    pub requirements: &'static [&'static str],
    /// The origin of the rule.
    pub basis: Basis,
    /// The behavior, in one sentence.
    pub shows: &'static str,
    pub(crate) service: StreamService,
    pub(crate) check: Check,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}
