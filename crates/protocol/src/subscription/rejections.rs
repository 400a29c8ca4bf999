//! The resources that a client has rejected, and the time for which a rejection applies.
//!
//! A rejection applies until the client has acknowledged a replacement of the resource, or the
//! resource was deleted or is no longer subscribed. The session reviews a rejection only after an
//! event that concerns its name. A client that rejects a whole state therefore costs no more per
//! commit than one that does not.
//!
//! Rejected design: a list of the resources of a large first state, even a shared list. It would be
//! the only data that a wildcard keeps per resource. It would also keep the resources of an old
//! state alive while a client rejects them. Instead, the resources of the view that are not newer
//! than that state count as rejected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{Resource, ResourceName, Revision};
use chancery_view::{Resources, TypeView};

use super::{
    acceptance::RejectedRevisions, client_resources::ClientResources, delivery::SentResponse,
    removals::PendingRemovals,
};
use crate::Nack;

/// Rejected resources, by their own names.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    /// The maximum number of resources of a first state that is kept as a list.
    listed_max: usize,
    /// The first state, if it has too many resources for a list.
    first: Option<FirstState>,
    standing: BTreeMap<ResourceName, Standing>,
    /// The group of the last rejected response.
    last_group: Group,
    /// The names in `standing` with an event since the last review, and those whose replacement is
    /// not answered yet.
    doubtful: BTreeSet<ResourceName>,
    /// Whether there may have been an event for any name.
    all_doubtful: bool,
    /// The last rejection, while it applies.
    nack: Option<Nack>,
    /// The revisions whose changes the client has rejected, even if it was sent a replacement.
    revisions: RejectedRevisions,
    /// The nonce of the last accepted response that may have ended the cause of a rejection before it.
    cause_ended: u64,
    /// Whether a response was rejected whose contents are unknown or do not matter.
    rejects_state: bool,
    /// Whether the next plan sends the rejected resources again, because the cause may be gone.
    retry_due: Option<Retried>,
    retries: Retries,
}

/// The resources of one rejected response. Each has the same number.
type Group = u64;

/// The group of the large first state, and of what else has no response of its own.
const OF_FIRST: Group = 0;

/// A rejected resource.
#[derive(Debug)]
struct Standing {
    resource: Arc<Resource>,
    group: Group,
}

/// The rejected resources that are sent again.
#[derive(Debug)]
pub(crate) enum Retried {
    All,
    /// Those that were rejected with a resource that is gone. Another one that the client still cannot use would keep it from
    /// applying these.
    Groups(BTreeSet<Group>),
}

/// The times at which rejected resources are sent again because others, which may have been the cause, are gone.
#[derive(Debug, Default)]
struct Retries {
    /// The groups that lost a resource.
    wanted: BTreeSet<Group>,
    /// The time of the next one at the earliest.
    not_before: u64,
    /// The number since the client last accepted everything.
    n: u32,
}

/// The time between the first two retries. It doubles with each further one. A client that rejects a large state would
/// otherwise receive the state again after each change.
const RETRY_INTERVAL_MS: u64 = 1000;
const RETRY_INTERVAL_MAX_MS: u64 = 10 * 60 * 1000;

/// The first state of a wildcard, of which the client has rejected at least a part. Everything that
/// the client has and that is not newer counts as rejected.
#[derive(Debug)]
struct FirstState {
    revision: Revision,
    /// One resource of the state whose rejection still applies, as far as known.
    witness: Arc<Resource>,
    /// Whether there was an event for the witness since the last review.
    doubtful: bool,
    /// Up to this name, no rejection applies except that of the witness.
    passed: Option<ResourceName>,
    /// The resources that the client accepted when they were sent again.
    taken: BTreeSet<ResourceName>,
    /// Whether all of it is being sent again, and the client has rejected no part of that.
    is_repeated: bool,
}

impl Retried {
    fn has(&self, group: Group) -> bool {
        match self {
            Self::All => true,
            Self::Groups(groups) => groups.contains(&group),
        }
    }

    /// Returns whether the large first state is sent again.
    pub(crate) fn has_first(&self) -> bool {
        self.has(OF_FIRST)
    }
}

impl FirstState {
    fn has(&self, resource: &Resource) -> bool {
        resource.version().revision <= self.revision && !self.taken.contains(resource.name())
    }

