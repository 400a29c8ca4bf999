//! The mixin with a real Prometheus, which scrapes a real replica.
//!
//! Prometheus evaluates all rules without an error, no alert fires, and each query of a dashboard has data.
//! [`EMPTY`] lists the exceptions.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::{boards::BOARDS, dashboards};
use crate::{
    paths::Paths,
    proc::{self, Guard, eventually, free_addresses},
    program::{self, Profile},
    say::say,
    setup,
};

/// The time limit for one step.
const STEP: Duration = Duration::from_secs(60);

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

/// Runs the check. `rule_files` are the rule files.
pub(super) fn check(paths: &Paths, rule_files: &[PathBuf; 2]) -> Result<()> {
    let chancery = program::build(paths, Profile::Dev)?;
    let prometheus = setup::prometheus(paths)?;
    let dir = paths.target.join(format!("mixin-live-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let [xds, admin, raft, web] = free_addresses()?;
    let mut serve = proc::leashed(&chancery);
    serve.args(["serve", "--xds", &xds, "--admin", &admin, "--raft", &raft, "--data-dir"]);
    serve.arg(dir.join("replica")).envs(ENVIRONMENT);
    let log = |name: &str| fs::File::create(dir.join(name)).context("create a log");
    serve.stdout(Stdio::null()).stderr(log("replica.log")?);
    let mut replica = Guard::spawn("the replica", &mut serve)?;
    eventually(STEP, "the replica has no metrics", || {
        replica.expect_running()?;
        Ok(get(&admin, "/metrics").is_ok().then_some(()))
    })?;
    let config = dir.join("prometheus.yml");
    fs::write(&config, configuration(rule_files, &admin)).context("write the configuration")?;
    let mut monitor = proc::leashed(&prometheus);
    monitor
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address={web}"))
        .stdout(Stdio::null())
        .stderr(log("prometheus.log")?);
    let mut monitor = Guard::spawn("Prometheus", &mut monitor)?;
    let mut run = || -> Result<()> {
        eventually(STEP, "Prometheus has scraped the replica less than 8 times", || {
            monitor.expect_running()?;
            let result = query(&web, "count_over_time(chancery_build_info[1m]) >= 8");
            Ok(result.is_ok_and(|result| !result.is_empty()).then_some(()))
        })?;
        rules(&web)?;
        queries(&web)
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
fn rules(web: &str) -> Result<()> {
    let rules = eventually(STEP, "Prometheus has not evaluated all rules", || {
        let groups: Value = serde_json::from_str(&get(web, "/api/v1/rules")?)?;
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
fn queries(web: &str) -> Result<()> {
    let panels = BOARDS.iter().flat_map(|board| board.rows).flat_map(|row| row.panels);
    let mut complaints = Vec::new();
    let mut unused: Vec<&str> = EMPTY.iter().map(|(part, _)| *part).collect();
    let mut n_queries = 0;
    for (panel, (expr, _)) in panels.flat_map(|panel| panel.queries.iter().map(move |q| (panel, q)))
    {
        let text = dashboards::query(expr)
            .replace("$__rate_interval", "10s")
            .replace("$cluster", ".*")
            .replace("$job", ".*")
            .replace("$instance", ".*");
        n_queries += 1;
        let result = query(web, &text).with_context(|| format!("panel {:?}", panel.title))?;
        if !result.is_empty() {
            continue;
        }
        match EMPTY.iter().find(|(part, _)| text.contains(part)) {
            Some((part, _)) => unused.retain(|other| other != part),
            None => complaints.push(format!("panel {:?} has no data: {text}", panel.title)),
        }
    }
    complaints.extend(unused.iter().map(|part| format!("EMPTY: queries with {part:?} have data")));
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    say!("Prometheus answered {n_queries} queries of the dashboards");
    Ok(())
}

/// Returns the series that a query finds.
fn query(web: &str, text: &str) -> Result<Vec<Value>> {
    let encoded = text.bytes().fold(String::new(), |mut encoded, byte| {
        write!(encoded, "%{byte:02X}").expect("writing to a String cannot fail");
        encoded
    });
    let answer: Value = serde_json::from_str(&get(web, &format!("/api/v1/query?query={encoded}"))?)
        .context("parse the answer of Prometheus")?;
    let result = answer["data"]["result"].as_array().cloned();
    result.ok_or_else(|| anyhow!("{text}: {answer}"))
}

/// Returns the body of the answer to `GET path`, if the status is 200.
fn get(address: &str, path: &str) -> Result<String> {
    let address: SocketAddr = address.parse().context("parse an address")?;
    let mut stream = TcpStream::connect_timeout(&address, STEP).context("connect")?;
    stream.set_read_timeout(Some(STEP)).context("set a time limit")?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").context("send a request")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read an answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{path}: {head}\n{body}");
    Ok(body.to_owned())
}
