//! The changes that a session has received, and the times of those that its client has not accepted.

use chancery_model::ScopeName;
use chancery_protocol::Session;
use tokio::time::Instant;

use super::{convergence::ConvergenceTimes, marking::Marking};
use crate::{
    messages::session::Mark,
    metrics::{ShardMetrics, Suppressed},
};

/// The changes that a session has received.
#[derive(Debug)]
pub(crate) struct Marks {
    /// The last state change of which the session received all changes at once.
    applied_step: u64,
    /// The last state change of which the session received a part.
    marked_step: u64,
    /// The last event since the session last sent a response or had nothing to send.
    since_sent: SinceSent,
    /// The times of the changes that the session has not delivered or the client has not answered.
    times: ConvergenceTimes,
}

/// The last event that may turn out to need no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SinceSent {
    /// No event.
    Nothing,
    /// The session received a change.
    Mark,
    /// The client rejected a response.
    Rejected,
}

impl Marks {
    /// Creates the marks of a new session. Its first responses are from the state of `step` or a later one.
    pub(crate) fn new(step: u64) -> Self {
        Self {
            applied_step: step,
            marked_step: step,
            since_sent: SinceSent::Nothing,
            times: ConvergenceTimes::default(),
        }
    }

    /// Passes one change of the marking `step` to the session. `None` means that anything may have changed.
    pub(crate) fn mark(
        &mut self,
        session: &mut Session,
        mark: Option<Mark<'_>>,
        step: u64,
        arrived_at: Instant,
        metrics: &ShardMetrics,
    ) {
        if std::mem::replace(&mut self.marked_step, step) != step {
            self.since_sent = SinceSent::Mark;
            if mark.is_some_and(|mark| session.has_work_of(mark.type_url)) {
                metrics.on_suppressed(Suppressed::Folded);
            }
        }
        match mark {
            Some(Mark { type_url, type_index, name, .. }) => {
                session.handle_change(type_url, name);
                self.times.owe(type_index, arrived_at);
            }
            None => session.handle_new_view(),
        }
    }

    /// Returns whether the session has received all changes of the marking `step` at once.
    pub(crate) fn has_applied(&self, step: u64) -> bool {
        self.applied_step == step
    }

    /// Passes all changes of a marking to the session, so that it can be polled.
    pub(crate) fn complete(
        &mut self,
        session: &mut Session,
        scopes: &[ScopeName],
        marking: &Marking,
    ) {
        self.applied_step = marking.step();
        marking.apply_all(session, scopes, &mut self.times);
    }

    /// Records that a response of a type was sent.
    pub(crate) fn on_sent(&mut self, type_index: usize, is_renewal: bool) {
        self.since_sent = SinceSent::Nothing;
        if !is_renewal {
            self.times.on_sent(type_index);
        }
    }

    /// Records that the session has nothing to send.
    pub(crate) fn on_nothing_to_send(&mut self, metrics: &ShardMetrics) {
        self.times.owe_nothing();
        match std::mem::replace(&mut self.since_sent, SinceSent::Nothing) {
            SinceSent::Nothing => {}
            SinceSent::Mark => metrics.on_suppressed(Suppressed::Unchanged),
            SinceSent::Rejected => metrics.on_suppressed(Suppressed::Rejected),
        }
    }

    /// Records that the client has rejected a response.
    pub(crate) fn on_rejected(&mut self) {
        self.since_sent = SinceSent::Rejected;
    }

    /// Returns the arrival time of the first change in the answered responses of a type.
    pub(crate) fn on_answer(&mut self, type_index: usize) -> Option<Instant> {
        self.times.on_answer(type_index)
    }
}
