//! The cost of a subscription: the work of a plan, and the memory of its names.

use super::{
    client_resources::ClientResources,
    delivery::{Delivery, PendingResponse},
    interest::Interest,
    kind::Kind,
    orphans::Orphans,
    refresh::Refresh,
    rejections::Rejections,
    removals::PendingRemovals,
    resumption::Resumption,
    wildcard::Wildcard,
    work::Work,
};
use crate::Protocol;

/// The bytes that a name takes besides its text: an entry in the subscription, and one in the index of the
/// shard.
pub(crate) const NAME_COST_BYTES: usize = 192;

/// The bytes that a pending removal takes besides its text. It may be the only owner of its name
/// and its resource.
pub(crate) const REMOVAL_COST_BYTES: usize = 2 * NAME_COST_BYTES;

/// The parts of a subscription that take time or memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost<'a> {
    pub(super) kind: &'a Kind,
    pub(super) interest: &'a Interest,
    pub(super) work: &'a Work,
    pub(super) delivery: &'a Delivery,
    pub(super) removals: &'a PendingRemovals,
    pub(super) orphans: &'a Orphans,
    pub(super) rejections: &'a Rejections,
    pub(super) resumption: &'a Resumption,
    pub(super) refresh: &'a Refresh,
}

impl Cost<'_> {
    /// Returns the number of names for the limit: the maximum of the subscribed, the claimed, and
    /// the unsubscribed names. The last two count until the next response is built, so a client
    /// that does not read cannot exceed the limit.
    pub(crate) fn n_remembered(self) -> usize {
        // Members of glob collections are no names of the client.
        let names = self.n_names() - self.interest.globs().n_members();
        names.max(self.resumption.claimed().len()).max(self.delivery.n_unsubscribed())
    }

    /// Returns the number of subscribed names, or of requested names that have no response yet,
    /// whichever is larger.
    fn n_names(self) -> usize {
        self.interest.names().len().max(self.work.requested().len())
    }

    /// Returns the bytes of all names that are kept for the client or are on their way to it, and of the
    /// messages of its rejections.
    pub(crate) fn retained_bytes(self) -> usize {
        let interest = self.interest;
        let unsubscribed = self.delivery.n_unsubscribed();
        let names = self.n_names() + self.resumption.claimed().len() + unsubscribed;
        let names = names + interest.spellings().len() + interest.globs().n_members();
        let names = names * NAME_COST_BYTES + interest.text_bytes();
        let removals = self.removals.len() * REMOVAL_COST_BYTES + 2 * self.removals.text_bytes();
        let pending = self.delivery.pending().map_or(0, |pending| pending.names_bytes);
        let orphans = self.orphans.len() * NAME_COST_BYTES + self.orphans.text_bytes();
        let claimed = self.resumption.claimed_bytes();
        names + claimed + removals + orphans + pending + self.rejection_bytes()
    }

    /// Returns the bytes of the messages of the client's rejections.
    pub(crate) fn rejection_bytes(self) -> usize {
        self.rejections.text_bytes()
    }

    /// Returns the number of names and removals that are freed with the subscription. Lists of
    /// resources are shared with other streams and do not count.
    pub(crate) fn n_kept(self) -> usize {
        let pending = self.delivery.pending().map_or(0, PendingResponse::n_names);
        self.n_names() + self.resumption.claimed().len() + self.removals.len() + pending
    }

    /// Returns the maximum number of names and resources that a plan visits, except those of a
    /// wildcard's view.
    pub(crate) fn of_plan(self) -> usize {
        let (interest, work) = (self.interest, self.work);
        let is_named_state = self.kind.is_full_state() && !interest.is_wildcard();
        let all = work.changed().is_all() || is_named_state;
        let names = if all && work.has_changes() { interest.names().len() } else { 0 };
        let sent_early = interest.wildcard().map_or(0, Wildcard::n_sent_early);
        let unsubscribed = self.delivery.cost_of_unsubscribed();
        // A delta response has only the changed members, which are marked.
        let repeats = self.kind.protocol == Protocol::Sotw && work.has_changes();
        let members = if repeats { interest.globs().n_members() } else { 0 };
        let marked = work.n_names() + sent_early + self.resumption.claimed().len() + members;
        names + interest.globs().n_asked() + marked + self.removals.len() + unsubscribed
    }

    /// Returns the maximum number of resources that a renewal visits.
    pub(crate) fn of_renewal(self) -> usize {
        let client = ClientResources::new(self.interest, self.removals);
        let due: usize = client.classes().into_iter().map(|c| client.n_with_lifetime(c)).sum();
        let is_full_state = self.kind.is_full_state();
        if is_full_state { due + self.interest.names().len() } else { due }
    }

    /// Returns the maximum number of resources that a refresh visits.
    pub(crate) fn of_refresh(self, now: u64) -> usize {
        self.refresh.cost(self.interest.names(), now)
    }
}
