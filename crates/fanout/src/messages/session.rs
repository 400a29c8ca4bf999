//! The number of a session, its lane, and the changes that it receives.

use chancery_model::{ResourceName, TypeUrl};

/// The number of a session in its shard. It is free again after the session.
pub(crate) type Key = u32;

/// The lane in which a session or an event waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// For sessions that are up to date except for recent changes.
    Updates,
    /// For sessions that are loading a state.
    Bulk,
}

/// The number of registrations in the index of the sessions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// The number of sessions, counted once per name and scope.
    pub(crate) names: usize,
    /// The number of wildcard sessions, counted once per type and scope.
    pub(crate) wildcards: usize,
}

/// The change that a session receives in one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark<'a> {
    pub(crate) type_url: &'a TypeUrl,
    /// The place of the type in the metrics.
    pub(crate) type_index: usize,
    /// `None` for a wildcard.
    pub(crate) name: Option<&'a ResourceName>,
    /// Whether the response about the change is long, so that it is bulk work.
    pub(crate) is_bulk: bool,
}
