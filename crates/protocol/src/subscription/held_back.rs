//! Planned responses that are held back, because the client has not requested the endpoints of the
//! clusters before them (ADS-06).

use super::{
    delivery::{Delivery, Pace},
    interest::Interest,
    kind::Kind,
    work::Work,
};

/// Withdraws the response that is held back. Its resources are planned again. Its removals are sent
/// without them, except in a full state.
pub(super) fn withdraw(
    kind: &Kind,
    delivery: &mut Delivery,
    interest: &mut Interest,
    work: &mut Work,
) {
    let gated_since = delivery.held_back_since();
    let Some(mut pending) = delivery.drop_held_back() else { return };
    work.on_withdrawn(kind.is_full_state() || pending.is_empty(), gated_since);
    if kind.is_full_state() {
        let names = interest.names();
        let unsent = pending.errors.into_iter().filter(|name| names.contains(name.as_str()));
        work.request_all(unsent);
        return;
    }
    let is_difference = pending.n_names() == 0 && !interest.names().has_located();
    if let Some(base) = pending.base.take().filter(|_| is_difference) {
        if let Some(wildcard) = interest.wildcard_mut() {
            wildcard.on_withdrawn(base);
        }
        work.on_all_changed();
        return;
    }
    let resources = std::mem::take(&mut pending.resources);
    let names = resources.iter().flat_map(|resource| interest.held_names(resource.base_name()));
    work.resend(names);
    if !pending.is_empty() {
        pending.pace = Pace::FirstAtOnce;
        delivery.set_pending(pending);
    }
}
