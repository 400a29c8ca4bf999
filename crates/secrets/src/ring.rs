//! The unwrapped keys of a cluster, in memory.

use std::collections::BTreeMap;

use chancery_model::{DataKeyId, KeyTarget, Keys, SealingId, WrappedKey};

use crate::{cipher::WrapPath, key::Key};

/// The unwrapped keys.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    sealing_id: SealingId,
    mac: Option<Key>,
    data: BTreeMap<DataKeyId, Key>,
}

/// A key that is not unwrapped yet.
#[derive(Debug, Clone)]
pub(crate) struct Missing {
    pub(crate) target: KeyTarget,
    pub(crate) wrapped: WrappedKey,
    pub(crate) path: WrapPath,
}

/// Returns the path of a wrapped key.
pub(crate) fn wrap_path(sealing_id: SealingId, target: KeyTarget) -> WrapPath {
    let target = match target {
        KeyTarget::Mac => 0,
        KeyTarget::Data(id) => u64::from(id.0) + 1,
    };
    WrapPath { sealing_id, target }
}

/// Iterates over the wrapped keys of a cluster.
pub(crate) fn wrapped_keys(keys: &Keys) -> impl Iterator<Item = (KeyTarget, &WrappedKey)> {
    let mac = keys.mac.iter().map(|wrapped| (KeyTarget::Mac, wrapped));
    mac.chain(keys.data.iter().map(|key| (KeyTarget::Data(key.id), &key.wrapped)))
}

impl Ring {
    pub(crate) fn mac(&self) -> Option<&Key> {
        self.mac.as_ref()
    }

    pub(crate) fn data(&self, id: DataKeyId) -> Option<&Key> {
        self.data.get(&id)
    }

    /// Returns an unwrapped key of a cluster.
    pub(crate) fn key(&self, keys: &Keys, target: KeyTarget) -> Option<Key> {
        let key = match target {
            KeyTarget::Mac => self.mac(),
            KeyTarget::Data(id) => self.data(id),
        };
        key.filter(|_| self.sealing_id == keys.sealing_id).cloned()
    }

    fn has(&self, target: KeyTarget) -> bool {
        match target {
            KeyTarget::Mac => self.mac.is_some(),
            KeyTarget::Data(id) => self.data.contains_key(&id),
        }
    }

    /// Drops the keys that the cluster no longer has, and returns those that are missing.
    pub(crate) fn missing(&mut self, keys: &Keys) -> Vec<Missing> {
        if self.sealing_id != keys.sealing_id {
            *self = Self { sealing_id: keys.sealing_id, ..Self::default() };
        }
        self.data.retain(|id, _| keys.data_key(*id).is_some());
        let missing = wrapped_keys(keys).filter(|(target, _)| !self.has(*target));
        let missing = missing.map(|(target, wrapped)| Missing {
            target,
            wrapped: wrapped.clone(),
            path: wrap_path(keys.sealing_id, target),
        });
        missing.collect()
    }

    /// Adds an unwrapped key, unless the keys belong to another cluster meanwhile.
    pub(crate) fn add(&mut self, missing: &Missing, key: Key) {
        if missing.path.sealing_id != self.sealing_id {
            return;
        }
        match missing.target {
            KeyTarget::Mac => self.mac = Some(key),
            KeyTarget::Data(id) => drop(self.data.insert(id, key)),
        }
    }
}
