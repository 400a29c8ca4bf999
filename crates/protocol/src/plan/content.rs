//! The content of a plan, and the removals that it may announce.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName, Revision};
use chancery_view::Resources;

use crate::subscription::{PendingRemoval, UnnamedRemovals};

/// The result of planning.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) resources: Resources,
    pub(super) removed: Vec<ResourceName>,
    /// The number of names in `removed`, from the front, that go out before the resources.
    pub(super) n_removed_first: usize,
    /// The announced removals of a type whose clients reject a response as a whole.
    pub(super) announced: Vec<(ResourceName, PendingRemoval)>,
    pub(super) absent: Vec<ResourceName>,
    /// SotW: subscribed names that are reported as errors (ERR-01).
    pub(super) errors: Vec<ResourceName>,
    /// Whether a response is sent even without content.
    pub(super) send: bool,
    /// The resources that changed for the client. Their children may have to be sent again.
    pub(super) touched: Resources,
    /// The names of resources, among those subscribed by name, that the client did not have before.
    pub(super) fresh: BTreeSet<ResourceName>,
    /// The contents that the plan replaces, if the client rejects something that may need their keys.
    pub(super) freed: Vec<Arc<Resource>>,
    /// Whether a full state announces removals.
    pub(super) releases: bool,
    /// Whether the client holds resources of an earlier stream, whose keys are unknown.
    pub(super) resumes: bool,
    /// Whether the response has the whole view of a wildcard.
    pub(super) first_state: bool,
    /// The revision of the rejected first state that is sent again.
    pub(super) repeats: Option<Revision>,
    /// MCP: whether the response is a difference.
    pub(super) is_incremental: bool,
    /// Whether a part of the change was sent before.
    pub(super) sent_early: bool,
}

/// The removals that may be announced now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Release {
    /// None.
    Nothing,
    /// The removals detected up to a revision, because their referrers have moved, and those
    /// detected up to a time, so that no removal waits forever.
    UpTo {
        /// The revision.
        revision: Revision,
        /// The time.
        since: u64,
    },
}

impl Release {
    /// All of them.
    pub(crate) const ALL: Self = Self::UpTo { revision: Revision(u64::MAX), since: u64::MAX };

    pub(crate) fn allows(self, removal: &PendingRemoval) -> bool {
        !removal.is_kept && self.includes(removal.revision, removal.since)
    }

    pub(crate) fn allows_unnamed(self, removals: UnnamedRemovals) -> bool {
        !removals.is_kept && self.includes(removals.revision, removals.since)
    }

    /// Returns whether a removal may be announced that was detected at this revision and this time.
    fn includes(self, detected: Revision, at: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::UpTo { revision, since } => detected <= revision || at <= since,
        }
    }
}
