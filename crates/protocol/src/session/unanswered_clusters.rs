//! The clusters that the client has not answered, and whose endpoints and secrets it may still request.

use std::collections::VecDeque;

use chancery_model::{
    ResourceName, Revision,
    types::{CLUSTER, ENDPOINT, SECRET},
};
use chancery_view::Resources;

use crate::subscription::Subscription;

/// The maximum number of plans of clusters that are remembered. The clusters of older plans count as
/// requested.
const PLANS_MAX: usize = 32;

/// The new and changed clusters of unanswered responses. Their children may not be requested yet.
#[derive(Debug, Default)]
pub(super) struct UnansweredClusters {
    /// The clusters of each plan, oldest first.
    plans: VecDeque<PlannedClusters>,
}

/// The clusters of one plan.
#[derive(Debug)]
struct PlannedClusters {
    /// The revision of the plan.
    revision: Revision,
    /// The list is shared with the sessions that were sent the same clusters.
    clusters: Resources,
    /// The first cluster that may have children without a request.
    next: (usize, usize),
    /// The number of clusters from `next` on.
    n_left: usize,
}

impl UnansweredClusters {
    /// Records the clusters of a plan.
    pub(super) fn record(&mut self, revision: Revision, clusters: &Resources) {
        if clusters.is_empty() {
            return;
        }
        if self.plans.len() == PLANS_MAX {
            self.plans.pop_front();
        }
        let (clusters, n_left) = (clusters.clone(), clusters.len());
        self.plans.push_back(PlannedClusters { revision, clusters, next: (0, 0), n_left });
    }

    /// Returns the number of clusters whose children a poll may look up.
    pub(super) fn n_left(&self) -> usize {
        self.plans.iter().map(|plan| plan.n_left).sum()
    }

    /// Returns whether the client has requested all children of the clusters up to `revision`.
    ///
    /// Each call continues where the previous one stopped. All calls together cost O(clusters).
    pub(super) fn are_requested(
        &mut self,
        subscriptions: &[Subscription],
        revision: Revision,
    ) -> bool {
        let of_type = |url: &str| subscriptions.iter().find(|s| s.type_url().as_str() == url);
        let has_cluster = |name: &ResourceName| {
            of_type(CLUSTER).is_some_and(|clusters| clusters.interest().holds(name))
        };
        while let Some(plan) = self.plans.front_mut().filter(|plan| plan.revision <= revision) {
            while let Some((cluster, next)) = plan.clusters.at(plan.next) {
                let is_missing = cluster.children().iter().any(|child| {
                    let url = child.type_url.as_str();
                    let counts = [ENDPOINT, SECRET].contains(&url);
                    counts && !of_type(url).is_some_and(|s| s.has_answered(&child.name))
                });
                if is_missing && has_cluster(cluster.base_name()) {
                    return false;
                }
                (plan.next, plan.n_left) = (next, plan.n_left - 1);
            }
            self.plans.pop_front();
        }
        true
    }
}
