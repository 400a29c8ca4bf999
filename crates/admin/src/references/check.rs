//! The references that a transaction leaves dangling.
//!
//! [`Suspects`] needs O(changes and their references). It looks at the scope of each change only. Most
//! transactions break nothing there, and nothing else is computed. Otherwise, the views of the nodes
//! decide.

use std::collections::{BTreeMap, BTreeSet};

use chancery_admission::{ValidationMode, for_each_reference, may_refer};
use chancery_model::{
    Applied, Change, ChangeKind, Collection, Resource, ResourceKey, ResourceName, ScopeName, State,
};

use super::{
    index::ReferenceIndex,
    reference_view::{ReferenceView, names_of},
    settings::ReferenceSettings,
};
use crate::node_groups::NodeGroup;

/// The maximum number of references that are checked in the views of nodes.
const SUSPECTS_MAX: usize = 10_000;
/// The maximum number of checks of a reference in a view.
const CHECKS_MAX: usize = 1_000_000;
/// The maximum number of listed views of a reference.
pub(super) const VIEWS_SHOWN_MAX: usize = 3;

/// A reference that leads to nothing in the scope of the referrer. Another scope of a view may have the
/// resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Suspect {
    pub(crate) target: ResourceKey,
    pub(crate) cause: Cause,
    pub(crate) scope: ScopeName,
    pub(crate) referrer: ResourceKey,
    /// The full path of the first field of the referrer that has the name.
    pub(crate) field: String,
    pub(crate) mode: ValidationMode,
}

/// How a transaction leaves a reference dangling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// It publishes the referrer.
    Published,
    /// It removes the resource or its alias.
    Removed,
}

/// The references that a transaction may leave dangling.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    all: BTreeSet<Suspect>,
    /// The number of further ones by the scope of the referrer, with their strictest mode.
    omitted: BTreeMap<ScopeName, (usize, ValidationMode)>,
}

/// A dangling reference, with the views in which it is dangling.
#[derive(Debug)]
pub(crate) struct Dangling {
    pub(crate) suspect: Suspect,
    /// The first views: the scopes, and the number of connected nodes.
    pub(crate) views: Vec<(Vec<ScopeName>, usize)>,
    pub(crate) n_views: usize,
    /// Whether it was not checked in some views.
    is_partial: bool,
}

/// The result of a check in the views of nodes.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) dangling: Vec<Dangling>,
    /// The number of references that were not checked in each view, by their mode.
    pub(crate) unchecked: BTreeMap<ValidationMode, usize>,
}

impl Suspects {
    /// Finds the suspects of a transaction that was applied to `before`. `index` is that of the state after
    /// it.
    pub(crate) fn of(
        before: &State,
        applied: &Applied,
        index: Option<&ReferenceIndex>,
        settings: &ReferenceSettings,
    ) -> Self {
        let mut suspects = Self::default();
        for change in &applied.changes {
            let mode = settings.modes.mode(&change.scope);
            if mode == ValidationMode::Off {
                continue;
            }
            if let Some(resource) = &change.resource
                && change.kind != ChangeKind::Relabeled
            {
                let view = ReferenceView::new(&applied.state, std::slice::from_ref(&change.scope));
                suspects.add_references(&view, &change.scope, &change.key, resource, settings);
            }
            if let Some(index) = index {
                suspects.add_referrers(before, &applied.state, change, mode, index);
            }
        }
        suspects.keep_first_causes();
        suspects
    }

