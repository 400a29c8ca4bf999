//! `deploy/mixin`: the alerts, recording rules and dashboards of Chancery.
//!
//! `alerts.yaml` and `recording.yaml` are the sources of the rules. The checks read them with a parser for
//! PromQL, and compare each query with the metrics in the code. promtool then runs the unit tests.

use std::{collections::BTreeMap, fs, path::Path, process::Command, thread};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;

use crate::{metrics_page, paths::Paths, proc, say::say, setup, source};

mod boards;
mod coverage;
mod dashboards;
mod faults;
mod jsonnet;
mod live;
mod monitor;
mod query;
mod rules;

use coverage::TestFile;
use query::Catalog;
use rules::{RUNBOOKS, RuleFile};

const ALERTS: &str = "deploy/mixin/alerts.yaml";
const RECORDING: &str = "deploy/mixin/recording.yaml";
const TESTS: &str = "deploy/mixin/tests";
const DASHBOARDS: &str = "deploy/mixin/dashboards";
const JSONNET: &str = "deploy/mixin/mixin.libsonnet";

/// The sources of the mixin.
struct Mixin {
    alerts: RuleFile,
    recording: RuleFile,
    catalog: Catalog,
    complaints: Vec<String>,
}

/// Fails if a rule, a unit test or a dashboard breaks a rule of the project.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let Mixin { alerts, recording, catalog, mut complaints } = read(paths)?;
    let runbooks = read_text(paths, RUNBOOKS)?;
    complaints.extend(rules::complaints(&alerts, &catalog, &runbooks));
    let mut tests: BTreeMap<String, TestFile> = BTreeMap::new();
    for file in source::files(paths, TESTS)? {
        tests.insert(file.path.clone(), yaml(&file.path, &file.text)?);
    }
    complaints.extend(coverage::complaints(&tests, &alerts, &recording, &catalog));
    match dashboards::generate(&alerts, &catalog) {
        Ok(wanted) => {
            complaints.extend(outdated(paths, &wanted)?);
            complaints.extend(not_imported(&wanted, &read_text(paths, JSONNET)?));
        }
        Err(found) => complaints.extend(found),
    }
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("{}", complaints.join("\n"))
}

/// Writes the dashboards.
pub(crate) fn write(paths: &Paths) -> Result<()> {
    let Mixin { alerts, catalog, .. } = read(paths)?;
    let files = dashboards::generate(&alerts, &catalog);
    let files = files.map_err(|complaints| anyhow!("{}", complaints.join("\n")))?;
    let dir = paths.root.join(DASHBOARDS);
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    for (name, text) in &files {
        fs::write(dir.join(name), text).with_context(|| format!("write {DASHBOARDS}/{name}"))?;
    }
    say!("wrote {} dashboards to {DASHBOARDS}", files.len());
    Ok(())
}

/// Returns a complaint if the files of the dashboards differ from the table.
fn outdated(paths: &Paths, wanted: &BTreeMap<String, String>) -> Result<Option<String>> {
    let found: BTreeMap<String, String> = source::files(paths, DASHBOARDS)?
        .into_iter()
        .map(|file| (file.path[DASHBOARDS.len() + 1..].to_owned(), file.text))
        .collect();
    let complaint = format!("{DASHBOARDS} is outdated; run `cargo xtask dashboards`");
    Ok((found != *wanted).then_some(complaint))
}

/// Returns complaints about dashboards that the Jsonnet file does not import.
fn not_imported(dashboards: &BTreeMap<String, String>, jsonnet: &str) -> Vec<String> {
    let line = |name: &String| format!("'{name}': import 'dashboards/{name}',");
    let missing = dashboards.keys().map(line).filter(|line| !jsonnet.contains(line.as_str()));
    missing.map(|line| format!("{JSONNET}: this line is missing: {line}")).collect()
}

/// Runs promtool's own check of the rules and the unit tests, and evaluates the Jsonnet file.
pub(crate) fn test(paths: &Paths) -> Result<()> {
    let promtool = setup::promtool(paths)?;
    let rules = [paths.root.join(ALERTS), paths.root.join(RECORDING)];
    proc::output(Command::new(&promtool).args(["check", "rules", "--lint-fatal"]).args(&rules))?;
    let tests = source::files(paths, TESTS)?;
    let n_threads = thread::available_parallelism().map_or(1, Into::into);
    let run = |file: &Path| {
        // The process lives for seconds, so it may use more memory instead of collecting garbage.
        proc::output(Command::new(&promtool).env("GOGC", "800").args(["test", "rules"]).arg(file))
    };
    let chunks = tests.chunks(tests.len().div_ceil(n_threads).max(1));
    thread::scope(|scope| {
        let threads: Vec<_> = chunks
            .map(|files| {
                let mut files = files.iter().map(|file| paths.root.join(&file.path));
                scope.spawn(move || files.try_for_each(|file| run(&file).map(drop)))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    say!("promtool: the unit tests in {} files passed", tests.len());
    let values = |path| yaml(path, &read_text(paths, path)?);
    jsonnet::check(paths, values(ALERTS)?, values(RECORDING)?, &source::files(paths, DASHBOARDS)?)
}

/// Checks the mixin with a real Prometheus and a real replica.
pub(crate) fn check_live(paths: &Paths, chancery: &Path) -> Result<()> {
    live::check(paths, chancery, &[paths.root.join(ALERTS), paths.root.join(RECORDING)])
}

/// Injects the fault of each alert, or of those in `only`, and fails if an alert does not fire or recover.
pub(crate) fn check_faults(paths: &Paths, only: &[&str]) -> Result<()> {
    faults::check(paths, &[paths.root.join(ALERTS), paths.root.join(RECORDING)], only)
}

/// Reads the rules, and the metrics that queries can use.
fn read(paths: &Paths) -> Result<Mixin> {
    let alerts: RuleFile = yaml(ALERTS, &read_text(paths, ALERTS)?)?;
    let recording: RuleFile = yaml(RECORDING, &read_text(paths, RECORDING)?)?;
    let metrics = metrics_page::known(paths)?;
    let mut catalog = Catalog { metrics, recorded: BTreeMap::new() };
    let complaints = rules::record(&recording, &mut catalog);
    Ok(Mixin { alerts, recording, catalog, complaints })
}

fn yaml<T: DeserializeOwned>(path: &str, text: &str) -> Result<T> {
    serde_saphyr::from_str(text).with_context(|| format!("parse {path}"))
}

fn read_text(paths: &Paths, path: &str) -> Result<String> {
    fs::read_to_string(paths.root.join(path)).with_context(|| format!("read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_that_jsonnet_does_not_import_is_reported() {
        let dashboards = BTreeMap::from([("a.json".to_owned(), String::new())]);
        assert_eq!(not_imported(&dashboards, "'a.json': import 'dashboards/a.json',"), [""; 0]);
        assert_eq!(not_imported(&dashboards, "'b.json': import 'dashboards/b.json',").len(), 1);
    }
}
