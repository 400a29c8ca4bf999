//! A change whose progress is queried, and the answer for one session.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{Node, ResourceName, Revision, ScopeName, State, TypeUrl};

use super::{
    session::Key,
    status::{SessionId, Unacknowledged},
};

/// The names that a change touches, by scope and type.
pub type TouchedNames = BTreeMap<(ScopeName, TypeUrl), BTreeSet<ResourceName>>;

/// The parts of one revision's changes that decide which sessions are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The revision that sessions have to acknowledge.
    pub revision: Revision,
    /// The names and aliases of the changed resources.
    pub(crate) touched: Vec<Touched>,
    /// If set, sessions whose scopes changed at this revision of the assignments or later are concerned
    /// too.
    pub(crate) moved_since: Option<Revision>,
    /// If set, only sessions whose nodes receive this scope are concerned.
    pub(crate) scope: Option<ScopeName>,
    /// Whether the rejection of an earlier change counts while it applies.
    pub(crate) includes_earlier: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) scope: ScopeName,
    pub(crate) type_url: TypeUrl,
    pub(crate) names: Vec<ResourceName>,
}

/// A session that a change concerns.
#[derive(Debug)]
pub(crate) struct Concerned {
    pub(crate) id: SessionId,
    pub(crate) node: Arc<Node>,
    /// The concerned types that the session has not acknowledged.
    pub(crate) unsettled: Vec<Unacknowledged>,
}

/// A position in the iteration over the sessions that a change concerns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueryPosition {
    /// The next session to be checked for changed scopes.
    pub(crate) key: Key,
    pub(crate) touched: usize,
    /// 0 for the wildcards, then one for each name.
    pub(crate) step: usize,
    /// The sessions of the step from this index on are done; `None` before the first.
    pub(crate) below: Option<usize>,
}

impl Change {
    /// Creates the change of resources at `revision`. `assignments` is true if the revision also
    /// changed assignments.
    #[must_use]
    pub fn new(revision: Revision, names: TouchedNames, assignments: bool) -> Self {
        let touched = |((scope, type_url), names): (_, BTreeSet<_>)| Touched {
            scope,
            type_url,
            names: names.into_iter().collect(),
        };
        let touched = names.into_iter().map(touched).collect();
        let (moved_since, scope) = (assignments.then_some(revision), None);
        Self { revision, touched, moved_since, scope, includes_earlier: false }
    }

    /// Creates a change that stands for all changes up to `revision`. It concerns every session with a
    /// view.
    #[must_use]
    pub fn anything(revision: Revision) -> Self {
        let (touched, moved_since, scope) = (Vec::new(), Some(Revision(0)), None);
        Self { revision, touched, moved_since, scope, includes_earlier: false }
    }

    /// Does the same. A session that still rejects an earlier change has not acknowledged it.
    #[must_use]
    pub fn everything(revision: Revision) -> Self {
        Self { includes_earlier: true, ..Self::anything(revision) }
    }

    /// Limits the change to the sessions whose nodes receive a scope.
    #[must_use]
    pub fn of_scope(self, scope: ScopeName) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// Returns the only scope whose nodes the change concerns, if it is limited to one.
    #[must_use]
    pub fn scope(&self) -> Option<&ScopeName> {
        self.scope.as_ref()
    }

    /// Returns whether the change stands for all changes up to its revision.
    #[must_use]
    pub fn is_anything(&self) -> bool {
        self.moved_since == Some(Revision(0))
    }

    /// Returns whether the rejection of an earlier change counts while it applies.
    #[must_use]
    pub fn includes_earlier(&self) -> bool {
        self.includes_earlier
    }

    /// Returns whether the change has changed assignments.
    #[must_use]
    pub fn has_assignments(&self) -> bool {
        self.moved_since.is_some()
    }

    /// Iterates over the touched names by scope and type.
    pub fn touched(&self) -> impl Iterator<Item = (&ScopeName, &TypeUrl, &[ResourceName])> {
        self.touched.iter().map(|one| (&one.scope, &one.type_url, one.names.as_slice()))
    }

    /// Returns the touched names of all scopes and types.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.touched.iter().flat_map(|touched| &touched.names)
    }
}

impl Touched {
    /// Returns whether nodes with these scopes see any of `names` of this scope. A name in an upper
    /// scope shadows it.
    pub(crate) fn is_visible(
        &self,
        state: &State,
        scopes: &[ScopeName],
        names: &[ResourceName],
    ) -> bool {
        // The index may still have the session under scopes that it no longer sees.
        if !scopes.contains(&self.scope) {
            return false;
        }
        let upper = || scopes.iter().take_while(|scope| **scope != self.scope);
        let covers = |scope, name: &ResourceName| {
            let collection = state.collection(scope, &self.type_url);
            collection.is_some_and(|collection| collection.find(name.as_str()).is_some())
        };
        names.iter().any(|name| !upper().any(|scope| covers(scope, name)))
    }
}
