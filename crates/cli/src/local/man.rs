//! The command `man`.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use clap::Args;

use crate::failure::Failure;
use chancery_config::manual;

/// The arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write the pages to this directory
    dir: PathBuf,
}

impl Man {
    /// Writes the manual pages of a command line, and the one of the configuration file.
    pub(crate) fn run(&self, command: clap::Command) -> Result<(), Failure> {
        let version = command.get_version().unwrap_or_default().to_owned();
        fs::create_dir_all(&self.dir).map_err(|error| failure("create", &self.dir, &error))?;
        clap_mangen::generate_to(command, &self.dir)
            .map_err(|error| failure("write the manual pages to", &self.dir, &error))?;
        let file = self.dir.join("chancery.toml.5");
        fs::write(&file, manual(&version)).map_err(|error| failure("write", &file, &error))
    }
}

fn failure(what: impl fmt::Display, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot {what} {}: {error}", path.display()))
}
