//! Polling: which type is planned and sent next.

use std::collections::BTreeSet;

use chancery_model::{ResourceName, TypeUrl, has_internal_mark};
use chancery_view::{Differ, View};

use super::{
    Session,
    order::{self, Gate, REMOVAL_WAITS},
};
use crate::{
    Protocol, Response,
    plan::{PlanContext, Selection},
    spelling::Spellings,
    subscription::{Pace, SentResponse, Subscription},
};

/// The interval at which a session looks for the resources that the replica had not opened, in milliseconds.
const UNOPENED_RETRY_MS: u64 = 200;

/// The responses of other types that must precede a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Predecessors {
    /// No other type has to be sent first.
    None,
    /// New responses, which were just planned.
    Planned,
    /// The rest of older responses, which the session must send before it can plan new ones.
    InFlight,
}

/// The result of checking one type.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a step is passed on at once, and most are responses"
)]
pub(super) enum Step {
    /// A response to send.
    Send(Response),
    /// There is nothing to send, but other types may have waited for this result.
    NothingToSend,
    /// An earlier type is to be sent now.
    Restart,
    /// There is nothing to do.
    Idle,
}

impl Session {
    /// Returns the next response to send now, built from `view`, or `None`.
    ///
    /// The caller calls it when the stream can take a response, and repeats the call until it
    /// returns `None`. `view` must not be older than in the previous call.
    pub fn poll(&mut self, view: Option<&View>, differ: &Differ, now: u64) -> Option<Response> {
        // OPS-05: an unknown view is not an empty view.
        let view = view?;
        let before = self.unopened.take();
        let response = self.poll_types(view, differ, now);
        self.unopened = match (before, self.unopened.take()) {
            (Some(before), Some(now)) if before.0 == now.0 => Some(before),
            // The poll ended before it reached the type.
            (Some(before), None) if response.is_some() => Some(before),
            (_, now) => now,
        };
        response
    }

    fn poll_types(&mut self, view: &View, differ: &Differ, now: u64) -> Option<Response> {
        loop {
            let mut settled = false;
            for at in 0..self.subscriptions.len() {
                match self.step(at, view, differ, now) {
                    Step::Send(response) => return Some(response),
                    Step::NothingToSend => settled = true,
                    Step::Restart => {
                        settled = true;
                        break;
                    }
                    Step::Idle => {}
                }
            }
            if !settled {
                return None;
            }
        }
    }

    fn step(&mut self, at: usize, view: &View, differ: &Differ, now: u64) -> Step {
        if let Some(step) = self.step_held_back(at, now) {
            return step;
        }
        self.subscriptions[at].retry_when_due(now);
        let subscription = &self.subscriptions[at];
        let waiting = subscription.delivery.awaits_answer(self.config.ack_timeout_ms, now);
        if let Some(pending) = &subscription.delivery.pending {
            // SOTW-36: at most one response is unacknowledged. The parts of a delta response follow
            // each other without waiting.
            if waiting && pending.pace == Pace::Wait && subscription.protocol == Protocol::Sotw {
                return Step::Idle;
            }
            // ADS-06: types before this one go first if the client requested names of them after
            // this response was planned. Their other later changes keep their own order.
            let before = [subscription.properties.after, &[]];
            return match self.plan_predecessors(
                at,
                before,
                order::gate_of_requested,
                view,
                differ,
                now,
            ) {
                Predecessors::None => self.send_part(at, now),
                Predecessors::Planned | Predecessors::InFlight => Step::Restart,
            };
        }
        // A shortcut for the most common case: the state of the other types does not matter.
        if !subscription.has_work() && subscription.removals.is_empty() {
            return self.end_wait(at);
        }
        self.mark_kept(at, now);
        let subscription = &self.subscriptions[at];
        let release = self.order().release(at, now);
        if !subscription.has_work() && !subscription.has_releasable(release) {
            return self.end_wait(at);
        }
        if view.has_unopened(&subscription.type_url) {
            self.unopened = Some((subscription.type_url.clone(), now));
            return Step::Idle;
        }
        if waiting && !subscription.work.is_urgent() {
            return Step::Idle;
        }
        let gate = self.order().gate(at, now);
        let subscription = &mut self.subscriptions[at];
        if gate != Gate::Open {
            subscription.work.gated_since = subscription.work.gated_since.or(Some(now));
        }
        let properties = subscription.properties;
        let (ahead, last): (&[_], &[_]) = match gate {
            Gate::Closed => return Step::Idle,
            Gate::Late => return self.step_late(at, view, differ, now),
            Gate::Requested | Gate::RequestedAndResent => (properties.after, &[]),
            Gate::Open => (properties.after, properties.behind),
        };
        let types = [ahead, last];
        let found = self.plan_predecessors(at, types, order::gate_of_changes, view, differ, now);
        if found == Predecessors::InFlight {
            return Step::Restart;
        }
        self.plan(at, gate, view, differ, now);
        if found == Predecessors::Planned {
            return Step::Restart;
        }
        if self.subscriptions[at].delivery.pending.is_some() {
            self.send_part(at, now)
        } else {
            Step::NothingToSend
        }
    }

