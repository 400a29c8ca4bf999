//! The command `serve`.

use clap::Args;

use super::config_flags::ConfigFlags;
use crate::{
    cli::{answer::Answer, failure::Failure},
    config::NamedFiles,
    memory, serve,
};

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    config: ConfigFlags,
}

impl Serve {
    /// Runs a replica until a signal ends it.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        memory::settle();
        serve::run(self.config.load(NamedFiles::CheckForStart)?, answer.out)
    }
}
