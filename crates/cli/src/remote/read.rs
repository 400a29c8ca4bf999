//! The flags of all commands that read the state.

use clap::Args;

/// The flags of all commands that read the state.
#[derive(Debug, Args, Clone, Copy, Default)]
pub(crate) struct Read {
    /// Show the replica's own state, which may be outdated
    ///
    /// Without this flag, the replica first asks the leader for its commit index, and applies all
    /// entries up to it.
    #[arg(long)]
    pub(crate) stale: bool,
}
