//! Maps with a maximum number of entries and a shared number of bytes.

use std::{collections::BTreeMap, sync::Arc};

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
            clusters_max: 10_000,
            localities_max: 256,
            endpoints_max: 10_000,
            metrics_max: 64,
            categories_max: 64,
            name_bytes_max: 4096,
        }
    }
}

/// The bytes that the sums may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) used: usize,
    max: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self { used: 0, max }
    }

    /// Takes bytes, or returns `false` if too few are left.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let used = self.used.saturating_add(bytes);
        let fits = used <= self.max;
        if fits {
            self.used = used;
        }
        fits
    }

    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }
}

/// The size of a key or value in bytes, including what it refers to.
pub(crate) trait Bytes {
    fn n_bytes(&self) -> usize;
}

/// A map whose entries take bytes of a [`Budget`].
#[derive(Debug)]
pub(crate) struct Limited<K, V>(BTreeMap<K, V>);

/// The approximate size of an entry in bytes, without its key and value.
const ENTRY_BYTES: usize = 48;

impl<K, V> Default for Limited<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone + Bytes, V: Default + Bytes> Limited<K, V> {
    /// Returns the entry of a key. `None` if it does not exist and there is no room for it.
    pub(crate) fn entry(
        &mut self,
        key: &K,
        max: usize,
        budget: &mut Budget,
    ) -> Option<(&K, &mut V)> {
        if !self.0.contains_key(key) {
            let value = V::default();
            let bytes = ENTRY_BYTES + key.n_bytes() + value.n_bytes();
            if self.0.len() >= max || !budget.take(bytes) {
                return None;
            }
            self.0.insert(key.clone(), value);
        }
        self.0.range_mut::<K, _>(key..=key).next()
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.values_mut()
    }

    /// Keeps only some entries, and gives back the bytes of the others.
    pub(crate) fn retain(&mut self, budget: &mut Budget, mut keep: impl FnMut(&V) -> bool) {
        self.0.retain(|key, value| {
            let stays = keep(value);
            if !stays {
                budget.give_back(ENTRY_BYTES + key.n_bytes() + value.n_bytes());
            }
            stays
        });
    }
}

impl<K: Bytes, V: Bytes> Bytes for Limited<K, V> {
    /// The bytes of the entries.
    fn n_bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| ENTRY_BYTES + key.n_bytes() + value.n_bytes()).sum()
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