    /// Returns the next response that renews the lifetimes of resources, or `None` if none is due
    /// (TTL-03, TTL-08). Such a response carries no change. Endpoints that would become stale at the client
    /// are sent again by the next [`Session::poll`] (CLI-E-34).
    ///
    /// The caller calls it when the stream can take a response, before [`Session::poll`]. Otherwise,
    /// constant changes would delay renewals until lifetimes end. A caller that must not renew lifetimes, because its state may be outdated, does not
    /// call it (TTL-11). Resources whose lifetime may have ended meanwhile are then sent in full.
    pub fn renew(&mut self, differ: &Differ, now: u64) -> Option<Response> {
        for at in 0..self.subscriptions.len() {
            let timeout = self.config.ack_timeout_ms;
            let subscription = &mut self.subscriptions[at];
            subscription.request_refresh(now);
            if subscription.renewal_at(timeout, now).is_none_or(|due| due > now) {
                continue;
            }
            subscription.plan_renewal(differ, now);
            if let Step::Send(response) = self.send_part(at, now) {
                return Some(response);
            }
        }
        None
    }

    /// Returns the time at which [`Session::renew`] is to be called next; `None` if the client has no
    /// resource with a lifetime, and no endpoints that become stale. It may be in the past.
    #[must_use]
    pub fn renewal_at(&self, now: u64) -> Option<u64> {
        let timeout = self.config.ack_timeout_ms;
        let due =
            |s: &Subscription| s.renewal_at(timeout, now).into_iter().chain(s.refresh_at()).min();
        self.subscriptions.iter().filter_map(due).min()
    }

    /// Ends the wait of a type that has nothing to send. Later changes start a new wait.
    fn end_wait(&mut self, at: usize) -> Step {
        self.subscriptions[at].work.gated_since = None;
        Step::Idle
    }

    /// Plans the next response of a type, as far as the gate allows.
    pub(super) fn plan(&mut self, at: usize, gate: Gate, view: &View, differ: &Differ, now: u64) {
        if view.has_unopened(&self.subscriptions[at].type_url) {
            return;
        }
        let release = self.order().release(at, now);
        let is_resumed = self.subscriptions.iter().any(|s| s.resumption.has_resources);
        let subscription = &mut self.subscriptions[at];
        let of_type = subscription.visible(self.endpoint_lists, view);
        let context = PlanContext { view: &of_type, revision: view.revision(), is_resumed, now };
        subscription.update_members(&of_type);
        let touched = match gate {
            Gate::Closed | Gate::Late => return,
            Gate::Requested => subscription.plan_requested(context, Selection::Requested),
            Gate::RequestedAndResent => {
                subscription.plan_requested(context, Selection::RequestedAndResent)
            }
            Gate::Open => subscription.plan(context, release, differ),
        };
        subscription.schedule_refresh(now);
        if gate == Gate::Open {
            subscription.work.gated_since = None;
        }
        self.record_clusters(at, view.revision(), &touched);
        // If the stream has only one type, there are no children to send again.
        if self.kind.type_url.is_none() && self.subscriptions.len() > 1 {
            self.children.resend(&mut self.subscriptions, at, &touched);
        }
    }

    /// Sends the rest of older responses of `types` before the type at `at`, without waiting for an
    /// ACK. Returns whether any response is left.
    fn skip_ack_wait(&mut self, at: usize, types: &[&[&str]]) -> bool {
        let before = self.subscriptions[..at].iter_mut();
        let before =
            before.filter(|s| types.iter().any(|types| types.contains(&s.type_url.as_str())));
        let pending = before.filter_map(|s| s.delivery.pending.as_mut());
        pending.map(|pending| pending.pace = Pace::AtOnce).count() > 0
    }

    /// Plans the due responses of `types`, which the type at `at` depends on or must follow
    /// (ADS-06, ADS-07). They do not wait for the answer to their last response. Either the wait of
    /// the type at `at` has ended (ADS-22), or the client just requested the type (ADS-26).
    ///
    /// All responses are planned from the view of the type at `at`, and are sent later. Planning
    /// each one only after sending the previous one would starve the last type if commits arrive
    /// faster than the transport takes responses.
    pub(super) fn plan_predecessors(
        &mut self,
        at: usize,
        types: [&[&str]; 2],
        due: fn(&Subscription) -> Gate,
        view: &View,
        differ: &Differ,
        now: u64,
    ) -> Predecessors {
        if self.skip_ack_wait(at, &types) {
            return Predecessors::InFlight;
        }
        let mut found = Predecessors::None;
        for other in 0..at {
            let s = &mut self.subscriptions[other];
            let is_ahead = types.iter().any(|types| types.contains(&s.type_url.as_str()));
            let gate = due(s);
            if !is_ahead || gate == Gate::Closed {
                continue;
            }
            self.plan(other, gate, view, differ, now);
            if let Some(pending) = &mut self.subscriptions[other].delivery.pending {
                pending.pace = Pace::AtOnce;
                found = Predecessors::Planned;
            }
        }
        found
    }

