//! The mixin with a real Prometheus, which scrapes a real replica.
//!
//! Prometheus evaluates all rules without an error, no alert fires, and each query of a dashboard has data.
//! [`EMPTY`] lists the exceptions.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{
    dashboards,
    monitor::{Api, Monitor, eventually, get},
};
use crate::{
    paths::Paths,
    proc::{self, Guard, free_addresses},
    say::say,
};

/// Parts of queries that have no data without clients, each with the reason.
const EMPTY: &[(&str, &str)] = &[
    ("chancery_xds_streams{", "the query omits zeros, and the replica has no streams"),
    ("chancery_xds_limits_hit_total{", "the query omits zeros, and no limit was exceeded"),
    ("chancery_tls_handshakes_total{", "the query omits zeros, and the ports have no TLS"),
    ("result!=\"ok\"", "a reason of a refusal appears with the first refused credential"),
];

/// Configuration with which the metrics of sources and issuers exist.
const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "CHANCERY_MCP_SOURCES",
        "[{name = 'pilot', address = '127.0.0.1:9', scope = 'mesh', collections = ['a/b/c']}]",
    ),
    (
        "CHANCERY_AUTH_ISSUERS",
        "[{name = 'corp', url = 'https://idp', jwks_url = 'http://127.0.0.1:9/keys'}]",
    ),
];

/// Runs the check with a built program.
pub(super) fn check(paths: &Paths, chancery: &Path, rule_files: &[PathBuf; 2]) -> Result<()> {
    let dir = paths.target.join(format!("mixin-live-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let [xds, admin, raft, web] = free_addresses()?;
    let mut serve = proc::leashed(chancery);
    serve.args(["serve", "--xds", &xds, "--admin", &admin, "--raft", &raft, "--data-dir"]);
    serve.arg(dir.join("replica")).envs(ENVIRONMENT);
    let log = fs::File::create(dir.join("replica.log")).context("create a log")?;
    serve.stdout(Stdio::null()).stderr(log);
    let mut replica = Guard::spawn("the replica", &mut serve)?;
    eventually("the replica has no metrics", || {
        replica.expect_running()?;
        Ok(get(&admin, "/metrics").is_ok().then_some(()))
    })?;
    let mut monitor = Monitor::start(paths, &dir, &configuration(rule_files, &admin), &web)?;
    let api = monitor.api();
    let mut run = || -> Result<()> {
        eventually("Prometheus has scraped the replica less than 8 times", || {
            monitor.expect_running()?;
            let result = api.query("count_over_time(chancery_build_info[1m]) >= 8");
            Ok(result.is_ok_and(|result| !result.is_empty()).then_some(()))
        })?;
        rules(&api)?;
        queries(&api)
    };
    run().with_context(|| format!("the logs are in {}", dir.display()))?;
    drop((replica, monitor));
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
}

fn configuration([alerts, recording]: &[PathBuf; 2], admin: &str) -> String {
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         scrape_configs:\n- job_name: chancery\n  static_configs: [{{targets: ['{admin}']}}]\n\
         rule_files: ['{}', '{}']\n",
        alerts.display(),
        recording.display()
    )
}

/// Fails if Prometheus cannot evaluate a rule, or if an alert fires.
fn rules(api: &Api) -> Result<()> {
    let rules = eventually("Prometheus has not evaluated all rules", || {
        let groups = api.get("/api/v1/rules")?;
        let groups = groups["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<Value> = groups
            .iter()
            .filter_map(|group| group["rules"].as_array())
            .flatten()
            .cloned()
            .collect();
        let is_done = !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown");
        Ok(is_done.then_some(rules))
    })?;
    for rule in &rules {
        ensure!(rule["health"] == "ok", "rule {}: {}", rule["name"], rule["lastError"]);
        ensure!(rule["state"] != "firing", "{} fires on a new replica: {rule}", rule["name"]);
    }
    say!("Prometheus evaluated {} rules", rules.len());
    Ok(())
}

/// Fails if a query of a dashboard has no data, and no reason.
fn queries(api: &Api) -> Result<()> {
    let mut complaints = Vec::new();
    let mut unused: Vec<&str> = EMPTY.iter().map(|(part, _)| *part).collect();
    let mut n_queries = 0;
    for (title, text) in dashboards::queries() {
        n_queries += 1;
        let result = api.query(&text).with_context(|| format!("panel {title:?}"))?;
        if !result.is_empty() {
            continue;
        }
        match EMPTY.iter().find(|(part, _)| text.contains(part)) {
            Some((part, _)) => unused.retain(|other| other != part),
            None => complaints.push(format!("panel {title:?} has no data: {text}")),
        }
    }
    complaints.extend(unused.iter().map(|part| format!("EMPTY: queries with {part:?} have data")));
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    say!("Prometheus answered {n_queries} queries of the dashboards");
    Ok(())
}
