//! Orphans: resources that no longer exist, but that the client keeps and still subscribes to.
//!
//! A listener that was replaced or removed drains: for the drain time, its connections use the old
//! route table (Envoy: `--drain-time-s`). Envoy keeps the subscription of the table for that time, and
//! ignores its removal. The clusters and virtual hosts of the table are therefore kept, too.

use std::collections::BTreeMap;

use chancery_model::{ResourceName, Revision};

/// The maximum number of orphans of a type. Further names keep nothing.
const ORPHANS_MAX: usize = 1_000;

/// The orphans of a type, by the name to which the client subscribes.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    by_name: BTreeMap<ResourceName, Orphan>,
    /// The total length of the names, in bytes.
    text_bytes: usize,
    n_changes: u64,
}

/// A resource that no longer exists.
#[derive(Debug, Clone, Copy)]
struct Orphan {
    /// The last revision at which the session found the resource.
    seen: Revision,
    /// The time at which the session missed the resource.
    since: u64,
}

impl Orphans {
    /// Returns the name of each orphan that is younger than `max_ms`, the last revision at which it
    /// existed, and the time since which it is missing.
    pub(crate) fn younger_than(
        &self,
        max_ms: u64,
        now: u64,
    ) -> impl Iterator<Item = (&ResourceName, Revision, u64)> {
        let young = self.by_name.iter().filter(move |(_, orphan)| orphan.since + max_ms > now);
        young.map(|(name, orphan)| (name, orphan.seen, orphan.since))
    }

    /// Returns the number of additions and removals since the stream began.
    pub(crate) fn n_changes(&self) -> u64 {
        self.n_changes
    }

    /// Returns the number of orphans.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the total length of the names, in bytes.
    pub(super) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Removes a name that exists again or that the client no longer subscribes to.
    pub(crate) fn remove(&mut self, name: &ResourceName) {
        if self.by_name.remove(name).is_some() {
            self.n_changes += 1;
            self.text_bytes -= name.as_str().len();
        }
    }

    /// Adds a name that the session misses since `since`, unless there are too many. `seen` is the last
    /// revision at which the session found its resource.
    pub(crate) fn add(&mut self, name: &ResourceName, seen: Revision, since: u64) {
        if self.by_name.len() < ORPHANS_MAX && !self.by_name.contains_key(name) {
            self.n_changes += 1;
            self.text_bytes += name.as_str().len();
            self.by_name.insert(name.clone(), Orphan { seen, since });
        }
    }
}
