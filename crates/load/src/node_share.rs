//! Maps with a maximum number of entries and a shared number of bytes.
//!
//! Each entry counts towards the share of the node whose report created it. Two identities with one node ID count as
//! two nodes. The map refuses a new entry of a node if the node's share would exceed the unused part of the limit. A
//! single node can therefore use half of a limit. If `n` nodes report as much as they can, `1/(n+1)` of the limit
//! stays unused.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The limits of the sums of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of all sums in bytes, approximately.
    pub bytes_max: usize,
    /// The maximum number of clusters.
    pub clusters_max: usize,
    /// The maximum number of localities of a cluster.
    pub localities_max: usize,
    /// The maximum number of endpoints of a locality.
    pub endpoints_max: usize,
    /// The maximum number of custom metrics of a locality or an endpoint.
    pub metrics_max: usize,
    /// The maximum number of categories of dropped requests of a cluster.
    pub categories_max: usize,
    /// The maximum length of a name in bytes: of a cluster, a service, a locality, an endpoint, a metric or
    /// a category.
    pub name_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_max: 64 << 20,
            clusters_max: 20_000,
            localities_max: 512,
            endpoints_max: 20_000,
            metrics_max: 128,
            categories_max: 128,
            name_bytes_max: 4096,
        }
    }
}

/// The node to whose share an entry counts, as a hash of its identity and its ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner(pub(crate) u64);

/// The reason why something is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A limit is reached.
    Full,
    /// The node holds its share of a limit.
    Share,
}

/// Checks whether a node that holds `held` of a limit may take `more`. `free` is what is left of the limit.
fn check_share(held: usize, more: usize, free: usize) -> Result<(), Refused> {
    let rest = free.checked_sub(more).ok_or(Refused::Full)?;
    if held.saturating_add(more) <= rest { Ok(()) } else { Err(Refused::Share) }
}

/// The bytes that the sums may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) used: usize,
    max: usize,
    /// The bytes of each node that holds any.
    shares: HashMap<Owner, usize>,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self { used: 0, max, shares: HashMap::new() }
    }

    /// Takes bytes for a node.
    pub(crate) fn take(&mut self, owner: Owner, bytes: usize) -> Result<(), Refused> {
        let held = self.shares.get(&owner).copied().unwrap_or(0);
        check_share(held, bytes, self.max.saturating_sub(self.used))?;
        self.used += bytes;
        self.shares.insert(owner, held + bytes);
        Ok(())
    }

    pub(crate) fn give_back(&mut self, owner: Owner, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
        if let Some(held) = self.shares.get_mut(&owner) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.shares.remove(&owner);
            }
        }
    }
}

/// The size of a key or value in bytes, including what it refers to.
pub(crate) trait Bytes {
    fn n_bytes(&self) -> usize;

    /// Gives back the bytes of the entries in a value.
    fn give_back_entries(&self, _budget: &mut Budget) {}
}

/// A map whose entries take bytes of a [`Budget`].
#[derive(Debug)]
pub(crate) struct Limited<K, V> {
    entries: BTreeMap<K, Owned<V>>,
    /// The number of entries of each node, sorted by the node. Most maps have entries of few nodes.
    owners: Vec<(Owner, u32)>,
}

#[derive(Debug)]
struct Owned<V> {
    owner: Owner,
    value: V,
}

/// The approximate size of an entry in bytes, without its key and value.
const ENTRY_BYTES: usize = 48 + size_of::<Owner>() + size_of::<(Owner, u32)>();

impl<K, V> Default for Limited<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), owners: Vec::new() }
    }
}

impl<K: Ord + Clone + Bytes, V: Default + Bytes> Limited<K, V> {
    /// Returns the entry of a key. Fails if it does not exist and there is no room for it.
    pub(crate) fn entry(
        &mut self,
        key: &K,
        max: usize,
        owner: Owner,
        budget: &mut Budget,
    ) -> Result<(&K, &mut V), Refused> {
        if !self.entries.contains_key(key) {
            let value = V::default();
            let place = place_of(&self.owners, owner);
            let held = place.map_or(0, |place| self.owners[place].1);
            check_share(held as usize, 1, max.saturating_sub(self.entries.len()))?;
            budget.take(owner, ENTRY_BYTES + key.n_bytes() + value.n_bytes())?;
            match place {
                Ok(place) => self.owners[place].1 += 1,
                Err(place) => self.owners.insert(place, (owner, 1)),
            }
            self.entries.insert(key.clone(), Owned { owner, value });
        }
        let found = self.entries.range_mut::<K, _>(key..=key).next();
        found.map(|(key, owned)| (key, &mut owned.value)).ok_or(Refused::Full)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|owned| &mut owned.value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, owned)| (key, &owned.value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|owned| &mut owned.value)
    }

    /// Keeps only some entries, and gives back the bytes of the others.
    pub(crate) fn retain(&mut self, budget: &mut Budget, mut keep: impl FnMut(&V) -> bool) {
        let owners = &mut self.owners;
        self.entries.retain(|key, owned| {
            let stays = keep(&owned.value);
            if !stays {
                owned.give_back(key, budget);
                if let Ok(place) = place_of(owners, owned.owner) {
                    owners[place].1 -= 1;
                }
            }
            stays
        });
        owners.retain(|(_, n)| *n > 0);
    }
}

/// Returns the place of a node, or the place at which to insert it.
fn place_of(owners: &[(Owner, u32)], owner: Owner) -> Result<usize, usize> {
    owners.binary_search_by_key(&owner, |(known, _)| *known)
}

impl<V: Default + Bytes> Owned<V> {
    /// Gives back the bytes of an entry. The entries in its value may be those of other nodes.
    fn give_back<K: Bytes>(&self, key: &K, budget: &mut Budget) {
        self.value.give_back_entries(budget);
        budget.give_back(self.owner, ENTRY_BYTES + key.n_bytes() + V::default().n_bytes());
    }
}

impl<K: Bytes, V: Default + Bytes> Bytes for Limited<K, V> {
    /// The bytes of the entries.
    fn n_bytes(&self) -> usize {
        let entry = |(key, owned): (&K, &Owned<V>)| key.n_bytes() + owned.value.n_bytes();
        self.entries.len() * ENTRY_BYTES + self.entries.iter().map(entry).sum::<usize>()
    }

    fn give_back_entries(&self, budget: &mut Budget) {
        self.entries.iter().for_each(|(key, owned)| owned.give_back(key, budget));
    }
}

impl<T: Bytes> Bytes for Arc<T> {
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + T::n_bytes(self)
    }
}

impl Bytes for Box<str> {
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}
