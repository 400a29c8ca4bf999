//! The PrometheusRule of the chart: complete links, only the series of the release, and the alert for late backups.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::render::{Chart, of_kind};
use crate::{paths::Paths, proc, setup};

/// The address with which all links to runbooks begin.
const BASE: &str = "https://git.example/chancery/";
/// The matchers of the release in the queries, as the ServiceMonitor sets the labels.
const OWN: &str = "{namespace=\"shop\", job=\"release\"";
/// Unit tests of the rules, in the form of promtool.
const TESTS: &str = r#"
rule_files: [rules.yaml]
evaluation_interval: 30m
tests:
- name: ChanceryBackupLate fires and recovers
  interval: 30m
  input_series:
  - {series: 'kube_cronjob_created{namespace="shop",cronjob="release-chancery-backup",instance="k:8080"}', values: '0x70'}
  - {series: 'kube_cronjob_status_last_successful_time{namespace="shop",cronjob="release-chancery-backup",instance="k:8080"}', values: '0x55 97200x20'}
  - {series: 'kube_cronjob_status_last_successful_time{namespace="other",cronjob="release-chancery-backup",instance="k:8080"}', values: '0x70'}
  alert_rule_test:
  - {alertname: ChanceryBackupLate, eval_time: 26h}
  - alertname: ChanceryBackupLate
    eval_time: 27h
    exp_alerts:
    - exp_labels: {namespace: shop, cronjob: release-chancery-backup, severity: warning}
      exp_annotations:
        summary: The last backup of release is older than 26h
        description: 'The CronJob shop/release-chancery-backup has not succeeded for 1d 3h 0m 0s. The logs of its pods show the reason.'
        runbook_url: https://git.example/chancery/docs/kubernetes.md#backup-and-restore
  - {alertname: ChanceryBackupLate, eval_time: 30h}
- name: ChanceryBackupLate fires if no backup has ever succeeded
  interval: 30m
  input_series:
  - {series: 'kube_cronjob_created{namespace="shop",cronjob="release-chancery-backup"}', values: '0x60'}
  promql_expr_test:
  - {expr: 'count(ALERTS{alertname="ChanceryBackupLate",alertstate="firing"})', eval_time: 27h, exp_samples: [{labels: '{}', value: 1}]}
- name: alerts of the release do not read other clusters
  interval: 30m
  input_series:
  - {series: 'chancery_raft_has_leader{namespace="shop",job="other"}', values: '0x4'}
  - {series: 'chancery_raft_has_leader{namespace="other",job="release"}', values: '0x4'}
  promql_expr_test:
  - {expr: 'count(ALERTS{alertname="ChanceryNoLeader"})', eval_time: 60m}
- name: alerts of the release read its series
  interval: 30m
  input_series:
  - {series: 'chancery_raft_has_leader{namespace="shop",job="release"}', values: '0x4'}
  promql_expr_test:
  - {expr: 'count(ALERTS{alertname="ChanceryNoLeader",alertstate="firing"})', eval_time: 60m, exp_samples: [{labels: '{}', value: 1}]}
"#;

/// Checks the rules with and without a ServiceMonitor.
pub(super) fn check(chart: &Chart, paths: &Paths) -> Result<()> {
    let values = format!("runbookBase={BASE},backupMaxAge=26h,interval=30m");
    let values = values.split(',').map(|value| format!("metrics.prometheusRule.{value}"));
    let values =
        [vec!["metrics.prometheusRule.enabled=true".to_owned()], values.collect()].concat();
    let args: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();

    let own = groups(chart, paths, "access-rules.yaml", &args)?;
    let rules = || rules_of(&own);
    ensure!(rules().count() > 60, "the PrometheusRule has {} rules", rules().count());
    for rule in rules() {
        let expr = rule["expr"].as_str().context("a rule has no query")?;
        let series = ["chancery_", "chancery:", "process_"];
        let starts = series.iter().flat_map(|start| expr.match_indices(start));
        for (at, _) in starts.filter(|(at, _)| !is_inside_word(expr, *at)) {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            let rest = expr[at..].trim_start_matches(is_name);
            ensure!(rest.starts_with(OWN), "a query reads series of other releases: {expr}");
        }
    }
    for alert in rules().filter(|rule| rule["alert"].is_string()) {
        let link = alert["annotations"]["runbook_url"].as_str().unwrap_or_default();
        ensure!(link.starts_with(BASE), "the link of {} is {link}", alert["alert"]);
    }
    let all = groups(chart, paths, "plaintext.yaml", &args)?;
    ensure!(
        rules_of(&all).count() == rules().count(),
        "a ServiceMonitor changes the number of rules"
    );
    let selects =
        rules_of(&all).find(|rule| rule["expr"].as_str().is_some_and(|expr| expr.contains(OWN)));
    ensure!(selects.is_none(), "without a ServiceMonitor, a query selects a job: {selects:?}");

    let dir = chart.scratch.join("prometheus-rules");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    fs::write(dir.join("rules.yaml"), json!({"groups": own}).to_string()).context("write rules")?;
    fs::write(dir.join("tests.yaml"), TESTS).context("write tests of rules")?;
    let promtool = setup::promtool(paths)?;
    for args in [["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]] {
        proc::output(Command::new(&promtool).current_dir(&dir).args(args))?;
    }
    Ok(())
}

fn is_inside_word(text: &str, at: usize) -> bool {
    text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

fn groups(chart: &Chart, paths: &Paths, values: &str, args: &[&str]) -> Result<Value> {
    let objects = chart.objects(paths, values, args)?;
    let rule = of_kind(&objects, "PrometheusRule").next().context("there is no PrometheusRule")?;
    Ok(rule["spec"]["groups"].clone())
}

fn rules_of(groups: &Value) -> impl Iterator<Item = &Value> {
    let groups = groups.as_array().into_iter().flatten();
    groups.filter_map(|group| group["rules"].as_array()).flatten()
}
