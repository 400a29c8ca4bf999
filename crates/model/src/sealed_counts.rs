//! The numbers of sealed resources in a collection, by data key.

use std::collections::BTreeMap;

use crate::{DataKeyId, Resource};

/// The numbers of sealed resources in a collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SealedCounts {
    by_key: BTreeMap<DataKeyId, u64>,
    unopened: u64,
}

impl SealedCounts {
    pub(crate) fn add(&mut self, resource: &Resource) {
        if let Some(sealed) = resource.sealed() {
            *self.by_key.entry(sealed.key).or_default() += 1;
            self.unopened += u64::from(!resource.is_opened());
        }
    }

    pub(crate) fn remove(&mut self, resource: &Resource) {
        let Some(sealed) = resource.sealed() else { return };
        self.unopened -= u64::from(!resource.is_opened());
        if let Some(count) = self.by_key.get_mut(&sealed.key) {
            *count -= 1;
            if *count == 0 {
                self.by_key.remove(&sealed.key);
            }
        }
    }

    /// Returns the number of sealed resources.
    #[must_use]
    pub fn n_sealed(&self) -> u64 {
        self.by_key.values().sum()
    }

    /// Returns the number of resources that a data key encrypts.
    #[must_use]
    pub fn n_of(&self, key: DataKeyId) -> u64 {
        self.by_key.get(&key).copied().unwrap_or(0)
    }

    /// Returns the number of sealed resources that this replica has not opened.
    #[must_use]
    pub fn n_unopened(&self) -> u64 {
        self.unopened
    }
}
