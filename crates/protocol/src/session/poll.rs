//! Polling: which type is planned and sent next.

use chancery_model::TypeUrl;

use super::{
    drains,
    endpoint_wait::{request_deadlines, step_held_back, step_late},
    order::{self, Gate, REMOVAL_WAITS},
    turn::{Predecessors, Step, Turn},
    unanswered_clusters::UnansweredClusters,
};
use crate::{
    Config, Protocol, Response,
    subscription::{Pace, Subscription},
};

/// The interval at which a session looks for the resources that the replica had not opened, in milliseconds.
const UNOPENED_RETRY_MS: u64 = 200;

/// The type with resources that the replica has not opened, and the time since when it has waited for them.
pub(super) type Unopened = Option<(TypeUrl, u64)>;

/// A poll of all types.
#[derive(Debug)]
pub(super) struct Poll<'a> {
    pub(super) turn: Turn<'a>,
    pub(super) unopened: &'a mut Unopened,
}

impl Poll<'_> {
    /// Returns the next response to send now.
    pub(super) fn run(mut self) -> Option<Response> {
        let before = self.unopened.take();
        let response = self.poll_types();
        *self.unopened = match (before, self.unopened.take()) {
            (Some(before), Some(now)) if before.0 == now.0 => Some(before),
            // The poll ended before it reached the type.
            (Some(before), None) if response.is_some() => Some(before),
            (_, now) => now,
        };
        response
    }

    fn poll_types(&mut self) -> Option<Response> {
        loop {
            let mut settled = false;
            for at in 0..self.turn.subscriptions.len() {
                match self.step(at) {
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

    fn step(&mut self, at: usize) -> Step {
        let turn = &mut self.turn;
        if let Some(step) = step_held_back(turn, at) {
            return step;
        }
        let now = turn.now;
        turn.subscriptions[at].retry_when_due(now);
        let subscription = &turn.subscriptions[at];
        let (delivery, properties) = (subscription.delivery(), subscription.properties());
        let waiting = delivery.awaits_answer(turn.config.ack_timeout_ms, now);
        if let Some(pending) = delivery.pending() {
            // SOTW-36: at most one response is unacknowledged. The parts of a delta response follow
            // each other without waiting.
            if waiting && pending.pace == Pace::Wait && subscription.protocol() == Protocol::Sotw {
                return Step::Idle;
            }
            // ADS-06: types before this one go first if the client requested names of them after
            // this response was planned. Their other later changes keep their own order.
            let before = [properties.after, &[]];
            return match turn.plan_predecessors(at, before, order::gate_of_requested) {
                Predecessors::None => turn.send_part(at),
                Predecessors::Planned | Predecessors::InFlight => Step::Restart,
            };
        }
        // A shortcut for the most common case: the state of the other types does not matter.
        if !subscription.has_work() && subscription.removals().is_empty() {
            return self.end_wait(at);
        }
        if turn.is_aggregated {
            drains::mark_kept(turn.subscriptions, at, turn.config, now);
        }
        let subscription = &turn.subscriptions[at];
        let release = turn.order().release(at, now);
        if !subscription.has_work() && !subscription.has_releasable(release) {
            return self.end_wait(at);
        }
        if turn.view.has_unopened(subscription.type_url()) {
            *self.unopened = Some((subscription.type_url().clone(), now));
            return Step::Idle;
        }
        if waiting && !subscription.work().is_urgent() {
            return Step::Idle;
        }
        let gate = turn.order().gate(at, now);
        if gate != Gate::Open {
            turn.subscriptions[at].begin_wait(now);
        }
        let (ahead, last): (&[_], &[_]) = match gate {
            Gate::Closed => return Step::Idle,
            Gate::Late => return step_late(turn, at),
            Gate::Requested | Gate::RequestedAndResent => (properties.after, &[]),
            Gate::Open => (properties.after, properties.behind),
        };
        let found = turn.plan_predecessors(at, [ahead, last], order::gate_of_changes);
        if found == Predecessors::InFlight {
            return Step::Restart;
        }
        turn.plan(at, gate);
        if found == Predecessors::Planned {
            return Step::Restart;
        }
        if turn.subscriptions[at].delivery().pending().is_some() {
            turn.send_part(at)
        } else {
            Step::NothingToSend
        }
    }

    /// Ends the wait of a type that has nothing to send. Later changes start a new wait.
    fn end_wait(&mut self, at: usize) -> Step {
        self.turn.subscriptions[at].end_wait();
        Step::Idle
    }
}

/// Returns the time of the next poll that is necessary even without further events.
pub(super) fn wake_at(
    subscriptions: &[Subscription],
    unanswered_clusters: &UnansweredClusters,
    config: &Config,
    unopened: &Unopened,
    now: u64,
) -> Option<u64> {
    let busy =
        |s: &Subscription| s.has_work() || !s.removals().is_empty() || s.retry_at().is_some();
    if !subscriptions.iter().any(busy) {
        return None;
    }
    let timeout = config.ack_timeout_ms;
    let deadlines = subscriptions.iter().flat_map(|s| {
        let (delivery, removals) = (s.delivery(), s.removals());
        let held = (!removals.is_empty()).then_some(s.opened_at() + config.resume_hold_ms);
        [
            delivery.last_unanswered().map(|sent| sent.sent_at + timeout),
            delivery.last_sent_at().map(|sent| sent + timeout),
            s.work().gated_since().map(|since| since + timeout),
            removals.oldest().map(|since| since + REMOVAL_WAITS * timeout),
            // The time from which a removal may no longer be kept back for a listener that drains.
            removals.kept_until(),
            held,
            s.retry_at(),
        ]
    });
    // The replica opens resources without a change that a session would see.
    let retry = unopened.as_ref().map(|_| now + UNOPENED_RETRY_MS);
    let requests = request_deadlines(subscriptions, unanswered_clusters, timeout);
    let deadlines = deadlines.flatten().chain(requests).chain(retry);
    deadlines.filter(|deadline| *deadline > now).min()
}
