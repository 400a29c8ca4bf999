//! One turn of a session: the plans and the parts of responses that a poll may produce.

use chancery_model::types::CLUSTER;
use chancery_view::{Differ, View};

use super::{
    children::Children,
    order::{Gate, TypeOrder},
    unanswered_clusters::UnansweredClusters,
};
use crate::{
    Config, EndpointLists, Response,
    plan::{PlanContext, Selection},
    subscription::{Pace, Subscription},
};

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

/// The parts of a session that a poll changes, with the view and the time of the poll.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) is_aggregated: bool,
    pub(super) config: &'a Config,
    pub(super) endpoint_lists: EndpointLists,
    pub(super) subscriptions: &'a mut [Subscription],
    pub(super) children: &'a mut Children,
    pub(super) unanswered_clusters: &'a mut UnansweredClusters,
    pub(super) last_nonce: &'a mut u64,
    pub(super) view: &'a View,
    pub(super) differ: &'a Differ,
    pub(super) now: u64,
}

impl Turn<'_> {
    /// Returns the order between the types.
    pub(super) fn order(&self) -> TypeOrder<'_> {
        TypeOrder {
            subscriptions: self.subscriptions,
            config: self.config,
            is_aggregated: self.is_aggregated,
        }
    }

    /// Plans the next response of a type, as far as the gate allows.
    pub(super) fn plan(&mut self, at: usize, gate: Gate) {
        let (view, now) = (self.view, self.now);
        if view.has_unopened(self.subscriptions[at].type_url()) {
            return;
        }
        let release = self.order().release(at, now);
        let is_resumed = self.subscriptions.iter().any(|s| s.resumption().has_resources());
        let subscription = &mut self.subscriptions[at];
        let of_type = subscription.visible(self.endpoint_lists, view);
        let context = PlanContext { view: &of_type, revision: view.revision(), is_resumed, now };
        let touched = match gate {
            Gate::Closed | Gate::Late => return,
            Gate::Requested => subscription.plan_requested(context, Selection::Requested),
            Gate::RequestedAndResent => {
                subscription.plan_requested(context, Selection::RequestedAndResent)
            }
            Gate::Open => subscription.plan(context, release, self.differ),
        };
        if gate == Gate::Open {
            subscription.end_wait();
        }
        if self.is_aggregated && subscription.type_url().as_str() == CLUSTER {
            if subscription.delivery().unanswered().is_empty() {
                *self.unanswered_clusters = UnansweredClusters::default();
            }
            self.unanswered_clusters.record(view.revision(), &touched.resources);
        }
        // If the stream has only one type, there are no children to send again.
        if self.is_aggregated && self.subscriptions.len() > 1 {
            self.children.resend(self.subscriptions, at, &touched);
        }
    }

    /// Sends the rest of older responses of `types` before the type at `at`, without waiting for an
    /// ACK. Returns whether any response is left.
    fn skip_ack_wait(&mut self, at: usize, types: &[&[&str]]) -> bool {
        let before = self.subscriptions[..at].iter_mut();
        let before =
            before.filter(|s| types.iter().any(|types| types.contains(&s.type_url().as_str())));
        before.map(|s| s.set_pace(Pace::AtOnce)).filter(|has_rest| *has_rest).count() > 0
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
    ) -> Predecessors {
        if self.skip_ack_wait(at, &types) {
            return Predecessors::InFlight;
        }
        let mut found = Predecessors::None;
        for other in 0..at {
            let s = &mut self.subscriptions[other];
            let is_ahead = types.iter().any(|types| types.contains(&s.type_url().as_str()));
            let gate = due(s);
            if !is_ahead || gate == Gate::Closed {
                continue;
            }
            self.plan(other, gate);
            if self.subscriptions[other].set_pace(Pace::AtOnce) {
                found = Predecessors::Planned;
            }
        }
        found
    }

    /// Sends the next part of the planned response.
    pub(super) fn send_part(&mut self, at: usize) -> Step {
        let nonce = *self.last_nonce + 1;
        let target = self.config.response_bytes_target;
        match self.subscriptions[at].send_part(nonce, target, self.now) {
            Some(response) => {
                *self.last_nonce = nonce;
                Step::Send(response)
            }
            None => Step::NothingToSend,
        }
    }
}
