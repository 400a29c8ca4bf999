//! Removals that are kept back for draining listeners (ADS-08).

use std::collections::BTreeMap;

use chancery_model::{
    ResourceName, Revision,
    types::{CLUSTER, ENDPOINT, VIRTUAL_HOST},
};

use crate::{Config, subscription::Subscription};

/// Marks the removals of the type at `at` of an aggregated stream that the client may need for a listener that drains.
///
/// The cost is O(orphans + removals) after a change of either, or if an orphan has become too old, and O(1)
/// otherwise.
pub(super) fn mark_kept(subscriptions: &mut [Subscription], at: usize, config: &Config, now: u64) {
    let (before, rest) = subscriptions.split_at_mut(at);
    let Some((s, after)) = rest.split_first_mut() else { return };
    if s.removals().is_empty() {
        return;
    }
    let url = s.properties().url;
    if ![CLUSTER, ENDPOINT, VIRTUAL_HOST].contains(&url) {
        return;
    }
    let referrers = s.properties().referrers;
    let others = before.iter().chain(after.iter());
    let others = others.filter(|other| referrers.contains(&other.type_url().as_str()));
    let n_changes = others.clone().map(|other| other.orphans().n_changes()).sum();
    if s.removals().are_marked(n_changes, now) {
        return;
    }
    let max_ms = config.drain_hold_ms;
    let mut until = u64::MAX;
    let mut orphans: BTreeMap<&str, Revision> = BTreeMap::new();
    for (name, seen, since) in others.flat_map(|other| other.orphans().younger_than(max_ms, now)) {
        until = until.min(since + max_ms);
        let known = orphans.entry(name.as_str()).or_insert(seen);
        *known = seen.min(*known);
    }
    let fits = s.removals().len() <= config.held_removals_max;
    // Any cluster may be in a table. The name of a virtual host begins with the name of its table.
    let first_seen = orphans.values().min().filter(|_| fits);
    let has_host = |name: &ResourceName, removed: Revision| {
        let name = name.as_str();
        let mut ends = name.match_indices('/').map(|(end, _)| end);
        ends.any(|end| orphans.get(&name[..end]).is_some_and(|seen| removed > *seen))
    };
    s.mark_kept(n_changes, until, |name, removed| {
        first_seen.is_some_and(|first_seen| {
            if url == VIRTUAL_HOST {
                name.is_some_and(|name| has_host(name, removed))
            } else {
                removed > *first_seen
            }
        })
    });
}
