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

use super::{
    order::{self, Gate},
    turn::{Predecessors, Step, Turn},
    unanswered_clusters::UnansweredClusters,
};
use crate::subscription::{Pace, Subscription};

/// The time after the ACK timeout of a cluster during which the client may still request its
/// endpoints, in milliseconds.
const REQUEST_WAIT_MS: u64 = 1_000;

/// The maximum time for which a type waits for clusters and endpoints, in ACK timeouts.
const WAITS_MAX: u64 = 3;

/// Returns whether a late type waits for the client's requests: the client has not answered the
/// clusters up to `revision`, and has not requested the endpoints of all of them. The type has
/// waited since `gated_since`.
fn awaits_requests(turn: &mut Turn<'_>, revision: Revision, gated_since: u64) -> bool {
    let (timeout, now) = (turn.config.ack_timeout_ms, turn.now);
    let mut subscriptions = turn.subscriptions.iter();
    let Some(clusters) = subscriptions.find(|s| s.type_url().as_str() == CLUSTER) else {
        return false;
    };
    let mut unanswered = clusters.delivery().unanswered().iter();
    let is_awaited = unanswered.any(|sent| {
        sent.carried.up_to <= revision && sent.sent_at + timeout + REQUEST_WAIT_MS > now
    });
    is_awaited
        && gated_since + WAITS_MAX * timeout > now
        && !turn.unanswered_clusters.are_requested(turn.subscriptions, revision)
}

/// Returns the times at which a wait for the client's requests may end.
pub(super) fn request_deadlines(
    subscriptions: &[Subscription],
    unanswered_clusters: &UnansweredClusters,
    timeout: u64,
) -> impl Iterator<Item = u64> {
    let has_clusters = unanswered_clusters.n_left() > 0;
    let all = subscriptions.iter().filter(move |_| has_clusters);
    all.flat_map(move |s| {
        let is_cluster = s.type_url().as_str() == CLUSTER;
        let sent_at = s.delivery().last_unanswered().map(|sent| sent.sent_at);
        let sent_at = sent_at.filter(|_| is_cluster);
        let gated_since = s.delivery().held_back_since().or(s.work().gated_since());
        [
            sent_at.map(|at| at + timeout + REQUEST_WAIT_MS),
            gated_since.map(|since| since + WAITS_MAX * timeout),
        ]
    })
    .flatten()
}

/// Returns the maximum number of clusters that a poll visits for a late type.
pub(super) fn cost_of_late(
    subscriptions: &[Subscription],
    unanswered_clusters: &UnansweredClusters,
) -> usize {
    let waits = |s: &Subscription| is_held_back(s) || s.work().gated_since().is_some();
    if subscriptions.iter().any(waits) { unanswered_clusters.n_left() } else { 0 }
}

fn is_held_back(s: &Subscription) -> bool {
    s.delivery().held_back_since().is_some()
}

/// Plans the late type at `at`, or lets it wait.
pub(super) fn step_late(turn: &mut Turn<'_>, at: usize) -> Step {
    let s = &turn.subscriptions[at];
    let (after, behind) = (s.properties().after, s.properties().behind);
    let gated_since = s.work().gated_since().unwrap_or(turn.now);
    let (is_asked, resumes) = (s.is_asked(), s.is_first_of_resumed());
    let is_behind = |s: &Subscription| behind.contains(&s.type_url().as_str());
    // The type before this one would have to be sent with it.
    if turn.subscriptions[..at].iter().any(|s| is_behind(s) && is_held_back(s)) {
        return Step::Idle;
    }
    let joins = joins_late(turn, at);
    let [clusters, listeners] = [after, behind].map(|types| [types, &[]]);
    let due = order::gate_of_changes;
    let found = turn.plan_predecessors(at, clusters, due);
    let awaits = !is_asked && awaits_requests(turn, Revision(u64::MAX), gated_since);
    match found {
        Predecessors::InFlight => return Step::Restart,
        // A resuming client has its earlier resources until the first response.
        Predecessors::Planned if resumes => return Step::Restart,
        Predecessors::None if awaits && resumes => return Step::Idle,
        // No response would have the revision of the plan.
        Predecessors::None if awaits && !has_clusters_of(turn, turn.view.revision()) => {
            return Step::Idle;
        }
        Predecessors::None | Predecessors::Planned => {}
    }
    let holds_back = awaits || found == Predecessors::Planned;
    if turn.plan_predecessors(at, listeners, due) == Predecessors::InFlight {
        return Step::Restart;
    }
    turn.plan(at, Gate::Open);
    if holds_back {
        hold_back(turn, &joins, at, gated_since);
    }
    Step::Restart
}

/// Returns whether the last response with clusters has this revision.
fn has_clusters_of(turn: &Turn<'_>, revision: Revision) -> bool {
    let clusters = turn.subscriptions.iter().filter(|s| s.type_url().as_str() == CLUSTER);
    let mut last = clusters.filter_map(|s| s.delivery().last_unanswered());
    last.any(|sent| sent.carried.up_to == revision)
}

/// Returns which types are held back together with the late type at `at`: they depend on
/// clusters, nothing of them is on its way, and the client does not wait for an answer.
fn joins_late(turn: &Turn<'_>, at: usize) -> Vec<bool> {
    let (timeout, now) = (turn.config.ack_timeout_ms, turn.now);
    let joins = |(other, s): (usize, &Subscription)| {
        !s.properties().after.is_empty()
            && s.delivery().pending().is_none()
            && !s.work().is_requested()
            && !s.is_first_of_resumed()
            && (other <= at || !s.delivery().awaits_answer(timeout, now))
    };
    turn.subscriptions.iter().enumerate().map(joins).collect()
}

/// Plans the types after `at` that join it from the same view, because they may depend on it, and
/// holds all of them back.
fn hold_back(turn: &mut Turn<'_>, joins: &[bool], at: usize, gated_since: u64) {
    for other in (0..joins.len()).filter(|other| joins[*other]) {
        if other > at && turn.subscriptions[other].work().has_changes() {
            turn.plan(other, Gate::Open);
        }
        turn.subscriptions[other].set_pace(Pace::HeldBack { gated_since });
    }
}

/// Checks whether the type at `at` is still held back. Returns `None` if it is not.
pub(super) fn step_held_back(turn: &mut Turn<'_>, at: usize) -> Option<Step> {
    let s = &mut turn.subscriptions[at];
    let gated_since = s.delivery().held_back_since()?;
    let pending = s.delivery().pending()?;
    let (revision, has_names) = (pending.revision, pending.n_names() > 0);
    // ADS-26: what the client requests does not wait. A removal stays with its replacement.
    let is_asked = s.is_asked();
    if is_asked && !has_names {
        s.withdraw_plan();
        return Some(Step::Restart);
    }
    if !is_asked && awaits_requests(turn, revision, gated_since) {
        return Some(Step::Idle);
    }
    let released = turn.subscriptions[..=at].iter_mut().filter(|s| is_held_back(s));
    let n_released = released.map(|s| s.set_pace(Pace::FirstAtOnce)).count();
    // Types before this one are sent first.
    (n_released > 1).then_some(Step::Restart)
}
