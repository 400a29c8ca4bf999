//! The flags of all commands that read the state.

use clap::Args;

/// The flags of all commands that read the state.
#[derive(Debug, Args, Clone, Copy, Default)]
pub(crate) struct Read {
    /// Show the replica's own state, which may be outdated
    ///
    /// Without this flag, the replica first asks the leader for everything that it has not applied.
    #[arg(long)]
    pub(crate) stale: bool,
}
