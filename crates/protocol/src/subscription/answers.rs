//! The acceptance of a revision by a client, according to its answers.

use chancery_model::{ResourceName, Revision};

use super::{
    acceptance::Acceptance,
    delivery::Delivery,
    interest::Interest,
    kind::Kind,
    names::ClientVersion,
    rejections::Rejections,
    removals::PendingRemovals,
    work::{Changed, Work},
};
use crate::Protocol;

/// The parts of a subscription that know what the client has acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers<'a> {
    pub(super) kind: &'a Kind,
    pub(super) interest: &'a Interest,
    pub(super) work: &'a Work,
    pub(super) delivery: &'a Delivery,
    pub(super) removals: &'a PendingRemovals,
    pub(super) rejections: &'a Rejections,
}

impl<'a> Answers<'a> {
    /// Returns whether the client has accepted what `revision` changed. `names` are the changed
    /// resources, or those that the caller expects the client to have. If it is empty, any resource
    /// may have changed. The caller must have marked all changes up to `revision`.
    ///
    /// The cost is O(unanswered responses), and O(`names`) while a rejection applies.
    pub(super) fn acceptance(self, revision: Revision, names: &[ResourceName]) -> Acceptance<'a> {
        let rejected = self.rejections.revisions();
        if let Some(message) = rejected.message(revision) {
            return Acceptance::Rejected(message);
        }
        if self.is_open(revision) {
            return Acceptance::Unknown;
        }
        // A rejection counts here even if the client subscribed after this revision was sent, or if
        // the revision did not change the resource.
        let base = self.interest.base();
        if let Some(nack) = self.rejections.nack()
            && names.iter().any(|name| self.rejections.rejects(name, base, revision))
        {
            return Acceptance::Rejected(&nack.message);
        }
        if rejected.may_be_rejected(revision) { Acceptance::Unknown } else { Acceptance::Accepted }
    }

    /// Returns whether the client has accepted everything up to `revision`, even if that revision changed nothing for
    /// it. The rejection of an earlier one counts while it applies. The caller must have marked all changes up to
    /// `revision`.
    pub(super) fn acceptance_until(self, revision: Revision) -> Acceptance<'a> {
        let acceptance = self.acceptance(revision, &[]);
        if acceptance != Acceptance::Accepted {
            return acceptance;
        }
        if self.interest.is_subscribed() && self.delivery.may_carry_up_to(revision) {
            return Acceptance::Unknown;
        }
        let nack = self.rejections.nack().filter(|nack| nack.version.revision <= revision);
        nack.map_or(Acceptance::Accepted, |nack| Acceptance::Rejected(&nack.message))
    }

    /// Returns whether changes of `revision` are not sent or not answered.
    fn is_open(self, revision: Revision) -> bool {
        let delivery = self.delivery;
        self.interest.is_subscribed()
            && (self.work.is_requested()
                || (self.work.has_changes() && !delivery.includes(revision))
                || (!self.removals.none_waits() && revision > delivery.planned())
                || delivery.may_carry(revision))
    }

    /// Returns the revision up to which the client has acknowledged everything, or has let the ACK
    /// timeout pass.
    pub(super) fn reached(self, ack_timeout_ms: u64, now: u64) -> Revision {
        let is_under_way =
            self.delivery.pending().is_some() || self.delivery.awaits_answer(ack_timeout_ms, now);
        let is_quiet = !self.work.has_changes() && !is_under_way;
        if is_quiet && self.removals.none_waits() {
            Revision(u64::MAX)
        } else if self.may_return() {
            Revision(0)
        } else if is_under_way {
            self.delivery.settled()
        } else {
            self.delivery.planned()
        }
    }

    /// Returns whether a removed resource may have reappeared. SotW cannot express the removal
    /// (SOTW-85), so the client may have the old resource until the new one was sent.
    fn may_return(self) -> bool {
        let is_absent = |version: &ClientVersion| *version == ClientVersion::Absent;
        let versions = self.interest.names();
        self.kind.protocol == Protocol::Sotw
            && match self.work.changed() {
                Changed::All => versions.values().any(is_absent),
                Changed::Names(names) => {
                    names.iter().filter_map(|name| versions.get(name)).any(is_absent)
                }
            }
    }
}
