//! The delivery of a subscription: the planned response, the unanswered responses, and the revisions
//! that the client has.

use std::collections::{BTreeSet, VecDeque};

use chancery_model::{Resource, ResourceName, Revision, TypeVersion};
use chancery_view::{Resources, TypeView};

use super::PendingRemoval;

/// The maximum number of unanswered responses that are remembered. An answer to an older one counts
/// as stale.
const UNANSWERED_MAX: usize = 256;

/// The maximum number of unanswered responses whose contents are kept.
const CONTENTS_MAX: usize = 32;

/// The bytes that a name takes besides its text, in a response that is not sent yet.
const PENDING_NAME_COST_BYTES: usize = 64;

/// The revisions whose changes a response carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CarriedRevisions {
    /// The response may carry changes after this revision. It is 0 if the client requested names,
    /// because a requested resource may be of any revision.
    pub(crate) possibly_after: Revision,
    /// The response carries all changes after this revision that were not sent before.
    pub(crate) after: Revision,
    /// The revision of the state from which the response was built.
    pub(crate) up_to: Revision,
}

impl CarriedRevisions {
    /// Returns whether the response may carry changes of `revision`.
    pub(crate) fn may_carry(self, revision: Revision) -> bool {
        self.possibly_after < revision && revision <= self.up_to
    }
}

/// A planned response. If it exceeds the size of one response, the session sends it in parts.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    pub(crate) resources: Resources,
    /// Resources whose lifetime is renewed without their content.
    pub(crate) heartbeats: Resources,
    pub(crate) removed: VecDeque<ResourceName>,
    /// The number of names in `removed`, from the front, that go out before the resources.
    pub(crate) n_removed_first: usize,
    /// The removals of `removed`, for a type whose clients reject a response as a whole.
    pub(crate) announced: Vec<(ResourceName, PendingRemoval)>,
    /// Whether the client has something else after the response than before it.
    pub(crate) changes: bool,
    /// Whether the response is not split, because its resources may exchange keys
    /// ([`Exclusion`](chancery_model::types::Exclusion)).
    pub(crate) is_atomic: bool,
    pub(crate) absent: VecDeque<ResourceName>,
    /// Subscribed names that do not exist, reported as errors. SotW only: in delta, each removal of
    /// a subscribed name has an error beside it (ERR-09).
    pub(crate) errors: VecDeque<ResourceName>,
    /// The bytes of `removed`, `absent` and `errors` at the time of the plan.
    pub(crate) names_bytes: usize,
    pub(crate) version: TypeVersion,
    /// The revision of the state from which the response was built.
    pub(crate) revision: Revision,
    /// The revision up to which the client has everything once it has this response.
    pub(crate) covers: Revision,
    /// The revisions whose changes are in the response.
    pub(crate) carried: CarriedRevisions,
    /// The names that the client has unsubscribed from since the plan. The rest of the response may
    /// still contain their resources.
    pub(crate) unsubscribed: BTreeSet<ResourceName>,
    /// Whether the response has the whole view of a wildcard, not the difference to an earlier
    /// view.
    pub(crate) first_state: bool,
    /// The revision of the rejected first state that the response repeats.
    pub(crate) repeats: Option<Revision>,
    /// MCP: whether the response is a difference (`incremental`).
    pub(crate) is_incremental: bool,
    /// Whether the response renews lifetimes and carries no change.
    pub(crate) is_renewal: bool,
    /// The view before the plan, if the plan is a difference to the view of a wildcard alone.
    pub(crate) base: Option<TypeView>,
    pub(crate) pace: Pace,
}

impl PendingResponse {
    /// Returns the bytes that names take until a response with them is sent.
    pub(crate) fn bytes_of<'a>(names: impl Iterator<Item = &'a ResourceName>) -> usize {
        names.map(|name| PENDING_NAME_COST_BYTES + name.as_str().len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty()
            && self.heartbeats.is_empty()
            && self.removed.is_empty()
            && self.absent.is_empty()
            && self.errors.is_empty()
    }

    /// Returns the number of names in it.
    pub(crate) fn n_names(&self) -> usize {
        self.removed.len() + self.absent.len() + self.errors.len() + self.unsubscribed.len()
    }
}

/// Whether the parts of a SotW response wait for the ACK of the response before them (SOTW-36).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Each part waits.
    Wait,
    /// The first part does not wait.
    FirstAtOnce,
    /// No part waits, because a type that depends on this one is sent next (ADS-06).
    AtOnce,
    /// No part is sent until the client has requested the endpoints of the clusters before it.
    HeldBack {
        /// The time since which the type has waited.
        gated_since: u64,
    },
}

