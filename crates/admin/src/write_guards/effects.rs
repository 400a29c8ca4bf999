//! Which guards a write trips, with its effects on the views of nodes.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{
    Assignment, Node, ResourceKey, ResourceName, ScopeName, State, TypeUrl, types,
};
use chancery_view::{TypeView, View};

use super::{
    endpoints::{Users, clusters_with, n_served, refers_to},
    settings::{Guard, GuardSettings},
    suspects::{Suspects, exceeds_share},
};
use crate::{
    node_groups::{ConnectedNodes, NodeGroup, Scopes, groups},
    references::{ReferenceIndex, ReferenceView},
};

/// The maximum number of listed effects of one guard.
pub(super) const EFFECTS_MAX: usize = 100;
/// The maximum number of scopes in an effect.
const SCOPES_MAX: usize = 5;

/// The effects of a write that trip one guard. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) guard: Guard,
    pub(crate) effects: Vec<String>,
    pub(crate) n_omitted: usize,
}

/// A write that was tried, and what is needed to decide about it.
pub(crate) struct Tried<'a> {
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    pub(crate) suspects: &'a Suspects,
    /// The references of the state after the write, if the write removes resources.
    pub(crate) references: Option<&'a ReferenceIndex>,
    pub(crate) settings: &'a GuardSettings,
    /// The number of replicas whose nodes are unknown. Each view of an assignment may have nodes there.
    pub(crate) n_unknown_replicas: usize,
}

/// Returns the guards that a write trips, given the connected nodes of all replicas that have answered.
pub(crate) fn findings(tried: &Tried<'_>, connected: &ConnectedNodes) -> Vec<Finding> {
    let groups = groups(connected, tried.after, &tried.suspects.scopes());
    let mut found = BTreeMap::new();
    for group in &groups {
        if let (Some(old), Some(new)) = (group.before.as_deref(), group.after.as_deref()) {
            let layered = Layered::new(tried, group, old, new);
            layered.mass_deletion(&mut found);
            layered.empty_endpoints(&mut found);
            layered.cluster_in_use(&mut found);
            layered.sotw_size(&mut found);
        }
        if tried.suspects.assignments && group.before != group.after {
            view_change(tried, group, &mut found);
        }
    }
    if tried.suspects.assignments && tried.n_unknown_replicas > 0 {
        changed_rules(tried, &mut found);
    }
    found.into_values().collect()
}

type Found = BTreeMap<Guard, Finding>;

fn add(found: &mut Found, guard: Guard, effect: impl FnOnce() -> String) {
    let finding = found.entry(guard).or_insert(Finding { guard, effects: vec![], n_omitted: 0 });
    match finding.effects.len() {
        EFFECTS_MAX => finding.n_omitted += 1,
        _ => finding.effects.push(effect()),
    }
}

/// The resources of a type that the scopes of a view lose, with the allowed share in percent and the
/// number of resources from which it applies.
#[derive(Default)]
struct Removed<'a> {
    names: BTreeSet<&'a ResourceName>,
    settings: Option<(u32, usize)>,
}

/// The view of a group of nodes before and after a write.
struct Layered<'a> {
    tried: &'a Tried<'a>,
    group: &'a NodeGroup,
    old: &'a [ScopeName],
    new: &'a [ScopeName],
    before: View,
    after: View,
}

impl<'a> Layered<'a> {
    fn new(
        tried: &'a Tried<'a>,
        group: &'a NodeGroup,
        old: &'a [ScopeName],
        new: &'a [ScopeName],
    ) -> Self {
        let before = View::resolve(tried.before, old);
        let after = View::resolve(tried.after, new);
        Self { tried, group, old, new, before, after }
    }

