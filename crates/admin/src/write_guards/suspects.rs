//! The parts of a write that may trip a guard, in O(changes). Most writes have none, and then nothing
//! else is computed.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{
    Applied, Change, ChangeKind, ResourceKey, ResourceName, ScopeName, State, TypeUrl, types,
};

use super::{
    endpoints::{n_endpoints, refers_to},
    settings::{Guard, GuardSettings},
};

/// The parts of a write that may trip a guard, by scope.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// The removed resources by type, if a scope loses more than the allowed share of a type.
    pub(super) removed: BTreeMap<ScopeName, BTreeMap<TypeUrl, Vec<ResourceName>>>,
    /// The resources that may have lost all their endpoints.
    pub(super) emptied: BTreeMap<ScopeName, Vec<ResourceKey>>,
    /// The removed clusters.
    pub(super) clusters: BTreeMap<ScopeName, Vec<ResourceName>>,
    /// The types that grow, of those whose responses to SotW clients are complete.
    pub(super) grown: BTreeMap<ScopeName, BTreeSet<TypeUrl>>,
    /// Whether the assignments change.
    pub(super) assignments: bool,
}

impl Suspects {
    /// Finds the suspicious parts of a transaction that was applied to `before`.
    pub(crate) fn of(before: &State, applied: &Applied, settings: &GuardSettings) -> Self {
        let Applied { state: after, changes, .. } = applied;
        let mut suspects = Self::default();
        for change in changes {
            suspects.add(before, after, change, settings);
        }
        if !suspects.loses_share(before, settings) {
            suspects.removed.clear();
        }
        let mut shared = BTreeMap::new();
        suspects.grown.retain(|scope, types| {
            let limit = settings.of(scope).sotw_bytes_max;
            types.retain(|type_url| {
                let [old, new] = [before, after].map(|state| sotw_bytes(state, scope, type_url));
                let mut others = || {
                    *shared.entry(type_url.clone()).or_insert_with(|| largest_view(after, type_url))
                };
                new > old && new.saturating_add(others()) > limit
            });
            !types.is_empty()
        });
        suspects.assignments = settings.applies(Guard::ViewChange)
            && before.assignments.changed != after.assignments.changed;
        suspects
    }

    /// Returns whether no guard can be tripped.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { removed, emptied, clusters, grown, assignments } = self;
        removed.is_empty()
            && emptied.is_empty()
            && clusters.is_empty()
            && grown.is_empty()
            && !assignments
    }

    /// Returns the scopes of all suspicious parts.
    pub(super) fn scopes(&self) -> BTreeSet<ScopeName> {
        let Self { removed, emptied, clusters, grown, .. } = self;
        (removed.keys())
            .chain(emptied.keys())
            .chain(clusters.keys())
            .chain(grown.keys())
            .cloned()
            .collect()
    }

    fn add(&mut self, before: &State, after: &State, change: &Change, settings: &GuardSettings) {
        let Change { scope, key, kind, .. } = change;
        let ResourceKey { type_url, name } = key;
        let settings = settings.of(scope);
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
        if settings.applies(Guard::EmptyEndpoints) && is_emptied(before, after, change) {
            self.emptied.entry(scope.clone()).or_default().push(key.clone());
        }
    }

    /// Returns whether a scope loses more than the strictest allowed share of a type. A view of several
    /// scopes never loses a larger share than one of its scopes, so the check of each scope is enough.
    fn loses_share(&self, before: &State, settings: &GuardSettings) -> bool {
        let percent = settings.deletion_percent_min();
        self.removed.iter().any(|(scope, types)| {
            types.iter().any(|(type_url, names)| {
                let n = before.collection(scope, type_url).map_or(0, |all| all.resources.len());
                exceeds_share(names.len(), n, percent)
            })
        })
    }
}

/// Returns whether `n` of `all` resources are more than the allowed share.
pub(super) fn exceeds_share(n: usize, all: usize, percent: u32) -> bool {
    n.saturating_mul(100) > all.saturating_mul(percent as usize)
}

/// Returns whether a resource had endpoints and has none any longer. A removed list of endpoints counts
/// if a cluster of the scope still refers to it, or if the clusters are in other scopes.
fn is_emptied(before: &State, after: &State, change: &Change) -> bool {
    let Change { scope, key, kind, resource } = change;
    let count = |resource| n_endpoints(&key.type_url, resource);
    let had = || before.get(scope, key).and_then(|old| count(old)).is_some_and(|n| n > 0);
    match (kind, resource) {
        (ChangeKind::Updated, Some(new)) => count(new) == Some(0) && had(),
        (ChangeKind::Removed, _) if key.type_url.as_str() == types::ENDPOINT => {
            let clusters = after.collection(scope, &TypeUrl::from_static(types::CLUSTER));
            let clusters = clusters.filter(|clusters| !clusters.resources.is_empty());
            let key = key.to_base();
            let is_used = clusters.is_none_or(|clusters| {
                let cluster = clusters.resources.get(&key.name);
                let variants = clusters.variants.of(key.name.as_str()).iter();
                cluster.into_iter().chain(variants).any(|cluster| refers_to(cluster, &key))
            });
            is_used && had()
        }
        _ => false,
    }
}

fn sotw_bytes(state: &State, scope: &ScopeName, type_url: &TypeUrl) -> u64 {
    state.collection(scope, type_url).map_or(0, |collection| collection.sotw_bytes)
}

/// Returns the size of a type in the largest view over scopes that do not depend on the node. A node may
/// see them together with one further scope. The cost is O(assignments).
fn largest_view(state: &State, type_url: &TypeUrl) -> u64 {
    let node = chancery_model::Node::default();
    let sizes = state.assignments.rules.iter().map(|rule| {
        let scopes = rule.scopes_for(&node);
        scopes.iter().map(|scope| sotw_bytes(state, scope, type_url)).sum()
    });
    sizes.max().unwrap_or_default()
}
