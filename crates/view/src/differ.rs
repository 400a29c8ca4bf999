//! Differences of collections, found once and kept for all who ask.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use chancery_model::{Collection, Resource, ResourceName, ScopeName, TypeUrl};
use walk::items;

/// How many differences are kept at most. Each belongs to a step (from, to) of one collection; sessions
/// that keep up are all at the same few steps. One whose ends nobody holds is dropped with the next
/// commit.
const KEPT_MAX: usize = 64;

/// A collection of fewer resources than this is listed anew each time: it would only push out what
/// many share. Private scopes are of this kind, and there are many.
const LISTED_MIN: usize = 32;

/// How one collection changed between two states.
///
/// It refers to what changed and to nothing else: an old state is kept alive by who still needs it,
/// never by a difference.
#[derive(Debug)]
pub struct LayerDelta {
    scope: ScopeName,
    type_url: TypeUrl,
    changed: Arc<[Arc<Resource>]>,
    removed: Arc<[Arc<Resource>]>,
    /// Aliases that the changed resources had before.
    old_aliases: Box<[ResourceName]>,
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
            changed,
            removed,
            old_aliases,
        }
    }

    /// The scope of the collection.
    #[must_use]
    pub fn scope(&self) -> &ScopeName {
        &self.scope
    }

    /// The type of the collection.
    #[must_use]
    pub fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// Resources that are new or have another version, by name.
    #[must_use]
    pub fn changed(&self) -> &Arc<[Arc<Resource>]> {
        &self.changed
    }

    /// Resources that are gone, as they were, by name.
    #[must_use]
    pub fn removed(&self) -> &Arc<[Arc<Resource>]> {
        &self.removed
    }

    /// Every name under which something changed, aliases too: those of before and those of now.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        (0..self.n_steps()).flat_map(|step| self.names_at(step))
    }

    /// In how many steps [`LayerDelta::names_at`] gives all the names.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.len() + self.old_aliases.len()
    }

    /// The names of one step, for who goes through them with pauses: those of one resource, or one that
    /// a resource had.
    pub fn names_at(&self, step: usize) -> impl Iterator<Item = &ResourceName> {
        let gone = step.checked_sub(self.changed.len());
        let resource = match gone {
            None => self.changed.get(step),
            Some(at) => self.removed.get(at),
        };
        let old = gone.and_then(|at| self.old_aliases.get(at.checked_sub(self.removed.len())?));
        let own = resource.map(|r| std::iter::once(r.name()).chain(r.aliases()));
        own.into_iter().flatten().chain(old)
    }

    /// Number of resources that changed or are gone.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changed.len() + self.removed.len()
    }

    /// Whether nothing that clients see has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The addresses of the two collections; 0 for "not there".
type Step = (usize, usize);

/// A difference that is there or being found.
type Slot = Arc<OnceLock<Arc<LayerDelta>>>;

/// A step that somebody may ask for again: as long as both of its ends are in use.
#[derive(Debug)]
struct Entry {
    /// A weak reference keeps the address from being used again, and nothing else.
    from: Option<Weak<Collection>>,
    to: Weak<Collection>,
    slot: Slot,
    used: u64,
}

#[derive(Debug, Default)]
struct Kept {
    by_step: HashMap<Step, Entry>,
    clock: u64,
}

/// Finds differences of collections, and remembers the latest. One per process, shared by all
/// shards.
#[derive(Debug, Default)]
pub struct Differ {
    kept: Mutex<Kept>,
}

impl Differ {
    /// One that remembers nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How `to` differs from `from`; `None` for a collection that was not there. O(d log M) the
    /// first time, O(1) afterwards; callers that ask at the same time wait for one answer.
    #[must_use]
    pub fn delta(&self, from: Option<&Arc<Collection>>, to: &Arc<Collection>) -> Arc<LayerDelta> {
        if from.is_none() && to.resources.len() < LISTED_MIN {
            return Arc::new(LayerDelta::new(from, to));
        }
        let slot = self.kept.lock().unwrap_or_else(PoisonError::into_inner).slot(from, to);
        Arc::clone(slot.get_or_init(|| Arc::new(LayerDelta::new(from, to))))
    }
}

impl Kept {
    fn slot(&mut self, from: Option<&Arc<Collection>>, to: &Arc<Collection>) -> Slot {
        self.clock += 1;
        let step = (from.map_or(0, address), address(to));
        if let Some(entry) = self.by_step.get_mut(&step) {
            entry.used = self.clock;
            return Arc::clone(&entry.slot);
        }
        self.by_step.retain(|_, entry| entry.is_in_use());
        if self.by_step.len() >= KEPT_MAX
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

/// The only place that walks the maps.
mod walk {
    use std::sync::Arc;

    use chancery_model::{Resource, ResourceName};
    use imbl::{OrdMap, ordmap::DiffItem};

    type Map = OrdMap<ResourceName, Arc<Resource>>;
    type List = Arc<[Arc<Resource>]>;

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
