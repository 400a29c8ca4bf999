//! The wait for the client's requests for the endpoints of new clusters (ADS-06, ADS-22).
//!
//! A push of listeners or routes waits until the client has acknowledged the clusters and endpoints
//! before it, for one ACK timeout. If the wait ends without these ACKs, the client may not even have
//! processed the clusters. Then the push is *late*:
//! - Unsent clusters and endpoints are sent at once. The late types are planned from the same view,
//!   so that no later cluster delays them.
//! - The late types are held back until the client has requested the endpoints and secrets of the
//!   clusters, or has answered the clusters.
//! - The hold ends [`REQUEST_WAIT_MS`] after the ACK timeout of the last of these clusters, and in any
//!   case [`WAITS_MAX`] ACK timeouts after the type began to wait.

use chancery_model::{Revision, types::CLUSTER};
use chancery_view::{Differ, View};

use super::{
    Session,
    order::{self, Gate},
    poll::{Predecessors, Step},
    unanswered_clusters::UnansweredClusters,
};
use crate::{
    plan::Touched,
    subscription::{Pace, Subscription},
};

/// The time after the ACK timeout of a cluster during which the client may still request its
/// endpoints, in milliseconds.
const REQUEST_WAIT_MS: u64 = 1_000;

/// The maximum time for which a type waits for clusters and endpoints, in ACK timeouts.
const WAITS_MAX: u64 = 3;

impl Session {
    /// Records the clusters that a plan of the type at `at` sends.
    pub(super) fn record_clusters(&mut self, at: usize, revision: Revision, touched: &Touched) {
        let subscription = &self.subscriptions[at];
        if subscription.type_url.as_str() != CLUSTER || self.kind.type_url.is_some() {
            return;
        }
        if subscription.delivery.unanswered.is_empty() {
            self.unanswered_clusters = UnansweredClusters::default();
        }
        self.unanswered_clusters.record(revision, &touched.resources);
    }

    /// Forgets the clusters if the client has answered all of them.
    pub(super) fn forget_answered_clusters(&mut self, at: usize) {
        let subscription = &self.subscriptions[at];
        if subscription.type_url.as_str() == CLUSTER && subscription.delivery.is_settled() {
            self.unanswered_clusters = UnansweredClusters::default();
        }
    }

    /// Returns whether a late type waits for the client's requests: the client has not answered the
    /// clusters up to `revision`, and has not requested the endpoints of all of them. The type has
    /// waited since `gated_since`.
    fn awaits_requests(&mut self, revision: Revision, gated_since: u64, now: u64) -> bool {
        let timeout = self.config.ack_timeout_ms;
        let mut subscriptions = self.subscriptions.iter();
        let Some(clusters) = subscriptions.find(|s| s.type_url.as_str() == CLUSTER) else {
            return false;
        };
        let mut unanswered = clusters.delivery.unanswered.iter();
        let is_awaited = unanswered.any(|sent| {
            sent.carried.up_to <= revision && sent.sent_at + timeout + REQUEST_WAIT_MS > now
        });
        is_awaited
            && gated_since + WAITS_MAX * timeout > now
            && !self.unanswered_clusters.are_requested(&self.subscriptions, revision)
    }

    /// Returns the times at which a wait for the client's requests may end.
    pub(super) fn request_deadlines(&self) -> impl Iterator<Item = u64> {
        let has_clusters = self.unanswered_clusters.n_left() > 0;
        let all = self.subscriptions.iter().filter(move |_| has_clusters);
        let timeout = self.config.ack_timeout_ms;
        let unanswered = |s: &Subscription| s.delivery.unanswered.back().map(|sent| sent.sent_at);
        all.flat_map(move |s| {
            let is_cluster = s.type_url.as_str() == CLUSTER;
            let sent_at = unanswered(s).filter(|_| is_cluster);
            let gated_since = s.held_back_since().or(s.work.gated_since);
            [
                sent_at.map(|at| at + timeout + REQUEST_WAIT_MS),
                gated_since.map(|since| since + WAITS_MAX * timeout),
            ]
        })
        .flatten()
    }

    /// Returns the maximum number of clusters that a poll visits for a late type.
    pub(super) fn cost_of_late(&self) -> usize {
        let waits = |s: &Subscription| s.is_held_back() || s.work.gated_since.is_some();
        if self.subscriptions.iter().any(waits) { self.unanswered_clusters.n_left() } else { 0 }
    }

