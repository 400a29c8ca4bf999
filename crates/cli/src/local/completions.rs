//! The command `completions`.

use clap::Args;
use clap_complete::Shell;

use crate::{answer::Answer, failure::Failure};

/// The arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to generate the script for
    shell: Shell,
}

impl Completions {
    /// Prints the script for a command line.
    pub(crate) fn run(
        &self,
        mut command: clap::Command,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        // `generate` panics if the writer fails. A writer in memory does not fail.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "chancery", &mut script);
        answer.out.write_all(&script)?;
        Ok(())
    }
}
