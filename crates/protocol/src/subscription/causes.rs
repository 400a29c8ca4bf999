//! The end of the cause of a rejection: what was rejected is sent again once (ADR 4, point 10), and removals that
//! the client has not applied are pending again.

use chancery_model::ResourceName;

use super::{
    delivery::Delivery,
    kind::Kind,
    rejections::{Rejections, Retried},
    removals::{PendingRemoval, PendingRemovals},
    work::Work,
};
use crate::Protocol;

/// The rejections of a client, with the parts of a subscription that send rejected resources again.
#[derive(Debug)]
pub(super) struct Causes<'a> {
    pub(super) kind: &'a Kind,
    pub(super) delivery: &'a Delivery,
    pub(super) work: &'a mut Work,
    pub(super) rejections: &'a mut Rejections,
    pub(super) removals: &'a mut PendingRemovals,
}

impl Causes<'_> {
    /// Handles the rejection of a response. If the client applies nothing of such a response, its removals are
    /// pending again. If a later response may have ended the cause, the resources are sent again.
    pub(super) fn on_nack(&mut self, removed: Vec<(ResourceName, PendingRemoval)>, nonce: u64) {
        let exclusion = self.kind.properties.exclusion;
        let rejects_whole = exclusion.rejects_whole() && !self.kind.is_full_state();
        let is_last = nonce == self.delivery.last_nonce();
        if self.rejections.has_cause_ended(nonce) && is_last || rejects_whole && !is_last {
            self.retry(Retried::All);
        }
        if !rejects_whole {
            return;
        }
        if !self.removals.is_empty() {
            self.work.on_all_changed();
        }
        self.removals.restore(removed);
    }

    /// Handles an accepted response of another type, which may have ended the cause of rejections before it.
    pub(super) fn on_cause_ended(&mut self, nonce: u64) {
        self.rejections.end_cause(nonce);
        let is_quiet = self.delivery.is_settled() && self.delivery.last_nonce() < nonce;
        let is_rejecting = self.rejections.nack().is_some();
        if is_rejecting && is_quiet && self.rejections.rejects_present(self.removals) {
            self.retry(Retried::All);
        }
    }

    /// Sends the resources again that were rejected with others that are gone: the client may have applied only those
    /// before the one that it could not use.
    pub(super) fn retry_when_due(&mut self, now: u64) {
        if retry_at(self.kind, self.delivery, self.rejections).is_some_and(|at| at <= now) {
            let groups = self.rejections.begin_retry(now);
            // The key that a resource needs may be that of any other rejected one.
            let rejects_whole = self.kind.properties.exclusion.rejects_whole();
            let retried = if rejects_whole { Retried::All } else { groups };
            if self.rejections.rejects_present(self.removals) {
                self.retry(retried);
            }
        }
    }

    /// Sends rejected resources again with the next plan.
    fn retry(&mut self, retried: Retried) {
        if self.kind.is_full_state() {
            self.work.set_answer_due(true);
        } else {
            self.rejections.retry(retried);
            self.work.on_all_changed();
        }
    }
}

/// Returns the time of the next retry. Full states always have all resources, and so has the next response of MCP
/// after a rejection.
pub(super) fn retry_at(kind: &Kind, delivery: &Delivery, rejections: &Rejections) -> Option<u64> {
    let at = rejections.retry_at()?;
    let has_all = kind.is_full_state() || kind.protocol == Protocol::Mcp;
    (delivery.is_settled() && !has_all).then_some(at)
}
