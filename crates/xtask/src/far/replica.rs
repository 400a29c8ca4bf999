//! A replica that can be restarted, and its commands.

use std::{path::PathBuf, process::Command, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::lab::Lab;
use crate::{
    demo::{log, log_tail, logged, without_settings},
    proc::{self, Guard},
};

/// The time limit of a start and of an end.
const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "chancery";
/// The first words of the line that `serve` prints when it is ready.
const READY: &str = "chancery ready ";

pub(super) struct Replica {
    program: PathBuf,
    dir: PathBuf,
    /// The address of the xDS port.
    pub(super) xds: String,
    admin: String,
    raft: String,
    process: Option<Guard>,
}

impl Replica {
    /// Starts a replica with a configuration.
    pub(super) fn start(lab: &Lab<'_>, config: &str) -> Result<Self> {
        lab.write("chancery.toml", config)?;
        let [xds, admin, raft] = proc::free_addresses()?;
        let (program, dir) = (lab.program.to_owned(), lab.dir.clone());
        let mut replica = Self { program, dir, xds, admin, raft, process: None };
        replica.resume()?;
        Ok(replica)
    }

    /// Starts the stopped replica with its data.
    pub(super) fn resume(&mut self) -> Result<()> {
        let mut serve = proc::leashed(&self.program);
        without_settings(&mut serve);
        serve.current_dir(&self.dir).args(["serve", "--config", "chancery.toml"]);
        serve.args(["--data-dir", "data", "--xds", &self.xds, "--admin", &self.admin]);
        serve.args(["--raft", &self.raft]).stdin(Stdio::null());
        let mut process = Guard::spawn(NAME, logged(&mut serve, &self.dir, NAME)?)?;
        proc::eventually(LIMIT, "chancery is not ready", || {
            process.expect_running().with_context(|| log_tail(&self.dir, NAME))?;
            Ok(log(&self.dir, NAME).contains(READY).then_some(()))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Ends the replica with SIGTERM.
    pub(super) fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the replica does not run")?;
        let pid = process.id().to_string();
        proc::run(Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid]))?;
        let status = process.wait_for(LIMIT)?;
        ensure!(status.success(), "chancery ended with {status}");
        Ok(())
    }

    /// Publishes manifests in one transaction.
    pub(super) fn apply(&self, manifests: &[&str]) -> Result<()> {
        let file = self.dir.join("manifest.yaml");
        std::fs::write(&file, manifests.join("---\n")).context("write a manifest")?;
        self.command(&["apply", "-f", "manifest.yaml", "--confirm", "all"]).map(drop)
    }

    /// Deletes a resource.
    pub(super) fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.command(&["delete", kind, name, "--confirm", "all"]).map(drop)
    }

    /// Runs a command of `chancery`, and returns its output.
    pub(super) fn command(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        without_settings(&mut command);
        command.current_dir(&self.dir).env("CHANCERY_SERVER", &self.admin);
        proc::output(command.args(args))
    }
}
