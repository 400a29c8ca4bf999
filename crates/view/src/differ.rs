//! A cache of the differences between collections, shared by all callers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use chancery_model::{
    Collection, Resource, ResourceName, ScopeName, StructuredName, TypeUrl, is_structured,
};
use walk::items;
pub(crate) use walk::old_sizes;

/// The maximum number of cached differences.
///
/// Each entry belongs to a step (from, to) of one collection. Sessions that keep up are all at the
/// same few steps. The next new step evicts every entry whose ends are no longer in use.
const CACHED_MAX: usize = 64;

/// The minimum number of resources for which a full listing of a collection is cached.
///
/// Smaller collections are listed on each call. They are mostly private scopes, which are numerous,
/// and would evict entries that many sessions share.
const CACHED_LISTING_MIN: usize = 32;

/// The difference between two versions of one collection.
///
/// The delta refers to the changed resources only, so it never keeps an old state alive.
#[derive(Debug)]
pub struct LayerDelta {
    scope: ScopeName,
    type_url: TypeUrl,
    changed: Arc<[Arc<Resource>]>,
    removed: Arc<[Arc<Resource>]>,
    /// The previous aliases of the changed resources.
    old_aliases: Box<[ResourceName]>,
    /// The glob collections of the changed and removed resources; empty if no name is structured.
    globs: Box<[Option<ResourceName>]>,
}

impl LayerDelta {
    fn new(from: Option<&Arc<Collection>>, to: &Arc<Collection>) -> Self {
        let (changed, removed) = items(from.map(|from| &from.resources), &to.resources);
        let aliased = from.filter(|from| !from.aliases.is_empty());
        let before = aliased.into_iter().flat_map(|from| {
            changed.iter().filter_map(|resource| from.resources.get(resource.name()))
        });
        let old_aliases = before.flat_map(|old| old.aliases().iter().cloned()).collect();
        Self {
            scope: to.scope.clone(),
            type_url: to.type_url.clone(),
            globs: globs_of(changed.iter().chain(removed.iter())),
            changed,
            removed,
            old_aliases,
        }
    }

    /// Returns the scope of the collection.
    #[must_use]
    pub fn scope(&self) -> &ScopeName {
        &self.scope
    }

    /// Returns the type of the collection.
    #[must_use]
    pub fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// Returns the resources that are new or have a different version, sorted by name.
    #[must_use]
    pub fn changed(&self) -> &Arc<[Arc<Resource>]> {
        &self.changed
    }

    /// Returns the removed resources in their last version, sorted by name.
    #[must_use]
    pub fn removed(&self) -> &Arc<[Arc<Resource>]> {
        &self.removed
    }

    /// Iterates over every changed name, including the old and new aliases.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        (0..self.n_steps()).flat_map(|step| self.names_at(step))
    }

    /// Returns the number of steps in which [`LayerDelta::names_at`] returns all names.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.len() + self.old_aliases.len()
    }

    /// Returns the names of one step, for callers that iterate with pauses. A step has the published
    /// name and aliases of one resource, or one old alias.
    pub fn names_at(&self, step: usize) -> impl Iterator<Item = &ResourceName> {
        let after_changed = step.checked_sub(self.changed.len());
        let resource = match after_changed {
            None => self.changed.get(step),
            Some(at) => self.removed.get(at),
        };
        let old_alias =
            after_changed.and_then(|at| self.old_aliases.get(at.checked_sub(self.removed.len())?));
        let names = resource.map(|r| std::iter::once(r.base_name()).chain(r.aliases()));
        names.into_iter().flatten().chain(old_alias)
    }

    /// Returns the names of one step as [`LayerDelta::names_at`] does, each with the name by which
    /// sessions may subscribe to it. A structured name also has that of its glob collection.
    pub fn subscribed_at(
        &self,
        step: usize,
    ) -> impl Iterator<Item = (&ResourceName, &ResourceName)> {
        let glob = self.globs.get(step).and_then(Option::as_ref);
        let member = glob.and_then(|glob| Some((glob, self.names_at(step).next()?)));
        self.names_at(step).map(|name| (name, name)).chain(member)
    }

    /// Returns the number of changed and removed resources.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changed.len() + self.removed.len()
    }

    /// Returns whether no resource changed in a way that clients see.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the glob collection of each resource. Consecutive resources share the name.
