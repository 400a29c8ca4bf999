//! Differences of collections, found once and kept for all who ask.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use chancery_model::{Collection, Resource, ResourceName};
use walk::items;

/// How many differences are kept. Each belongs to a step (from, to) of one collection; sessions
/// that keep up are all at the same few steps.
const KEPT_MAX: usize = 64;

/// A collection of fewer resources than this is listed anew each time: it would only push out what
/// many share. Private scopes are of this kind, and there are many.
const LISTED_MIN: usize = 32;

/// How one collection changed between two states.
#[derive(Debug)]
pub struct LayerDelta {
    /// Held so that the pointers that identify the step stay unique while it is kept.
    from: Option<Arc<Collection>>,
    to: Arc<Collection>,
    changed: Arc<[Arc<Resource>]>,
    removed: Arc<[Arc<Resource>]>,
}

impl LayerDelta {
    fn new(from: Option<&Arc<Collection>>, to: &Arc<Collection>) -> Self {
        let (changed, removed) = items(from.map(|from| &from.resources), &to.resources);
        Self { from: from.cloned(), to: Arc::clone(to), changed, removed }
    }

    /// The collection as it was; `None` for "not there".
    #[must_use]
    pub fn from(&self) -> Option<&Arc<Collection>> {
        self.from.as_ref()
    }

    /// The collection as it is.
    #[must_use]
    pub fn to(&self) -> &Arc<Collection> {
        &self.to
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
        let aliased = self.from.as_ref().filter(|from| !from.aliases.is_empty());
        let before = aliased.into_iter().flat_map(|from| {
            self.changed.iter().filter_map(|resource| from.resources.get(resource.name()))
        });
        let now = self.changed.iter().chain(self.removed.iter());
        now.flat_map(|resource| std::iter::once(resource.name()).chain(resource.aliases()))
            .chain(before.flat_map(|old| old.aliases()))
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

#[derive(Debug, Default)]
struct Kept {
    /// With the time of the last use.
    by_step: HashMap<Step, (u64, Slot)>,
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
        let step = (from.map_or(0, address), address(to));
        let slot = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.slot(step)
        };
        // An entry is found by pointers that it keeps alive, so they can not have been reused; one
        // that another caller is just filling is for the same step, whose collections it holds too.
        Arc::clone(slot.get_or_init(|| Arc::new(LayerDelta::new(from, to))))
    }
}

impl Kept {
    fn slot(&mut self, step: Step) -> Slot {
        self.clock += 1;
        if let Some((used, slot)) = self.by_step.get_mut(&step) {
            *used = self.clock;
            return Arc::clone(slot);
        }
        if self.by_step.len() >= KEPT_MAX
            && let Some(oldest) =
                self.by_step.iter().min_by_key(|(_, (used, _))| *used).map(|(step, _)| *step)
        {
            self.by_step.remove(&oldest);
        }
        let slot = Slot::default();
        self.by_step.insert(step, (self.clock, Arc::clone(&slot)));
        slot
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