    /// Returns all scopes of the view, before and after the write.
    fn scopes(&self) -> impl Iterator<Item = &'a ScopeName> {
        self.old.iter().chain(self.new.iter().filter(|scope| !self.old.contains(scope)))
    }

    /// Returns whether some node may have the view.
    fn has_nodes(&self) -> bool {
        self.group.users.n_nodes > 0 || self.tried.n_unknown_replicas > 0
    }

    /// Returns the start of an effect: `view edge (2 nodes)`.
    fn subject(&self) -> String {
        let moved =
            if self.old == self.new { String::new() } else { format!(" → {}", list(self.new)) };
        format!("view {}{moved} ({})", list(self.old), nodes(self.group))
    }

    fn mass_deletion(&self, found: &mut Found) {
        let Tried { suspects, settings, .. } = self.tried;
        if !self.has_nodes() {
            return;
        }
        let mut by_type: BTreeMap<&TypeUrl, Removed<'_>> = BTreeMap::new();
        for scope in self.old {
            let own = settings.of(scope);
            for (type_url, names) in suspects.removed.get(scope).into_iter().flatten() {
                let removed = by_type.entry(type_url).or_default();
                removed.names.extend(names);
                // The strictest settings of the scopes that lose resources apply.
                removed.settings = match removed.settings {
                    None => Some((own.deletion_percent, own.deletion_resources_min)),
                    Some((percent, floor)) => Some((
                        percent.min(own.deletion_percent),
                        floor.min(own.deletion_resources_min),
                    )),
                };
            }
        }
        for (type_url, Removed { names, settings }) in by_type {
            let Some((percent, floor)) = settings else { continue };
            let (before, after) = (self.before.of_type(type_url), self.after.of_type(type_url));
            let n = n_shown(&before);
            if n < floor || !exceeds_share(names.len(), n, percent) {
                continue;
            }
            // A resource of another scope may take the place of a removed one. Variants for other
            // parameters were not in the view.
            let is_gone = |name: &&&ResourceName| {
                after.get(name.base()).is_none()
                    && (!name.is_variant() || before.get(name.as_str()).is_some())
            };
            let gone: BTreeSet<&str> =
                names.iter().filter(is_gone).map(|name| name.base()).collect();
            let n_gone = gone.len();
            if exceeds_share(n_gone, n, percent) {
                add(found, Guard::MassDeletion, || {
                    let (subject, left, kind) = (self.subject(), n - n_gone, type_url.short_name());
                    format!(
                        "{subject}: {n} → {left} resources of type {kind}, more than {percent} % deleted"
                    )
                });
            }
        }
    }

    fn empty_endpoints(&self, found: &mut Found) {
        let Suspects { emptied, shadowing, .. } = self.tried.suspects;
        let is_last = |scope| self.old == self.new && self.new.last() == Some(scope);
        for scope in self.scopes() {
            // In the last scope of the view, an added resource shadows nothing.
            let added = shadowing.get(scope).filter(|_| !is_last(scope));
            for key in emptied.get(scope).into_iter().chain(added).flatten() {
                let of = |users| {
                    let n = n_served(&self.before, key, users).filter(|n| *n > 0)?;
                    let is_empty = match n_served(&self.after, key, users) {
                        Some(n) => n == 0,
                        None => self.is_used(key),
                    };
                    is_empty.then_some(n)
                };
                let resource = name_of(&key.name);
                if let Some(n) = of(Users::Envoy) {
                    add(found, Guard::EmptyEndpoints, || {
                        format!(
                            "{}: {n} → 0 endpoints of {resource}{}",
                            self.subject(),
                            self.kept()
                        )
                    });
                } else if self.group.users.n_grpc > 0
                    && let Some(n) = of(Users::Grpc)
                {
                    add(found, Guard::EmptyEndpoints, || {
                        format!(
                            "{}: {n} → 0 endpoints of {resource} that gRPC clients use{}",
                            self.subject(),
                            self.kept()
                        )
                    });
                }
            }
        }
    }

    /// Returns what Java does without endpoints, if the view has gRPC clients.
    fn kept(&self) -> &'static str {
        match self.group.users.n_grpc {
            0 => "",
            _ => " (grpc-java keeps sending to the old ones)",
        }
    }

    /// Returns whether a cluster of the view still gets its endpoints from a removed resource.
    fn is_used(&self, key: &ResourceKey) -> bool {
        let Some(references) = self.tried.references else { return false };
        let key = key.to_base();
        let clusters = self.after.of_type(&TypeUrl::from_static(types::CLUSTER));
        clusters_with(references, &key)
            .any(|name| clusters.get(name.as_str()).is_some_and(|cluster| refers_to(cluster, &key)))
    }

    fn cluster_in_use(&self, found: &mut Found) {
        let Some(references) = self.tried.references else { return };
        let clusters = TypeUrl::from_static(types::CLUSTER);
        let (before, after) = (self.before.of_type(&clusters), self.after.of_type(&clusters));
        let view = ReferenceView::new(self.tried.after, self.new);
        let removed = self.old.iter().filter_map(|scope| self.tried.suspects.clusters.get(scope));
        for name in removed.flatten() {
            if before.get(name.as_str()).is_none() || after.get(name.as_str()).is_some() {
                continue;
            }
            let mut referrers = references.referrers(&clusters, name.base());
            let referrer = referrers.find(|(origin, key)| view.shows(&origin.scope, key));
            if let Some((_, referrer)) = referrer {
                add(found, Guard::ClusterInUse, || {
                    let (kind, by) = (referrer.type_url.short_name(), &referrer.name);
                    let name = name.as_str();
                    format!("{}: {kind} {by:?} still uses the cluster {name:?}", self.subject())
                });
            }
        }
    }

    fn sotw_size(&self, found: &mut Found) {
        let Tried { suspects, settings, n_unknown_replicas, .. } = self.tried;
        let mut grown: BTreeMap<&TypeUrl, u64> = BTreeMap::new();
        for scope in self.new {
            let own = settings.of(scope).sotw_bytes_max;
            for type_url in suspects.grown.get(scope).into_iter().flatten() {
                let limit = grown.entry(type_url).or_insert(own);
                *limit = own.min(*limit);
            }
        }
        for (type_url, limit) in grown {
            let has_client =
                self.group.users.sotw_types.contains(type_url) || *n_unknown_replicas > 0;
            let old = sotw_bytes(&self.before.of_type(type_url));
            let new = sotw_bytes(&self.after.of_type(type_url));
            // A view that is too large already was confirmed before.
            if has_client && old <= limit && new > limit {
                add(found, Guard::SotwSize, || {
                    let (old, new, limit) = (mib(old), mib(new), mib(limit));
                    let kind = type_url.short_name();
                    format!(
                        "{}: a SotW response with every {kind}: {old} → {new}, more than {limit}",
                        self.subject()
                    )
                });
            }
        }
    }
}

