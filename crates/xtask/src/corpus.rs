//! `corpus`: asks real clients for their verdicts on the corpus of resources.

use std::process::Command;

use anyhow::Result;

use crate::{
    paths::Paths,
    proc,
    program::{self, Profile},
    setup,
};

/// Builds the program, and writes `corpus/admission/verdicts.json` and that of the shapes. All arguments go to the
/// first script.
pub(crate) fn run(paths: &Paths, args: &[&str]) -> Result<()> {
    setup::all(paths)?;
    let program = program::build(paths, Profile::Dev)?;
    let mut script = Command::new(paths.clients.join("bin/python"));
    script.arg(paths.root.join("corpus/admission/verdicts.py"));
    script.arg("--server").arg(program).arg("--clients").arg(&paths.clients).args(args);
    proc::run(&mut script)?;
    let mut shapes = Command::new(paths.clients.join("bin/python"));
    shapes.arg(paths.root.join("corpus/admission/shapes.py")).arg("--clients").arg(&paths.clients);
    proc::run(&mut shapes)
}
