//! The delivery of a subscription: the planned response, the unanswered responses, and the revisions
//! that the client has.

use std::collections::{BTreeSet, VecDeque};

use chancery_model::{ResourceName, Revision, TypeVersion};
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
    pub(crate) pending: Option<PendingResponse>,
    /// The unanswered responses, oldest first. There is more than one for split responses, after
    /// timeouts, and if requested names do not wait.
    pub(crate) unanswered: VecDeque<SentResponse>,
    /// Delta: responses that the client skipped by answering a later one. The client may still
    /// reject them (DELTA-19).
    skipped: Vec<SentResponse>,
    /// The nonce of the last response; 0 before the first.
    pub(crate) last_nonce: u64,
    pub(crate) last_sent_at: Option<u64>,
    pub(crate) sent_version: Option<TypeVersion>,
    pub(crate) acked_version: Option<TypeVersion>,
    /// The time of the last answer, or of the first response after it. If the client owes an
    /// answer, it has been silent since then.
    pub(crate) silent_since: u64,
    /// Whether a resource that was removed without a message to the client is being sent again.
    pub(crate) returned: bool,
    /// The revision up to which the client has acknowledged everything.
    pub(crate) settled: Revision,
    /// The revision up to which everything is sent once the planned response is sent.
    pub(crate) planned: Revision,
    /// The revision up to which all changes were checked.
    pub(crate) checked: Revision,
    /// The revision up to which all changes are in responses or pending removals. It goes back to 0
    /// when the session needs resources that it did not need before.
    pub(crate) included: Revision,
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
