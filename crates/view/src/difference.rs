//! The difference of two views, combined from the differences of their layers.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Collection, Resource, ResourceName, Scope, ScopeName, State};

use crate::{Differ, LayerDelta, Resources, TypeView};

/// The changes that turn the resources of one view into those of another view.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Difference {
    /// The resources that are new or have a different version.
    pub changed: Resources,
    /// The removed resources, in their last version.
    pub removed: Vec<Arc<Resource>>,
}

impl Difference {
    /// Returns whether both views show the same resources.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// Computes the difference of two views of one type. The views may have different scopes.
///
/// A resource counts as changed if its version differs, even with equal bytes. The same applies to
/// a resource that becomes visible because another scope no longer shadows it. If another variant
/// of a name becomes visible, it counts as changed, and the previous variant as removed. Clients receive
/// versions (DELTA-51, SOTW-13), so two clients of one view would otherwise hold different
/// versions. A resuming client would receive the resource in any case (DELTA-58).
///
/// For views over the same scopes, the cost is O(d · layers · log M). If scopes are added, removed
/// or reordered, every resource of these scopes adds to the cost, whether it changed or not.
#[must_use]
pub fn difference(differ: &Differ, from: &TypeView, to: &TypeView) -> Difference {
    let mut out = Difference::default();
    if from.is_same(to) {
        return out;
    }
    let mut contested = BTreeSet::new();
    if same_order(from, to) && !from.is_of_other_node(to) {
        for layer in &to.layers {
            let old = layer_of(from, layer);
            if old.is_some_and(|old| Arc::ptr_eq(old, layer)) {
                continue;
            }
            let delta = differ.delta(old, layer);
            let others = others(from, to, layer);
            let shared_names = contested_names(&delta, old, layer, &others);
            if shared_names.is_empty() {
                out.changed.push_shared(delta.changed());
                out.removed.extend(delta.removed().iter().cloned());
            } else {
                let unique = |resource: &&Arc<Resource>| !shared_names.contains(resource.name());
                delta.changed().iter().filter(unique).for_each(|r| out.changed.push(Arc::clone(r)));
                out.removed.extend(delta.removed().iter().filter(unique).cloned());
                contested.extend(shared_names);
            }
        }
        for layer in from.layers.iter().filter(|layer| layer_of(to, layer).is_none()) {
            contested.extend(layer.resources.keys().cloned());
        }
    } else {
        let all = from.layers.iter().chain(&to.layers);
        contested.extend(all.flat_map(|layer| layer.resources.keys().cloned()));
    }
    for name in contested {
        match (from.by_name(name.as_str()), to.by_name(name.as_str())) {
            (Some(old), Some(new)) if old == new => {}
            (_, Some(new)) => out.changed.push(Arc::clone(new)),
            (Some(old), None) => out.removed.push(Arc::clone(old)),
            (None, None) => {}
        }
    }
    if from.has_variants() || to.has_variants() {
        resolve_variants(&mut out, from, to);
    }
    if from.has_hidden() || to.has_hidden() {
        resolve_hidden(&mut out, from, to);
    }
    out
}

/// Replaces the changes of names by what the rights and the node of the client show, in O(changes · layers · log M).
/// Both views have the same rights: a client whose rights change gets another stream.
fn resolve_hidden(out: &mut Difference, from: &TypeView, to: &TypeView) {
    let changed = std::mem::take(out);
    let names = changed.changed.iter().chain(&changed.removed).map(|resource| resource.name());
    let names: BTreeSet<&ResourceName> = names.collect();
    for name in names {
        let shown = |view: &TypeView| {
            let resource = view.by_name(name.as_str());
            resource.filter(|resource| !view.has_variants() || view.has(resource)).cloned()
        };
        match (shown(from), shown(to)) {
            (Some(old), Some(new)) if old == new => {}
            (_, Some(new)) => out.changed.push(new),
            (Some(old), None) => out.removed.push(old),
            (None, None) => {}
        }
    }
}

/// Replaces the changes of names with variants by what the parameters of the two views select.
///
/// The cost is O(changes · log M), and O(all variants) if the order of the scopes or the parameters
/// changed.
fn resolve_variants(out: &mut Difference, from: &TypeView, to: &TypeView) {
    let variants = |view: &TypeView, base: &str| {
        view.layers.iter().any(|layer| !layer.variants.of(base).is_empty())
    };
    let is_varied =
        |name: &ResourceName| variants(from, name.as_str()) || variants(to, name.as_str());
    let changed = out.changed.iter().chain(&out.removed).map(|resource| resource.base_name());
    let mut bases: BTreeSet<ResourceName> =
        changed.filter(|name| is_varied(name)).cloned().collect();
    if !same_order(from, to) || from.parameters() != to.parameters() {
        let layers = from.layers.iter().chain(&to.layers);
        bases.extend(layers.flat_map(|layer| layer.variants.names().cloned()));
    }
    if bases.is_empty() {
        return;
    }
    out.changed.retain(|resource| !bases.contains(resource.base_name()));
    out.removed.retain(|resource| !bases.contains(resource.base_name()));
    for base in &bases {
        let old = from.select(base.as_str(), from.parameters());
        let new = to.select(base.as_str(), to.parameters());
        if let Some(new) = new.filter(|new| old != Some(*new)) {
            out.changed.push(Arc::clone(new));
        }
        let is_same = |old: &&Arc<Resource>| new.is_some_and(|new| new.name() == old.name());
        if let Some(old) = old.filter(|old| !is_same(old)) {
            out.removed.push(Arc::clone(old));
        }
    }
}

/// Returns the layer of `view` that has the same scope as `layer`.
fn layer_of<'a>(view: &'a TypeView, layer: &Collection) -> Option<&'a Arc<Collection>> {
    view.layers.iter().find(|other| other.scope == layer.scope)
}

