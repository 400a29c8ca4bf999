//! The tools that check packages: skopeo, umoci and runc for the image, systemd for the unit, and checkers of the Dockerfile
//! and of the Compose file. Also the checker of the HTTP API.
//!
//! Invariant: setup writes the stamp last, and the stamp contains the pinned versions with their checksums.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use super::{
    clients::{create_venv, is_stamped, pip, read, write},
    packages::{Need, install, is_root, missing},
};
use crate::{paths::Paths, proc, say::say};

/// The files with the exact versions and checksums, which no other file contains.
const PINS: &str = "crates/xtask/src/setup/packaging/requirements.txt";
const API_PINS: &str = "crates/xtask/src/openapi/requirements.txt";

const SKOPEO: Need = Need::program("skopeo", "skopeo");
const UMOCI: Need = Need::program("umoci", "umoci");
const RUNC: Need = Need::program("runc", "runc");
const SYSTEMD: Need = Need::program("systemd-analyze", "systemd");

/// Installs the tools that read, unpack and run an image. Fails without root permissions.
pub(super) fn image_tools() -> Result<()> {
    ensure!(is_root()?, "the check of the image needs root to start a container; run it as root");
    install(&missing(&[SKOPEO, UMOCI, RUNC]))
}

/// Installs systemd's checker of units.
pub(super) fn unit_tools() -> Result<()> {
    install(&missing(&[SYSTEMD]))
}

/// The installed checkers of files.
#[derive(Debug)]
pub(crate) struct FileCheckers {
    /// Checks a Dockerfile.
    pub(crate) hadolint: PathBuf,
    /// Checks a file against a JSON schema.
    pub(crate) check_jsonschema: PathBuf,
}

/// Installs the checkers of files. The caller holds the lock.
pub(super) fn file_checkers(paths: &Paths) -> Result<FileCheckers> {
    let [hadolint, check_jsonschema] =
        python_tools(paths, PINS, "packaging-tools", ["hadolint", "check-jsonschema"])?;
    Ok(FileCheckers { hadolint, check_jsonschema })
}

/// Installs schemathesis, which checks the HTTP API. The caller holds the lock.
pub(super) fn schemathesis(paths: &Paths) -> Result<PathBuf> {
    let [tool] = python_tools(paths, API_PINS, "api-tools", ["schemathesis"])?;
    Ok(tool)
}

/// Installs programs of Python into a directory of the cache. `pins` has their exact versions.
fn python_tools<const N: usize>(
    paths: &Paths,
    pins: &str,
    name: &str,
    tools: [&str; N],
) -> Result<[PathBuf; N]> {
    let pins = paths.root.join(pins);
    let wanted = read(&pins)?;
    let dir = paths.cache.join(name);
    let programs = tools.map(|tool| dir.join("bin").join(tool));
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(programs);
    }
    say!("installing {} into {}", tools.join(" and "), dir.display());
    let python = create_venv(&dir)?;
    proc::run(pip(&python, "install").args(["--require-hashes", "-r"]).arg(&pins))?;
    for program in &programs {
        proc::output(Command::new(program).arg("--version"))?;
    }
    write(&stamp, &wanted)?;
    Ok(programs)
}