    /// Returns whether the rejection of any resource still applies. If so, the witness is such a
    /// resource.
    fn stands(&mut self, base: Option<&TypeView>, fate: impl Fn(&Arc<Resource>) -> Fate) -> bool {
        let now = if self.has(&self.witness) { fate(&self.witness) } else { Fate::Over };
        self.doubtful = now == Fate::Unanswered;
        if now != Fate::Over {
            return true;
        }
        while let Some(next) = base.and_then(|base| base.next_after(self.passed.as_ref())) {
            self.passed = Some(next.name().clone());
            if self.has(next) {
                self.witness = Arc::clone(next);
                return true;
            }
        }
        false
    }
}

/// The current state of a rejected resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is the resource that the client was last sent.
    Same,
    /// The client was sent a replacement, and has not answered.
    Unanswered,
    /// It was replaced, deleted or is no longer subscribed.
    Over,
}

impl Rejections {
    pub(crate) fn new(listed_max: usize) -> Self {
        Self { listed_max, ..Self::default() }
    }

    /// Returns whether no single resource is rejected.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.standing.is_empty()
    }

    /// Returns the last rejection, while it applies.
    pub(crate) fn nack(&self) -> Option<&Nack> {
        self.nack.as_ref()
    }

    /// Returns whether the client rejects the resource of this name, in a version that is not newer
    /// than `revision`. `base` is the view that a wildcard was sent. A rejected response whose
    /// contents are unknown or do not matter counts for every name.
    pub(crate) fn rejects(
        &self,
        name: &ResourceName,
        base: Option<&TypeView>,
        revision: Revision,
    ) -> bool {
        let is_old = |resource: &Arc<Resource>| resource.version().revision <= revision;
        let rejects_first = |first: &FirstState| {
            let sent = base.and_then(|base| base.get(name.as_str()));
            sent.is_some_and(|sent| first.has(sent) && is_old(sent))
        };
        let is_old_state = |nack: &Nack| nack.version.revision <= revision;
        self.standing.get(name).is_some_and(|one| is_old(&one.resource))
            || self.first.as_ref().is_some_and(rejects_first)
            || (self.rejects_state && self.nack.as_ref().is_some_and(is_old_state))
    }

    /// Returns whether the client rejects this resource as it was sent. A rejected response whose
    /// contents are unknown or do not matter does not count: it may have only removed resources.
    pub(crate) fn is_rejected(&self, resource: &Resource) -> bool {
        self.standing.get(resource.name()).is_some_and(|one| *one.resource == *resource)
            || self.first.as_ref().is_some_and(|first| first.has(resource))
    }

    /// Lets the next plan send rejected resources again.
    pub(crate) fn retry(&mut self, retried: Retried) {
        self.retry_due = Some(retried);
    }

    /// Returns the rejected resources that the plan that begins sends again.
    pub(crate) fn take_retry(&mut self) -> Option<Retried> {
        self.retry_due.take()
    }

    /// Returns whether a rejected resource is among those that are sent again.
    pub(crate) fn is_retried(&self, resource: &Resource, retried: &Retried) -> bool {
        let group = self.standing.get(resource.name()).map_or(OF_FIRST, |one| one.group);
        retried.has(group)
    }

    /// Returns the time at which the rejected resources should be sent again, because others that were rejected are
    /// gone.
    pub(crate) fn retry_at(&self) -> Option<u64> {
        (!self.retries.wanted.is_empty()).then_some(self.retries.not_before)
    }

    /// Begins the retry of [`Self::retry_at`].
    pub(super) fn begin_retry(&mut self, now: u64) -> Retried {
        let interval = RETRY_INTERVAL_MS.checked_shl(self.retries.n).unwrap_or(u64::MAX);
        let not_before = now + interval.min(RETRY_INTERVAL_MAX_MS);
        let n = (self.retries.n + 1).min(20);
        let begun = Retries { wanted: BTreeSet::new(), not_before, n };
        Retried::Groups(std::mem::replace(&mut self.retries, begun).wanted)
    }

    /// Records that the client accepted a response. `is_settled` means that nothing else is on its way.
    pub(super) fn on_ack(&mut self, sent: &SentResponse, is_settled: bool) {
        self.accept_state();
        if let Some(taken) = &sent.resources {
            self.take(taken, sent.first_state);
        }
        // A split state is settled only with its last part.
        if is_settled && sent.first_state.is_some() {
            self.on_repeated();
        }
    }

    /// Records that the client rejected a response of a wildcard, or of names only.
    pub(super) fn on_nack(
        &mut self,
        sent: &SentResponse,
        nack: Nack,
        is_wildcard: bool,
        is_full_state: bool,
    ) {
        self.revisions.record(sent.carried, nack.message.clone());
        self.nack = Some(nack);
        // The next accepted full state replaces all of this one, so its contents do not matter.
        let replaced_whole = is_full_state && is_wildcard;
        let first_state = sent.first_state.filter(|_| is_wildcard);
        match &sent.resources {
            Some(resources) if !resources.is_empty() && !replaced_whole => match first_state {
                Some(revision) => self.reject_first(resources, revision),
                None => self.list(resources.iter()),
            },
            _ => self.rejects_state = true,
        }
    }

    /// Drops rejections that no longer apply to what the client has. `is_settled` means that nothing is on its way.
    pub(crate) fn on_event(&mut self, client: ClientResources<'_>, is_settled: bool) {
        if self.nack.is_some() {
            self.review(client.base(), |resource| match client.sent_of(resource) {
                Some(sent) if sent == resource => Fate::Same,
                Some(_) if !is_settled => Fate::Unanswered,
                Some(_) | None => Fate::Over,
            });
            if !client.is_subscribed() || (self.is_empty() && !self.rejects_state) {
                (self.nack, self.rejects_state) = (None, false);
            }
        }
        if self.nack.is_none() && is_settled {
            self.retries = Retries::default();
        }
    }

    /// Returns whether the client rejects anything but resources that are being removed.
    pub(crate) fn rejects_present(&self, removals: &PendingRemovals) -> bool {
        let is_removed = |one: &Arc<Resource>| {
            removals.get(one.name()).is_some_and(|removal| removal.resource == *one)
        };
        self.rejects_state || self.first.is_some() || self.listed().any(|one| !is_removed(one))
    }

    /// Returns the revisions that the client has rejected.
    pub(super) fn revisions(&self) -> &RejectedRevisions {
        &self.revisions
    }

    /// Returns the bytes of the messages of the client's rejections.
    pub(crate) fn text_bytes(&self) -> usize {
        self.revisions.text_bytes() + self.nack.as_ref().map_or(0, |nack| nack.message.len())
    }

    /// Records that the accepted response with this nonce may have ended the cause of a rejection before it.
    pub(super) fn end_cause(&mut self, nonce: u64) {
        self.cause_ended = self.cause_ended.max(nonce);
    }

    /// Returns whether the cause of the rejection of this response may have ended since.
    pub(super) fn has_cause_ended(&self, nonce: u64) -> bool {
        nonce < self.cause_ended
    }

    /// Iterates over the rejected resources, except those of a large first state.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.standing.values().map(|one| &one.resource)
    }

    /// Returns whether a large first state is rejected.
    pub(crate) fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// Begins to send a large first state again, and returns its revision.
    pub(crate) fn repeat_first(&mut self) -> Option<Revision> {
        let first = self.first.as_mut()?;
        first.is_repeated = true;
        Some(first.revision)
    }

    /// Ends the rejection of a large first state, if the client has accepted all of it.
    fn on_repeated(&mut self) {
        self.first = self.first.take_if(|first| !first.is_repeated);
    }

    /// Forgets the rejection of a large first state, which is sent again. Returns whether there was one.
    pub(crate) fn forget_first(&mut self) -> bool {
        self.first.take().is_some()
    }

    /// Ends the rejection of a response whose contents are unknown or do not matter. Returns
    /// whether there was one.
    pub(crate) fn accept_state(&mut self) -> bool {
        std::mem::take(&mut self.rejects_state)
    }

    /// Records the rejection of a part of a wildcard's first state of this revision. The cost is
    /// O(1), or that of a list for a small state.
    fn reject_first(&mut self, resources: &Resources, revision: Revision) {
        match (&mut self.first, resources.at((0, 0))) {
            (None, Some((witness, _))) if resources.len() > self.listed_max => {
                let witness = Arc::clone(witness);
                let (taken, passed) = (BTreeSet::new(), None);
                let (doubtful, is_repeated) = (true, false);
                self.first =
                    Some(FirstState { revision, witness, doubtful, passed, taken, is_repeated });
            }
            // Another part of the same state, or of its repetition, which may have newer resources.
            (Some(first), _) if revision <= first.revision => {
                first.is_repeated = false;
                let newer = |one: &&Arc<Resource>| one.version().revision > first.revision;
                let newer: Vec<_> = resources.iter().filter(newer).cloned().collect();
                self.insert(newer.iter(), OF_FIRST);
            }
            _ => self.list(resources.iter()),
        }
    }

    /// Records the rejection of resources that belong to one response.
    pub(crate) fn list<'a>(&mut self, resources: impl Iterator<Item = &'a Arc<Resource>>) {
        self.last_group += 1;
        self.insert(resources, self.last_group);
    }

    /// Records that the client accepted these resources, even if it rejected them before.
    /// `first_state` is the revision of the first state that contains them, if any.
    fn take(&mut self, resources: &Resources, first_state: Option<Revision>) {
        // If the client rejects one part of a first state, all parts count as rejected.
        let first = self.first.as_mut().filter(|first| first_state != Some(first.revision));
        if let Some(first) = first {
            for resource in resources.iter() {
                if first.has(resource) {
                    first.taken.insert(resource.name().clone());
                    first.doubtful |= first.witness.name() == resource.name();
                }
            }
        }
        if self.standing.is_empty() {
            return;
        }
        for resource in resources.iter() {
            if self.standing.get(resource.name()).is_some_and(|one| one.resource == *resource) {
                self.standing.remove(resource.name());
            }
        }
    }

    /// Marks an event for the resource of this name.
    pub(crate) fn touch(&mut self, name: &ResourceName) {
        if let Some(first) = &mut self.first {
            first.doubtful |= first.witness.name() == name;
        }
        if self.standing.contains_key(name) {
            self.doubtful.insert(name.clone());
        }
    }

    /// Records that the resource is gone from the view, or that another one replaces it. The client keeps it until
    /// that is sent.
    pub(crate) fn on_gone(&mut self, resource: &Arc<Resource>) {
        if self.first.as_ref().is_some_and(|first| first.has(resource)) {
            self.insert(std::iter::once(resource), OF_FIRST);
        }
        self.touch(resource.name());
    }

    /// Marks a possible event for all names.
    pub(crate) fn touch_all(&mut self) {
        self.all_doubtful = true;
    }

    /// Ends a wildcard. Of its resources, only those in `left` remain.
    pub(crate) fn list_first<'a>(&mut self, left: impl Iterator<Item = &'a Arc<Resource>>) {
        if let Some(first) = self.first.take() {
            self.insert(left.filter(|resource| first.has(resource)), OF_FIRST);
        }
    }

    /// Adds resources to the list of rejected ones.
    fn insert<'a>(&mut self, resources: impl Iterator<Item = &'a Arc<Resource>>, group: Group) {
        for resource in resources {
            let standing = Standing { resource: Arc::clone(resource), group };
            self.standing.insert(resource.name().clone(), standing);
            self.doubtful.insert(resource.name().clone());
        }
    }

    /// Drops rejections that no longer apply. `base` is the view that a wildcard was sent.
    ///
    /// The review of a first state skips only resources that were sent again, so their number
    /// bounds its total cost over a stream.
    fn review(&mut self, base: Option<&TypeView>, fate: impl Fn(&Arc<Resource>) -> Fate) {
        let all_doubtful = std::mem::take(&mut self.all_doubtful);
        let stands =
            |first: &mut FirstState| !(first.doubtful || all_doubtful) || first.stands(base, &fate);
        self.first = self.first.take_if(|first| stands(first));
        if all_doubtful {
            self.doubtful = self.standing.keys().cloned().collect();
        }
        let (standing, retries) = (&mut self.standing, &mut self.retries);
        self.doubtful.retain(|name| {
            let fate = standing.get(name).map_or(Fate::Over, |one| fate(&one.resource));
            if fate == Fate::Over {
                // The client may have applied nothing after the resource that it could not use.
                retries.wanted.extend(standing.remove(name).map(|one| one.group));
            }
            fate == Fate::Unanswered
        });
    }
}
