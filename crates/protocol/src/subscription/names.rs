//! The resources that a client subscribes to, and the client's version of each.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use chancery_model::{Lifetimes, Resource, ResourceName, TypeVersion, Version, base_of_located};

/// The maximum number of names among which the first one without a resource is searched.
const ABSENT_SEARCH_MAX: usize = 1000;

/// The client's version of one name, as far as the session knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientVersion {
    /// The client was sent nothing for the name.
    Nothing,
    /// The resource does not exist. SotW may have no message for this (SOTW-85).
    Absent,
    /// This stream sent nothing, but the client claims to have this version.
    Claimed(Version),
    /// The client was sent this resource, last in a response with this version.
    Sent(Arc<Resource>, Arc<TypeVersion>),
}

impl ClientVersion {
    /// Records that the client was sent `resource` in a response with `version`. All names of the
    /// response share the version.
    pub(crate) fn sent_in(resource: &Arc<Resource>, version: &Arc<TypeVersion>) -> Self {
        Self::Sent(Arc::clone(resource), Arc::clone(version))
    }

    /// Returns the version that the client has.
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::Nothing | Self::Absent => None,
            Self::Claimed(version) => Some(*version),
            Self::Sent(resource, _) => Some(resource.version()),
        }
    }

    /// Returns whether the resource does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Returns the resource that this stream sent.
    pub(crate) fn sent(&self) -> Option<&Arc<Resource>> {
        match self {
            Self::Sent(resource, _) => Some(resource),
            Self::Nothing | Self::Absent | Self::Claimed(_) => None,
        }
    }

    /// Returns the version of the last response of this stream with the resource.
    pub(crate) fn sent_version(&self) -> Option<&Arc<TypeVersion>> {
        match self {
            Self::Sent(_, version) => Some(version),
            Self::Nothing | Self::Absent | Self::Claimed(_) => None,
        }
    }

    /// Returns the times of the resource that this stream sent: its lifetime, and the time after which its
    /// endpoints are stale.
    fn times(&self) -> (Option<Duration>, Option<Duration>) {
        self.sent().map_or((None, None), |resource| (resource.ttl(), resource.stale_after()))
    }
}

/// The names that a client subscribes to.
///
/// Invariant: `text_bytes` is the total length of the names, `n_located` the number of those with parameters, and
/// `n_absent` the number of those whose resource does not exist. `timed` has the names of the sent resources with a
/// lifetime, or with a time after which they are stale.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: BTreeMap<ResourceName, ClientVersion>,
    text_bytes: usize,
    n_located: usize,
    n_absent: usize,
    timed: Timed,
}

/// The names of resources that must be sent again in time.
#[derive(Debug, Default)]
struct Timed {
    lifetimes: Lifetimes,
    /// By the time after which the resources are stale (CLI-E-34).
    stale: Lifetimes,
}

impl Timed {
    fn add(&mut self, version: &ClientVersion, name: &ResourceName) {
        let (ttl, stale_after) = version.times();
        self.lifetimes.add(ttl, name);
        self.stale.add(stale_after, name);
    }

    fn remove(&mut self, version: &ClientVersion, name: &ResourceName) {
        let (ttl, stale_after) = version.times();
        self.lifetimes.remove(ttl, name);
        self.stale.remove(stale_after, name);
    }
}

