//! The parts of a write that may trip a guard, in O(changes). Most writes have none, and then nothing
//! else is computed.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{
    Applied, Change, ChangeKind, Collection, Resource, ResourceKey, ResourceName, ScopeName, State,
    TypeUrl, types,
};

use super::{
    endpoints::{Users, clusters_with, endpoints_of, n_endpoints},
    settings::{Guard, GuardSettings},
    view_sizes::{ViewSizes, scope_bytes, scope_resources},
};
use crate::references::ReferenceIndex;

/// The parts of a write that may trip a guard, by scope.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// The removed resources by type, if a scope loses more than the allowed share of a type.
    pub(super) removed: BTreeMap<ScopeName, BTreeMap<TypeUrl, Vec<ResourceName>>>,
    /// The resources that may have lost all their endpoints.
    pub(super) emptied: BTreeMap<ScopeName, Vec<ResourceKey>>,
    /// The added resources without endpoints, which may shadow those of a later scope.
    pub(super) shadowing: BTreeMap<ScopeName, Vec<ResourceKey>>,
    /// The removed clusters.
    pub(super) clusters: BTreeMap<ScopeName, Vec<ResourceName>>,
    /// The types that grow, of those whose responses to SotW clients are complete.
    pub(super) grown: BTreeMap<ScopeName, BTreeSet<TypeUrl>>,
    /// Whether the assignments change.
    pub(crate) assignments: bool,
}

impl Suspects {
    /// Finds the suspicious parts of a transaction that was applied to `before`. `references` are those of
    /// the state after it, if the transaction removes resources.
    pub(crate) fn of(
        before: &State,
        applied: &Applied,
        references: Option<&ReferenceIndex>,
        settings: &GuardSettings,
    ) -> Self {
        let Applied { state: after, changes, .. } = applied;
        let mut suspects = Self::default();
        for change in changes {
            let own = settings.of(&change.scope);
            suspects.add(change, own);
            if own.applies(Guard::EmptyEndpoints) {
                suspects.add_emptied(before, after, change, references);
            }
        }
        if suspects.loses_share(before, settings) {
            suspects.drop_small_views(before, settings);
        } else {
            suspects.removed.clear();
        }
        suspects.drop_new_names(before);
        suspects.drop_unused_clusters(references);
        let mut sizes = None;
        suspects.grown.retain(|scope, types| {
            let limit = settings.of(scope).sotw_bytes_max;
            types.retain(|type_url| {
                let [old, new] = [before, after].map(|state| scope_bytes(state, scope, type_url));
                new > old && {
                    let sizes = sizes.get_or_insert_with(|| ViewSizes::of(after, scope_bytes));
                    sizes.max(scope, type_url) > limit
                }
            });
            !types.is_empty()
        });
        suspects.assignments = settings.applies(Guard::ViewChange)
            && before.assignments.changed != after.assignments.changed;
        suspects
    }

