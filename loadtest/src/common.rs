//! The settings that all commands need.

use std::path::PathBuf;

use crate::host::Pinning;

/// The settings of a run.
#[derive(Debug)]
pub(crate) struct Common {
    /// The `chancery` binary.
    pub(crate) binary: PathBuf,
    pub(crate) pinning: Pinning,
}
