//! Errors for subscribed names that do not exist (ERR-01), in SotW.
//!
//! In delta, the error is beside the removal (ERR-09), so [`Part`](crate::subscription::Part) derives
//! it from the removed names. SotW has no removals. A resource that the client holds is therefore
//! reported as missing at the time at which delta would announce its removal.
//!
//! An error is sent once (ERR-04): when the client requests the name, or when the resource is deleted.
//! Types with full states need no record of reported names. In types with partial responses,
//! [`ClientVersion::Absent`](crate::subscription::ClientVersion::Absent) marks them, and
//! [`Planner::report_absent`] reports them.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::TypeView;

use super::planner::Planner;

/// Returns the names that a full state reports as errors: those that the client has requested
/// since the last plan, and those of the `released` resources. The client does not name the members of a glob. A
/// resource whose removal is held back is still in the response (ERR-03).
pub(super) fn errors_of_full_state(
    planner: &Planner<'_>,
    view: &TypeView,
    released: &[Arc<Resource>],
) -> Vec<ResourceName> {
    if !planner.kind.sends_errors || planner.interest.names().is_empty() {
        return Vec::new();
    }
    let interest = &*planner.interest;
    let held = planner.removals.values().flat_map(|removal| interest.names_for(&removal.resource));
    let held: BTreeSet<&ResourceName> = held.collect();
    let released = released.iter().flat_map(|resource| interest.names_for(resource));
    let candidates: BTreeSet<&ResourceName> =
        planner.work.requested().iter().chain(released).collect();
    let is_missing = |name: &&ResourceName| {
        interest.is_named(name.as_str())
            && view.get(name.as_str()).is_none()
            && !held.contains(*name)
    };
    candidates.into_iter().filter(is_missing).cloned().collect()
}