/// A response that the client has not answered yet.
#[derive(Debug, Clone)]
pub(crate) struct SentResponse {
    pub(crate) nonce: u64,
    pub(crate) sent_at: u64,
    pub(crate) version: TypeVersion,
    /// The revision up to which the client has everything once it has this response.
    pub(crate) revision: Revision,
    /// The revisions whose changes are in the response, or in responses that the client skipped.
    pub(crate) carried: CarriedRevisions,
    /// The revision of the first state, if the response is a part of one.
    pub(crate) first_state: Option<Revision>,
    /// The contents; `None` if the response is too old to be kept.
    pub(crate) resources: Option<Resources>,
    /// The removals in the response, for a type whose clients reject a response as a whole.
    pub(crate) removed: Vec<(ResourceName, PendingRemoval)>,
    /// Whether the client has something else after the response than before it. For a split response, the last
    /// part counts.
    pub(crate) changes: bool,
}

impl SentResponse {
    /// Adds the revisions of an earlier response that the client did not answer.
    fn skip(&mut self, earlier: &Self) {
        self.changes |= earlier.changes;
        self.carried.possibly_after =
            self.carried.possibly_after.min(earlier.carried.possibly_after);
    }
}

/// The responses of one type, from the plan to the answer.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The planned response, or the rest of it, that is not sent yet.
    pending: Option<PendingResponse>,
    /// The unanswered responses, oldest first. There is more than one for split responses, after
    /// timeouts, and if requested names do not wait.
    unanswered: VecDeque<SentResponse>,
    /// Delta: responses that the client skipped by answering a later one. The client may still
    /// reject them (DELTA-19).
    skipped: Vec<SentResponse>,
    /// The nonce of the last response; 0 before the first.
    last_nonce: u64,
    last_sent_at: Option<u64>,
    sent_version: Option<TypeVersion>,
    acked_version: Option<TypeVersion>,
    /// The time of the last answer, or of the first response after it. If the client owes an
    /// answer, it has been silent since then.
    silent_since: u64,
    /// Whether a resource that was removed without a message to the client is being sent again.
    returned: bool,
    /// The revision up to which the client has acknowledged everything.
    settled: Revision,
    /// The revision up to which everything is sent once the planned response is sent.
    planned: Revision,
    /// The revision up to which all changes were checked.
    checked: Revision,
    /// The revision up to which all changes are in responses or pending removals. It goes back to 0
    /// when the session needs resources that it did not need before.
    included: Revision,
}

