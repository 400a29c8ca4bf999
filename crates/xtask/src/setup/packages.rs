//! System packages: which are missing, and their installation with apt-get.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{proc, say::say};

/// A dependency on a system package.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// The name of a program, or a description if there is a probe.
    pub(super) what: &'static str,
    pub(super) package: &'static str,
    /// Returns whether the dependency is installed. Without a probe, the program must print its version.
    pub(super) probe: Option<fn() -> bool>,
}

impl Need {
    /// Returns the dependency on a program that knows `--version`.
    pub(super) const fn program(name: &'static str, package: &'static str) -> Self {
        Self { what: name, package, probe: None }
    }

    fn is_missing(&self) -> bool {
        let prints_version = || proc::succeeds(Command::new(self.what).arg("--version"));
        !self.probe.map_or_else(prints_version, |probe| probe())
    }
}

/// Returns the dependencies that are not installed.
pub(super) fn missing(needs: &[Need]) -> Vec<Need> {
    needs.iter().filter(|need| need.is_missing()).copied().collect()
}

/// Installs Debian packages, as root or through sudo.
pub(super) fn install(missing: &[Need]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let what = missing.iter().map(|need| need.what).collect::<Vec<_>>().join(", ");
    let packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    let by_hand = format!("apt-get install {}", packages.join(" "));
    say!("the system lacks {what}: installing {} with apt-get", packages.join(" "));
    apt(&["update"])
        .and_then(|()| {
            apt(&[&["install", "-y", "--no-install-recommends"], packages.as_slice()].concat())
        })
        .with_context(|| format!("the system lacks {what}; on Debian, run `{by_hand}`"))?;
    let still: Vec<_> =
        missing.iter().filter(|need| need.is_missing()).map(|need| need.what).collect();
    if !still.is_empty() {
        bail!("the system still lacks {} after `{by_hand}`", still.join(", "));
    }
    Ok(())
}

/// Runs Debian's package manager, as root or through sudo.
pub(super) fn apt(args: &[&str]) -> Result<()> {
    if !proc::succeeds(Command::new("apt-get").arg("--version")) {
        bail!("this system has no apt-get");
    }
    let is_root = is_root()?;
    if !is_root && !proc::succeeds(Command::new("sudo").arg("--version")) {
        bail!("apt-get needs root; run as root or install sudo");
    }
    let mut command = Command::new(if is_root { "env" } else { "sudo" });
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]).args(args);
    proc::run(&mut command)
}

/// Returns whether the process runs as root.
pub(super) fn is_root() -> Result<bool> {
    Ok(proc::output(Command::new("id").arg("-u"))?.trim() == "0")
}
