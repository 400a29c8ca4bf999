//! The command `serve`.

use chancery_config::NamedFiles;
use chancery_serve::{run, settle_memory};
use clap::Args;

use super::config_flags::ConfigFlags;
use crate::{answer::Answer, failure::Failure};

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    config: ConfigFlags,
}

impl Serve {
    /// Runs a replica until a signal ends it.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        settle_memory();
        run(self.config.load(NamedFiles::CheckForStart)?, answer.out).map_err(Failure::new)
    }
}
