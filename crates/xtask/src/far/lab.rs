//! The program, the directory for files and the backends of one client.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use super::backends::Backends;
use crate::{demo::logged, paths::Paths, proc::Guard};

/// The surroundings of one client.
pub(super) struct Lab<'a> {
    pub(super) paths: &'a Paths,
    /// The program `chancery`.
    pub(super) program: &'a Path,
    /// The files and logs of this run.
    pub(super) dir: PathBuf,
    pub(super) backends: Backends,
}

impl<'a> Lab<'a> {
    pub(super) fn new(paths: &'a Paths, program: &'a Path, client: &str) -> Result<Self> {
        let dir = paths.target.join(format!("far-{client}-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let backends = Backends::start(paths)?;
        Ok(Self { paths, program, dir, backends })
    }

    /// Writes a file, and returns its path.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Starts a client whose output goes to `NAME.log`.
    pub(super) fn spawn(&self, name: &str, command: &mut Command) -> Result<Guard> {
        command.current_dir(&self.dir).stdin(Stdio::null());
        Guard::spawn(name, logged(command, &self.dir, name)?)
    }

    /// Removes the files.
    pub(super) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))
    }
}
