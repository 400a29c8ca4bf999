//! The index of references: which resources refer to a name, and which listeners have an address.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use chancery_admission::{for_each_reference, listener_addresses, may_refer};
use chancery_model::{
    Collection, Incarnation, Resource, ResourceKey, ResourceName, ScopeName, State, TypeUrl, types,
};
use chancery_view::{Differ, changed_collections};
use imbl::{OrdMap, OrdSet, ordmap::DiffItem};

/// The references of all resources of one state, by the name to which they refer.
///
/// A change costs O(its references · log of all references). A clone shares its content with the
/// original, and is cheap.
#[derive(Debug, Clone)]
pub(crate) struct ReferenceIndex {
    state: State,
    /// The references by the type to which they refer.
    by_type: BTreeMap<TypeUrl, OrdSet<Entry>>,
    /// Every entry shares the scope and the type of its referrer with others.
    origins: OrdMap<(ScopeName, TypeUrl), Arc<Origin>>,
    /// Whether some resource could not be read, because this replica had not opened it.
    is_partial: bool,
}

/// The scope and the type of a resource.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    pub(crate) scope: ScopeName,
    pub(crate) type_url: TypeUrl,
}

/// A reference. The order of the fields puts the references to one name next to each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    target: ResourceName,
    /// Always present, except in the bound of a search.
    origin: Option<Arc<Origin>>,
    referrer: ResourceName,
}

impl ReferenceIndex {
    /// Creates the index of a state without resources.
    fn empty(incarnation: Incarnation) -> Self {
        let state = State::new(incarnation);
        Self { state, by_type: BTreeMap::new(), origins: OrdMap::new(), is_partial: false }
    }

    /// Creates the index of a state, in O(all resources).
    pub(crate) fn of(state: &State) -> Self {
        Self::empty(state.incarnation).advanced(state)
    }

    /// Returns the index of another state, in O(changes). The other state may be older.
    pub(crate) fn advanced(self, to: &State) -> Self {
        if self.state.incarnation != to.incarnation {
            // Within one history only, equal revisions mean equal content.
            return Self::of(to);
        }
        if self.is_partial && self.state.n_sealed() != to.n_sealed() {
            // Opened resources have the same versions as before, so no difference shows them.
            return Self::of(to);
        }
        let mut next = self;
        let from = std::mem::replace(&mut next.state, to.clone());
        for delta in changed_collections(&Differ::default(), &from, to) {
            let (scope, type_url) = (delta.scope(), delta.type_url());
            if !may_refer(type_url) {
                continue;
            }
            let old = from.collection(scope, type_url);
            let origin = next.origin(scope, type_url);
            for new in delta.changed().iter() {
                if let Some(old) = old.and_then(|old| old.resources.get(new.name())) {
                    next.remove(&origin, old);
                }
                next.add(&origin, new);
            }
            delta.removed().iter().for_each(|old| next.remove(&origin, old));
        }
        // An older state may lack scopes and types.
        for item in from.scopes.diff(&to.scopes) {
            let (old, new) = match item {
                DiffItem::Add(..) => continue,
                DiffItem::Update { old: (_, old), new: (_, new) } => (old, Some(new)),
                DiffItem::Remove(_, old) => (old, None),
            };
            let is_gone =
                |type_url: &TypeUrl| new.is_none_or(|new| !new.types.contains_key(type_url));
            let gone = old.types.values().filter(|old| is_gone(&old.type_url));
            gone.for_each(|collection| next.remove_all(collection));
        }
        next
    }

