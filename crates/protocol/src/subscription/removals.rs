//! The removals of a subscription that are not announced yet.
//!
//! There may be a million of them, if a client claims to hold names that no longer exist. After
//! each response, a shard needs the time of the oldest removal and the memory of all. This module
//! therefore keeps both figures up to date.
//!
//! Invariant: `by_time`, `text_bytes` and `lifetimes` describe exactly the removals of `by_name`, and `n_kept` these
//! and `unnamed`.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Bound,
    sync::Arc,
};

use chancery_model::{Lifetimes, Resource, ResourceName, Revision};

/// A resource that no longer exists, until its removal is announced.
#[derive(Debug, Clone)]
pub(crate) struct PendingRemoval {
    /// The resource as the client has it.
    pub(crate) resource: Arc<Resource>,
    /// The revision at which the removal was detected.
    pub(crate) revision: Revision,
    /// The last revision at which the session looked for the resource and found it. The removal
    /// happened later.
    pub(crate) seen: Revision,
    /// The time at which the removal was detected.
    pub(crate) since: u64,
    /// Whether a response has used up this removal: the client has rejected the response with the removal, or the
    /// removal caused rejected resources to be sent again.
    pub(crate) is_tried: bool,
    /// Whether the client may need the resource for a listener that drains.
    pub(crate) is_kept: bool,
}

/// Removals that an earlier SotW stream kept back, of resources that this replica does not know. No full state can
/// contain these resources, so the next full state announces the removals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnnamedRemovals {
    /// The revision at which the client resumed.
    pub(crate) revision: Revision,
    /// The time at which the client resumed.
    pub(crate) since: u64,
    /// Whether the client may need the resources for a listener that drains.
    pub(crate) is_kept: bool,
}

/// The removals that may be announced now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Release {
    /// None.
    Nothing,
    /// The removals detected up to a revision, because their referrers have moved, and those
    /// detected up to a time, so that no removal waits forever.
    UpTo {
        revision: Revision,
        /// The time.
        since: u64,
    },
}

impl Release {
    /// All of them.
    pub(crate) const ALL: Self = Self::UpTo { revision: Revision(u64::MAX), since: u64::MAX };

    pub(crate) fn allows(self, removal: &PendingRemoval) -> bool {
        !removal.is_kept && self.includes(removal.revision, removal.since)
    }

    pub(crate) fn allows_unnamed(self, removals: UnnamedRemovals) -> bool {
        !removals.is_kept && self.includes(removals.revision, removals.since)
    }

    /// Returns whether a removal may be announced that was detected at this revision and this time.
    fn includes(self, detected: Revision, at: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::UpTo { revision, since } => detected <= revision || at <= since,
        }
    }
}

/// The pending removals, by name.
#[derive(Debug, Default)]
pub(crate) struct PendingRemovals {
    by_name: BTreeMap<ResourceName, PendingRemoval>,
    /// SotW: removals without names. They count as one.
    unnamed: Option<UnnamedRemovals>,
    /// The number of removals by the time of their detection.
    by_time: BTreeMap<u64, usize>,
    /// The total length of the names, in bytes.
    text_bytes: usize,
    /// The names of the removals whose resource has a lifetime.
    lifetimes: Lifetimes,
    /// The number of removals that are kept back for a listener that drains.
    n_kept: usize,
    /// The orphans for which the removals were marked; `None` if the removals have changed since.
    marked: Option<Marked>,
}

/// The orphans for which removals were marked.
#[derive(Debug, Clone, Copy)]
struct Marked {
    /// The number of changes of the orphans.
    n_changes: u64,
    /// The time from which an orphan keeps no removal.
    until: u64,
}

impl PendingRemovals {
    pub(crate) fn len(&self) -> usize {
        self.by_name.len() + usize::from(self.unnamed.is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn unnamed(&self) -> Option<UnnamedRemovals> {
        self.unnamed
    }

    pub(crate) fn set_unnamed(&mut self, unnamed: Option<UnnamedRemovals>) {
        let n_kept = |all: Option<UnnamedRemovals>| usize::from(all.is_some_and(|all| all.is_kept));
        self.n_kept -= n_kept(self.unnamed);
        self.n_kept += n_kept(unnamed);
        self.unnamed = unnamed;
        self.marked = None;
    }

    /// Returns whether no removal waits for the types that refer to its resource.
    pub(crate) fn none_waits(&self) -> bool {
        self.n_kept == self.len()
    }

    /// Returns whether the marks of the removals hold for the orphans after `n_changes` changes.
    pub(crate) fn are_marked(&self, n_changes: u64, now: u64) -> bool {
        self.marked.is_some_and(|marked| marked.n_changes == n_changes && now < marked.until)
    }

    /// Returns the time from which a kept removal may no longer be kept.
    pub(crate) fn kept_until(&self) -> Option<u64> {
        self.marked.filter(|_| self.n_kept > 0).map(|marked| marked.until)
    }

    /// Marks the removals that are kept back for a listener that drains. `is_kept` decides by the name, if there is one,
    /// and by the revision of the removal. The marks hold until the orphans have changed again, and before the time
    /// `until`.
    pub(crate) fn mark_kept(
        &mut self,
        n_changes: u64,
        until: u64,
        is_kept: impl Fn(Option<&ResourceName>, Revision) -> bool,
    ) {
        self.marked = Some(Marked { n_changes, until });
        self.n_kept = 0;
        for (name, removal) in &mut self.by_name {
            removal.is_kept = is_kept(Some(name), removal.revision);
            self.n_kept += usize::from(removal.is_kept);
        }
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.is_kept = is_kept(None, unnamed.revision);
            self.n_kept += usize::from(unnamed.is_kept);
        }
    }

    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Returns the names of the removals whose resource has a lifetime.
    pub(crate) fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }

    /// Returns the time at which the oldest removal was detected.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let named = self.by_time.first_key_value().map(|(since, _)| *since);
        named.into_iter().chain(self.unnamed.map(|unnamed| unnamed.since)).min()
    }

    pub(crate) fn get(&self, name: &ResourceName) -> Option<&PendingRemoval> {
        self.by_name.get(name)
    }

    /// Returns the first name after `after`, or the first name without an `after`.
    pub(crate) fn next_after(&self, after: Option<&ResourceName>) -> Option<&ResourceName> {
        let from = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.by_name.range::<ResourceName, _>(from).next().map(|(name, _)| name)
    }

    pub(crate) fn iter(&self) -> btree_map::Iter<'_, ResourceName, PendingRemoval> {
        self.by_name.iter()
    }

    /// Sets [`PendingRemoval::is_tried`].
    pub(crate) fn set_tried(&mut self, name: &ResourceName) {
        if let Some(removal) = self.by_name.get_mut(name) {
            removal.is_tried = true;
        }
    }

    pub(crate) fn values(&self) -> btree_map::Values<'_, ResourceName, PendingRemoval> {
        self.by_name.values()
    }

    /// Adds a removal. An existing removal of the same name stays unchanged.
    pub(crate) fn add(&mut self, name: ResourceName, removal: PendingRemoval) {
        if let btree_map::Entry::Vacant(place) = self.by_name.entry(name) {
            self.text_bytes += place.key().as_str().len();
            self.lifetimes.add(removal.resource.ttl(), place.key());
            *self.by_time.entry(removal.since).or_default() += 1;
            self.n_kept += usize::from(removal.is_kept);
            self.marked = None;
            place.insert(removal);
        }
    }

    pub(crate) fn remove(&mut self, name: &ResourceName) -> Option<PendingRemoval> {
        let removal = self.by_name.remove(name)?;
        self.n_kept -= usize::from(removal.is_kept);
        self.marked = None;
        self.text_bytes -= name.as_str().len();
        self.lifetimes.remove(removal.resource.ttl(), name);
        if let Some(n) = self.by_time.get_mut(&removal.since) {
            *n -= 1;
            if *n == 0 {
                self.by_time.remove(&removal.since);
            }
        }
        Some(removal)
    }

    /// Returns whether one of the allowed removals may be announced without any other change. A removal that the
    /// client has rejected waits while the client rejects another resource, as `rejects_present` returns.
    pub(crate) fn has_releasable(
        &self,
        release: Release,
        rejects_present: impl FnOnce() -> bool,
    ) -> bool {
        if self.none_waits() {
            return false;
        }
        if self.unnamed.is_some_and(|unnamed| release.allows_unnamed(unnamed)) {
            return true;
        }
        let mut has_tried = false;
        for removal in self.values().filter(|removal| release.allows(removal)) {
            if !removal.is_tried {
                return true;
            }
            has_tried = true;
        }
        has_tried && !rejects_present()
    }

    /// Returns the last revision before the oldest removal that waits for other types.
    pub(crate) fn waits_after(&self) -> Option<Revision> {
        let waiting = self.values().filter(|removal| !removal.is_kept);
        let unnamed = self.unnamed.filter(|unnamed| !unnamed.is_kept);
        let seen = waiting.map(|removal| removal.seen).chain(unnamed.map(|_| Revision(0)));
        seen.min()
    }

    /// Adds the removals of a response that the client has rejected, which are pending again.
    pub(super) fn restore(&mut self, removed: Vec<(ResourceName, PendingRemoval)>) {
        for (name, removal) in removed {
            self.add(name.clone(), removal);
            self.set_tried(&name);
        }
    }

    /// Keeps the removals for which `keeps` returns `true`, and the removals without names.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&ResourceName, &PendingRemoval) -> bool) {
        let all = std::mem::take(self);
        self.set_unnamed(all.unnamed);
        for (name, removal) in all {
            if keeps(&name, &removal) {
                self.add(name, removal);
            }
        }
    }
}

impl IntoIterator for PendingRemovals {
    type Item = (ResourceName, PendingRemoval);
    type IntoIter = btree_map::IntoIter<ResourceName, PendingRemoval>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_name.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{ResourceDraft, ResourceKey, TypeUrl, types::CLUSTER};

    use super::*;

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    fn found_at(since: u64) -> PendingRemoval {
        let key = ResourceKey { type_url: TypeUrl::new(CLUSTER).unwrap(), name: name("a") };
        let draft = ResourceDraft::new(key, Bytes::new());
        let resource = Arc::new(Resource::publish(&draft, Revision(1)));
        PendingRemoval {
            resource,
            revision: Revision(1),
            seen: Revision(0),
            since,
            is_tried: false,
            is_kept: false,
        }
    }

    #[test]
    fn oldest_time_and_text_bytes_match_pending_removals() {
        let mut removals = PendingRemovals::default();
        assert_eq!((removals.oldest(), removals.text_bytes()), (None, 0));
        for (text, since) in [("a", 7), ("bb", 5), ("ccc", 5), ("a", 1)] {
            removals.add(name(text), found_at(since));
        }
        // The second removal of `a` changed nothing.
        assert_eq!((removals.len(), removals.oldest(), removals.text_bytes()), (3, Some(5), 6));
        assert!(removals.remove(&name("bb")).is_some());
        assert!(removals.remove(&name("bb")).is_none());
        assert_eq!((removals.oldest(), removals.text_bytes()), (Some(5), 4));
        removals.retain(|_, removal| removal.since != 5);
        assert_eq!((removals.len(), removals.oldest(), removals.text_bytes()), (1, Some(7), 1));
        assert_eq!(removals.into_iter().count(), 1);
    }
}
