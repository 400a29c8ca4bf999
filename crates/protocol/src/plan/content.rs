//! The context and the content of a plan.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName, Revision};
use chancery_view::{Resources, TypeView};

use crate::subscription::PendingRemoval;

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

/// Resources that changed for the client.
#[derive(Debug)]
pub(crate) struct Touched {
    pub(crate) resources: Resources,
    pub(super) before: Before,
}

/// The resources that the client had before.
#[derive(Debug)]
pub(super) enum Before {
    /// All of a view.
    View(TypeView),
    /// All touched resources except those with these names.
    AllBut(BTreeSet<ResourceName>),
}

impl Touched {
    /// Returns whether the client had no resource of this name before.
    pub(crate) fn is_fresh(&self, resource: &Resource) -> bool {
        match &self.before {
            Before::View(view) => view.get(resource.base_name().as_str()).is_none(),
            Before::AllBut(names) => names.contains(resource.name()),
        }
    }
}

/// The names that are planned before all other changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The names that the client requested.
    Requested,
    /// The requested names, and the names that are sent again because a parent was sent.
    RequestedAndResent,
}

/// The view, revision, client and time of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanContext<'a> {
    pub(crate) view: &'a TypeView,
    pub(crate) revision: Revision,
    /// Whether the client holds resources of any type from an earlier stream.
    pub(crate) is_resumed: bool,
    pub(crate) now: u64,
}
