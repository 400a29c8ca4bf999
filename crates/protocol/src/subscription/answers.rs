//! ACKs and NACKs, and the time for which a rejection applies.

use std::sync::Arc;

use chancery_model::{Resource, Revision};

use super::{Answer, CONTENTS_MAX, Held, Outstanding, Subscription, rejections::Fate};
use crate::{ErrorDetail, Nack};

impl Subscription {
    /// Returns the delta response that a nonce identifies. Clients process responses in order, so
    /// the earlier responses also count as answered. The client may still reject them (DELTA-19).
    pub(super) fn take_answered(
        &mut self,
        nonce: Option<u64>,
        rejects: bool,
    ) -> Option<Outstanding> {
        if let Some(at) = self.outstanding.iter().position(|sent| Some(sent.nonce) == nonce) {
            let over = self.outstanding.drain(..at).filter(|sent| sent.resources.is_some());
            self.passed.extend(over);
            let excess = self.passed.len().saturating_sub(CONTENTS_MAX);
            self.passed.drain(..excess);
            return self.outstanding.pop_front();
        }
        let at = self.passed.iter().position(|sent| Some(sent.nonce) == nonce)?;
        let sent = self.passed.swap_remove(at);
        rejects.then_some(sent)
    }

    /// Records an ACK or a NACK (SOTW-20, SOTW-28).
    pub(super) fn on_answer(
        &mut self,
        mut sent: Outstanding,
        error: Option<&ErrorDetail>,
        now: u64,
    ) -> Answer {
        self.silent_since = now;
        self.returned &= !self.outstanding.is_empty() || self.train.is_some();
        let Some(error) = error else {
            self.acked = Some(sent.version.clone());
            self.rejects_state = false;
            if let Some(taken) = &sent.resources {
                self.rejected.take(taken, sent.first_state);
            }
            if self.is_remembered() {
                let resources = sent.resources.take();
                self.accepted = resources.map(|resources| (sent.version.clone(), resources));
            }
            // A split state is settled only with its last part.
            if self.outstanding.is_empty() && self.train.is_none() {
                self.settled_revision = self.settled_revision.max(sent.revision);
            }
            return Answer { outstanding: sent, nack: None };
        };
        let nack = Nack {
            version: sent.version.clone(),
            code: error.code,
            message: error.message.clone(),
            at_ms: now,
        };
        self.nack = Some(nack.clone());
        // The next accepted full state replaces all of this one, so its contents do not matter.
        let replaced_whole = self.is_full_state() && self.wildcard;
        let first_state = sent.first_state.filter(|_| self.wildcard);
        match &sent.resources {
            Some(resources) if !resources.is_empty() && !replaced_whole => match first_state {
                Some(revision) => self.rejected.reject_first(resources, revision),
                None => self.rejected.reject(resources),
            },
            _ => self.rejects_state = true,
        }
        Answer { outstanding: sent, nack: Some(nack) }
    }

    /// Settles a split state whose remaining parts the client has unsubscribed from.
    pub(crate) fn on_nothing_left(&mut self, covers: Revision) {
        if self.outstanding.is_empty() {
            self.settled_revision = self.settled_revision.max(covers);
        }
        self.review_rejections();
    }

    /// Drops rejections that no longer apply.
    pub(crate) fn review_rejections(&mut self) {
        if self.nack.is_none() {
            return;
        }
        let mut rejected = std::mem::take(&mut self.rejected);
        let unanswered = self.train.is_some() || !self.outstanding.is_empty();
        rejected.review(self.base.as_ref(), |resource| match self.sent_of(resource) {
            Some(sent) if sent == resource => Fate::Same,
            Some(_) if unanswered => Fate::Unanswered,
            Some(_) | None => Fate::Over,
        });
        self.rejected = rejected;
        let asks = self.wildcard || !self.names.is_empty();
        if !asks || (self.rejected.is_empty() && !self.rejects_state) {
            (self.nack, self.rejects_state) = (None, false);
        }
    }

    /// Returns the resource that the client was last sent in place of `resource`.
    fn sent_of(&self, resource: &Resource) -> Option<&Arc<Resource>> {
        let mut names = std::iter::once(resource.name()).chain(resource.aliases());
        let shown = match &self.base {
            Some(base) if self.wildcard => base.get(resource.name().as_str()),
            _ => names.find_map(|name| match self.names.get(name)? {
                Held::Sent(sent) => Some(sent),
                Held::Nothing | Held::Absent | Held::Version(_) => None,
            }),
        };
        // Until the removal is sent, the client has the old resource.
        shown.or_else(|| Some(&self.lingering.get(resource.name())?.resource))
    }
}
