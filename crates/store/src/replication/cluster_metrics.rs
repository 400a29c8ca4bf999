//! The metrics of the cluster, updated from Raft several times a second.

use std::collections::BTreeMap;

use metrics::Gauge;
use openraft::async_runtime::WatchReceiver;

use crate::{
    metrics::{gauge_value, replication_lag},
    replication::core::Core,
};

/// The previous update.
pub(crate) struct Previous {
    /// The term and ID of the last leader.
    leader: Option<(u64, u64)>,
    /// The lag gauges by member ID. The gauges of former members stay at 0.
    lags: BTreeMap<u64, Gauge>,
}

impl Previous {
    /// Creates the metrics. The lag gauge of this replica exists from the start.
    pub(crate) fn new(id: u64) -> Self {
        Self { leader: None, lags: BTreeMap::from([(id, replication_lag(id))]) }
    }

    /// Updates the metrics.
    pub(crate) fn update(&mut self, core: &Core) {
        let raft = core.node.raft.metrics().borrow_watched().clone();
        let metrics = &core.metrics.cluster;
        let is_leader = raft.current_leader == Some(core.id()) && !core.node.has_stopped();
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        metrics.has_leader.set(flag(core.node.present_leader().is_some()));
        metrics.is_leader.set(flag(is_leader));
        if is_leader {
            // A sole voter elects itself without a vote call, where elections are counted otherwise.
            metrics.elections.stands_in(raft.current_term);
        }
        metrics.term.set(gauge_value(raft.current_term));
        if let Some(id) = raft.current_leader {
            let leader = Some((raft.current_term, id));
            if self.leader != leader {
                metrics.leader_changes.increment(1);
                self.leader = leader;
            }
        }
        let tls = core.calls.peers.tls();
        let seconds_left = tls.map_or(f64::INFINITY, |tls| tls.certificates().seconds_left());
        metrics.certificate_seconds_left.set(seconds_left);
        let membership = &raft.membership_config;
        let voters: Vec<u64> = membership.voter_ids().collect();
        let n_up = voters.iter().filter(|id| is_leader && core.node.is_alive(**id)).count();
        metrics.voters.set(gauge_value(voters.len() as u64));
        metrics.learners.set(gauge_value(membership.membership().learner_ids().count() as u64));
        metrics.voters_up.set(gauge_value(n_up as u64));
        let applied = core.storage.published.applied();
        let committed = raft.local_committed.map_or(0, |id| id.index);
        metrics.apply_lag.set(gauge_value(committed.saturating_sub(applied)));
        let last = raft.last_log_index.unwrap_or_default();
        for lag in self.lags.values() {
            lag.set(0.0);
        }
        for (id, _) in membership.nodes() {
            let lag = self.lags.entry(*id).or_insert_with(|| replication_lag(*id));
            if is_leader && *id != core.id() {
                let matched = core.node.matched(*id).unwrap_or_default();
                lag.set(gauge_value(last.saturating_sub(matched)));
            }
        }
    }
}
