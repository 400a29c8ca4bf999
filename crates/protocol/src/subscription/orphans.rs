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
    /// Returns the name of each orphan that is younger than `max_ms`, and the last revision at which it
    /// existed.
    pub(crate) fn younger_than(
        &self,
        max_ms: u64,
        now: u64,
    ) -> impl Iterator<Item = (&ResourceName, Revision)> {
        let young = self.by_name.iter().filter(move |(_, orphan)| orphan.since + max_ms > now);
        young.map(|(name, orphan)| (name, orphan.seen))
    }

    /// Iterates over the times since which the orphans are missing.
    pub(crate) fn times(&self) -> impl Iterator<Item = u64> {
        self.by_name.values().map(|orphan| orphan.since)
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
            self.text_bytes -= name.as_str().len();
        }
    }

    /// Adds a name that the session misses since `since`, unless there are too many. `seen` is the last
    /// revision at which the session found its resource.
    pub(super) fn add(&mut self, name: &ResourceName, seen: Revision, since: u64) {
        if self.by_name.len() < ORPHANS_MAX && !self.by_name.contains_key(name) {
            self.text_bytes += name.as_str().len();
            self.by_name.insert(name.clone(), Orphan { seen, since });
        }
    }
}