impl Delivery {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            pending: None,
            unanswered: VecDeque::new(),
            skipped: Vec::new(),
            last_nonce: 0,
            last_sent_at: None,
            sent_version: None,
            acked_version: None,
            silent_since: now,
            returned: false,
            settled: Revision(0),
            planned: Revision(0),
            checked: Revision(0),
            included: Revision(0),
        }
    }

    /// Returns the planned response, or the rest of it, that is not sent yet.
    pub(crate) fn pending(&self) -> Option<&PendingResponse> {
        self.pending.as_ref()
    }

    /// Takes the planned response.
    pub(crate) fn take_pending(&mut self) -> Option<PendingResponse> {
        self.pending.take()
    }

    /// Makes a response the planned one.
    pub(crate) fn set_pending(&mut self, pending: PendingResponse) {
        self.pending = Some(pending);
    }

    /// Sets the pace of the planned response. Returns whether there is one.
    pub(crate) fn set_pace(&mut self, pace: Pace) -> bool {
        let pending = self.pending.as_mut();
        pending.map(|pending| pending.pace = pace).is_some()
    }

    /// Returns the time since which the type has waited, if its planned response is held back.
    pub(crate) fn held_back_since(&self) -> Option<u64> {
        match self.pending.as_ref()?.pace {
            Pace::HeldBack { gated_since } => Some(gated_since),
            Pace::Wait | Pace::FirstAtOnce | Pace::AtOnce => None,
        }
    }

    /// Returns the unanswered responses, oldest first.
    pub(crate) fn unanswered(&self) -> &VecDeque<SentResponse> {
        &self.unanswered
    }

    /// Returns the last response, if it is unanswered.
    pub(crate) fn last_unanswered(&self) -> Option<&SentResponse> {
        self.unanswered.back()
    }

    /// Returns the nonce of the last response; 0 before the first.
    pub(crate) fn last_nonce(&self) -> u64 {
        self.last_nonce
    }

    /// Returns the time of the last response.
    pub(crate) fn last_sent_at(&self) -> Option<u64> {
        self.last_sent_at
    }

    /// Returns the version of the last response.
    pub(crate) fn sent_version(&self) -> Option<&TypeVersion> {
        self.sent_version.as_ref()
    }

    /// Returns the version of the last response that the client accepted.
    pub(crate) fn acked_version(&self) -> Option<&TypeVersion> {
        self.acked_version.as_ref()
    }

    /// Returns the time since which the client has not answered; `None` if it has answered everything.
    pub(crate) fn silent_since(&self) -> Option<u64> {
        (!self.unanswered.is_empty()).then_some(self.silent_since)
    }

    /// Returns the revision up to which everything is sent once the planned response is sent.
    pub(crate) fn planned(&self) -> Revision {
        self.planned
    }

    /// Returns the revision up to which all changes were checked.
    pub(crate) fn checked(&self) -> Revision {
        self.checked
    }

    /// Records that the client may need resources of any revision.
    pub(crate) fn on_interest_grown(&mut self) {
        self.included = Revision(0);
    }

    /// Records that a resource that was removed without a message to the client is sent again.
    pub(crate) fn on_returned(&mut self) {
        self.returned = true;
    }

    /// Records that a plan at `revision` covers everything except pending removals that were detected after
    /// `planned`.
    pub(crate) fn on_planned(&mut self, planned: Revision, revision: Revision) {
        self.planned = planned;
        self.checked = revision;
        self.included = revision;
    }

    /// Records that nothing is sent for the changes up to `covers`.
    pub(crate) fn on_nothing_to_send(&mut self, covers: Revision) {
        if self.unanswered.is_empty() {
            self.settle(covers);
        }
    }

    /// Drops the planned response, so that its changes are planned again.
    pub(super) fn drop_pending(&mut self) -> Option<PendingResponse> {
        let dropped = self.pending.take()?;
        self.included = dropped.carried.after;
        Some(dropped)
    }

    /// Drops the planned response if it is held back, so that its changes are planned again.
    pub(super) fn drop_held_back(&mut self) -> Option<PendingResponse> {
        self.held_back_since()?;
        let dropped = self.drop_pending()?;
        self.planned = dropped.carried.after;
        Some(dropped)
    }

    /// Drops the planned response, because the client starts again (MCP-27).
    pub(super) fn restart(&mut self) {
        (self.pending, self.included) = (None, Revision(0));
    }

    /// Records that the client has unsubscribed from a name.
    pub(super) fn on_unsubscribed(&mut self, name: &ResourceName) {
        if let Some(pending) = &mut self.pending {
            pending.unsubscribed.insert(name.clone());
        }
    }

    /// Removes names and resources from the planned response that the client has since unsubscribed
    /// from (SOTW-46, DELTA-28). Returns `false` if nothing is left.
    #[must_use]
    pub(super) fn drop_unsubscribed(&mut self, covers: impl Fn(&Resource) -> bool) -> bool {
        let Some(pending) = &mut self.pending else { return true };
        if pending.unsubscribed.is_empty() {
            return true;
        }
        pending.resources.retain(&covers);
        pending.heartbeats.retain(&covers);
        let unsubscribed = std::mem::take(&mut pending.unsubscribed);
        let first = pending.removed.iter().take(pending.n_removed_first);
        pending.n_removed_first = first.filter(|name| !unsubscribed.contains(*name)).count();
        pending.removed.retain(|name| !unsubscribed.contains(name));
        pending.absent.retain(|name| !unsubscribed.contains(name));
        pending.errors.retain(|name| !unsubscribed.contains(name));
        let (is_left, covers) = (!pending.is_empty(), pending.covers);
        if !is_left {
            self.pending = None;
            self.on_nothing_to_send(covers);
        }
        is_left
    }

    /// Returns the number of names that the client has unsubscribed from since the plan.
    pub(crate) fn n_unsubscribed(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| pending.unsubscribed.len())
    }

    /// Returns the number of names and resources among which those are found that the client has unsubscribed from.
    pub(crate) fn cost_of_unsubscribed(&self) -> usize {
        let pending = self.pending.as_ref().filter(|pending| !pending.unsubscribed.is_empty());
        pending.map_or(0, |pending| {
            pending.resources.len() + pending.heartbeats.len() + pending.n_names()
        })
    }

    /// Returns the revisions that the next response carries, if it is built at `up_to`. `is_requested` means that the
    /// client has requested names.
    pub(crate) fn carried(&self, up_to: Revision, is_requested: bool) -> CarriedRevisions {
        // Pending removals are changes that are not sent yet, so the range starts before them.
        let after = self.included.min(self.planned);
        let possibly_after = if is_requested { Revision(0) } else { after };
        CarriedRevisions { possibly_after, after, up_to }
    }

    /// Returns whether all changes of `revision` that were marked are in responses or pending removals.
    pub(crate) fn includes(&self, revision: Revision) -> bool {
        revision <= self.included
    }

    /// Returns whether a response that is not sent or not answered may carry changes of `revision`.
    pub(crate) fn may_carry(&self, revision: Revision) -> bool {
        let pending = self.pending.iter().map(|pending| pending.carried);
        let mut carried = pending.chain(self.unanswered.iter().map(|sent| sent.carried));
        carried.any(|carried| carried.may_carry(revision))
    }

    /// Returns whether a response that is not sent or not answered may carry changes of `revision` or of an earlier one.
    pub(crate) fn may_carry_up_to(&self, revision: Revision) -> bool {
        let pending = self.pending.iter().map(|pending| pending.carried);
        let mut carried = pending.chain(self.unanswered.iter().map(|sent| sent.carried));
        carried.any(|carried| carried.possibly_after < revision.min(carried.up_to))
    }

    /// Returns the revision up to which the client has acknowledged everything; 0 while a resource is sent again that
    /// was removed without a message to the client.
    pub(crate) fn settled(&self) -> Revision {
        if self.returned { Revision(0) } else { self.settled }
    }

    /// Records an answer of the client.
    pub(super) fn on_answer(&mut self, now: u64) {
        self.silent_since = now;
        self.returned &= !self.is_settled();
    }

    /// Records that the client accepted a response. A split state is settled only with its last part. Returns
    /// whether everything is settled.
    pub(super) fn on_ack(&mut self, sent: &SentResponse) -> bool {
        self.acked_version = Some(sent.version.clone());
        let is_settled = self.is_settled();
        if is_settled {
            self.settle(sent.revision);
        }
        is_settled
    }

    /// Takes the versions and the contents of the unanswered responses, at the end of the stream.
    pub(super) fn take_contents(&mut self) -> impl Iterator<Item = (TypeVersion, Resources)> {
        let unanswered = self.unanswered.drain(..);
        unanswered.filter_map(|sent| Some((sent.version, sent.resources?)))
    }

    /// Records a sent response.
    pub(crate) fn on_sent(&mut self, sent: SentResponse) {
        if self.unanswered.is_empty() {
            self.skipped.clear();
            self.silent_since = sent.sent_at;
        }
        self.last_nonce = sent.nonce;
        self.last_sent_at = Some(sent.sent_at);
        self.sent_version = Some(sent.version.clone());
        if self.unanswered.len() == UNANSWERED_MAX
            && let Some(forgotten) = self.unanswered.pop_front()
            && let Some(next) = self.unanswered.front_mut()
        {
            next.skip(&forgotten);
        }
        // The contents of a response keep its resources alive.
        if let Some(old) = self.unanswered.iter_mut().rev().nth(CONTENTS_MAX) {
            old.resources = None;
            old.removed = Vec::new();
        }
        self.unanswered.push_back(sent);
    }

    /// Takes the SotW response that a nonce identifies. An answer to the last response also answers
    /// the earlier ones. The client may still reject an earlier one first.
    pub(crate) fn take_answered_sotw(&mut self, nonce: u64) -> Option<SentResponse> {
        let at = self.unanswered.iter().position(|sent| sent.nonce == nonce)?;
        if nonce != self.last_nonce {
            return self.unanswered.remove(at);
        }
        let mut answered = self.unanswered.pop_back()?;
        self.unanswered.drain(..).for_each(|skipped| answered.skip(&skipped));
        Some(answered)
    }

    /// Takes the delta response that a nonce identifies. Clients process responses in order, so the
    /// earlier responses also count as answered. The client may still reject them (DELTA-19).
    pub(crate) fn take_answered_delta(
        &mut self,
        nonce: u64,
        rejects: bool,
    ) -> Option<SentResponse> {
        if let Some(at) = self.unanswered.iter().position(|sent| sent.nonce == nonce) {
            let mut answered = self.unanswered.remove(at)?;
            let over = self.unanswered.drain(..at).inspect(|skipped| answered.skip(skipped));
            self.skipped.extend(over.filter(|sent| sent.resources.is_some()));
            let excess = self.skipped.len().saturating_sub(CONTENTS_MAX);
            self.skipped.drain(..excess);
            return Some(answered);
        }
        let at = self.skipped.iter().position(|sent| sent.nonce == nonce)?;
        let sent = self.skipped.swap_remove(at);
        rejects.then_some(sent)
    }

    /// Returns whether nothing is pending or unanswered.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_none() && self.unanswered.is_empty()
    }

    /// Records that the client has everything up to `revision`.
    pub(crate) fn settle(&mut self, revision: Revision) {
        self.settled = self.settled.max(revision);
    }

    /// Returns the contents of the unanswered or skipped response with this nonce, if they are
    /// still kept.
    pub(crate) fn contents_of(&self, nonce: u64) -> Option<&Resources> {
        let mut unanswered = self.unanswered.iter().chain(&self.skipped);
        unanswered.find(|sent| sent.nonce == nonce)?.resources.as_ref()
    }

    /// Iterates over the kept contents of all skipped and unanswered responses.
    pub(crate) fn unanswered_contents(&self) -> impl Iterator<Item = &Resources> {
        let unanswered = self.unanswered.iter().chain(&self.skipped).rev();
        unanswered.filter_map(|sent| sent.resources.as_ref())
    }

    /// Returns whether the last response is unanswered and the ACK timeout has not passed.
    pub(crate) fn awaits_answer(&self, ack_timeout_ms: u64, now: u64) -> bool {
        self.unanswered.back().is_some_and(|sent| sent.sent_at + ack_timeout_ms > now)
    }

    /// Returns the number of resources in the unanswered responses.
    pub(crate) fn n_unanswered(&self) -> usize {
        self.unanswered.iter().filter_map(|sent| Some(sent.resources.as_ref()?.len())).sum()
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::Incarnation;

    use super::*;

    fn sent(nonce: u64, revision: u64) -> SentResponse {
        let revision = Revision(revision);
        let carried =
            CarriedRevisions { possibly_after: revision, after: revision, up_to: revision };
        SentResponse {
            nonce,
            sent_at: 10 * nonce,
            version: TypeVersion { incarnation: Incarnation(1), revision, label: None },
            revision,
            carried,
            first_state: None,
            resources: Some(Resources::default()),
            removed: Vec::new(),
            changes: true,
        }
    }

    /// Only an answer to the last response settles what was sent before.
    #[test]
    fn answer_to_the_last_sotw_response_answers_the_earlier_ones() {
        let mut delivery = Delivery::new(0);
        (1..=3).for_each(|nonce| delivery.on_sent(sent(nonce, nonce)));
        assert_eq!(delivery.silent_since(), Some(10));
        let first = delivery.take_answered_sotw(1).unwrap();
        assert!(!delivery.on_ack(&first) && delivery.settled() == Revision(0));
        let last = delivery.take_answered_sotw(3).unwrap();
        assert_eq!(last.carried.possibly_after, Revision(2), "the second one was skipped");
        assert!(delivery.on_ack(&last) && delivery.settled() == Revision(3));
        assert_eq!(
            (delivery.silent_since(), delivery.take_answered_sotw(2).is_none()),
            (None, true)
        );
    }

    /// A client may still reject a response that it skipped.
    #[test]
    fn skipped_delta_response_can_still_be_rejected() {
        let mut delivery = Delivery::new(0);
        (1..=2).for_each(|nonce| delivery.on_sent(sent(nonce, nonce)));
        assert_eq!(delivery.take_answered_delta(2, false).map(|sent| sent.nonce), Some(2));
        assert!(delivery.is_settled());
        assert_eq!(delivery.take_answered_delta(1, true).map(|sent| sent.nonce), Some(1));
        assert!(delivery.take_answered_delta(1, true).is_none());
    }

    #[test]
    fn grown_interest_may_need_resources_of_any_revision() {
        let mut delivery = Delivery::new(0);
        delivery.on_planned(Revision(4), Revision(7));
        assert!(delivery.includes(Revision(7)) && !delivery.includes(Revision(8)));
        let carried = delivery.carried(Revision(9), false);
        assert_eq!((carried.possibly_after, carried.after), (Revision(4), Revision(4)));
        delivery.on_interest_grown();
        assert!(!delivery.includes(Revision(1)));
        assert_eq!(delivery.carried(Revision(9), true).possibly_after, Revision(0));
    }
}