impl Names {
    /// Iterates over the subscriptions to a published name: without parameters, and with any.
    pub(crate) fn of_base<'a>(
        &'a self,
        base: &'a str,
    ) -> impl Iterator<Item = &'a ResourceName> + 'a {
        self.key(base).into_iter().chain(self.located(base))
    }

    /// Returns whether there is a subscription to a published name, with or without parameters.
    pub(crate) fn has_base(&self, base: &str) -> bool {
        self.of_base(base).next().is_some()
    }

    /// Iterates over the subscriptions to a published name with parameters.
    pub(crate) fn located<'a>(
        &'a self,
        base: &'a str,
    ) -> impl Iterator<Item = &'a ResourceName> + 'a {
        let from = (Bound::Excluded(base), Bound::Unbounded);
        let names = (self.n_located > 0).then(|| self.by_name.range::<str, _>(from));
        let names = names.into_iter().flatten().map(|(name, _)| name);
        names.take_while(move |name| name.base() == base)
    }

    /// Iterates over all subscriptions with parameters. Without any, the cost is O(1).
    pub(crate) fn all_located(&self) -> impl Iterator<Item = &ResourceName> {
        let names = self.has_located().then(|| self.by_name.keys());
        names.into_iter().flatten().filter(|name| is_located(name))
    }

    /// Returns whether there is any subscription with parameters.
    pub(crate) fn has_located(&self) -> bool {
        self.n_located > 0
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the number of names whose resource does not exist.
    pub(crate) fn n_absent(&self) -> usize {
        self.n_absent
    }

    /// Returns the first name whose resource does not exist, if it is among the first names.
    pub(crate) fn first_absent(&self) -> Option<&ResourceName> {
        let mut first =
            self.by_name.iter().take(if self.n_absent == 0 { 0 } else { ABSENT_SEARCH_MAX });
        first.find(|(_, version)| version.is_absent()).map(|(name, _)| name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the total length of the names, in bytes.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the subscription's own copy of a name.
    pub(crate) fn key(&self, name: &str) -> Option<&ResourceName> {
        self.by_name.get_key_value(name).map(|(name, _)| name)
    }

    pub(crate) fn get(&self, name: &ResourceName) -> Option<&ClientVersion> {
        self.by_name.get(name)
    }

    /// Returns the names of the sent resources with a lifetime.
    pub(crate) fn lifetimes(&self) -> &Lifetimes {
        &self.timed.lifetimes
    }

    /// Returns the names of the sent resources that become stale, by that time.
    pub(crate) fn stale(&self) -> &Lifetimes {
        &self.timed.stale
    }

    /// Replaces the client's version of a subscribed name, and returns the previous one.
    pub(crate) fn set(
        &mut self,
        name: &ResourceName,
        version: ClientVersion,
    ) -> Option<ClientVersion> {
        let entry = self.by_name.get_mut(name)?;
        self.n_absent += usize::from(version.is_absent());
        let before = replace(entry, version, name, &mut self.timed);
        self.n_absent -= usize::from(before.is_absent());
        Some(before)
    }

    /// Replaces the version of each name for which `new` returns one.
    pub(crate) fn update(&mut self, mut new: impl FnMut(&ResourceName) -> Option<ClientVersion>) {
        for (name, entry) in &mut self.by_name {
            if let Some(version) = new(name) {
                self.n_absent += usize::from(version.is_absent());
                let before = replace(entry, version, name, &mut self.timed);
                self.n_absent -= usize::from(before.is_absent());
            }
        }
    }

    pub(crate) fn keys(&self) -> btree_map::Keys<'_, ResourceName, ClientVersion> {
        self.by_name.keys()
    }

    pub(crate) fn values(&self) -> btree_map::Values<'_, ResourceName, ClientVersion> {
        self.by_name.values()
    }

    pub(crate) fn iter(&self) -> btree_map::Iter<'_, ResourceName, ClientVersion> {
        self.by_name.iter()
    }

    /// Returns the first name after `after`, or the first name without an `after`.
    pub(crate) fn next_after(&self, after: Option<&ResourceName>) -> Option<&ResourceName> {
        let from = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.by_name.range::<ResourceName, _>(from).next().map(|(name, _)| name)
    }

    /// Adds a name, or replaces the client's version of it.
    pub(crate) fn insert(&mut self, name: ResourceName, version: ClientVersion) {
        self.n_absent += usize::from(version.is_absent());
        match self.by_name.entry(name) {
            btree_map::Entry::Vacant(place) => {
                self.text_bytes += place.key().as_str().len();
                self.n_located += usize::from(is_located(place.key()));
                self.timed.add(&version, place.key());
                place.insert(version);
            }
            btree_map::Entry::Occupied(mut place) => {
                let name = place.key().clone();
                let before = replace(place.get_mut(), version, &name, &mut self.timed);
                self.n_absent -= usize::from(before.is_absent());
            }
        }
    }

    pub(crate) fn remove(&mut self, name: &ResourceName) -> Option<ClientVersion> {
        let version = self.by_name.remove(name)?;
        self.text_bytes -= name.as_str().len();
        self.n_located -= usize::from(is_located(name));
        self.n_absent -= usize::from(version.is_absent());
        self.timed.remove(&version, name);
        Some(version)
    }
}

/// Returns whether a subscription has parameters.
pub(crate) fn is_located(name: &ResourceName) -> bool {
    base_of_located(name.as_str()).is_some()
}

/// Replaces the version of a name, and updates the names of resources that must be sent again.
fn replace(
    entry: &mut ClientVersion,
    version: ClientVersion,
    name: &ResourceName,
    timed: &mut Timed,
) -> ClientVersion {
    let before = std::mem::replace(entry, version);
    if before.times() != entry.times() {
        timed.remove(&before, name);
        timed.add(entry, name);
    }
    before
}