    /// Sends the next part of the pending response.
    fn send_part(&mut self, at: usize, now: u64) -> Step {
        let subscription = &mut self.subscriptions[at];
        if !subscription.drop_unsubscribed() {
            return Step::NothingToSend;
        }
        let Some(mut pending) = subscription.delivery.pending.take() else { return Step::Idle };
        let part = subscription.take_part(&mut pending, self.config.response_bytes_target);
        self.last_nonce += 1;
        let reads_constraints = subscription.variants.has_locators;
        let spellings = &subscription.spellings;
        let spelled = |names: Vec<ResourceName>| wire_names(names, spellings, reads_constraints);
        let (removed_variants, removed): (Vec<_>, Vec<_>) =
            part.removed.into_iter().partition(|name| reads_constraints && name.is_variant());
        let response = Response {
            protocol: subscription.protocol,
            type_url: subscription.type_url.clone(),
            version: pending.version.clone(),
            nonce: self.last_nonce,
            lifetimes: subscription.renewals.form,
            spellings: subscription.response_spellings(),
            resources: part.resources,
            heartbeats: part.heartbeats,
            is_incremental: pending.is_incremental,
            is_renewal: pending.is_renewal,
            reads_constraints,
            removed: spelled(removed),
            removed_variants,
            absent: spelled(part.absent),
            errors: spelled(part.errors),
            revision: pending.revision,
        };
        subscription.delivery.on_sent(SentResponse {
            nonce: self.last_nonce,
            sent_at: now,
            version: pending.version.clone(),
            revision: pending.covers,
            carried: pending.carried,
            first_state: pending.first_state.then_some(pending.revision).or(pending.repeats),
            resources: Some(response.contents()),
            removed: std::mem::take(&mut pending.announced),
            changes: pending.changes && pending.is_empty(),
        });
        subscription.on_lifetimes_sent(&response.resources, &pending, now);
        if !pending.is_empty() {
            subscription.delivery.pending = Some(pending);
        }
        Step::Send(response)
    }

    /// Returns the type that the last poll did not answer, because the replica has not opened its sealed resources, and
    /// the time of the first such poll. They are not absent, so nothing of the type is sent. Other types go on.
    #[must_use]
    pub fn unopened_since(&self) -> Option<(&TypeUrl, u64)> {
        self.unopened.as_ref().map(|(type_url, since)| (type_url, *since))
    }

    /// Returns the time of the next poll that is necessary even without further events. `None`
    /// means that no deadline is pending.
    #[must_use]
    pub fn wake_at(&self, now: u64) -> Option<u64> {
        let busy =
            |s: &Subscription| s.has_work() || !s.removals.is_empty() || s.retry_at().is_some();
        if !self.subscriptions.iter().any(busy) {
            return None;
        }
        let timeout = self.config.ack_timeout_ms;
        let deadlines = self.subscriptions.iter().flat_map(|s| {
            let held = (!s.removals.is_empty()).then_some(s.opened_at + self.config.resume_hold_ms);
            [
                s.delivery.unanswered.back().map(|sent| sent.sent_at + timeout),
                s.delivery.last_sent_at.map(|sent| sent + timeout),
                s.work.gated_since.map(|since| since + timeout),
                s.removals.oldest().map(|since| since + REMOVAL_WAITS * timeout),
                held,
                s.retry_at(),
            ]
        });
        // The replica opens resources without a change that a session would see.
        let retry = self.unopened.as_ref().map(|_| now + UNOPENED_RETRY_MS);
        let deadlines =
            deadlines.flatten().chain(self.request_deadlines()).chain(self.drain_deadlines());
        deadlines.chain(retry).filter(|deadline| *deadline > now).min()
    }
}

/// Returns names as the client knows them: as it spells them, and variants with their constraints if it
/// reads them. No name occurs twice.
fn wire_names(
    names: Vec<ResourceName>,
    spellings: &Spellings,
    reads_constraints: bool,
) -> Vec<ResourceName> {
    let is_bare = |name: &ResourceName| !has_internal_mark(name.as_str());
    if spellings.is_empty() && names.iter().all(is_bare) {
        return names;
    }
    let mut seen = BTreeSet::new();
    let known = names.into_iter().map(|name| {
        if name.is_variant() && reads_constraints { name } else { spellings.spell(name.to_base()) }
    });
    known.filter(|name| seen.insert(name.clone())).collect()
}
