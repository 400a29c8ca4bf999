//! Each alert with a real fault that makes it fire, and the step of its runbook that makes it recover.
//!
//! Clusters of three replicas run beside one Prometheus, which evaluates the rules with shorter durations ([`scale`]).
//! Each group of scenarios has its own cluster, which the label `cluster` names. Two groups run at a time, because
//! each scenario mostly waits until Prometheus evaluates its rules. At the end, each query of a dashboard must have had data.
//!
//! Invariants:
//! - Faults are those of production: a stopped process, a full file system, a failed system call, a client that breaks the
//!   rules. The program has no switches for them.
//! - A critical alert that a scenario does not list fails the scenario.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use super::{
    dashboards,
    monitor::{Api, Monitor, eventually},
};
use crate::{
    paths::Paths,
    proc,
    program::{self, Profile},
    say::say,
    setup,
};

mod budgets;
mod certificates;
mod clients;
mod cluster;
mod disks;
mod load;
mod members;
mod scale;
mod scenario;
mod security;
mod sources;
mod stage;

use cluster::{Cluster, REPLICAS};
use scenario::{Group, Run, Shown};
use stage::Stage;

/// All groups. The groups with the longest windows are first.
const GROUPS: &[&Group] = &[
    &budgets::GROUP,
    &disks::GROUP,
    &clients::GROUP,
    &members::GROUP,
    &load::GROUP,
    &certificates::GROUP,
    &security::GROUP,
    &sources::GROUP,
];

/// The number of groups that run at the same time.
const LANES: usize = 2;

/// The alerts whose fault cannot be injected on one machine, each with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[(
    "ChanceryUpdatesWait",
    "a shard polls streams with updates before all other work, so only thousands of clients delay it",
)];

/// The variable that tells the process that it runs in its own mount namespace.
const IS_UNSHARED: &str = "CHANCERY_FAULTS_UNSHARED";

/// Runs all scenarios, or those with the alerts in `only`.
pub(super) fn check(paths: &Paths, rule_files: &[PathBuf; 2], only: &[&str]) -> Result<()> {
    let known = |name: &&str| {
        GROUPS.iter().flat_map(|group| group.scenarios).any(|scenario| has(scenario, name))
    };
    if let Some(name) = only.iter().find(|name| !known(name)) {
        bail!("--only: no scenario has the alert {name:?}; see deploy/mixin/alerts.yaml");
    }
    if std::env::var_os(IS_UNSHARED).is_none() {
        return unshare();
    }
    Stage::expect_programs()?;
    let program = match std::env::var_os("CHANCERY_BIN") {
        Some(program) => PathBuf::from(program),
        None => program::build(paths, Profile::Dev)?,
    };
    setup::fault_needs(paths)?;
    let dir = paths.target.join(format!("mixin-faults-{}", std::process::id()));
    fs::create_dir_all(dir.join("targets")).with_context(|| format!("create {}", dir.display()))?;
    let begun = Instant::now();
    let all = Faults::start(paths, &program, &dir, rule_files)?;
    all.run(only).with_context(|| format!("the logs are in {}", dir.display()))?;
    if only.is_empty() {
        all.expect_data(begun).with_context(|| format!("the logs are in {}", dir.display()))?;
    }
    drop(all);
    say!("the faults took {} s", begun.elapsed().as_secs());
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
}

/// Runs the command again in its own mount namespace. All mounts end with the process.
fn unshare() -> Result<()> {
    let program = std::env::current_exe().context("find the program")?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(program);
    let status = proc::status(command.args(std::env::args_os().skip(1)).env(IS_UNSHARED, "1"))?;
    ensure!(status.success(), "the faults failed; as root, `unshare --mount` is possible");
    Ok(())
}

fn has(scenario: &scenario::Scenario, alert: &str) -> bool {
    scenario.alerts.iter().any(|known| known.name == alert)
}

