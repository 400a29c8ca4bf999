//! Transactions: all changes that an author requests, applied atomically as one revision.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    AccessLimit, AccessRule, Assignment, FreezeTarget, KeyOp, KeysRefusal, Quota, QuotaExceeded,
    Resource, ResourceDraft, ResourceKey, Revision, ScopeName, Sealed, Token, TokenDigest, Version,
};

/// The publication of a resource in a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upsert {
    /// The scope of the resource.
    pub scope: ScopeName,
    /// The resource.
    pub draft: ResourceDraft,
}

/// Another sealed form of the body that a resource has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reseal {
    /// The scope of the resource.
    pub scope: ScopeName,
    /// The key of the resource.
    pub key: ResourceKey,
    /// The version of the resource. In another version it stays unchanged.
    pub version: Version,
    /// The sealed form.
    pub sealed: Sealed,
}

/// A change of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignmentOp {
    /// Creates the assignment, or replaces the assignment of the same name.
    Put(Assignment),
    /// Deletes the assignment of this name, if it exists.
    Delete(Arc<str>),
}

/// A change of an access rule, of a token, of a quota or of a freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessOp {
    /// Creates the rule, or replaces the rule of the same name.
    PutRule(Box<AccessRule>),
    /// Deletes the rule of this name, if it exists.
    DeleteRule(Arc<str>),
    /// Adds a token. Its revision becomes that of the transaction.
    AddToken(Token),
    /// Deletes the token with this digest, if it exists.
    DeleteToken(TokenDigest),
    /// Creates the quota, or replaces the quota of the same name.
    PutQuota(Box<Quota>),
    /// Deletes the quota of this name, if it exists.
    DeleteQuota(Arc<str>),
    /// Freezes the target, or gives its freeze another end, author and reason.
    Freeze {
        /// The target.
        target: FreezeTarget,
        /// The time at which the leader ends the freeze, in milliseconds since 1970; `None` if it has no end.
        until_ms: Option<u64>,
    },
    /// Ends the freeze of the target, if there is one.
    Thaw {
        /// The target.
        target: FreezeTarget,
        /// Ends only a freeze with this end.
        until_ms: Option<u64>,
    },
    /// Clients receive the resources of this transaction although their scopes are frozen.
    OverrideFreezes,
}

/// The condition that a precondition places on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// The resource does not exist.
    Absent,
    /// The resource exists, in any version.
    Present,
    /// The resource exists in this version.
    Version(Version),
}

/// A condition that must hold before the transaction. Otherwise the transaction changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// The state has reached this revision, and no later revision changed a scope of the
    /// transaction. If the transaction changes assignments, the same holds for the assignments.
    Revision(Revision),
    /// A resource meets an expectation.
    Resource {
        /// The scope of the resource.
        scope: ScopeName,
        /// The key of the resource.
        key: ResourceKey,
        /// The version that the resource must have, or its absence.
        expectation: Expectation,
    },
    /// No access rule and no token has changed after this revision. A replica has checked the rights of
    /// the author at this revision.
    Access(Revision),
}

/// The author, reason and time of a transaction, which the history keeps with the revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransactionMeta {
    /// A label that becomes part of the type version that clients see, such as a git SHA.
    pub label: Option<Arc<str>>,
    /// The author, as the caller or its identity names it.
    pub author: String,
    /// The reason for the change.
    pub reason: String,
    /// The time at which a replica received the transaction, in milliseconds since 1970. Nothing
    /// depends on it.
    pub time_ms: u64,
    /// The mode of validation that the author chose for this transaction; empty if none.
    pub validation: String,
    /// The names of the guards that the transaction trips and that the author confirmed.
    pub confirmed: Vec<String>,
    /// The address from which the author sent the transaction; empty if it came over no network.
    pub source: String,
    /// The labels that the author gave to the revision, by key.
    pub labels: BTreeMap<String, String>,
}

