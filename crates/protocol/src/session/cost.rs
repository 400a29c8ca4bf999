//! The cost of the requests of a session.
//!
//! A caller bounds the work and the memory of a request before the call. The unit of work is a name or
//! resource, which takes about a microsecond. The figures are upper bounds. Computing them does not visit
//! the names that the session keeps.

use crate::{
    NameList, Request, VersionList,
    subscription::{NAME_COST_BYTES, REMOVAL_COST_BYTES, Subscription},
};

/// The bytes of a list that are read in the time that one name takes.
const BYTES_PER_NAME: usize = 64;

/// Returns the maximum number of names that a request visits. `of_type` is the subscription of its type, if there is
/// one.
pub(super) fn cost_of_request(request: &Request, of_type: Option<&Subscription>) -> usize {
    let kept = || of_type.map_or(0, |s| s.cost().n_kept());
    let listed = match request {
        // The new list replaces the previous one.
        Request::Sotw(r) => cost_of(&r.resource_names) + kept(),
        Request::Delta(r) => {
            let versions = &r.initial_resource_versions;
            let listed = cost_of(&r.subscribe) + cost_of(&r.unsubscribe);
            let listed = listed + cost_of_versions(versions);
            // A `*` in a short list may unsubscribe from everything.
            let has_star = listed < BYTES_PER_NAME
                && r.subscribe.iter().chain(r.unsubscribe.iter()).any(|name| name == "*");
            listed + if has_star { kept() } else { 0 }
        }
        Request::Mcp(r) => cost_of_versions(&r.initial_resource_versions) + kept(),
    };
    let rejecting = of_type.filter(|_| request.error_detail().is_some());
    listed + rejecting.map_or(0, |s| s.delivery().n_unanswered())
}

/// Returns the maximum number of bytes that a session retains after a request, of which it retains `before` now.
/// `of_type` is the subscription of its type, if there is one.
pub(super) fn retained_bytes_after(
    request: &Request,
    of_type: Option<&Subscription>,
    before: usize,
    nack_message_bytes_max: usize,
) -> usize {
    // The session keeps a rejection twice: as the last one, and for the revisions that it rejects.
    let message = request.error_detail().map_or(0, |error| error.message.len());
    let message = 2 * message.min(nack_message_bytes_max);
    let names = match request {
        Request::Sotw(r) => {
            let held = of_type.map_or(0, |s| s.cost().retained_bytes());
            let rejections = of_type.map_or(0, |s| s.cost().rejection_bytes());
            (before - held) + held.max(bytes_of(&r.resource_names) + rejections)
        }
        Request::Delta(r) => {
            before + bytes_of(&r.subscribe) + bytes_of_versions(&r.initial_resource_versions)
        }
        Request::Mcp(r) => before + bytes_of_versions(&r.initial_resource_versions),
    };
    names + message
}

fn cost_of(list: &NameList) -> usize {
    list.len() + list.n_bytes() / BYTES_PER_NAME
}

fn cost_of_versions(list: &VersionList) -> usize {
    list.len() + list.n_bytes() / BYTES_PER_NAME
}

fn bytes_of_versions(list: &VersionList) -> usize {
    // A name may be both subscribed and pending removal.
    let each = NAME_COST_BYTES + REMOVAL_COST_BYTES;
    list.len() * each + 3 * list.n_bytes()
}

fn bytes_of(list: &NameList) -> usize {
    if list.is_empty() { 0 } else { list.len() * NAME_COST_BYTES + list.n_bytes() }
}
