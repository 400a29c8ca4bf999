//! Prometheus and promtool, from Debian's package.
//!
//! The package is unpacked into the cache, and not installed. An installation would start a server that
//! scrapes this machine, and needs root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::packages::apt;
use crate::{paths::Paths, proc, say::say};

/// Returns the path of a program of Prometheus (`promtool` or `prometheus`). The caller holds the lock.
pub(super) fn program(paths: &Paths, name: &str) -> Result<PathBuf> {
    let dir = paths.cache.join("prometheus");
    for program in [PathBuf::from(name), dir.join("usr/bin").join(name)] {
        if proc::succeeds(Command::new(&program).arg("--version")) {
            return Ok(program);
        }
    }
    unpack(&dir).with_context(|| {
        format!("the system lacks {name}; install Prometheus, so that {name} is in the PATH")
    })?;
    let program = dir.join("usr/bin").join(name);
    if !proc::succeeds(Command::new(&program).arg("--version")) {
        bail!("{} does not run", program.display());
    }
    Ok(program)
}

/// Downloads Debian's package, and unpacks it into `dir`.
fn unpack(dir: &Path) -> Result<()> {
    say!("unpacking Debian's package of Prometheus into {}", dir.display());
    let new = dir.with_extension("new");
    for old in [dir, &new] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
        }
    }
    fs::create_dir_all(&new).with_context(|| format!("create {}", new.display()))?;
    let mut download = Command::new("apt-get");
    download.current_dir(&new).args([
        "-qq",
        "-o",
        "APT::Sandbox::User=root",
        "download",
        "prometheus",
    ]);
    if proc::output(&mut download).is_err() {
        apt(&["update"])?;
        proc::output(&mut download)?;
    }
    let mut files = fs::read_dir(&new).with_context(|| format!("list {}", new.display()))?;
    let Some(Ok(package)) = files.next() else { bail!("apt-get downloaded no package") };
    proc::run(Command::new("dpkg-deb").arg("-x").arg(package.path()).arg(&new))?;
    fs::remove_file(package.path()).context("remove the package")?;
    fs::rename(&new, dir).with_context(|| format!("rename {}", new.display()))
}