/// A running Prometheus, and the addresses of the clusters.
struct Faults<'a> {
    paths: &'a Paths,
    program: &'a Path,
    dir: &'a Path,
    monitor: Monitor,
}

impl<'a> Faults<'a> {
    fn start(
        paths: &'a Paths,
        program: &'a Path,
        dir: &'a Path,
        rule_files: &[PathBuf; 2],
    ) -> Result<Self> {
        let mut names = Vec::new();
        for file in rule_files {
            let text =
                fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
            let name = file.file_name().context("a rule file has no name")?;
            let scaled =
                scale::rules(&text).with_context(|| format!("scale {}", file.display()))?;
            fs::write(dir.join(name), scaled).context("write scaled rules")?;
            names.push(json!(dir.join(name)));
        }
        let targets = |kind: &str| json!([{"files": [dir.join(format!("targets/{kind}-*.json"))], "refresh_interval": "1s"}]);
        let token = dir.join("targets/token");
        fs::write(&token, "none").context("write a token")?;
        let configuration = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": names,
            "scrape_configs": [
                {"job_name": "chancery", "file_sd_configs": targets("open")},
                {"job_name": "with-token", "file_sd_configs": targets("token"),
                    "authorization": {"credentials_file": token}},
            ],
        });
        let web = format!("{}.1:9090", network(GROUPS.len()));
        let monitor = Monitor::start(paths, dir, &configuration.to_string(), &web)?;
        let api = monitor.api();
        eventually("Prometheus does not start", || Ok(api.query("vector(1)").ok().map(drop)))?;
        Ok(Self { paths, program, dir, monitor })
    }

    /// Runs the groups, and prints a table.
    fn run(&self, only: &[&str]) -> Result<()> {
        let selected = |scenario: &scenario::Scenario| {
            only.is_empty() || only.iter().any(|name| has(scenario, name))
        };
        let groups = GROUPS.iter().enumerate();
        let groups = groups.filter(|(_, group)| group.scenarios.iter().any(&selected));
        let queue: Mutex<VecDeque<_>> = Mutex::new(groups.collect());
        let api = self.monitor.api();
        let results = Mutex::new((Vec::new(), Vec::new()));
        let lane = || {
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            while let Some((index, group)) = next() {
                let (shown, failures) = self.group(index, group, &api, selected);
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                results.0.extend(shown);
                results.1.extend(failures);
            }
        };
        thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(lane))));
        let (shown, failures) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        print(&shown);
        ensure!(failures.is_empty(), "{}", failures.join("\n"));
        Ok(())
    }

    /// Runs the scenarios of a group. Returns what they have shown, and the failures.
    fn group(
        &self,
        index: usize,
        group: &Group,
        api: &Api,
        selected: impl Fn(&scenario::Scenario) -> bool,
    ) -> (Vec<Shown>, Vec<String>) {
        let failure = |what: &str, error: &anyhow::Error| {
            let text = format!("{}: {what}: {error:#}", group.name);
            say!("FAILED {text}");
            text
        };
        let prepare = || -> Result<Run<'_>> {
            let cluster = Cluster::new(self.program, self.dir.join(group.name), network(index))?;
            let mut stage = Stage::new(self.paths, cluster);
            (group.prepare)(&mut stage)?;
            self.scrape(group, &stage)?;
            Ok(Run::new(group, api, stage))
        };
        let mut run = match prepare() {
            Ok(run) => run,
            Err(error) => return (Vec::new(), vec![failure("prepare the cluster", &error)]),
        };
        let mut failures = Vec::new();
        for scenario in group.scenarios.iter().filter(|scenario| selected(scenario)) {
            if let Err(error) = run.scenario(scenario) {
                failures.push(failure(scenario.fault, &error));
            }
        }
        if let Err(error) = run.finish() {
            failures.push(failure("the last alerts", &error));
        }
        (run.shown, failures)
    }

    /// Lets Prometheus scrape the replicas of a group.
    fn scrape(&self, group: &Group, stage: &Stage) -> Result<()> {
        let targets = REPLICAS.map(|id| stage.cluster.admin(id));
        let text =
            json!([{"targets": targets, "labels": {"job": "chancery", "cluster": group.name}}]);
        let kind = match stage.cluster.authorization.rsplit_once("Bearer ") {
            Some((_, token)) => {
                fs::write(self.dir.join("targets/token"), token.trim()).context("write a token")?;
                "token"
            }
            None => "open",
        };
        let path = self.dir.join("targets").join(format!("{kind}-{}.json", group.name));
        let new = path.with_extension("new");
        fs::write(&new, text.to_string()).context("write the targets")?;
        fs::rename(new, path).context("rename the targets")?;
        let scraped = format!("count(chancery_build_info{{cluster={:?}}}) == 3", group.name);
        let api = self.monitor.api();
        eventually("Prometheus does not scrape the replicas", || {
            Ok((!api.query(&scraped)?.is_empty()).then_some(()))
        })
    }

    /// Fails if a query of a dashboard has had no data since `begun`.
    fn expect_data(&self, begun: Instant) -> Result<()> {
        let api = self.monitor.api();
        let mut empty = Vec::new();
        let mut n_queries = 0;
        for (title, text) in dashboards::queries() {
            n_queries += 1;
            if api.query_range(&text, begun.elapsed())?.is_empty() {
                empty.push(format!("panel {title:?} has no data: {text}"));
            }
        }
        ensure!(empty.is_empty(), "{}", empty.join("\n"));
        say!("all {n_queries} queries of the dashboards had data");
        Ok(())
    }
}

