//! Changes of the access rules, and the sessions that they do not concern.

use chancery_model::{AccessDifference, Revision, State};

use super::{access::AccessControl, placed::NEW_NODE};
use crate::stream::slot::StreamSlot;

/// The changes of the access rules since a revision. The assignments have not changed since then.
#[derive(Debug)]
pub(crate) struct AccessChanges {
    since: Revision,
    difference: AccessDifference,
}

impl AccessChanges {
    /// Returns the changes of the access rules between two consecutive states, or `None` if the assignments or the
    /// history also changed.
    pub(crate) fn between(old: &State, newest: &State) -> Option<Self> {
        let is_of_access_alone =
            newest.follows(old) && old.assignments.changed == newest.assignments.changed;
        is_of_access_alone.then(|| Self {
            since: old.placement_changed(),
            difference: old.access.difference(&newest.access),
        })
    }

    /// Adds the changes up to a later state.
    pub(crate) fn extend(&mut self, later: &Self) {
        self.difference.extend(&later.difference);
    }

    /// Returns whether a session that was placed at a revision has the same rights now.
    pub(crate) fn keep_rights(
        &self,
        placed_at: Revision,
        slot: &StreamSlot,
        control: AccessControl,
    ) -> bool {
        let identity = slot.info.identity.as_deref().filter(|_| control == AccessControl::Enforced);
        placed_at >= self.since
            && placed_at != NEW_NODE
            && !identity.is_some_and(|identity| self.difference.concerns(identity))
    }
}
