//! What a client has rejected, and for how long that stands.
//!
//! A rejection stands until the client has acknowledged what replaces the resource, or the resource has
//! been deleted or given up. Whether one still does is asked only when something has happened to its
//! name: a client that has rejected a whole state costs no more with each commit than one that has not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{Resource, ResourceName};
use chancery_view::Resources;

/// Rejected resources, by their own names.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    standing: BTreeMap<ResourceName, Arc<Resource>>,
    /// Of those, the names to which something has happened since it was last asked, and those that were
    /// replaced by what is not answered yet.
    doubtful: BTreeSet<ResourceName>,
    /// Something has happened to any name.
    all_doubtful: bool,
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
    pub(crate) fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    /// The client has rejected these.
    pub(crate) fn reject(&mut self, resources: &Resources) {
        for resource in resources.iter() {
            self.standing.insert(resource.name().clone(), Arc::clone(resource));
            self.doubtful.insert(resource.name().clone());
        }
    }

    /// The client has taken these: what it takes now is not what it rejected before.
    pub(crate) fn take(&mut self, resources: &Resources) {
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
        if self.standing.contains_key(name) {
            self.doubtful.insert(name.clone());
        }
    }

    /// Something may have happened to all of them.
    pub(crate) fn touch_all(&mut self) {
        self.all_doubtful = true;
    }

    /// Drops those that stand no longer.
    pub(crate) fn review(&mut self, fate: impl Fn(&Arc<Resource>) -> Fate) {
        if std::mem::take(&mut self.all_doubtful) {
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
