//! The flag of commands that ask all replicas, and the outcome if some have not answered.

use chancery_admin_proto::v1 as pb;
use clap::Args;

use crate::{exit::Exit, failure::Failure, text::plain};

/// The flag of commands that ask all replicas.
#[derive(Debug, Args, Clone, Copy, Default)]
pub(crate) struct Extent {
    /// Ask only the contacted replica, and not all replicas
    #[arg(long)]
    pub(crate) local: bool,
}

/// Succeeds if all replicas have answered.
pub(super) fn check_complete(not_asked: &[pb::ReplicaNotAsked]) -> Result<(), Failure> {
    if not_asked.is_empty() {
        return Ok(());
    }
    Err(Failure::with_exit(Exit::NotAllAsked, format!("incomplete: {}", unanswered(not_asked))))
}

/// Returns the replicas that have not answered, each with the reason, for a terminal.
pub(super) fn unanswered(not_asked: &[pb::ReplicaNotAsked]) -> String {
    plain(&chancery_admin::unanswered(not_asked))
}
