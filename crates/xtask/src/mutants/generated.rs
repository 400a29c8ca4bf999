//! Bugs that `cargo-mutants` generates in the crates without input and output.
//!
//! The tool copies the tree, changes one expression or function at a time, and runs the tests of the crate. A result
//! `MISSED` is a change that no test of the crate notices.

use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::{paths::Paths, proc, say::say};

/// The version of the tool. An update may generate other bugs.
const VERSION: &str = "27.1.0";
/// The crates whose tests need no network, process or disk.
const CRATES: [&str; 6] = ["diff", "lb-policy", "model", "protocol", "resolve", "view"];

/// Generates bugs in crates, and runs their tests for each. `names` are names of crates without the prefix; none for all.
/// The exit code is 0 if the tests catch all of them.
pub(crate) fn run(paths: &Paths, names: &[&str]) -> Result<ExitCode> {
    let unknown = names.iter().find(|name| !CRATES.contains(name));
    ensure!(
        unknown.is_none(),
        "--generated: {:?} is not one of the crates {}",
        unknown.unwrap_or(&""),
        CRATES.join(", ")
    );
    let root = paths.cache.join(format!("cargo-mutants-{VERSION}"));
    let tool = root.join("bin/cargo-mutants");
    if !tool.is_file() {
        say!("compiling cargo-mutants {VERSION}");
        let mut install = paths.cargo("install");
        install.args(["cargo-mutants", "--locked", "--version", VERSION, "--root"]).arg(&root);
        proc::run(&mut install)?;
    }
    let output = paths.target.join("generated-mutants");
    let mut cargo = paths.plain_cargo();
    // The copy has a target directory of its own.
    cargo.env_remove("CARGO_TARGET_DIR").args(["mutants", "--no-shuffle", "--output"]).arg(&output);
    for name in if names.is_empty() { &CRATES } else { names } {
        cargo.args(["--package", &format!("chancery-{name}")]);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let bins = [root.join("bin")].into_iter().chain(std::env::split_paths(&path));
    cargo.env("PATH", std::env::join_paths(bins)?);
    let status = proc::status(&mut cargo)?;
    say!("the results are in {}", output.display());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