    /// Returns whether no guard can be tripped.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { removed, emptied, shadowing, clusters, grown, assignments } = self;
        removed.is_empty()
            && emptied.is_empty()
            && shadowing.is_empty()
            && clusters.is_empty()
            && grown.is_empty()
            && !assignments
    }

    /// Returns the scopes of all suspicious parts.
    pub(crate) fn scopes(&self) -> BTreeSet<ScopeName> {
        let Self { removed, emptied, shadowing, clusters, grown, .. } = self;
        (removed.keys())
            .chain(emptied.keys())
            .chain(shadowing.keys())
            .chain(clusters.keys())
            .chain(grown.keys())
            .cloned()
            .collect()
    }

    fn add(&mut self, change: &Change, settings: &GuardSettings) {
        let Change { scope, key, kind, .. } = change;
        let ResourceKey { type_url, name } = key;
        if *kind == ChangeKind::Removed {
            if settings.applies(Guard::MassDeletion) {
                let types = self.removed.entry(scope.clone()).or_default();
                types.entry(type_url.clone()).or_default().push(name.clone());
            }
            if type_url.as_str() == types::CLUSTER && settings.applies(Guard::ClusterInUse) {
                self.clusters.entry(scope.clone()).or_default().push(name.to_base());
            }
        } else if settings.applies(Guard::SotwSize) && types::properties(type_url).full_state {
            self.grown.entry(scope.clone()).or_default().insert(type_url.clone());
        }
    }

    /// Adds a changed resource that may leave a cluster without endpoints.
    fn add_emptied(
        &mut self,
        before: &State,
        after: &State,
        change: &Change,
        references: Option<&ReferenceIndex>,
    ) {
        let Change { scope, key, kind, resource } = change;
        let suspects = match (kind, resource) {
            // Only with another scope, there is something to shadow.
            (ChangeKind::Added, Some(new)) if before.scopes.len() > 1 => {
                is_empty(after, scope, key, new).then_some(&mut self.shadowing)
            }
            (ChangeKind::Updated, Some(new)) => {
                let may_lose = before.get(scope, key).is_some_and(|old| {
                    may_lose(key, old, new) && is_empty(after, scope, key, new)
                        || loses_usable(key, old, new)
                });
                may_lose.then_some(&mut self.emptied)
            }
            (ChangeKind::Removed, _) if key.type_url.as_str() == types::ENDPOINT => {
                let mut users = references.into_iter().flat_map(|all| clusters_with(all, key));
                users.next().map(|_| &mut self.emptied)
            }
            _ => None,
        };
        if let Some(suspects) = suspects {
            suspects.entry(scope.clone()).or_default().push(key.clone());
        }
    }

    /// Drops the removed resources of types that no view has enough resources of. The other replicas are then not
    /// asked for them.
    fn drop_small_views(&mut self, before: &State, settings: &GuardSettings) {
        let floor = settings.deletion_resources_min() as u64;
        let mut sizes = ViewSizes::of(before, scope_resources);
        self.removed.retain(|scope, types| {
            types.retain(|type_url, _| sizes.max(scope, type_url) >= floor);
            !types.is_empty()
        });
    }

    /// Drops the added resources whose names no scope had: they shadow nothing. The other replicas are then not asked
    /// for them. The cost is O(scopes) per type, and at most O(resources) for many names.
    fn drop_new_names(&mut self, before: &State) {
        let mut added: BTreeMap<TypeUrl, BTreeSet<ResourceName>> = BTreeMap::new();
        for key in self.shadowing.values().flatten() {
            added.entry(key.type_url.clone()).or_default().insert(key.name.to_base());
        }
        for (type_url, names) in &mut added {
            let all = before.scopes.values().filter_map(|scope| scope.types.get(type_url));
            let known = all.flat_map(|collection| known_names(collection, names)).collect();
            *names = known;
        }
        let is_known = |key: &ResourceKey| {
            added.get(&key.type_url).is_some_and(|known| known.contains(&key.name.to_base()))
        };
        self.shadowing.retain(|_, keys| {
            keys.retain(is_known);
            !keys.is_empty()
        });
    }

    /// Drops the removed clusters to which no resource refers.
    fn drop_unused_clusters(&mut self, references: Option<&ReferenceIndex>) {
        let clusters = TypeUrl::from_static(types::CLUSTER);
        let is_used = |name: &ResourceName| {
            let mut referrers =
                references.into_iter().flat_map(|all| all.referrers(&clusters, name.base()));
            referrers.next().is_some()
        };
        self.clusters.retain(|_, names| {
            names.retain(is_used);
            !names.is_empty()
        });
    }

    /// Returns whether a scope loses more than the strictest allowed share of a type. A view of several
    /// scopes never loses a larger share than one of its scopes, so the check of each scope is enough.
    /// With variants, a scope shows fewer resources than it has. Then only the smallest protected view
    /// limits the number of names.
    fn loses_share(&self, before: &State, settings: &GuardSettings) -> bool {
        let percent = settings.deletion_percent_min();
        let mut with_variants: BTreeMap<&TypeUrl, (usize, bool)> = BTreeMap::new();
        for (scope, types) in &self.removed {
            for (type_url, names) in types {
                let names: BTreeSet<&str> = names.iter().map(ResourceName::base).collect();
                let all = before.collection(scope, type_url);
                let n = all.map_or(0, |all| all.resources.len());
                if exceeds_share(names.len(), n, percent) {
                    return true;
                }
                let (n_lost, has_variants) = with_variants.entry(type_url).or_default();
                *n_lost += names.len();
                *has_variants |= all.is_some_and(|all| !all.variants.is_empty());
            }
        }
        let floor = settings.deletion_resources_min();
        let mut lost = with_variants.into_values();
        lost.any(|(n, has_variants)| has_variants && exceeds_share(n, floor, percent))
    }
}

/// Returns whether `n` of `all` resources are more than the allowed share.
pub(super) fn exceeds_share(n: usize, all: usize, percent: u32) -> bool {
    n.saturating_mul(100) > all.saturating_mul(percent as usize)
}

/// Returns those of the names that a collection has as a name, an alias, or the name of variants.
fn known_names(collection: &Collection, names: &BTreeSet<ResourceName>) -> Vec<ResourceName> {
    if names.len() > collection.resources.len() + collection.aliases.len() {
        let own = collection.resources.keys().map(ResourceName::to_base);
        let all = own.chain(collection.aliases.keys().cloned());
        return all.filter(|name| names.contains(name)).collect();
    }
    let has = |name: &&ResourceName| {
        collection.find(name.as_str()).is_some()
            || !collection.variants.of(name.as_str()).is_empty()
    };
    names.iter().filter(has).cloned().collect()
}

/// Returns whether the new version of a resource may have fewer endpoints than the old one.
fn may_lose(key: &ResourceKey, old: &Resource, new: &Resource) -> bool {
    match endpoints_of(old) {
        Some(list) => endpoints_of(new) != Some(list),
        None => n_endpoints(&key.type_url, old, Users::Envoy).is_some_and(|n| n > 0),
    }
}

/// Returns whether the new version of a resource has no endpoint that gRPC clients use, and the old one has.
fn loses_usable(key: &ResourceKey, old: &Resource, new: &Resource) -> bool {
    let n = |resource| n_endpoints(&key.type_url, resource, Users::Grpc);
    n(old).is_some_and(|n| n > 0) && n(new) == Some(0)
}

/// Returns whether a resource is a place for endpoints, and has none in its scope.
fn is_empty(after: &State, scope: &ScopeName, key: &ResourceKey, resource: &Resource) -> bool {
    match endpoints_of(resource) {
        Some(list) => {
            let found = after.get(scope, list);
            found
                .and_then(|found| n_endpoints(&list.type_url, found, Users::Envoy))
                .unwrap_or_default()
                == 0
        }
        None => n_endpoints(&key.type_url, resource, Users::Envoy) == Some(0),
    }
}
