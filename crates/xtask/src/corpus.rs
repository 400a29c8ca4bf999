//! `corpus`: asks real clients for their verdicts on the corpus of resources.

use std::process::Command;

use anyhow::Result;

use crate::{
    paths::Paths,
    proc,
    program::{self, Profile},
    setup,
};

/// Builds the program, installs the clients, and writes `corpus/admission/verdicts.json`. Without arguments, writes the
/// verdicts of the shapes, too. All arguments go to the first script.
pub(crate) fn run(paths: &Paths, args: &[&str]) -> Result<()> {
    let only = args.iter().position(|arg| *arg == "--only").and_then(|at| args.get(at + 1));
    setup::build_needs(paths)?;
    setup::corpus_clients(paths, only.copied())?;
    let program = program::build(paths, Profile::Dev)?;
    let mut script = Command::new(paths.clients.join("bin/python"));
    script.arg(paths.root.join("corpus/admission/verdicts.py"));
    script.arg("--server").arg(program).arg("--clients").arg(&paths.clients).args(args);
    proc::run(&mut script)?;
    if !args.is_empty() {
        return Ok(());
    }
    let mut shapes = Command::new(paths.clients.join("bin/python"));
    shapes.arg(paths.root.join("corpus/admission/shapes.py")).arg("--clients").arg(&paths.clients);
    proc::run(&mut shapes)
}
