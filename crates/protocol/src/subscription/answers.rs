//! ACKs and NACKs, and the time for which a rejection applies.

use std::sync::Arc;

use chancery_model::{Resource, ResourceName, Revision};

use super::{Acceptance, CarriedRevisions, SentResponse, Subscription, rejections::Fate};
use crate::{ErrorDetail, Nack};

/// The client's answer to a response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) response: SentResponse,
    /// The rejection, if the answer is a NACK.
    pub(crate) nack: Option<Nack>,
}

impl Subscription {
    /// Records an ACK or a NACK (SOTW-20, SOTW-28).
    pub(super) fn on_answer(
        &mut self,
        mut sent: SentResponse,
        error: Option<&ErrorDetail>,
        now: u64,
    ) -> Answer {
        self.delivery.silent_since = now;
        self.delivery.returned &= !self.delivery.is_settled();
        let Some(error) = error else {
            self.delivery.acked_version = Some(sent.version.clone());
            self.rejections.accept_state();
            if let Some(taken) = &sent.resources {
                self.rejections.take(taken, sent.first_state);
            }
            if self.is_remembered() {
                let resources = sent.resources.take();
                self.resumption.accepted =
                    resources.map(|resources| (sent.version.clone(), resources));
            }
            // A split state is settled only with its last part.
            if self.delivery.is_settled() {
                self.delivery.settle(sent.revision);
                if sent.first_state.is_some() {
                    self.rejections.on_repeated();
                }
            }
            return Answer { response: sent, nack: None };
        };
        let nack = Nack {
            version: sent.version.clone(),
            code: error.code,
            message: error.message.clone(),
            at_ms: now,
        };
        self.rejected_revisions.record(sent.carried, nack.message.clone());
        self.rejections.set_nack(nack.clone());
        // The next accepted full state replaces all of this one, so its contents do not matter.
        let replaced_whole = self.is_full_state() && self.is_wildcard();
        let first_state = sent.first_state.filter(|_| self.is_wildcard());
        match &sent.resources {
            Some(resources) if !resources.is_empty() && !replaced_whole => match first_state {
                Some(revision) => self.rejections.reject_first(resources, revision),
                None => self.rejections.reject(resources),
            },
            _ => self.rejections.reject_state(),
        }
        let removed = std::mem::take(&mut sent.removed);
        self.restore_removals(removed, sent.nonce);
        Answer { response: sent, nack: Some(nack) }
    }

    /// Returns whether the client has accepted what `revision` changed. `names` are the changed
    /// resources, or those that the caller expects the client to have. If it is empty, any resource
    /// may have changed. The caller must have marked all changes up to `revision`.
    ///
    /// The cost is O(unanswered responses), and O(`names`) while a rejection applies.
    pub(crate) fn acceptance(&self, revision: Revision, names: &[ResourceName]) -> Acceptance<'_> {
        if let Some(message) = self.rejected_revisions.message(revision) {
            return Acceptance::Rejected(message);
        }
        if self.is_open(revision) {
            return Acceptance::Unknown;
        }
        // A rejection counts here even if the client subscribed after this revision was sent, or if
        // the revision did not change the resource.
        if let Some(nack) = self.nack()
            && names.iter().any(|name| self.rejections.rejects(name, self.base(), revision))
        {
            return Acceptance::Rejected(&nack.message);
        }
        if self.rejected_revisions.may_be_rejected(revision) {
            Acceptance::Unknown
        } else {
            Acceptance::Accepted
        }
    }

    /// Returns whether changes of `revision` are not sent or not answered.
    fn is_open(&self, revision: Revision) -> bool {
        let delivery = &self.delivery;
        let pending = delivery.pending.iter().map(|pending| pending.carried);
        let mut carried = pending.chain(delivery.unanswered.iter().map(|sent| sent.carried));
        self.is_subscribed()
            && (self.work.is_requested()
                || (self.work.has_changes() && revision > delivery.included)
                || (!self.removals.none_waits() && revision > delivery.planned)
                || carried.any(|carried| carried.may_carry(revision)))
    }

    /// Returns the revisions that the next response carries, if it is built at `up_to`.
    pub(crate) fn carried(&self, up_to: Revision) -> CarriedRevisions {
        // Pending removals are changes that are not sent yet, so the range starts before them.
        let after = self.delivery.included.min(self.delivery.planned);
        let possibly_after = if self.work.is_requested() { Revision(0) } else { after };
        CarriedRevisions { possibly_after, after, up_to }
    }

    /// Settles a split state whose remaining parts the client has unsubscribed from.
    pub(crate) fn on_nothing_left(&mut self, covers: Revision) {
        if self.delivery.unanswered.is_empty() {
            self.delivery.settle(covers);
        }
        self.review_rejections();
    }

    /// Drops rejections that no longer apply.
    pub(crate) fn review_rejections(&mut self) {
        if self.nack().is_none() {
            if self.delivery.is_settled() {
                self.rejections.end_retries();
            }
            return;
        }
        let mut rejections = std::mem::take(&mut self.rejections);
        let is_settled = self.delivery.is_settled();
        let base = self.base();
        rejections.review(base, |resource| match self.sent_of(resource) {
            Some(sent) if sent == resource => Fate::Same,
            Some(_) if !is_settled => Fate::Unanswered,
            Some(_) | None => Fate::Over,
        });
        rejections.end_nack(self.is_subscribed());
        if rejections.nack().is_none() && is_settled {
            rejections.end_retries();
        }
        self.rejections = rejections;
    }

    /// Returns the resource that the client was last sent in place of `resource`.
    pub(crate) fn sent_of(&self, resource: &Resource) -> Option<&Arc<Resource>> {
        let mut names = self.names_for(resource);
        let mut located = self.names.located(resource.base_name().as_str());
        let sent = |name: &ResourceName| self.names.get(name)?.sent();
        let shown = match self.base() {
            // A name with parameters may select another variant than the wildcard.
            Some(base) => base.get(resource.name().as_str()).or_else(|| {
                located.find_map(|name| sent(name).filter(|sent| sent.name() == resource.name()))
            }),
            None => names.find_map(sent),
        };
        // Until the removal is sent, the client has the old resource.
        shown.or_else(|| Some(&self.removals.get(resource.name())?.resource))
    }
}
