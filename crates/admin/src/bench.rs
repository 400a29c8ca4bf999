//! Entry points for the benchmark of references in `benches/`: the index and the check, which are private.

use chancery_model::{Applied, State};

use crate::references::{ReferenceIndex, ReferenceSettings, Suspects};

/// The index of the references of a state.
#[derive(Debug, Clone)]
pub struct References(ReferenceIndex);

impl References {
    /// Computes the index of a state.
    #[must_use]
    pub fn of(state: &State) -> Self {
        Self(ReferenceIndex::of(state))
    }

    /// Returns the index of a later state.
    #[must_use]
    pub fn advanced(self, to: &State) -> Self {
        Self(self.0.advanced(to))
    }

    /// Returns how many references a transaction leaves dangling in the scopes of their resources. This is the
    /// index of the state after the transaction.
    #[must_use]
    pub fn n_dangling(&self, before: &State, applied: &Applied) -> usize {
        Suspects::of(before, applied, Some(&self.0), &ReferenceSettings::default()).len()
    }

    /// Returns the number of references.
    #[must_use]
    pub fn n_references(&self) -> usize {
        self.0.len()
    }
}