    /// Finds the suspects among the references of all resources of some collections.
    pub(crate) fn stored<'a>(
        state: &State,
        collections: impl Iterator<Item = &'a Collection>,
        settings: &ReferenceSettings,
    ) -> Self {
        let mut suspects = Self::default();
        for Collection { scope, type_url, resources, .. } in collections {
            if settings.modes.mode(scope) == ValidationMode::Off || !may_refer(type_url) {
                continue;
            }
            let view = ReferenceView::new(state, std::slice::from_ref(scope));
            for (name, resource) in resources {
                let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
                suspects.add_references(&view, scope, &key, resource, settings);
            }
        }
        suspects
    }

    /// Removes the references of published resources from those to removed resources.
    fn keep_first_causes(&mut self) {
        let of = |one: &Suspect| (one.target.clone(), one.scope.clone(), one.referrer.clone());
        let published = self.all.iter().filter(|one| one.cause == Cause::Published);
        let published: BTreeSet<_> = published.map(of).collect();
        self.all.retain(|one| one.cause == Cause::Published || !published.contains(&of(one)));
    }

    /// Returns the published resources that have suspect references.
    pub(crate) fn published(&self) -> impl Iterator<Item = (&ScopeName, &ResourceKey)> {
        let published = self.all.iter().filter(|one| one.cause == Cause::Published);
        published.map(|one| (&one.scope, &one.referrer))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of suspects.
    pub(crate) fn len(&self) -> usize {
        self.all.len() + self.omitted.values().map(|(n, _)| n).sum::<usize>()
    }

    /// Returns the scopes of the referrers.
    pub(crate) fn scopes(&self) -> BTreeSet<ScopeName> {
        let checked = self.all.iter().map(|suspect| &suspect.scope);
        checked.chain(self.omitted.keys()).cloned().collect()
    }

    /// Adds the references of a resource. `view` has only its scope.
    fn add_references(
        &mut self,
        view: &ReferenceView<'_>,
        scope: &ScopeName,
        key: &ResourceKey,
        resource: &Resource,
        settings: &ReferenceSettings,
    ) {
        let mode = settings.modes.mode(scope);
        let mut seen = BTreeSet::new();
        for_each_reference(key, &resource.body().unwrap_or_default(), |reference| {
            let Some(target) = reference.key().filter(|target| settings.is_checked(target)) else {
                return;
            };
            if seen.insert(target.clone()) && !view.has(&target) {
                let (scope, referrer) = (scope.clone(), key.clone());
                let (cause, field) = (Cause::Published, reference.field.whole());
                self.add(Suspect { target, cause, scope, referrer, field, mode });
            }
        });
    }

    /// Adds the references to a removed resource, or to its removed aliases.
    fn add_referrers(
        &mut self,
        before: &State,
        after: &State,
        change: &Change,
        mode: ValidationMode,
        index: &ReferenceIndex,
    ) {
        let Change { scope, key, resource, .. } = change;
        let Some(old) = before.get(scope, key) else { return };
        let mut lost: Vec<ResourceName> = old.aliases().to_vec();
        match resource {
            Some(new) => lost.retain(|alias| !new.aliases().contains(alias)),
            None => lost.extend(names_of(key)),
        }
        let view = ReferenceView::new(after, std::slice::from_ref(scope));
        for name in lost {
            let target = ResourceKey { type_url: key.type_url.clone(), name };
            if view.has(&target) {
                continue;
            }
            for (origin, referrer) in index.referrers(&target.type_url, target.name.as_str()) {
                let (scope, cause) = (origin.scope.clone(), Cause::Removed);
                let (target, field) = (target.clone(), String::new());
                self.add(Suspect { target, cause, scope, referrer, field, mode });
            }
        }
    }

    fn add(&mut self, suspect: Suspect) {
        if self.all.len() < SUSPECTS_MAX {
            self.all.insert(suspect);
        } else if !self.all.contains(&suspect) {
            let (n, mode) = self.omitted.entry(suspect.scope).or_insert((0, suspect.mode));
            (*n, *mode) = (*n + 1, suspect.mode.min(*mode));
        }
    }

    /// Checks the suspects in the views that nodes use. `groups` are the views with a scope of a
    /// suspect, and `has_others` whether other replicas may have nodes of each view.
    pub(crate) fn in_views(
        mut self,
        before: &State,
        after: &State,
        groups: &[NodeGroup],
        has_others: bool,
    ) -> Checked {
        let mut by_scope: BTreeMap<ScopeName, Vec<usize>> = BTreeMap::new();
        let mut all: Vec<Dangling> = Vec::new();
        for (at, suspect) in self.all.into_iter().enumerate() {
            by_scope.entry(suspect.scope.clone()).or_default().push(at);
            all.push(Dangling { suspect, views: Vec::new(), n_views: 0, is_partial: false });
        }
        let mut unchecked: BTreeMap<ValidationMode, usize> = BTreeMap::new();
        let mut n_checks = 0;
        for group in groups {
            let n_nodes = group.users.n_nodes;
            let Some(scopes) = group.after.as_deref().filter(|_| n_nodes > 0 || has_others) else {
                continue;
            };
            let (old, new) = (
                ReferenceView::new(before, group.before.as_deref().unwrap_or_default()),
                ReferenceView::new(after, scopes),
            );
            for at in scopes.iter().filter_map(|scope| by_scope.get(scope)).flatten() {
                let dangling = &mut all[*at];
                n_checks += 1;
                if n_checks > CHECKS_MAX {
                    dangling.is_partial = true;
                } else if dangling.suspect.dangles(&old, &new) {
                    dangling.n_views += 1;
                    if dangling.views.len() < VIEWS_SHOWN_MAX {
                        dangling.views.push((scopes.to_vec(), n_nodes));
                    }
                }
            }
            for (n, mode) in scopes.iter().filter_map(|scope| self.omitted.remove(scope)) {
                *unchecked.entry(mode).or_default() += n;
            }
        }
        for partial in all.iter().filter(|one| one.is_partial && one.n_views == 0) {
            *unchecked.entry(partial.suspect.mode).or_default() += 1;
        }
        all.retain(|dangling| dangling.n_views > 0);
        Checked { dangling: all, unchecked }
    }
}

impl Suspect {
    fn dangles(&self, before: &ReferenceView<'_>, after: &ReferenceView<'_>) -> bool {
        after.shows(&self.scope, &self.referrer)
            && !after.has(&self.target)
            && (self.cause == Cause::Published || before.has(&self.target))
    }
}

#[cfg(test)]
mod tests;