    /// Iterates over the resources that refer to a name, in any scope.
    pub(crate) fn referrers<'a>(
        &'a self,
        type_url: &TypeUrl,
        name: &str,
    ) -> impl Iterator<Item = (&'a Origin, ResourceKey)> + 'a {
        let first = ResourceName::requested(name).ok().map(first_of);
        let all = self.by_type.get(type_url).zip(first).into_iter().flat_map(|(all, first)| {
            let target = first.target.clone();
            all.range(first..).take_while(move |entry| entry.target == target)
        });
        all.filter_map(|Entry { origin, referrer, .. }| {
            let origin = origin.as_deref()?;
            let (type_url, name) = (origin.type_url.clone(), referrer.clone());
            Some((origin, ResourceKey { type_url, name }))
        })
    }

    /// Iterates over the listeners of a scope that have an address.
    pub(crate) fn listeners_at<'a>(
        &'a self,
        address: &str,
        scope: &ScopeName,
    ) -> impl Iterator<Item = &'a ResourceName> + use<'a> {
        let type_url = TypeUrl::from_static(types::LISTENER);
        let origin = Some(Arc::new(Origin { scope: scope.clone(), type_url }));
        let first = ResourceName::requested(address).ok().zip(ResourceName::requested("").ok());
        let first = first.map(|(target, referrer)| Entry { target, origin, referrer });
        let all = self.by_type.get(&*ADDRESS).zip(first).into_iter().flat_map(|(all, first)| {
            let (target, origin) = (first.target.clone(), first.origin.clone());
            all.range(first..)
                .take_while(move |entry| entry.target == target && entry.origin == origin)
        });
        all.map(|entry| &entry.referrer)
    }

    /// Returns whether a listener of another scope has an address.
    pub(crate) fn has_listener_outside(&self, address: &str, scope: &ScopeName) -> bool {
        self.referrers(&ADDRESS, address).any(|(origin, _)| origin.scope != *scope)
    }

    /// Returns whether the references of some resources are unknown, because this replica has not opened them.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns the number of references.
    pub(crate) fn len(&self) -> usize {
        self.by_type.values().map(OrdSet::len).sum()
    }

    fn origin(&mut self, scope: &ScopeName, type_url: &TypeUrl) -> Arc<Origin> {
        let key = (scope.clone(), type_url.clone());
        let new = || Arc::new(Origin { scope: scope.clone(), type_url: type_url.clone() });
        Arc::clone(self.origins.entry(key).or_insert_with(new))
    }

    fn remove_all(&mut self, collection: &Collection) {
        if may_refer(&collection.type_url) {
            let origin = self.origin(&collection.scope, &collection.type_url);
            collection.resources.values().for_each(|old| self.remove(&origin, old));
        }
    }

    fn add(&mut self, origin: &Arc<Origin>, resource: &Resource) {
        self.is_partial |= !resource.is_opened();
        each(origin, resource, |target_type, target| {
            let Some(target) = self.shared_name(&origin.scope, target_type, target) else { return };
            let (origin, referrer) = (Some(Arc::clone(origin)), resource.name().clone());
            let entry = Entry { target, origin, referrer };
            match self.by_type.get_mut(target_type) {
                Some(all) => drop(all.insert(entry)),
                None => drop(self.by_type.insert(target_type.clone(), OrdSet::unit(entry))),
            }
        });
    }

    fn remove(&mut self, origin: &Arc<Origin>, resource: &Resource) {
        each(origin, resource, |target_type, target| {
            let all = self.by_type.get_mut(target_type);
            if let Some((all, target)) = all.zip(ResourceName::requested(target).ok()) {
                let (origin, referrer) = (Some(Arc::clone(origin)), resource.name().clone());
                all.remove(&Entry { target, origin, referrer });
            }
        });
    }

    /// Returns a name that shares its memory with the resource of that name, or with another reference.
    fn shared_name(
        &self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        name: &str,
    ) -> Option<ResourceName> {
        let held = self.state.collection(scope, type_url);
        let held = held.and_then(|held| held.resources.get_key_value(name));
        if let Some((held, _)) = held {
            return Some(held.clone());
        }
        let first = first_of(ResourceName::requested(name).ok()?);
        let entry = self.by_type.get(type_url).and_then(|all| all.range(first.clone()..).next());
        let shared = entry.filter(|entry| entry.target == first.target);
        Some(shared.map_or(first.target, |entry| entry.target.clone()))
    }
}

/// Returns the lower bound of the references to a name.
fn first_of(target: ResourceName) -> Entry {
    Entry { referrer: target.clone(), target, origin: None }
}

/// The type under which the index has the addresses of listeners. No resource has this type.
static ADDRESS: LazyLock<TypeUrl> = LazyLock::new(|| TypeUrl::from_static("listener address"));

/// Calls `found` with the type and the name of each resource to which a resource refers, and with each address of a
/// listener.
fn each(origin: &Origin, resource: &Resource, mut found: impl FnMut(&TypeUrl, &str)) {
    let (type_url, name) = (origin.type_url.clone(), resource.name().clone());
    let (key, body) = (ResourceKey { type_url, name }, resource.body().unwrap_or_default());
    for_each_reference(&key, &body, |reference| found(reference.type_url, &reference.name));
    for address in listener_addresses(&key, &body) {
        found(&ADDRESS, &address.text);
    }
}

/// The index of the newest known state. All requests of a replica share it.
#[derive(Debug, Default)]
pub(crate) struct SharedIndex(Mutex<Option<ReferenceIndex>>);

impl SharedIndex {
    /// Returns the index of a committed state. The cost is O(changes) between this state and that of the
    /// previous call. The first call costs O(all resources).
    pub(crate) fn at(&self, state: &State) -> ReferenceIndex {
        // Concurrent callers wait, because they need the same work.
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match shared.take() {
            Some(index) => index.advanced(state),
            None => ReferenceIndex::of(state),
        };
        shared.insert(index).clone()
    }
}

#[cfg(test)]
mod tests;