fn globs_of<'a>(
    resources: impl Iterator<Item = &'a Arc<Resource>> + Clone,
) -> Box<[Option<ResourceName>]> {
    if !resources.clone().any(|resource| is_structured(resource.name().as_str())) {
        return Box::default();
    }
    let mut last: Option<ResourceName> = None;
    let of = |resource: &Arc<Resource>| {
        let glob = StructuredName::parse(resource.base_name().as_str()).ok()?.collection();
        if last.as_ref().is_none_or(|last| last.as_str() != glob) {
            last = ResourceName::requested(&glob).ok();
        }
        last.clone()
    };
    resources.map(of).collect()
}

/// The addresses of the old and the new collection; 0 if there is no old collection.
type Step = (usize, usize);

/// A difference that is complete or being computed.
type Slot = Arc<OnceLock<Arc<LayerDelta>>>;

/// A cached step. Callers can request it again as long as both of its ends are in use.
#[derive(Debug)]
struct Entry {
    /// The weak reference only prevents reuse of the address. It does not keep resources alive.
    from: Option<Weak<Collection>>,
    to: Weak<Collection>,
    slot: Slot,
    used: u64,
}

#[derive(Debug, Default)]
struct Cache {
    by_step: HashMap<Step, Entry>,
    clock: u64,
}

/// Computes differences of collections and caches the most recent ones. All shards of a process
/// share one differ.
#[derive(Debug, Default)]
pub struct Differ {
    cache: Mutex<Cache>,
}

impl Differ {
    /// Creates a differ with an empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the difference between two collections. `from` is `None` for a new collection.
    ///
    /// The first call costs O(d log M), and later calls O(1). Concurrent calls for the same
    /// difference wait for one computation.
    #[must_use]
    pub fn delta(&self, from: Option<&Arc<Collection>>, to: &Arc<Collection>) -> Arc<LayerDelta> {
        if from.is_none() && to.resources.len() < CACHED_LISTING_MIN {
            return Arc::new(LayerDelta::new(from, to));
        }
        let slot = self.cache.lock().unwrap_or_else(PoisonError::into_inner).slot(from, to);
        Arc::clone(slot.get_or_init(|| Arc::new(LayerDelta::new(from, to))))
    }
}

impl Cache {
    fn slot(&mut self, from: Option<&Arc<Collection>>, to: &Arc<Collection>) -> Slot {
        self.clock += 1;
        let step = (from.map_or(0, address), address(to));
        if let Some(entry) = self.by_step.get_mut(&step) {
            entry.used = self.clock;
            return Arc::clone(&entry.slot);
        }
        self.by_step.retain(|_, entry| entry.is_in_use());
        if self.by_step.len() >= CACHED_MAX
            && let Some(oldest) = self.by_step.iter().min_by_key(|(_, entry)| entry.used)
        {
            let oldest = *oldest.0;
            self.by_step.remove(&oldest);
        }
        let entry = Entry {
            from: from.map(Arc::downgrade),
            to: Arc::downgrade(to),
            slot: Slot::default(),
            used: self.clock,
        };
        let slot = Arc::clone(&entry.slot);
        self.by_step.insert(step, entry);
        slot
    }
}

impl Entry {
    fn is_in_use(&self) -> bool {
        self.to.strong_count() > 0 && self.from.as_ref().is_none_or(|from| from.strong_count() > 0)
    }
}

fn address(collection: &Arc<Collection>) -> usize {
    Arc::as_ptr(collection).addr()
}

/// The only module that iterates over the maps.
mod walk {
    use std::sync::Arc;

    use chancery_model::{Resource, ResourceName};
    use imbl::{OrdMap, ordmap::DiffItem};

    type Map = OrdMap<ResourceName, Arc<Resource>>;
    type List = Arc<[Arc<Resource>]>;

    /// Returns the length of the old body of each resource that differs; 0 for a resource that only `to` has.
    pub(crate) fn old_sizes<'a>(from: &'a Map, to: &'a Map) -> impl Iterator<Item = usize> + 'a {
        from.diff(to).map(|item| match item {
            DiffItem::Add(..) => 0,
            DiffItem::Update { old: (_, old), .. } | DiffItem::Remove(_, old) => old.body_len(),
        })
    }

    pub(super) fn items(from: Option<&Map>, to: &Map) -> (List, List) {
        let Some(from) = from else { return (to.values().cloned().collect(), Arc::new([])) };
        let (mut changed, mut removed) = (Vec::new(), Vec::new());
        for item in from.diff(to) {
            match item {
                DiffItem::Add(_, resource) => changed.push(Arc::clone(resource)),
                DiffItem::Update { new: (_, resource), .. } => changed.push(Arc::clone(resource)),
                DiffItem::Remove(_, resource) => removed.push(Arc::clone(resource)),
            }
        }
        (changed.into(), removed.into())
    }
}