    /// Plans the late type at `at`, or lets it wait.
    pub(super) fn step_late(&mut self, at: usize, view: &View, differ: &Differ, now: u64) -> Step {
        let s = &self.subscriptions[at];
        let (after, behind) = (s.properties.after, s.properties.behind);
        let gated_since = s.work.gated_since.unwrap_or(now);
        let (is_asked, resumes) = (s.is_asked(), s.is_first_of_resumed());
        let is_behind = |s: &Subscription| behind.contains(&s.type_url.as_str());
        // The type before this one would have to be sent with it.
        if self.subscriptions[..at].iter().any(|s| is_behind(s) && s.is_held_back()) {
            return Step::Idle;
        }
        let joins = self.joins_late(at, now);
        let [clusters, listeners] = [after, behind].map(|types| [types, &[]]);
        let due = order::gate_of_changes;
        let found = self.plan_predecessors(at, clusters, due, view, differ, now);
        let awaits = !is_asked && self.awaits_requests(Revision(u64::MAX), gated_since, now);
        match found {
            Predecessors::InFlight => return Step::Restart,
            // A resuming client has its earlier resources until the first response.
            Predecessors::Planned if resumes => return Step::Restart,
            Predecessors::None if awaits && resumes => return Step::Idle,
            // No response would have the revision of the plan.
            Predecessors::None if awaits && !self.has_clusters_of(view.revision()) => {
                return Step::Idle;
            }
            Predecessors::None | Predecessors::Planned => {}
        }
        let holds_back = awaits || found == Predecessors::Planned;
        if self.plan_predecessors(at, listeners, due, view, differ, now) == Predecessors::InFlight {
            return Step::Restart;
        }
        self.plan(at, Gate::Open, view, differ, now);
        if holds_back {
            self.hold_back(&joins, at, gated_since, (view, differ, now));
        }
        Step::Restart
    }

    /// Returns whether the last response with clusters has this revision.
    fn has_clusters_of(&self, revision: Revision) -> bool {
        let clusters = self.subscriptions.iter().filter(|s| s.type_url.as_str() == CLUSTER);
        let mut last = clusters.filter_map(|s| s.delivery.unanswered.back());
        last.any(|sent| sent.carried.up_to == revision)
    }

    /// Returns which types are held back together with the late type at `at`: they depend on
    /// clusters, nothing of them is on its way, and the client does not wait for an answer.
    fn joins_late(&self, at: usize, now: u64) -> Vec<bool> {
        let timeout = self.config.ack_timeout_ms;
        let joins = |(other, s): (usize, &Subscription)| {
            !s.properties.after.is_empty()
                && s.delivery.pending.is_none()
                && !s.work.is_requested()
                && !s.is_first_of_resumed()
                && (other <= at || !s.delivery.awaits_answer(timeout, now))
        };
        self.subscriptions.iter().enumerate().map(joins).collect()
    }

    /// Plans the types after `at` that join it from the same view, because they may depend on it, and
    /// holds all of them back.
    fn hold_back(
        &mut self,
        joins: &[bool],
        at: usize,
        gated_since: u64,
        (view, differ, now): (&View, &Differ, u64),
    ) {
        for other in (0..joins.len()).filter(|other| joins[*other]) {
            if other > at && self.subscriptions[other].work.has_changes() {
                self.plan(other, Gate::Open, view, differ, now);
            }
            if let Some(pending) = &mut self.subscriptions[other].delivery.pending {
                pending.pace = Pace::HeldBack { gated_since };
            }
        }
    }

    /// Checks whether the type at `at` is still held back. Returns `None` if it is not.
    pub(super) fn step_held_back(&mut self, at: usize, now: u64) -> Option<Step> {
        let s = &mut self.subscriptions[at];
        let gated_since = s.held_back_since()?;
        let pending = s.delivery.pending.as_ref()?;
        let (revision, has_names) = (pending.revision, pending.n_names() > 0);
        // ADS-26: what the client requests does not wait. A removal stays with its replacement.
        let is_asked = s.is_asked();
        if is_asked && !has_names {
            s.withdraw_plan();
            return Some(Step::Restart);
        }
        if !is_asked && self.awaits_requests(revision, gated_since, now) {
            return Some(Step::Idle);
        }
        let mut released = self.subscriptions[..=at].iter_mut().filter(|s| s.is_held_back());
        let mut n_released = 0;
        for pending in released.by_ref().filter_map(|s| s.delivery.pending.as_mut()) {
            pending.pace = Pace::FirstAtOnce;
            n_released += 1;
        }
        // Types before this one are sent first.
        (n_released > 1).then_some(Step::Restart)
    }
}
