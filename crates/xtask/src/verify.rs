//! `verify` reads and judges; `fix` writes.

use anyhow::{Result, bail};

use crate::{conformance, metrics_page, mutants, paths::Paths, proc, say::say, setup, tidy};

/// Everything that is checked without running a test. Cheap checks come first.
pub(crate) fn verify(paths: &Paths) -> Result<()> {
    say!("verify: formatting");
    proc::run(paths.cargo("fmt").args(["--all", "--check"]))?;
    say!("verify: our own rules (crate edges, file lengths, docs that are generated)");
    let broken: Vec<_> = [
        tidy::check(paths),
        conformance::check(paths),
        metrics_page::check(paths),
        mutants::check(paths),
    ]
    .into_iter()
    .filter_map(Result::err)
    .collect();
    for error in &broken {
        say!("{error:#}");
    }
    if !broken.is_empty() {
        bail!("our own rules are broken");
    }
    setup::build_needs(paths)?;
    say!("verify: clippy, warnings are errors");
    proc::run(paths.cargo("clippy").args([
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-Dwarnings",
    ]))?;
    say!("verify: rustdoc, warnings are errors");
    proc::run(
        paths
            .cargo("doc")
            .args(["--workspace", "--no-deps", "--locked"])
            .env("RUSTDOCFLAGS", "-Dwarnings"),
    )?;
    say!("verify: all good");
    Ok(())
}

/// Formats, applies what clippy can apply, and regenerates what is generated.
pub(crate) fn fix(paths: &Paths) -> Result<()> {
    // First what can not fail because of code that does not compile.
    conformance::write(paths)?;
    metrics_page::write(paths)?;
    setup::build_needs(paths)?;
    say!("fix: clippy's suggestions");
    proc::run(paths.cargo("clippy").args([
        "--workspace",
        "--all-targets",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
    ]))?;
    say!("fix: formatting");
    proc::run(paths.cargo("fmt").arg("--all"))
}
