//! A transaction: everything an author can ask, applied as one revision or not at all.

use std::{fmt, sync::Arc};

use crate::{Assignment, Resource, ResourceDraft, ResourceKey, Revision, ScopeName, Version};

/// Publishes a resource in a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upsert {
    /// Where.
    pub scope: ScopeName,
    /// What.
    pub draft: ResourceDraft,
}

/// Changes an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignmentOp {
    /// Creates it or replaces the one of that name.
    Put(Assignment),
    /// Deletes it; one that is not there is no change.
    Delete(Arc<str>),
}

/// What has to hold of a resource before the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// It is not there.
    Absent,
    /// It is there, in any version.
    Present,
    /// It is there, in this version.
    Version(Version),
}

/// What has to hold before the transaction; otherwise it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing that the transaction touches (its scopes, the assignments) has changed after this
    /// revision, and this revision has been reached.
    Revision(Revision),
    /// A resource is as expected.
    Resource {
        /// Its scope.
        scope: ScopeName,
        /// Its key.
        key: ResourceKey,
        /// What is expected.
        expectation: Expectation,
    },
}

/// Who, why, when; kept with the revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransactionMeta {
    /// Follows the type version that clients see (a git SHA, say).
    pub label: Option<Arc<str>>,
    /// Who asked for it.
    pub author: String,
    /// Why.
    pub reason: String,
    /// When the replica that took it did so, in milliseconds since 1970. For people only.
    pub time_ms: u64,
}

/// Many changes that take effect together. Deletes come first, then prunes, then upserts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// All have to hold.
    pub preconditions: Vec<Precondition>,
    /// Resources to delete; one that is not there is no change.
    pub deletes: Vec<(ScopeName, ResourceKey)>,
    /// Scopes that hold exactly what is upserted into them, afterwards.
    pub prune: Vec<ScopeName>,
    /// Resources to publish; identical ones are no change.
    pub upserts: Vec<Upsert>,
    /// Assignments to change.
    pub assignments: Vec<AssignmentOp>,
    /// Who, why, when.
    pub meta: TransactionMeta,
}

/// What happened to one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It has other bytes and a new version.
    Updated,
    /// Only what clients do not see has changed; the version is the same.
    Relabeled,
    /// It is gone.
    Removed,
}

/// One resource that a transaction changed.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its scope.
    pub scope: ScopeName,
    /// Its key.
    pub key: ResourceKey,
    /// What happened.
    pub kind: ChangeKind,
    /// The resource as it is now; `None` if it was removed.
    pub resource: Option<Arc<Resource>>,
}

/// Counts of what a transaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// The revision it has; that of the state before if it changed nothing.
    pub revision: Revision,
    /// Resources that were added, updated or relabeled.
    pub changed: u64,
    /// Resources that were removed.
    pub removed: u64,
    /// Resources that were published as they already were.
    pub unchanged: u64,
    /// Assignments that were changed or deleted.
    pub assignments: u64,
}

/// Why a transaction changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The revision of a [`Precondition::Revision`] has not been reached.
    RevisionAhead {
        /// The revision it names.
        expected: Revision,
        /// The revision of the state.
        current: Revision,
    },
    /// Something that it touches has changed since.
    RevisionBehind {
        /// The revision it names.
        expected: Revision,
        /// What changed: the scope, or `None` for the assignments.
        scope: Option<ScopeName>,
        /// When it changed.
        changed: Revision,
    },
    /// A resource is not as expected.
    Resource {
        /// Its scope.
        scope: ScopeName,
        /// Its key.
        key: ResourceKey,
        /// What was expected.
        expectation: Expectation,
        /// What is there.
        found: Option<Version>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RevisionAhead { expected, current } => {
                write!(
                    f,
                    "revision {expected} was expected, but the store is only at revision {current}"
                )
            }
            Self::RevisionBehind { expected, scope: Some(scope), changed } => write!(
                f,
                "scope {scope:?} has changed at revision {changed}, after the expected revision {expected}"
            ),
            Self::RevisionBehind { expected, scope: None, changed } => write!(
                f,
                "the assignments have changed at revision {changed}, after the expected revision {expected}"
            ),
            Self::Resource { scope, key, expectation, found } => {
                write!(f, "{key} in scope {scope:?} ")?;
                match (expectation, found) {
                    (Expectation::Absent, Some(found)) => {
                        write!(f, "exists already, in version {found}")
                    }
                    (_, None) => write!(f, "does not exist"),
                    (Expectation::Version(expected), Some(found)) => {
                        write!(f, "has version {found}, not the expected {expected}")
                    }
                    (Expectation::Present, Some(found)) => write!(f, "has version {found}"),
                }
            }
        }
    }
}

/// What came of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in effect.
    Committed(Summary),
    /// A precondition did not hold; nothing has changed.
    Refused(Refusal),
}
