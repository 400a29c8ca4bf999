//! The order between the types of an aggregated stream.

use chancery_model::Revision;

use crate::{
    Config, Protocol,
    subscription::{Release, Subscription},
};

/// The maximum time for which a removal waits for the types that refer to the resource, in ACK
/// timeouts. A referrer waits for the answer to its previous response, for the types before it, and
/// for its own answer.
pub(super) const REMOVAL_WAITS: u64 = 5;

/// The types of a stream, in the order of sending.
#[derive(Debug, Clone, Copy)]
pub(super) struct TypeOrder<'a> {
    pub(super) subscriptions: &'a [Subscription],
    pub(super) config: &'a Config,
    pub(super) is_aggregated: bool,
}

/// The part of a type that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Everything.
    Open,
    /// The names that the client requested.
    Requested,
    /// The requested names, and the names that are sent again because a parent was sent.
    RequestedAndResent,
    /// Nothing.
    Closed,
    /// Everything, after the types before it: they are not acknowledged, and the type has waited for
    /// the ACK timeout (ADS-22).
    Late,
}

/// Returns the gate of a type that precedes another type in the same plan: open if it has changes.
pub(super) fn gate_of_changes(s: &Subscription) -> Gate {
    if s.work().has_changes() { Gate::Open } else { Gate::Closed }
}

/// Returns the gate of a type that precedes a type planned earlier: open for the names that the
/// client requested.
pub(super) fn gate_of_requested(s: &Subscription) -> Gate {
    if !s.work().is_requested() {
        Gate::Closed
    } else if s.work().is_answer_due() || s.is_full_state() {
        // A first answer and a full state are always complete.
        Gate::Open
    } else {
        Gate::Requested
    }
}

impl TypeOrder<'_> {
    /// Returns which part of a type may be sent now.
    ///
    /// A push waits until the types before it are acknowledged (ADS-06), or at least sent (ADS-05),
    /// for a bounded time (ADS-22). Requested names do not wait (ADS-20, ADS-26), except on a type
    /// that the client resumes. Such a client may hold routes to clusters that it does not have
    /// yet.
    pub(super) fn gate(self, at: usize, now: u64) -> Gate {
        let s = &self.subscriptions[at];
        let timeout = self.config.ack_timeout_ms;
        let expired = s.work().gated_since().is_some_and(|since| since + timeout <= now);
        if !self.is_aggregated || (expired && s.properties().after.is_empty()) {
            return Gate::Open;
        }
        let others = |types: &'static [&'static str]| {
            self.subscriptions.iter().filter(|other| types.contains(&other.type_url().as_str()))
        };
        let unanswered =
            others(s.properties().after).any(|other| !other.is_quiet(self.config, now));
        let unsent = others(s.properties().behind).any(Subscription::has_work);
        // ADS-11: children are sent again after their parent, even if the parent is in a later part
        // of its response.
        let again = !s.work().resent().is_empty();
        let parting = again
            && others(s.properties().parents).any(|other| other.delivery().pending().is_some());
        let is_free = !unanswered && !unsent && !parting;
        let timed_out = others(s.properties().after).any(|o| !o.delivery().unanswered().is_empty());
        if is_free && !timed_out {
            return Gate::Open;
        }
        let closed = if expired || is_free { Gate::Late } else { Gate::Closed };
        if unanswered && s.is_first_of_resumed() {
            return closed;
        }
        // A first answer and a full state are always complete.
        let asked = s.work().is_urgent() || s.work().is_answer_due();
        if asked && (s.work().is_answer_due() || s.is_full_state()) {
            return Gate::Open;
        }
        // The client waits for the resources in `resent`.
        let free = !unanswered && !timed_out && !parting;
        match (asked && !s.work().requested().is_empty(), again && free) {
            (_, true) => Gate::RequestedAndResent,
            (true, false) => Gate::Requested,
            (false, false) => closed,
        }
    }

    /// Returns which removals of a type may be announced now (ADS-08, ADS-09).
    pub(super) fn release(self, at: usize, now: u64) -> Release {
        let s = &self.subscriptions[at];
        if !self.is_aggregated || s.properties().referrers.is_empty() {
            return Release::ALL;
        }
        if s.opened_at() + self.config.resume_hold_ms > now {
            return Release::Nothing;
        }
        let types = s.properties().referrers;
        let referrers =
            || self.subscriptions.iter().filter(|other| types.contains(&other.type_url().as_str()));
        // A resource of this type may be the cause of the rejection.
        let is_cause =
            |other: &Subscription| other.properties().retried_after.contains(&s.properties().url);
        let rejected = referrers().any(|other| other.nack().is_some() && !is_cause(other));
        if rejected && s.removals().len() <= self.config.held_removals_max {
            return Release::Nothing;
        }
        let timeout = self.config.ack_timeout_ms;
        let since = now.saturating_sub(REMOVAL_WAITS * timeout);
        // gRPC learns of a new cluster from the route, and drops the old name when the new cluster
        // works. It gets the time that the referrers would have had.
        let drops = !s.interest().is_wildcard() && s.protocol() == Protocol::Sotw;
        let recent = |other: &Subscription| {
            other.delivery().last_sent_at().is_some_and(|sent| sent + timeout > now)
        };
        if drops && referrers().any(recent) {
            return Release::UpTo { revision: Revision(0), since };
        }
        let reached = referrers().map(|other| other.reached(self.config, now)).min();
        Release::UpTo { revision: reached.unwrap_or(Revision(u64::MAX)), since }
    }
}
