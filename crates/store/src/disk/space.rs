//! The check that the disk has space for another write.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The time for which a measurement is reused.
const FRESH: Duration = Duration::from_millis(100);
/// The maximum number of bytes on disk per written byte: one in the WAL, one each in a table of the
/// log and of the state, and one more during a compaction.
const AMPLIFICATION: u64 = 4;

/// The free space of the file system of a directory.
#[derive(Debug)]
pub(crate) struct Space {
    path: PathBuf,
    reserve: u64,
    measured: Mutex<Option<(Instant, u64)>>,
}

/// The free space is too small.
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

    /// Returns the number of bytes that this process may use, as of at most 100 ms ago. Returns
    /// `None` if the file system does not report it.
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
                tracing::warn!(%error, path = %self.path.display(), "cannot determine the free space");
                return None;
            }
        };
        *measured = Some((Instant::now(), free));
        Some(free)
    }

    /// Returns the free bytes above the reserve, if known.
    pub(crate) fn headroom(&self) -> Option<u64> {
        Some(self.free()?.saturating_sub(self.reserve))
    }

    /// Returns an error if there is no space even for an empty write.
    pub(crate) fn full(&self) -> Option<Full> {
        let free = self.free().filter(|free| *free <= self.reserve)?;
        Some(Full { free, needed: self.reserve.saturating_add(AMPLIFICATION) })
    }

    /// Reserves space for `len` more bytes, and for `replaced` bytes that the history keeps. Deducts them from the last
    /// measurement, so that a burst between two measurements cannot use up the reserve.
    pub(crate) fn take(&self, len: u64, replaced: u64) -> Result<(), Full> {
        let Some(free) = self.free() else { return Ok(()) };
        let taken = len.saturating_mul(AMPLIFICATION).saturating_add(replaced);
        let needed = self.reserve.saturating_add(taken);
        if free < needed {
            return Err(Full { free, needed });
        }
        if let Some((_, free)) = self.measured.lock().as_mut() {
            *free = free.saturating_sub(taken);
        }
        Ok(())
    }
}
