//! The resources of a scope: a collection for each type, with its indexes.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdMap;

use crate::{
    Change, Lifetimes, QuotaUse, Resource, ResourceName, Revision, ScopeName, SealedCounts,
    TypeUrl, VariantIndex, has_node_parameters, resource::Shared,
};

/// All resources of one type in one scope.
///
/// Collections in a state are immutable and shared by `Arc`. States between which a collection did
/// not change share it.
#[derive(Debug, Clone)]
pub struct Collection {
    /// The scope of the collection.
    pub scope: ScopeName,
    /// The type of the resources.
    pub type_url: TypeUrl,
    /// The last revision that changed the collection in a way that clients see. An empty collection
    /// keeps it, so that versions never decrease.
    pub changed: Revision,
    /// The label of the revision in `changed`.
    pub label: Option<Arc<str>>,
    /// The resources by name.
    pub resources: OrdMap<ResourceName, Arc<Resource>>,
    /// The names of resources by alias. If two resources have the same alias, the alias refers to
    /// the one that was published last.
    pub aliases: OrdMap<ResourceName, ResourceName>,
    /// The names of the resources with a lifetime.
    pub lifetimes: Lifetimes,
    /// The sum of [`Resource::sotw_len`] over all resources.
    pub sotw_bytes: u64,
    /// The sum of [`Resource::body_len`] over all resources.
    pub body_bytes: u64,
    /// The variants by name.
    pub variants: VariantIndex,
    /// The sealed resources, counted.
    pub sealed: SealedCounts,
    /// The number of resources whose names have parameters of a node.
    pub n_of_nodes: usize,
}

impl Collection {
    /// Creates an empty collection at revision 0.
    #[must_use]
    pub fn new(scope: ScopeName, type_url: TypeUrl) -> Self {
        Self {
            scope,
            type_url,
            changed: Revision(0),
            label: None,
            resources: OrdMap::new(),
            aliases: OrdMap::new(),
            lifetimes: Lifetimes::default(),
            sotw_bytes: 0,
            body_bytes: 0,
            variants: VariantIndex::default(),
            sealed: SealedCounts::default(),
            n_of_nodes: 0,
        }
    }

    /// Finds a resource by name or alias (DELTA-29). A name takes precedence over an alias.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<Resource>> {
        match self.resources.get(name) {
            Some(resource) => Some(resource),
            None => self.resources.get(self.aliases.get(name)?),
        }
    }

    /// Makes changes, which are sorted by name. `replaced` are the resources before them.
    pub(crate) fn change(&mut self, changes: &[Change], replaced: &[Option<&Shared>]) {
        if changes.len() >= REBUILD_MIN && changes.len() * 4 >= self.resources.len() {
            self.resources = merged(&self.resources, changes, replaced);
        } else {
            for change in changes {
                match &change.resource {
                    Some(new) => drop(self.resources.insert(new.name().clone(), Arc::clone(new))),
                    None => drop(self.resources.remove(&change.key.name)),
                }
            }
        }
        for (change, old) in changes.iter().zip(replaced) {
            if let Some(old) = old {
                self.drop_from_indexes(old);
            }
            if let Some(new) = &change.resource {
                for alias in new.aliases() {
                    self.aliases.insert(alias.clone(), new.name().clone());
                }
                self.add_to_indexes(new);
            }
        }
    }

    /// Adds a resource that the collection lacks, without its aliases. If two resources have the same
    /// alias, it is not in the resources to which of them the alias refers.
    pub fn add_stored(&mut self, resource: Arc<Resource>) {
        self.add_to_indexes(&resource);
        self.resources.insert(resource.name().clone(), resource);
    }

    /// Sets or removes a resource, without its aliases.
    pub(crate) fn set(&mut self, name: &ResourceName, resource: Option<Arc<Resource>>) {
        if let Some(old) = self.resources.remove(name) {
            self.drop_from_indexes(&old);
        }
        if let Some(resource) = resource {
            self.add_stored(resource);
        }
    }

    /// Replaces resources by other forms of them. Each alias refers to the same resource as before.
    pub(crate) fn set_forms<'a>(&mut self, resources: impl IntoIterator<Item = &'a Arc<Resource>>) {
        let aliases = self.aliases.clone();
        for resource in resources {
            if let Some(old) = self.resources.get(resource.name()).cloned() {
                self.drop_from_indexes(&old);
            }
            self.add_stored(Arc::clone(resource));
        }
        self.aliases = aliases;
    }

    /// Adds a resource to the indexes, without its aliases.
    fn add_to_indexes(&mut self, resource: &Arc<Resource>) {
        self.lifetimes.add(resource.ttl(), resource.name());
        self.sotw_bytes += resource.sotw_len() as u64;
        self.body_bytes += resource.body_len() as u64;
        self.variants.add(resource);
        self.sealed.add(resource);
        self.n_of_nodes += usize::from(has_node_parameters(resource.base_name().as_str()));
    }

    /// Removes a resource and its aliases from the indexes.
    fn drop_from_indexes(&mut self, old: &Resource) {
        self.sotw_bytes -= old.sotw_len() as u64;
        self.body_bytes -= old.body_len() as u64;
        self.lifetimes.remove(old.ttl(), old.name());
        self.variants.remove(old);
        self.sealed.remove(old);
        self.n_of_nodes -= usize::from(has_node_parameters(old.base_name().as_str()));
        for alias in old.aliases() {
            if self.aliases.get(alias) == Some(old.name()) {
                self.aliases.remove(alias);
            }
        }
    }
}

/// The number of changes from which the map of a collection may be built again.
const REBUILD_MIN: usize = 64;

/// Returns a new map with changes: most of its nodes would be copied anyway.
fn merged(
    old: &OrdMap<ResourceName, Shared>,
    changes: &[Change],
    replaced: &[Option<&Shared>],
) -> OrdMap<ResourceName, Shared> {
    let mut kept = old.iter().peekable();
    let mut new = OrdMap::new();
    for (change, replaced) in changes.iter().zip(replaced) {
        while let Some((name, resource)) = kept.peek().copied() {
            let is_replaced = match replaced {
                Some(replaced) => Arc::ptr_eq(resource, replaced),
                None => *name > change.key.name,
            };
            if is_replaced {
                break;
            }
            new.insert(name.clone(), Arc::clone(resource));
            kept.next();
        }
        if replaced.is_some() {
            kept.next();
        }
        if let Some(resource) = &change.resource {
            new.insert(resource.name().clone(), Arc::clone(resource));
        }
    }
    new.extend(kept.map(|(name, resource)| (name.clone(), Arc::clone(resource))));
    new
}

/// A scope: a collection of resources for each type.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The collections by type. A type is absent if the scope never contained a resource of it.
    pub types: BTreeMap<TypeUrl, Arc<Collection>>,
    /// The last revision that changed the scope.
    pub changed: Revision,
}

/// Compares revisions only. Within one history, a scope's name and revision identify its content.
impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        self.changed == other.changed
    }
}

impl Scope {
    /// Returns the number of resources of all types.
    #[must_use]
    pub fn len(&self) -> usize {
        self.types.values().map(|collection| collection.resources.len()).sum()
    }

    /// Returns whether the scope has no resources.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.types.values().all(|collection| collection.resources.is_empty())
    }

    /// Returns what the scope adds to the use of a quota, in O(types).
    pub(crate) fn quota_use(&self) -> QuotaUse {
        let resources = self.len() as u64;
        let bytes = self.types.values().map(|collection| collection.body_bytes).sum();
        QuotaUse { resources, bytes, scopes: u64::from(resources > 0) }
    }
}
