//! `console`: the pages of the console in a real Chromium, against three replicas with Envoys.
//!
//! `console/browser.py` drives Chromium over WebDriver. It checks every page with axe-core, and does the tasks of an
//! operator.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{paths::Paths, proc, say::say, setup};

const SCRIPT: &str = "crates/xtask/src/console/browser.py";

/// Runs the checks with a program.
pub(crate) fn run(paths: &Paths, program: &Path) -> Result<()> {
    let axe = setup::browser(paths)?;
    let program = program.canonicalize().context("find the program")?;
    let dir = paths.target.join(format!("console-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let mut script = Command::new(paths.clients.join("bin/python"));
    script.arg(paths.root.join(SCRIPT)).arg(program).arg(&paths.clients).arg(axe).arg(&dir);
    let status = proc::status(&mut script)?;
    ensure!(
        status.success(),
        "the console has problems; screenshots and logs are in {}",
        dir.display()
    );
    say!("the screenshots of the console are in {}", dir.display());
    Ok(())
}
