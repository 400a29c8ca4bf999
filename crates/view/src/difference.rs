//! The difference of two views, put together from those of their layers.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Collection, Resource, ResourceName, Scope, State};

use crate::{Differ, LayerDelta, Resources, TypeView};

/// What has to be told to someone who knows the one view so that he knows the other.
#[derive(Debug, Clone, Default)]
pub struct Difference {
    /// New resources, and those with another version.
    pub changed: Resources,
    /// Resources that are gone, as they were.
    pub removed: Vec<Arc<Resource>>,
}

impl Difference {
    /// Whether both views show the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// The difference of two views of one type. They may be over different scopes.
///
/// A resource counts as changed if its version differs, even with equal bytes; so does a resource that a deletion in
/// another scope uncovers. Clients get versions (DELTA-51, SOTW-13), so two clients of one view would otherwise
/// hold different versions, and a client that resumes would be sent the resource anyway (DELTA-58).
///
/// For views over the same scopes O(d · layers · log M). Where scopes come, go or change places, the
/// resources of those scopes count as changed for the cost, not for the result.
#[must_use]
pub fn difference(differ: &Differ, from: &TypeView, to: &TypeView) -> Difference {
    let mut out = Difference::default();
    if from.is_same(to) {
        return out;
    }
    let mut contested = BTreeSet::new();
    if same_order(from, to) {
        for layer in &to.layers {
            let old = layer_of(from, layer);
            if old.is_some_and(|old| Arc::ptr_eq(old, layer)) {
                continue;
            }
            let delta = differ.delta(old, layer);
            let others = others(from, to, layer);
            let here = contested_names(&delta, old, layer, &others);
            if here.is_empty() {
                out.changed.push_shared(delta.changed());
                out.removed.extend(delta.removed().iter().cloned());
            } else {
                let alone = |resource: &&Arc<Resource>| !here.contains(resource.name());
                delta.changed().iter().filter(alone).for_each(|r| out.changed.push(Arc::clone(r)));
                out.removed.extend(delta.removed().iter().filter(alone).cloned());
                contested.extend(here);
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
    out
}

/// The layer of `view` that belongs to the same scope.
fn layer_of<'a>(view: &'a TypeView, layer: &Collection) -> Option<&'a Arc<Collection>> {
    view.layers.iter().find(|other| other.scope == layer.scope)
}

/// Whether the scopes that both views have lie in the same order.
fn same_order(from: &TypeView, to: &TypeView) -> bool {
    let common = |a: &TypeView, b: &TypeView| {
        let both = a.layers.iter().filter(|layer| layer_of(b, layer).is_some());
        both.map(|layer| layer.scope.clone()).collect::<Vec<_>>()
    };
    common(from, to) == common(to, from)
}

/// The layers of both views that belong to other scopes.
fn others<'a>(
    from: &'a TypeView,
    to: &'a TypeView,
    layer: &Collection,
) -> Vec<&'a Arc<Collection>> {
    let all = from.layers.iter().chain(&to.layers);
    all.filter(|other| other.scope != layer.scope && !other.resources.is_empty()).collect()
}

/// Names of the delta that another layer holds as well. O(min(d, size of the other layer) · log M)
/// for each other layer.
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
            let here = |name: &&ResourceName| {
                to.resources.contains_key(*name)
                    || from.is_some_and(|from| from.resources.contains_key(*name))
            };
            names.extend(other.resources.keys().filter(here).cloned());
        }
    }
    names
}

/// The collections that differ between two states, each with how it differs: who is interested in
/// one of their names has to be woken. O(changes · log M).
#[must_use]
pub fn changed_collections(differ: &Differ, from: &State, to: &State) -> Vec<Arc<LayerDelta>> {
    use imbl::ordmap::DiffItem;
    // Maps share what did not change; scopes are compared by the revision that changed them.
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
            DiffItem::Add(_, new) => compare(None, new),
            DiffItem::Update { old: (_, old), new: (_, new) } => compare(Some(old), new),
            // Scopes are never taken out of a state; a state that replaces another one wholesale
            // may lack some, and sessions find that out when they compare their views.
            DiffItem::Remove(..) => {}
        }
    }
    out
}
