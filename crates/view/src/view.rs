//! Views: the parts of the state that nodes with one list of scopes see.

use std::{ops::Bound, sync::Arc};

use chancery_model::{
    Collection, Incarnation, LifetimeClass, Resource, ResourceName, Revision, Scope, ScopeName,
    State, TypeUrl, TypeVersion,
};
use smallvec::SmallVec;

/// The resources that nodes with one list of scopes see at one revision.
///
/// A view is immutable and cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    revision: Revision,
    floor: Revision,
    incarnation: Incarnation,
    /// The existing scopes, in the order of the list.
    scopes: SmallVec<[Arc<Scope>; 2]>,
}

impl View {
    /// Creates a view of `state` whose layers are the given scopes. An earlier scope shadows a later
    /// one. The cost is O(scopes · log of all scopes).
    #[must_use]
    pub fn resolve(state: &State, scopes: &[ScopeName]) -> Self {
        Self {
            revision: state.revision,
            // A node gets another list of scopes only when the assignments change. With the revision
            // of that change as lower bound, the node's versions never decrease, and no version
            // repeats with different content (SOTW-15).
            floor: state.assignments.changed,
            incarnation: state.incarnation,
            scopes: scopes.iter().filter_map(|name| state.scopes.get(name).cloned()).collect(),
        }
    }

    /// Returns the revision of the state that the view shows.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the part of the view with one type, in O(scopes).
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> TypeView {
        TypeView {
            floor: self.floor,
            incarnation: self.incarnation,
            layers: self.scopes.iter().filter_map(|s| s.types.get(type_url).cloned()).collect(),
        }
    }
}

/// The resources of one type in a view.
///
/// A type view is immutable and cheap to clone.
#[derive(Debug, Clone)]
pub struct TypeView {
    floor: Revision,
    incarnation: Incarnation,
    pub(crate) layers: SmallVec<[Arc<Collection>; 2]>,
}

impl TypeView {
    /// Creates a view without resources.
    #[must_use]
    pub fn empty() -> Self {
        Self { floor: Revision(0), incarnation: Incarnation(0), layers: SmallVec::new() }
    }

    /// Finds a resource by name or alias, in the first layer that contains it. A name in any layer
    /// takes precedence over an alias.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        self.by_name(name).or_else(|| self.layers.iter().find_map(|layer| layer.find(name)))
    }

    /// Finds a resource by name, and ignores aliases.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Resource>> {
        self.layers.iter().find_map(|layer| layer.resources.get(name))
    }

    /// Returns the version of the type (`version_info`, `system_version_info`).
    #[must_use]
    pub fn version(&self) -> TypeVersion {
        let newest = self.layers.iter().max_by_key(|layer| layer.changed);
        let newest = newest.filter(|layer| layer.changed >= self.floor);
        TypeVersion {
            revision: newest.map_or(self.floor, |layer| layer.changed),
            incarnation: self.incarnation,
            label: newest.and_then(|layer| layer.label.clone()),
        }
    }

    /// Iterates over the collections of the view, the one that shadows all others first.
    pub fn layers(&self) -> impl Iterator<Item = &Collection> {
        self.layers.iter().map(|layer| &**layer)
    }

    /// Iterates over all visible resources, layer by layer and by name within each layer. The cost
    /// is O(M · layers · log M).
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.layers.iter().enumerate().flat_map(move |(at, layer)| {
            let above = &self.layers[..at];
            layer
                .resources
                .iter()
                .filter(move |(name, _)| !above.iter().any(|l| l.resources.contains_key(*name)))
                .map(|(_, resource)| resource)
        })
    }

    /// Returns the resource with the smallest name after `name`, or the first resource without a
    /// `name`. The cost is O(layers · log M).
    #[must_use]
    pub fn next_after(&self, name: Option<&ResourceName>) -> Option<&Arc<Resource>> {
        let from = (name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut smallest: Option<(&ResourceName, &Arc<Resource>)> = None;
        for layer in &self.layers {
            let next = layer.resources.range::<_, ResourceName>(from).next();
            // For equal names, the earlier layer wins.
            if let Some(next) = next.filter(|next| smallest.is_none_or(|best| next.0 < best.0)) {
                smallest = Some(next);
            }
        }
        smallest.map(|(_, resource)| resource)
    }

    /// Iterates over the classes of lifetimes. A class of several layers occurs several times, and a
    /// class may have no visible resource. The cost is O(layers + classes).
    pub fn lifetimes(&self) -> impl Iterator<Item = LifetimeClass> {
        self.layers.iter().flat_map(|layer| layer.lifetimes.classes())
    }

    /// Iterates over the visible resources whose lifetime is of this class. The cost is
    /// O(resources of the class · layers · log M).
    pub fn with_lifetime(&self, class: LifetimeClass) -> impl Iterator<Item = &Arc<Resource>> {
        self.layers.iter().enumerate().flat_map(move |(at, layer)| {
            let above = &self.layers[..at];
            layer
                .lifetimes
                .names(class)
                .filter(move |name| !above.iter().any(|l| l.resources.contains_key(*name)))
                .filter_map(|name| layer.resources.get(name))
        })
    }

    /// Returns the number of resources whose lifetime is of this class, in O(layers). It includes
    /// resources that another layer shadows.
    #[must_use]
    pub fn n_with_lifetime(&self, class: LifetimeClass) -> usize {
        self.layers.iter().map(|layer| layer.lifetimes.n_names(class)).sum()
    }

    /// Returns whether both views have identical layers, which implies an empty difference. The
    /// check compares pointers and costs O(layers).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}
