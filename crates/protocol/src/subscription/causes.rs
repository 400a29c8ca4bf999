//! The end of the cause of a rejection: what was rejected is sent again once (ADR 4, point 10), and removals that
//! the client has not applied are pending again.

use std::sync::Arc;

use chancery_model::{Resource, ResourceName};

use super::{PendingRemoval, Retried, Subscription};
use crate::{Protocol, plan::Release};

impl Subscription {
    /// Returns whether the client rejects anything but resources that are being removed.
    pub(crate) fn rejects_present(&self) -> bool {
        let is_removed = |one: &Arc<Resource>| {
            self.removals.get(one.name()).is_some_and(|removal| removal.resource == *one)
        };
        self.rejections.rejects_unknown() || self.rejections.listed().any(|one| !is_removed(one))
    }

    /// Returns whether one of the allowed removals may be announced without any other change. A removal that the
    /// client has rejected waits while the client rejects another resource.
    pub(crate) fn has_releasable(&self, release: Release) -> bool {
        if self.removals.none_waits() {
            return false;
        }
        if self.removals.unnamed().is_some_and(|unnamed| release.allows_unnamed(unnamed)) {
            return true;
        }
        let mut has_tried = false;
        for removal in self.removals.values().filter(|removal| release.allows(removal)) {
            if !removal.is_tried {
                return true;
            }
            has_tried = true;
        }
        has_tried && !self.rejects_present()
    }

    /// Handles the rejection of a response. If the client applies nothing of such a response, its removals are
    /// pending again. If a later response may have ended the cause, the resources are sent again.
    pub(crate) fn restore_removals(
        &mut self,
        removed: Vec<(ResourceName, PendingRemoval)>,
        nonce: u64,
    ) {
        let rejects_whole = self.properties.exclusion.rejects_whole() && !self.is_full_state();
        let is_last = nonce == self.delivery.last_nonce;
        if self.rejections.has_cause_ended(nonce) && is_last || rejects_whole && !is_last {
            self.retry_rejected(Retried::All);
        }
        if !rejects_whole {
            return;
        }
        if !self.removals.is_empty() {
            self.work.changed.set_all();
        }
        for (name, removal) in removed {
            self.removals.add(name.clone(), removal);
            self.removals.set_tried(&name);
        }
    }

    /// Handles an accepted response of another type, which may have ended the cause of rejections before it.
    pub(crate) fn on_cause_ended(&mut self, nonce: u64) {
        self.rejections.end_cause(nonce);
        let is_quiet = self.delivery.is_settled() && self.delivery.last_nonce < nonce;
        if self.nack().is_some() && is_quiet && self.rejects_present() {
            self.retry_rejected(Retried::All);
        }
    }

    /// Sends the resources again that were rejected with others that are gone: the client may have applied only those
    /// before the one that it could not use.
    pub(crate) fn retry_when_due(&mut self, now: u64) {
        if self.retry_at().is_some_and(|at| at <= now) {
            let groups = self.rejections.begin_retry(now);
            // The key that a resource needs may be that of any other rejected one.
            let rejects_whole = self.properties.exclusion.rejects_whole();
            let retried = if rejects_whole { Retried::All } else { groups };
            if self.rejects_present() {
                self.retry_rejected(retried);
            }
        }
    }

    /// Returns the time of the next retry. Full states always have all resources, and so has the next response of MCP
    /// after a rejection.
    pub(crate) fn retry_at(&self) -> Option<u64> {
        let at = self.rejections.retry_at()?;
        let has_all = self.is_full_state() || self.protocol == Protocol::Mcp;
        (self.delivery.is_settled() && !has_all).then_some(at)
    }

    /// Sends rejected resources again with the next plan.
    fn retry_rejected(&mut self, retried: Retried) {
        if self.is_full_state() {
            self.work.answer_due = true
        } else {
            self.rejections.retry(retried);
            self.work.changed.set_all();
        }
    }
}
