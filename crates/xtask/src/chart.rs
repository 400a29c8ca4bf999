//! `cargo xtask chart`: checks the Helm chart with the values in its directory `ci`.
//!
//! Each file of values is linted and rendered. The output must equal the golden file, be valid for two versions of
//! Kubernetes, follow the rules of the chart, and configure the server so that `chancery config check` accepts it.
//! The notes must contain a bootstrap that Envoy accepts. Values that would lose data must be refused.

use std::path::Path;

use anyhow::{Context as _, Result};

mod api_server;
mod bootstrap;
mod cluster;
mod config_schema;
mod golden;
mod installed;
mod live;
mod mixin;
mod page;
mod prometheus_rules;
mod readme;
mod refusals;
mod render;
mod rules;
mod server_config;
mod stability;
mod values;

pub(crate) use golden::Golden;
use render::{Chart, KUBERNETES, Scratch};

use crate::{paths::Paths, say::say};

/// Checks the chart with the given program, or writes its golden files first.
pub(crate) fn run(paths: &Paths, program: &Path, golden: Golden) -> Result<()> {
    say!("checking the Helm chart");
    let scratch = Scratch::new(paths)?;
    let chart = Chart::new(paths, &scratch)?;
    readme::check(&chart, golden)?;
    config_schema::check(&chart, paths, program)?;
    let cases = chart.cases()?;
    for case in &cases {
        chart.lint(case)?;
    }
    golden.check(&chart, &cases)?;
    let manifests = chart.validate(paths, &cases)?;
    for case in &cases {
        let objects = manifests.get(&case.name).context("a case was not validated")?;
        rules::check(objects).with_context(|| format!("the values {}", case.name))?;
        server_config::check(&chart, program, objects)
            .with_context(|| format!("the configuration of {}", case.name))?;
        bootstrap::check(paths, &chart, &case.notes)
            .with_context(|| format!("the notes of {}", case.name))?;
    }
    stability::check(&chart, paths)?;
    values::check(&chart, paths)?;
    let n_refused = refusals::check(&chart)? + live::check(&chart)?;
    mixin::check(&chart, paths)?;
    prometheus_rules::check(&chart, paths)?;
    page::check(&chart, paths)?;
    say!(
        "the chart is correct: {} sets of values, Kubernetes {KUBERNETES}, {n_refused} refusals",
        cases.len()
    );
    Ok(())
}

/// Checks the chart with a real API server of Kubernetes.
pub(crate) fn run_installed(paths: &Paths) -> Result<()> {
    installed::check(paths)
}
