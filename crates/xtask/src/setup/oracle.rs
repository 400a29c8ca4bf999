//! The oracle of `chancery-lb-policy`: a program on packages that are internal to grpc-go.
//!
//! Go lets only grpc-go itself import them, so the program is built inside of a copy of grpc-go.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::proc;

const GRPC: &str = "google.golang.org/grpc";

/// Builds the program into `dir`. `source` is the module of the real client, whose pins apply.
pub(super) fn build(go: &str, source: &Path, dir: &Path) -> Result<()> {
    let command = || {
        let mut command = Command::new(go);
        command.current_dir(source).env("GOTOOLCHAIN", "local");
        command
    };
    let module = proc::output(command().args(["list", "-m", "-f", "{{.Dir}}", GRPC]))?;
    let copy = dir.join("grpc-source");
    // The module cache is read-only.
    proc::run(Command::new("cp").args(["-r", "--no-preserve=mode", module.trim()]).arg(&copy))?;
    let package = copy.join("internal/lboracle");
    fs::create_dir(&package).with_context(|| format!("create {}", package.display()))?;
    let place = |from: &Path, to: &Path| {
        fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))
    };
    place(&source.join("lboracle/main.go"), &package.join("main.go"))?;
    place(&source.join("go.sum"), &dir.join("oracle.sum"))?;
    let pins = source.join("go.mod");
    let pins = fs::read_to_string(&pins).with_context(|| format!("read {}", pins.display()))?;
    let modfile = dir.join("oracle.mod");
    fs::write(&modfile, format!("{pins}\nreplace {GRPC} => {}\n", copy.display()))
        .with_context(|| format!("write {}", modfile.display()))?;
    proc::run(
        command()
            .args(["build", "-tags=lb_oracle", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"])
            .args(["-mod=mod", "-modfile"])
            .arg(&modfile)
            .arg("-o")
            .arg(dir.join("lb-oracle"))
            .arg(format!("{GRPC}/internal/lboracle")),
    )?;
    fs::remove_dir_all(&copy).with_context(|| format!("remove {}", copy.display()))
}
