//! The progress of a transfer of bytes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The number of bytes that were moved so far, which only grows. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Adds moved bytes.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the number of moved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
