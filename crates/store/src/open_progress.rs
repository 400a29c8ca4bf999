//! The progress of a replica that opens, for its operators.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// The progress of a replica that opens. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct OpenProgress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    phase: Mutex<Phase>,
    /// The number of records that have been read.
    read: AtomicU64,
}

#[derive(Debug, Clone, Copy, Default)]
enum Phase {
    #[default]
    Opening,
    Reading {
        total: u64,
    },
    Joining,
    Starting,
}

/// The work of a replica that opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenStage {
    /// The replica opens its directory. It does not know yet how much there is to read.
    Opening,
    /// The replica reads and checks its log and its state.
    Reading {
        /// The number of records that have been read.
        read: u64,
        /// The number of records of the log and the state.
        total: u64,
    },
    /// The replica has no data, and waits until a cluster admits it.
    Joining,
    /// The replica has read its data, and starts Raft.
    Starting,
}

impl OpenProgress {
    /// Returns what the replica does now.
    #[must_use]
    pub fn stage(&self) -> OpenStage {
        match *self.0.phase.lock() {
            Phase::Opening => OpenStage::Opening,
            Phase::Reading { total } => {
                // The counter and the total are not read at one moment.
                let read = self.0.read.load(Ordering::Relaxed).min(total);
                OpenStage::Reading { read, total }
            }
            Phase::Joining => OpenStage::Joining,
            Phase::Starting => OpenStage::Starting,
        }
    }

    /// Records that reading begins, with the number of records.
    pub(crate) fn on_reading(&self, total: u64) {
        let mut phase = self.0.phase.lock();
        self.0.read.store(0, Ordering::Relaxed);
        *phase = Phase::Reading { total };
    }

    /// Records that one record has been read.
    pub(crate) fn on_read(&self) {
        self.0.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the replica asks a cluster to admit it.
    pub(crate) fn on_joining(&self) {
        *self.0.phase.lock() = Phase::Joining;
    }

    /// Records that the replica has its data.
    pub(crate) fn on_starting(&self) {
        *self.0.phase.lock() = Phase::Starting;
    }
}
