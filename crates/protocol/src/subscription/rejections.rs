//! What a client has rejected, and for how long that stands.
//!
//! A rejection stands until the client has acknowledged what replaces the resource, or the resource has
//! been deleted or given up. Whether one still does is asked only when something has happened to its
//! name: a client that has rejected a whole state costs no more with each commit than one that has not.
//!
//! Rejected: a list of what was in a large first state, even a shared one. It would be the only thing that
//! a wildcard keeps per resource, and keep the resources of an old state alive for as long as a client
//! rejects them. What is as old as that state and still there is found in the view itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{Resource, ResourceName, Revision};
use chancery_view::{Resources, TypeView};

/// Rejected resources, by their own names.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    /// A first state of more resources than this is not listed.
    listed_max: usize,
    /// The first state, if it was too large for a list.
    first: Option<FirstState>,
    standing: BTreeMap<ResourceName, Arc<Resource>>,
    /// Of those, the names to which something has happened since it was last asked, and those that were
    /// replaced by what is not answered yet.
    doubtful: BTreeSet<ResourceName>,
    /// Something has happened to any name.
    all_doubtful: bool,
}

/// The first state that a wildcard was sent, of which the client has rejected at least a part. All of it
/// counts as rejected: everything the client has that is not newer.
#[derive(Debug)]
struct FirstState {
    revision: Revision,
    /// One resource of it that stands, as far as is known.
    witness: Arc<Resource>,
    /// Something has happened to that one.
    doubtful: bool,
    /// Up to this name none stands but the witness.
    passed: Option<ResourceName>,
    /// Those that the client has taken when they were sent once more.
    taken: BTreeSet<ResourceName>,
}

impl FirstState {
    fn has(&self, resource: &Resource) -> bool {
        resource.version().revision <= self.revision && !self.taken.contains(resource.name())
    }

    /// Whether any of it stands; if so, the witness is one that does.
    fn stands(&mut self, base: Option<&TypeView>, fate: impl Fn(&Arc<Resource>) -> Fate) -> bool {
        let now = if self.has(&self.witness) { fate(&self.witness) } else { Fate::Over };
        self.doubtful = now == Fate::Unanswered;
        if now != Fate::Over {
            return true;
        }
        while let Some(next) = base.and_then(|base| base.next_after(self.passed.as_ref())) {
            self.passed = Some(next.name().clone());
            if self.has(next) {
                self.witness = Arc::clone(next);
                return true;
            }
        }
        false
    }
}

/// What has become of a rejected resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is what the client was last sent.
    Same,
    /// The client was sent something else, and has not answered.
    Unanswered,
    /// It was replaced, deleted or given up.
    Over,
}

impl Rejections {
    pub(crate) fn new(listed_max: usize) -> Self {
        Self { listed_max, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.standing.is_empty()
    }

    /// The client has rejected these, a part of a wildcard's first state of this revision. O(1), or as for a list in
    /// a small state.
    pub(crate) fn reject_first(&mut self, resources: &Resources, revision: Revision) {
        match (&self.first, resources.at((0, 0))) {
            (None, Some((witness, _))) if resources.len() > self.listed_max => {
                let witness = Arc::clone(witness);
                let (taken, passed) = (BTreeSet::new(), None);
                let doubtful = true;
                self.first = Some(FirstState { revision, witness, doubtful, passed, taken });
            }
            // Another part of it.
            (Some(first), _) if revision <= first.revision => {}
            _ => self.reject(resources),
        }
    }

    /// The client has rejected these.
    pub(crate) fn reject(&mut self, resources: &Resources) {
        self.list(resources.iter());
    }

    /// The client has taken these resources, whatever it rejected before. They are a part of the first state of this
    /// revision, or of no first state.
    pub(crate) fn take(&mut self, resources: &Resources, first_state: Option<Revision>) {
        // One rejected part of a first state counts for all of it.
        let first = self.first.as_mut().filter(|first| first_state != Some(first.revision));
        if let Some(first) = first {
            for resource in resources.iter() {
                if first.has(resource) {
                    first.taken.insert(resource.name().clone());
                    first.doubtful |= first.witness.name() == resource.name();
                }
            }
        }
        if self.standing.is_empty() {
            return;
        }
        for resource in resources.iter() {
            if self.standing.get(resource.name()) == Some(resource) {
                self.standing.remove(resource.name());
            }
        }
    }

    /// Something has happened to the resource of this name.
    pub(crate) fn touch(&mut self, name: &ResourceName) {
        if let Some(first) = &mut self.first {
            first.doubtful |= first.witness.name() == name;
        }
        if self.standing.contains_key(name) {
            self.doubtful.insert(name.clone());
        }
    }

    /// The resource is gone from the view. The client keeps what it had before until its removal is sent.
    pub(crate) fn on_gone(&mut self, resource: &Arc<Resource>) {
        if self.first.as_ref().is_some_and(|first| first.has(resource)) {
            self.list(std::iter::once(resource));
        }
        self.touch(resource.name());
    }

    /// Something may have happened to all of them.
    pub(crate) fn touch_all(&mut self) {
        self.all_doubtful = true;
    }

    /// There is no wildcard any more, and of what it brought only these are left.
    pub(crate) fn list_first<'a>(&mut self, left: impl Iterator<Item = &'a Arc<Resource>>) {
        if let Some(first) = self.first.take() {
            self.list(left.filter(|resource| first.has(resource)));
        }
    }

    /// These count as rejected.
    pub(crate) fn list<'a>(&mut self, resources: impl Iterator<Item = &'a Arc<Resource>>) {
        for resource in resources {
            self.standing.insert(resource.name().clone(), Arc::clone(resource));
            self.doubtful.insert(resource.name().clone());
        }
    }

    /// Drops those that stand no longer. `base` is what a wildcard was sent.
    ///
    /// What is passed over in a first state has been sent anew since: over the life of a stream no more
    /// than that is looked at.
    pub(crate) fn review(
        &mut self,
        base: Option<&TypeView>,
        fate: impl Fn(&Arc<Resource>) -> Fate,
    ) {
        let all_doubtful = std::mem::take(&mut self.all_doubtful);
        let stands =
            |first: &mut FirstState| !(first.doubtful || all_doubtful) || first.stands(base, &fate);
        self.first = self.first.take_if(|first| stands(first));
        if all_doubtful {
            self.doubtful = self.standing.keys().cloned().collect();
        }
        let standing = &mut self.standing;
        self.doubtful.retain(|name| {
            let fate = standing.get(name).map_or(Fate::Over, &fate);
            if fate == Fate::Over {
                standing.remove(name);
            }
            fate == Fate::Unanswered
        });
    }
}