/// Returns the first three numbers of the addresses of a group. Runs of different processes rarely have the same.
fn network(group: usize) -> String {
    format!("127.{}.{}", 60 + group, std::process::id() % 250 + 1)
}

/// Prints the alerts that have fired and recovered, and those that no scenario shows.
fn print(shown: &[Shown]) {
    let shown: BTreeMap<_, _> = shown.iter().map(|shown| (shown.alert, shown)).collect();
    say!("{:<36} {:>12} {:>15}", "alert", "fired after", "resolved after");
    for (alert, Shown { fired_after, resolved_after, .. }) in &shown {
        say!("{alert:<36} {:>10} s {:>13} s", fired_after.as_secs(), resolved_after.as_secs());
    }
    for (alert, reason) in NOT_SHOWN {
        say!("{alert:<36} not shown: {reason}");
    }
    say!("{} alerts fired and recovered, {} are not shown", shown.len(), NOT_SHOWN.len());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::rules::RuleFile, *};

    const ALERTS: &str = "../../deploy/mixin/alerts.yaml";
    const RECORDING: &str = "../../deploy/mixin/recording.yaml";

    #[test]
    fn each_alert_has_a_scenario_or_a_reason() {
        let text = fs::read_to_string(ALERTS).unwrap();
        let file: RuleFile = serde_saphyr::from_str(&text).unwrap();
        let alerts: BTreeSet<&str> = file.rules().map(|rule| rule.alert.as_str()).collect();
        let scenarios = GROUPS.iter().flat_map(|group| group.scenarios);
        let mut listed: Vec<&str> =
            scenarios.flat_map(|scenario| scenario.alerts).map(|alert| alert.name).collect();
        listed.extend(NOT_SHOWN.iter().map(|(alert, _)| *alert));
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(unique, alerts);
        assert_eq!(unique.len(), listed.len(), "an alert is listed twice");
    }

    #[test]
    fn rules_of_the_mixin_can_be_scaled() {
        for path in [ALERTS, RECORDING] {
            let text = fs::read_to_string(path).unwrap();
            assert!(!scale::rules(&text).unwrap().contains("[5m]"), "{path}");
        }
    }
}
