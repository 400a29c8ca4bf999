//! Chromium with its driver, and axe-core, which finds obstacles for people with disabilities.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::packages::{Need, install, missing};
use crate::{paths::Paths, proc, say::say};

const CHROMIUM: Need = Need::program("chromium", "chromium");
const DRIVER: Need = Need::program("chromedriver", "chromium-driver");
const NPM: Need = Need::program("npm", "npm");
const AXE_VERSION: &str = "4.14.1";

/// Installs Chromium, and returns the script of axe-core. The caller holds the lock.
pub(super) fn install_browser(paths: &Paths) -> Result<PathBuf> {
    install(&missing(&[CHROMIUM, DRIVER]))?;
    let dir = paths.cache.join(format!("axe-core-{AXE_VERSION}"));
    let script = dir.join("package/axe.min.js");
    if script.is_file() {
        return Ok(script);
    }
    install(&missing(&[NPM]))?;
    say!("downloading axe-core into {}", dir.display());
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let package = format!("axe-core@{AXE_VERSION}");
    proc::output(Command::new("npm").args(["pack", "--silent", &package]).current_dir(&dir))?;
    let archive = format!("axe-core-{AXE_VERSION}.tgz");
    proc::run(Command::new("tar").args(["xzf", &archive]).current_dir(&dir))?;
    Ok(script)
}