/// Adds the effect on nodes that a write of assignments moves to other resources. Nodes without an
/// assignment have nothing to lose.
fn view_change(tried: &Tried<'_>, group: &NodeGroup, found: &mut Found) {
    let Some(old) = group.before.as_deref() else { return };
    let new = group.after.as_deref().unwrap_or_default();
    let (before, after) = ((tried.before, old), (tried.after, new));
    if layers(before, after) == layers(after, before) {
        return;
    }
    add(found, Guard::ViewChange, || {
        let (n_old, n_new) = (n_resources(tried.before, old), n_resources(tried.after, new));
        let (nodes, old, new) = (nodes(group), list(old), show(&group.after));
        format!("{nodes}: {old} → {new}, {n_old} → {n_new} resources")
    });
}

/// Adds the changed assignments by which nodes of replicas that were not asked may lose resources.
fn changed_rules(tried: &Tried<'_>, found: &mut Found) {
    let after: BTreeMap<&str, &Assignment> =
        tried.after.assignments.rules.iter().map(|rule| (&*rule.name, rule)).collect();
    let node = Node::default();
    for rule in &tried.before.assignments.rules {
        let is_fixed = rule.scopes.iter().all(|template| template.resolve(&node).is_some());
        let is_empty = is_fixed && n_resources(tried.before, &rule.scopes_for(&node)) == 0;
        let what = match after.get(&*rule.name) {
            Some(new) if *new == rule => continue,
            Some(_) => "changed",
            None => "deleted",
        };
        if !is_empty {
            add(found, Guard::ViewChange, || {
                let n = tried.n_unknown_replicas;
                let replicas = if n == 1 { "replica" } else { "replicas" };
                format!("nodes of {n} other {replicas}: assignment {:?} is {what}", rule.name)
            });
        }
    }
}

/// Returns the scopes from which nodes receive resources, by type. A scope that `other` has, too, counts if
/// it has resources in one of the two states: the write then changes its resources, but moves no node.
fn layers<'a>(
    (state, scopes): (&'a State, &'a [ScopeName]),
    (other_state, other): (&'a State, &[ScopeName]),
) -> BTreeMap<&'a TypeUrl, Vec<&'a ScopeName>> {
    let mut layers: BTreeMap<&TypeUrl, Vec<&ScopeName>> = BTreeMap::new();
    for scope in scopes {
        let other = other.contains(scope).then(|| other_state.scopes.get(scope)).flatten();
        let all = [state.scopes.get(scope), other].into_iter().flatten();
        let collections = all.flat_map(|scope| scope.types.values());
        let filled = collections.filter(|collection| !collection.resources.is_empty());
        for type_url in filled.map(|collection| &collection.type_url).collect::<BTreeSet<_>>() {
            layers.entry(type_url).or_default().push(scope);
        }
    }
    layers
}

fn n_resources(state: &State, scopes: &[ScopeName]) -> usize {
    scopes.iter().filter_map(|scope| state.scopes.get(scope)).map(|scope| scope.len()).sum()
}

/// Returns the number of resources of a view. Of the variants of a name, only one counts: the one for
/// clients without parameters.
fn n_shown(view: &TypeView) -> usize {
    if view.has_variants() { view.iter().count() } else { view.n_resources() }
}

/// Returns the size of a SotW response with a whole view, for a client without parameters.
fn sotw_bytes(view: &TypeView) -> u64 {
    if view.has_variants() {
        view.iter().map(|resource| resource.sotw_len() as u64).sum()
    } else {
        view.sotw_bytes()
    }
}

/// Returns a name in quotes, with the constraints of a variant.
fn name_of(name: &ResourceName) -> String {
    let constraints = name.constraints().map(|one| format!(" [{one}]")).unwrap_or_default();
    format!("{:?}{constraints}", name.base())
}

fn nodes(group: &NodeGroup) -> String {
    match group.users.n_nodes {
        0 => "no connected node".to_owned(),
        1 => "1 node".to_owned(),
        n => format!("{n} nodes"),
    }
}

fn show(scopes: &Scopes) -> String {
    scopes.as_deref().map_or_else(|| "nothing".to_owned(), list)
}

fn list(scopes: &[ScopeName]) -> String {
    let names: Vec<&str> = scopes.iter().take(SCOPES_MAX).map(ScopeName::as_str).collect();
    match scopes.len() {
        0 => "nothing".to_owned(),
        n if n > SCOPES_MAX => format!("{} and {} more", names.join(", "), n - SCOPES_MAX),
        _ => names.join(", "),
    }
}

/// Returns a size in MiB, rounded down to hundredths.
fn mib(bytes: u64) -> String {
    let hundredths = bytes.saturating_mul(100) >> 20;
    format!("{}.{:02} MiB", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests;
