//! Whether there is room for another write.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// What was measured is believed for so long.
const FRESH: Duration = Duration::from_millis(100);
/// What a written byte may take in the end, at worst: in the WAL, in a table of the log and one of the
/// state, and once more while tables are merged.
const AMPLIFICATION: u64 = 4;

/// Free space of the file system that a directory is on.
#[derive(Debug)]
pub(crate) struct Space {
    path: PathBuf,
    reserve: u64,
    measured: Mutex<Option<(Instant, u64)>>,
}

/// There is too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) free: u64,
    pub(crate) needed: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { free, needed } = self;
        write!(
            f,
            "the disk is nearly full: {free} bytes are free, {needed} are needed (store.free_bytes_min)"
        )
    }
}

impl Space {
    pub(crate) fn new(path: &Path, reserve: u64) -> Self {
        Self { path: path.to_owned(), reserve, measured: Mutex::new(None) }
    }

    /// Bytes free for this process, as of a moment ago; `None` if the file system does not say.
    pub(crate) fn free(&self) -> Option<u64> {
        let mut measured = self.measured.lock();
        if let Some((when, free)) = *measured
            && when.elapsed() < FRESH
        {
            return Some(free);
        }
        let free = match rustix::fs::statvfs(&self.path) {
            Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "the free space is not known");
                return None;
            }
        };
        *measured = Some((Instant::now(), free));
        Some(free)
    }

    /// That there is no room for a write of any length.
    pub(crate) fn full(&self) -> Option<Full> {
        let free = self.free().filter(|free| *free <= self.reserve)?;
        Some(Full { free, needed: self.reserve.saturating_add(AMPLIFICATION) })
    }

    /// Whether `len` more bytes may be written. What is written is taken off what was measured, so
    /// that a burst between two measurements can not eat the reserve.
    pub(crate) fn take(&self, len: u64) -> Result<(), Full> {
        let Some(free) = self.free() else { return Ok(()) };
        let needed = self.reserve.saturating_add(len.saturating_mul(AMPLIFICATION));
        if free < needed {
            return Err(Full { free, needed });
        }
        if let Some((_, free)) = self.measured.lock().as_mut() {
            *free = free.saturating_sub(len.saturating_mul(AMPLIFICATION));
        }
        Ok(())
    }
}