/// Returns whether the common scopes of both views have the same order.
fn same_order(from: &TypeView, to: &TypeView) -> bool {
    let common = |a: &TypeView, b: &TypeView| {
        let both = a.layers.iter().filter(|layer| layer_of(b, layer).is_some());
        both.map(|layer| layer.scope.clone()).collect::<Vec<_>>()
    };
    common(from, to) == common(to, from)
}

/// Returns the non-empty layers of both views that have a different scope than `layer`.
fn others<'a>(
    from: &'a TypeView,
    to: &'a TypeView,
    layer: &Collection,
) -> Vec<&'a Arc<Collection>> {
    let all = from.layers.iter().chain(&to.layers);
    all.filter(|other| other.scope != layer.scope && !other.resources.is_empty()).collect()
}

/// Returns the names of the delta that another layer also contains. The cost for each other layer
/// is O(min(d, size of the layer) · log M).
fn contested_names(
    delta: &LayerDelta,
    from: Option<&Arc<Collection>>,
    to: &Collection,
    others: &[&Arc<Collection>],
) -> BTreeSet<ResourceName> {
    let mut names = BTreeSet::new();
    for other in others {
        if delta.len() <= other.resources.len() {
            let all = delta.changed().iter().chain(delta.removed().iter());
            let held = all.map(|r| r.name()).filter(|name| other.resources.contains_key(*name));
            names.extend(held.cloned());
        } else {
            let in_this_layer = |name: &&ResourceName| {
                to.resources.contains_key(*name)
                    || from.is_some_and(|from| from.resources.contains_key(*name))
            };
            names.extend(other.resources.keys().filter(in_this_layer).cloned());
        }
    }
    names
}

/// Returns the differences of all collections that differ between two states.
///
/// The caller wakes the sessions that subscribe to one of the names. The cost is
/// O(changes · log M).
#[must_use]
pub fn changed_collections(differ: &Differ, from: &State, to: &State) -> Vec<Arc<LayerDelta>> {
    changed_collections_of(differ, from, to, |_| true)
}

/// Returns the differences of the collections of some scopes, as [`changed_collections`] does. The changes of other
/// scopes cost nothing.
#[must_use]
pub fn changed_collections_of(
    differ: &Differ,
    from: &State,
    to: &State,
    has_sessions: impl Fn(&ScopeName) -> bool,
) -> Vec<Arc<LayerDelta>> {
    use imbl::ordmap::DiffItem;
    // Maps share unchanged nodes, and scopes compare by the revision that changed them.
    let mut out = Vec::new();
    let mut compare = |old: Option<&Arc<Scope>>, new: &Arc<Scope>| {
        for (type_url, collection) in &new.types {
            let old = old.and_then(|old| old.types.get(type_url));
            if old.is_none_or(|old| !Arc::ptr_eq(old, collection)) {
                let delta = differ.delta(old, collection);
                if !delta.is_empty() {
                    out.push(delta);
                }
            }
        }
    };
    for item in from.scopes.diff(&to.scopes) {
        match item {
            DiffItem::Add(name, _) | DiffItem::Update { new: (name, _), .. }
                if !has_sessions(name) => {}
            DiffItem::Add(_, new) => compare(None, new),
            DiffItem::Update { old: (_, old), new: (_, new) } => compare(Some(old), new),
            // `State::apply` never removes a scope. A state that replaces all of the old one, for
            // example from a snapshot, may lack scopes. Sessions detect this when they compare
            // their views.
            DiffItem::Remove(..) => {}
        }
    }
    out
}
