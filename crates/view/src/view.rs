//! Views: the parts of the state that nodes with one list of scopes see.

use std::{ops::Bound, sync::Arc};

use chancery_model::{
    Collection, Incarnation, LifetimeClass, Resource, ResourceName, Revision, Scope, ScopeName,
    State, StructuredName, TypeUrl, TypeVersion,
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
            hidden_child: None,
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
    /// Resources with a child of this type are not found by name.
    hidden_child: Option<&'static str>,
}

impl TypeView {
    /// Creates a view without resources.
    #[must_use]
    pub fn empty() -> Self {
        let (floor, incarnation) = (Revision(0), Incarnation(0));
        Self { floor, incarnation, layers: SmallVec::new(), hidden_child: None }
    }

    /// Finds a resource by name or alias, in the first layer that contains it. A name in any layer
    /// takes precedence over an alias.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        let found = self.by_name(name);
        let found = found.or_else(|| self.layers.iter().find_map(|layer| layer.find(name)))?;
        let is_hidden = self.hidden_child.is_some_and(|hidden| {
            found.children().iter().any(|child| child.type_url.as_str() == hidden)
        });
        (!is_hidden).then_some(found)
    }

    /// Hides the resources with a child of this type from [`TypeView::get`].
    #[must_use]
    pub fn hiding_parents_of(self, child_type: &'static str) -> Self {
        Self { hidden_child: Some(child_type), ..self }
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

    /// Returns the number of resources in all layers, in O(layers). It includes shadowed resources.
    #[must_use]
    pub fn n_resources(&self) -> usize {
        self.layers.iter().map(|layer| layer.resources.len()).sum()
    }

    /// Returns the length of the `resources` fields of a SotW response with all layers, in O(layers). It
    /// includes shadowed resources.
    #[must_use]
    pub fn sotw_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.sotw_bytes).sum()
    }

    /// Iterates over the visible members of a glob collection, layer by layer (XDSTP-15). The cost is
    /// O((members + deeper segments) · layers · log M).
    pub fn members<'a>(
        &'a self,
        glob: &'a StructuredName<'_>,
    ) -> impl Iterator<Item = &'a Arc<Resource>> {
        self.layers.iter().enumerate().flat_map(move |(at, layer)| {
            let above = &self.layers[..at];
            members_of(layer, glob).filter(move |member| {
                !above.iter().any(|l| l.resources.contains_key(member.name()))
            })
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

/// Iterates over the members of a glob collection in one layer. Resources with the same start are
/// adjacent, because the names are sorted.
fn members_of<'a>(
    layer: &'a Collection,
    glob: &'a StructuredName<'_>,
) -> impl Iterator<Item = &'a Arc<Resource>> {
    let from =
        |start: &str| layer.resources.range::<_, str>((Bound::Included(start), Bound::Unbounded));
    let parent = glob.parent();
    let mut names = from(parent);
    std::iter::from_fn(move || {
        loop {
            let (name, resource) = names.next()?;
            let rest = name.as_str().strip_prefix(parent)?;
            if glob.has_member(name.as_str()) {
                return Some(resource);
            }
            // All names below a deeper segment are adjacent, too: `0` follows `/`.
            if let Some((segment, _)) = rest.split('?').next().and_then(|id| id.split_once('/')) {
                names = from(&[parent, segment, "0"].concat());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use chancery_model::{ResourceDraft, ResourceKey, Transaction, Upsert};

    use super::*;

    /// XDSTP-15: the members of a glob are the visible resources of one level. The view sorts other names
    /// between them: deeper levels, other parameters and similar parents.
    #[test]
    fn members_are_the_visible_resources_of_one_level() {
        let type_url = TypeUrl::from_static("type.googleapis.com/t.T");
        let scopes = ["upper", "lower"].map(|scope| ScopeName::new(scope).unwrap());
        let mut transaction = Transaction::default();
        let parts =
            ["p", "p!", "p-q", "p/", "p/a", "p/a!", "p/a/b", "p/a/c/d", "p/a0", "p/b/a", "p/z"];
        for (at, part) in parts.iter().enumerate() {
            for (n, parameters) in ["", "?k=/", "?k=v"].iter().enumerate() {
                for (m, scope) in scopes.iter().enumerate() {
                    if (at + n + m) % 3 == 0 {
                        continue;
                    }
                    let name = format!("xdstp://a/t.T/{part}{parameters}");
                    let name = ResourceName::new(&name).unwrap();
                    let key = ResourceKey { type_url: type_url.clone(), name };
                    let draft = ResourceDraft::new(key, bytes::Bytes::new());
                    transaction.upserts.push(Upsert { scope: scope.clone(), draft });
                }
            }
        }
        let state = State::new(Incarnation(1)).apply(&transaction).state;
        let view = View::resolve(&state, &scopes).of_type(&type_url);
        assert!(view.n_resources() > 30);
        let mut n = 0;
        for parent in ["", "p/", "p/a/", "p/a/c/", "none/"] {
            for parameters in ["", "?k=/", "?k=v"] {
                let name = format!("xdstp://a/t.T/{parent}*{parameters}");
                let glob = StructuredName::parse(&name).unwrap();
                let mut found: Vec<_> = view.members(&glob).map(|member| member.name()).collect();
                let is_member = |name: &&ResourceName| glob.has_member(name.as_str());
                let mut expected: Vec<_> =
                    view.iter().map(|one| one.name()).filter(is_member).collect();
                found.sort();
                expected.sort();
                assert_eq!(found, expected, "{name}");
                n += found.len();
            }
        }
        assert!(n > 20, "{n} members");
    }
}
