//! Views: what nodes with the same list of scopes see.

use std::{ops::Bound, sync::Arc};

use chancery_model::{
    Collection, Incarnation, Resource, ResourceName, Revision, Scope, ScopeName, State, TypeUrl,
    TypeVersion,
};
use smallvec::SmallVec;

/// What nodes with one list of scopes see at one revision. Immutable; cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    revision: Revision,
    floor: Revision,
    incarnation: Incarnation,
    /// In the order of the list; a scope that does not exist (yet) is left out.
    scopes: SmallVec<[Arc<Scope>; 2]>,
}

impl View {
    /// Lays the scopes over each other as they are in `state`. O(scopes · log of all scopes).
    #[must_use]
    pub fn resolve(state: &State, scopes: &[ScopeName]) -> Self {
        Self {
            revision: state.revision,
            // A node that moves to another list of scopes does so because the assignments have
            // changed: with their revision as the least one, its versions never go back and never
            // repeat for other content (design 4.2, SOTW-15).
            floor: state.assignments.changed,
            incarnation: state.incarnation,
            scopes: scopes.iter().filter_map(|name| state.scopes.get(name).cloned()).collect(),
        }
    }

    /// The revision of the state it was taken from.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The part of the view that holds one type. O(scopes).
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> TypeView {
        TypeView {
            floor: self.floor,
            incarnation: self.incarnation,
            layers: self.scopes.iter().filter_map(|s| s.types.get(type_url).cloned()).collect(),
        }
    }
}

/// What a view shows of one type. Immutable; cheap to clone.
#[derive(Debug, Clone)]
pub struct TypeView {
    floor: Revision,
    incarnation: Incarnation,
    pub(crate) layers: SmallVec<[Arc<Collection>; 2]>,
}

impl TypeView {
    /// A view that shows nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self { floor: Revision(0), incarnation: Incarnation(0), layers: SmallVec::new() }
    }

    /// The resource of that name, or with that alias: the one of the first layer that has it. A name
    /// goes before an alias, in whatever layer.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        self.by_name(name).or_else(|| self.layers.iter().find_map(|layer| layer.find(name)))
    }

    /// The resource of that name, aliases not looked at.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Resource>> {
        self.layers.iter().find_map(|layer| layer.resources.get(name))
    }

    /// The version of the type (`version_info`, `system_version_info`).
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

    /// All resources that it shows, layer by layer, by name in each. O(M · layers · log M).
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

    /// The resource with the least name after the given one; without one, the first. O(layers · log M).
    #[must_use]
    pub fn next_after(&self, name: Option<&ResourceName>) -> Option<&Arc<Resource>> {
        let from = (name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut least: Option<(&ResourceName, &Arc<Resource>)> = None;
        for layer in &self.layers {
            let next = layer.resources.range::<_, ResourceName>(from).next();
            // Of equal names the upper layer's is shown.
            if let Some(next) = next.filter(|next| least.is_none_or(|least| next.0 < least.0)) {
                least = Some(next);
            }
        }
        least.map(|(_, resource)| resource)
    }

    /// Whether both are the same by identity: then their difference is empty. O(layers).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}
