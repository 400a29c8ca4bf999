//! Removals that are kept back for draining listeners (ADS-08).

use chancery_model::{
    ResourceName, Revision,
    types::{CLUSTER, ENDPOINT, VIRTUAL_HOST},
};

use super::Session;
use crate::subscription::{PendingRemoval, Subscription};

impl Session {
    /// Marks the removals of the type at `at` that the client may need for a listener that drains.
    ///
    /// The cost is O(orphans · removals), both of which are limited, and O(1) without removals.
    pub(super) fn mark_kept(&mut self, at: usize, now: u64) {
        let (before, rest) = self.subscriptions.split_at_mut(at);
        let Some((s, after)) = rest.split_first_mut() else { return };
        if s.removals.is_empty() || self.kind.type_url.is_some() {
            return;
        }
        let url = s.type_url.as_str();
        if ![CLUSTER, ENDPOINT, VIRTUAL_HOST].contains(&url) {
            return;
        }
        let referrers = s.properties.referrers;
        let others = before.iter().chain(after.iter());
        let others = others.filter(|other| referrers.contains(&other.type_url.as_str()));
        let max_ms = self.config.drain_hold_ms;
        let orphans: Vec<(&ResourceName, Revision)> =
            others.flat_map(|other| other.orphans.younger_than(max_ms, now)).collect();
        let fits = s.removals.len() <= self.config.held_removals_max;
        if !fits || orphans.is_empty() {
            s.removals.mark_kept(|_, _| false);
            return;
        }
        // Any cluster may be in the table. The name of a virtual host has the name of its table.
        let first_seen = orphans.iter().map(|(_, seen)| *seen).min();
        let has_host = |name: &ResourceName, removal: &PendingRemoval| {
            orphans.iter().any(|(table, seen)| {
                let rest = name.as_str().strip_prefix(table.as_str());
                rest.is_some_and(|rest| rest.starts_with('/')) && removal.revision > *seen
            })
        };
        match url == VIRTUAL_HOST {
            true => s.removals.mark_kept(has_host),
            false => s.removals.mark_kept(|_, removal| Some(removal.revision) > first_seen),
        }
    }

    /// Returns the times at which removals are no longer kept back.
    pub(super) fn drain_deadlines(&self) -> impl Iterator<Item = u64> {
        let keeps = self.subscriptions.iter().any(|s| s.removals.n_kept() > 0);
        let all = self.subscriptions.iter().filter(move |_| keeps);
        let times = all.flat_map(|s: &Subscription| s.orphans.times());
        times.map(|since| since + self.config.drain_hold_ms)
    }
}
