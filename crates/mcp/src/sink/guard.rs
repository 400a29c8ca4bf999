//! The guard against messages that delete most of a collection, such as those of a source that lost its data.

use std::collections::BTreeSet;

use chancery_model::ResourceName;
use xxhash_rust::xxh3::Xxh3;

use super::change::Change;

/// The limits for deletions in one collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// The maximum share of the stored resources that a message may delete, in percent.
    pub deletion_percent: u32,
    /// In a collection with fewer stored resources, a message may delete any share. The first message of a stream may
    /// still not delete everything.
    pub deletion_resources_min: usize,
}

impl Default for Guard {
    fn default() -> Self {
        Self { deletion_percent: 50, deletion_resources_min: 20 }
    }
}

/// A deletion that waits for a confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The names of the resources.
    pub names: BTreeSet<ResourceName>,
    /// The number of resources that were stored.
    pub n_stored: usize,
    /// The identifier by which an operator confirms the deletion. It is a hash of the names, so it is equal on all
    /// replicas and after a restart.
    pub token: String,
}

/// The error of a confirmation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmError {
    /// The sink does not request the collection.
    #[error("the source has no collection {0:?}")]
    UnknownCollection(String),
    /// No deletion is held.
    #[error("no deletion is held in the collection {0:?}")]
    NothingHeld(String),
    /// Another deletion is held than the one to confirm.
    #[error(
        "the token {given:?} is wrong: in the collection {collection:?}, the deletion of {n} resources with the token {held:?} is held"
    )]
    OtherHeld {
        /// The collection.
        collection: String,
        /// The token of the held deletion.
        held: String,
        /// The number of resources of the held deletion.
        n: usize,
        /// The token of the confirmation.
        given: String,
    },
}

/// The state of the guard in one collection.
#[derive(Debug, Default)]
pub(super) enum Guarded {
    #[default]
    Idle,
    /// A deletion waits for its confirmation.
    Held(Deletion),
    /// The next accepted message may delete these resources. Other deletions above the limits are held again.
    Confirmed(Deletion),
}

impl Guard {
    fn is_tripped_by(&self, change: &Change) -> bool {
        let (n_deleted, n_stored) = (change.deletes.len(), change.n_stored);
        n_stored >= self.deletion_resources_min
            && n_deleted.saturating_mul(100)
                > n_stored.saturating_mul(self.deletion_percent as usize)
    }
}

impl Guarded {
    /// Returns the deletion if the guard holds the change. `is_wipe`: the first message of a stream deletes all.
    pub(super) fn check(
        &mut self,
        guard: &Guard,
        change: &Change,
        is_wipe: bool,
    ) -> Option<&Deletion> {
        if !is_wipe && !guard.is_tripped_by(change) {
            // The source no longer deletes what was held.
            if matches!(self, Self::Held(_)) {
                *self = Self::Idle;
            }
            return None;
        }
        if let Self::Confirmed(deletion) = self
            && change.deletes.is_subset(&deletion.names)
        {
            return None;
        }
        *self = Self::Held(Deletion {
            names: change.deletes.clone(),
            n_stored: change.n_stored,
            token: token(&change.deletes),
        });
        self.held()
    }

    pub(super) fn held(&self) -> Option<&Deletion> {
        match self {
            Self::Held(deletion) => Some(deletion),
            Self::Idle | Self::Confirmed(_) => None,
        }
    }

    /// Withdraws a confirmation.
    pub(super) fn withdraw(&mut self) {
        if matches!(self, Self::Confirmed(_)) {
            *self = Self::Idle;
        }
    }

    pub(super) fn confirm(&mut self, collection: &str, token: &str) -> Result<(), ConfirmError> {
        let collection = collection.to_owned();
        let Some(held) = self.held() else { return Err(ConfirmError::NothingHeld(collection)) };
        if held.token != token {
            return Err(ConfirmError::OtherHeld {
                collection,
                held: held.token.clone(),
                n: held.names.len(),
                given: token.to_owned(),
            });
        }
        *self = Self::Confirmed(held.clone());
        Ok(())
    }
}

fn token(names: &BTreeSet<ResourceName>) -> String {
    let mut hash = Xxh3::new();
    for name in names {
        hash.update(&(name.as_str().len() as u64).to_le_bytes());
        hash.update(name.as_str().as_bytes());
    }
    format!("{:016x}", hash.digest())
}
