//! `verify` checks the tree without changing it; `fix` changes it.

use anyhow::{Result, bail};

use crate::{
    attacks, conformance, metrics_page, mixin, mutants, package, page::Page, paths::Paths, proc,
    say::say, setup, tidy,
};

/// Runs all checks except the tests. Cheap checks come first.
pub(crate) fn verify(paths: &Paths) -> Result<()> {
    say!("verify: formatting");
    proc::run(paths.cargo("fmt").args(["--all", "--check"]))?;
    say!("verify: project rules (crate dependencies, file lengths, prose, generated documents)");
    let errors: Vec<_> = [
        tidy::check(paths),
        conformance::page(paths).and_then(Page::check),
        attacks::page(paths).and_then(Page::check),
        metrics_page::check(paths),
        mixin::check(paths),
        mutants::check(paths),
    ]
    .into_iter()
    .filter_map(Result::err)
    .collect();
    for error in &errors {
        say!("{error:#}");
    }
    if !errors.is_empty() {
        bail!("the tree violates project rules; see above");
    }
    say!("verify: unit tests of the alerts");
    mixin::test(paths)?;
    say!("verify: systemd units, Dockerfile and Compose file");
    package::check_files(paths)?;
    setup::build_needs(paths)?;
    say!("verify: clippy, with warnings as errors");
    proc::run(paths.cargo("clippy").args([
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-Dwarnings",
    ]))?;
    say!("verify: rustdoc, with warnings as errors");
    proc::run(
        paths
            .cargo("doc")
            .args(["--workspace", "--no-deps", "--locked"])
            .env("RUSTDOCFLAGS", "-Dwarnings"),
    )?;
    say!("verify: all checks passed");
    Ok(())
}

/// Regenerates documents, applies clippy's suggestions, and formats.
pub(crate) fn fix(paths: &Paths) -> Result<()> {
    // The generators come first, because they also work if the code does not compile.
    metrics_page::write(paths)?;
    mixin::write(paths)?;
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