/// A set of changes that take effect together. Deletes apply first, then prunes, then upserts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// The preconditions. All of them must hold.
    pub preconditions: Vec<Precondition>,
    /// The resources to delete. Deleting a resource that does not exist is not a change.
    pub deletes: Vec<(ScopeName, ResourceKey)>,
    /// The scopes to prune: the transaction deletes all their resources that it does not upsert.
    pub prune: Vec<ScopeName>,
    /// The resources to publish. Publishing an identical resource is not a change.
    pub upserts: Vec<Upsert>,
    /// The changes of assignments.
    pub assignments: Vec<AssignmentOp>,
    /// The changes of access rules, tokens, quotas and freezes.
    pub access: Vec<AccessOp>,
    /// The changes of the keys of sealed resources.
    pub keys: Vec<KeyOp>,
    /// The resources that get another sealed form. They keep their versions, and a transaction with nothing else
    /// creates no revision.
    pub reseals: Vec<Reseal>,
    /// The author, reason and time.
    pub meta: TransactionMeta,
}

impl Transaction {
    /// Iterates over the scopes of the resources that the transaction names, and of those that it prunes. A scope may occur
    /// several times.
    pub fn scopes(&self) -> impl Iterator<Item = &ScopeName> {
        (self.upserts.iter().map(|upsert| &upsert.scope))
            .chain(self.deletes.iter().map(|(scope, _)| scope))
            .chain(&self.prune)
    }
}

/// The effect of a transaction on one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The resource is new.
    Added,
    /// The resource has different bytes and a new version.
    Updated,
    /// Only parts that clients do not see changed; the version is the same.
    Relabeled,
    /// The resource was removed.
    Removed,
    /// Only the sealed form changed; body, version and revision are the same.
    Resealed,
}

/// One resource that a transaction changed.
#[derive(Debug, Clone)]
pub struct Change {
    /// The scope of the resource.
    pub scope: ScopeName,
    /// The key of the resource.
    pub key: ResourceKey,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The resource after the transaction; `None` if it was removed.
    pub resource: Option<Arc<Resource>>,
}

/// The counts of a transaction's effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// The revision of the transaction, or the revision of the old state if nothing changed.
    pub revision: Revision,
    /// The number of resources that were added, updated or relabeled.
    pub changed: u64,
    /// The number of resources that were removed.
    pub removed: u64,
    /// The number of upserts that were identical to the existing resource.
    pub unchanged: u64,
    /// The number of assignments that were changed or deleted.
    pub assignments: u64,
    /// The number of access rules, tokens, quotas and freezes that were changed or deleted.
    pub access: u64,
}

/// The precondition that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The revision of a [`Precondition::Revision`] has not been reached.
    RevisionAhead {
        /// The revision of the precondition.
        expected: Revision,
        /// The revision of the state.
        current: Revision,
    },
    /// A later revision changed a scope of the transaction or the assignments.
    RevisionBehind {
        /// The revision of the precondition.
        expected: Revision,
        /// The scope that changed, or `None` for the assignments.
        scope: Option<ScopeName>,
        /// The revision of the change.
        changed: Revision,
    },
    /// A resource does not meet the expectation.
    Resource {
        /// The scope of the resource.
        scope: ScopeName,
        /// The key of the resource.
        key: ResourceKey,
        /// The version that the resource should have had, or its absence.
        expectation: Expectation,
        /// The version of the resource, if the resource exists.
        found: Option<Version>,
    },
    /// The variants of a name cannot exist together (DYN-06).
    Variants {
        /// The scope of the variants.
        scope: ScopeName,
        /// The type and the published name.
        key: ResourceKey,
        /// The rule that two of the variants violate.
        reason: String,
    },
    /// An access rule or a token has changed since the rights of the author were checked.
    AccessChanged {
        /// The revision of the check.
        checked: Revision,
        /// The revision of the change.
        changed: Revision,
    },
    /// The cluster would have too many access rules, tokens or quotas.
    AccessTooMany(AccessLimit),
    /// The transaction would exceed a quota.
    Quota(QuotaExceeded),
    /// The keys of sealed resources do not permit the transaction.
    Keys(KeysRefusal),
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
            Self::AccessChanged { checked, changed } => write!(
                f,
                "the access rules have changed at revision {changed}, after the rights were checked at \
                 revision {checked}; try again"
            ),
            Self::AccessTooMany(limit) => {
                write!(f, "there would be more than {} {}, the maximum", limit.max(), limit.what())
            }
            Self::Quota(exceeded) => write!(f, "{exceeded}"),
            Self::Keys(refusal) => refusal.fmt(f),
            Self::Variants { scope, key, reason } => {
                write!(f, "{key} in scope {scope:?}: {reason}")
            }
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

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction is in effect.
    Committed(Summary),
    /// A precondition did not hold, and nothing changed.
    Refused(Refusal),
}
