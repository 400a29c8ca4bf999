//! Load reports of real clients, compared with the requests that were sent.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::{
    grpc_life,
    support::{
        STEP,
        chancery::Chancery,
        envoy::{Envoy, Mode},
        grpc::{GrpcClient, GrpcServer, Kind},
        http, in_directory,
        manifests::{api_listener, cluster, endpoints, proxied, route},
        upstream, wait_for,
    },
};

const SETTINGS: [(&str, &str); 2] =
    [("CHANCERY_LOAD_REPORTS_INTERVAL", "1s"), ("CHANCERY_LOAD_REPORTS_ENDPOINTS", "true")];

/// Returns the reported load of a cluster; `None` if no report has it.
fn reported(chancery: &Chancery, name: &str) -> Result<Option<Value>> {
    let load = chancery.cli(&["load", "--cluster", name, "--endpoints"], "")?;
    let clusters = load["clusters"].as_array().with_context(|| format!("no clusters: {load}"))?;
    Ok(clusters.first().cloned())
}

/// Returns the number of reported requests that succeeded.
fn succeeded(chancery: &Chancery, name: &str) -> Result<u64> {
    let cluster = reported(chancery, name)?;
    Ok(cluster.and_then(|cluster| cluster["sum"]["succeeded"].as_u64()).unwrap_or_default())
}

fn wait_for_succeeded(chancery: &Chancery, name: &str, n: u64) -> Result<()> {
    wait_for(&format!("{n} reported requests"), STEP, || match succeeded(chancery, name)? {
        found if found == n => Ok(Some(())),
        found => bail!("{found} are reported"),
    })
}

/// Waits until the server has received three more reports. The third one covers a period that began after this call.
fn wait_for_reports(chancery: &Chancery) -> Result<()> {
    let n = || chancery.metric("chancery_load_reports_total", "result=\"accepted\"");
    let before = n()?;
    wait_for("three reports", STEP, || Ok((n()? >= before + 3.0).then_some(())))
}

/// LRS-02, LRS-04, LRS-07, LRS-12, LRS-17: Envoy reports exactly the requests that it proxied, by locality and endpoint.
/// Changed settings reach it on the same stream: clusters that are not listed are not reported.
#[test]
fn envoy_reports_the_requests_that_it_proxied() -> Result<()> {
    in_directory(|dir| {
        let mode = Mode::DeltaAds;
        let (upstream, port) = (upstream::spawn("a")?, reserve_port());
        let chancery = Chancery::start_with(dir, &SETTINGS)?;
        chancery.publish(&proxied(mode, port, "one", upstream))?;
        let mut bootstrap = mode.bootstrap("envoy-load", chancery.at.xds);
        bootstrap["cluster_manager"] = json!({"load_stats_config": {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "chancery"}}],
        }});
        let envoy = Envoy::start_with(dir, "envoy-load", &bootstrap)?;
        http::wait_for_answer(port)?;
        let send = |n: u64| (0..n).try_for_each(|_| http::get(port, "/").map(drop));
        // Envoy does not report the first period of a cluster that is new to it.
        wait_for_reports(&chancery)?;
        let before = succeeded(&chancery, "one")?;
        let proxied = || envoy.stat("cluster.one.upstream_rq_total");
        let (first, _) = (proxied()?, send(200)?);
        let sent = before + proxied()? - first;
        wait_for_succeeded(&chancery, "one", sent)?;
        let load = reported(&chancery, "one")?.context("no load")?;
        let locality = &load["localities"][0];
        let endpoint = &locality["endpoints"][0];
        let place = (&locality["region"], &locality["zone"], &endpoint["address"]);
        if place != (&json!("r"), &json!("z"), &json!(format!("127.0.0.1:{upstream}")))
            || endpoint["succeeded"] != sent
            || load["sum"]["issued"] != sent
            || load["sum"]["in_progress"] != 0
        {
            bail!("{sent} requests were sent: {load}");
        }

        // Another list: the requests are not reported, and the stream stays open.
        let set = |args: &[&str]| {
            let lists = || envoy.stat("load_reporter.requests");
            let before = lists()?;
            chancery.cli(&[["load", "set"].as_slice(), args].concat(), "")?;
            wait_for("the list in Envoy", STEP, || Ok((lists()? > before).then_some(())))
        };
        set(&["--clusters", "two"])?;
        send(50)?;
        wait_for_reports(&chancery)?;
        if succeeded(&chancery, "one")? != sent {
            bail!("an unlisted cluster is reported: {:?}", reported(&chancery, "one")?);
        }
        // The cluster is listed again. Its first period begins with the response.
        set(&["--clusters", "one", "--endpoints", "false"])?;
        wait_for_reports(&chancery)?;
        send(30)?;
        wait_for_succeeded(&chancery, "one", sent + 30)?;
        let streams = chancery.total("chancery_load_streams")?;
        if streams != 1.0 || envoy.stat("cluster.chancery.upstream_cx_total")? != 1 {
            bail!("{streams} streams are open");
        }
        Ok(())
    })
}

/// LRS-06, LRS-08, LRS-12, LRS-16: C-core reports the calls to a cluster with `lrs_server: {self: {}}`.
#[test]
fn c_core_reports_its_calls() -> Result<()> {
    grpc_reports(Kind::Python)
}

/// LRS-06, LRS-08, LRS-12, LRS-16: grpc-js reports the calls to a cluster with `lrs_server: {self: {}}`.
#[test]
fn grpc_js_reports_its_calls() -> Result<()> {
    grpc_reports(Kind::Node)
}

/// LRS-03, LRS-06, LRS-08, LRS-12, LRS-16: grpc-go reports the calls to a cluster with
/// `lrs_server: {self: {}}`.
#[test]
fn grpc_go_reports_its_calls() -> Result<()> {
    grpc_reports(Kind::Go)
}

/// Compares the reported calls with those of a client that calls a cluster with reports and one without.
fn grpc_reports(kind: Kind) -> Result<()> {
    grpc_life::with(kind, |dir| {
        let server = GrpcServer::start(dir, "a")?;
        let chancery = Chancery::start_with(dir, &SETTINGS)?;
        let mut resources = Vec::new();
        for name in ["first", "second"] {
            resources.extend([
                api_listener(&format!("{name}.e2e"), name),
                route(name, name),
                cluster(Mode::SotwAds, name, "1s"),
                endpoints(name, server.port),
            ]);
        }
        resources[2]["lrs_server"] = json!({"self": {}});
        chancery.publish(&resources)?;
        let mut reporting =
            GrpcClient::start(dir, kind, "grpc-reporting", chancery.at.xds, "first.e2e")?;
        let mut silent =
            GrpcClient::start(dir, kind, "grpc-silent", chancery.at.xds, "second.e2e")?;
        silent.wait_for_more(50)?;
        let mut calls = Calls::default();
        calls.expect_agreement(&chancery, &mut reporting)?;
        calls.expect_agreement(&chancery, &mut reporting)?;
        if let Some(load) = reported(&chancery, "second")? {
            bail!("a cluster without lrs_server is reported: {load}");
        }
        let load = reported(&chancery, "first")?.context("no load")?;
        let place = (&load["localities"][0]["region"], &load["localities"][0]["zone"]);
        if place != (&json!("r"), &json!("z")) {
            bail!("the locality is wrong: {load}");
        }

        // Another list: the client opens another stream, and reports nothing.
        chancery.cli(&["load", "set", "--clusters", "other"], "")?;
        let before = wait_for("the end of the reports", STEP, || {
            let before = succeeded(&chancery, "first")?;
            thread::sleep(Duration::from_millis(2500));
            Ok((succeeded(&chancery, "first")? == before).then_some(before))
        })?;
        chancery.cli(&["load", "set", "--clusters", "*"], "")?;
        wait_for("reports after a change", STEP, || {
            Ok((succeeded(&chancery, "first")? > before).then_some(()))
        })
    })
}

/// The calls of a client.
#[derive(Debug, Default)]
struct Calls {
    n_answered: u64,
}

impl Calls {
    /// Waits until all calls up to now are reported. No more calls may be reported than were made.
    fn expect_agreement(&mut self, chancery: &Chancery, client: &mut GrpcClient) -> Result<()> {
        let before = self.n_answered;
        wait_for("50 more calls", STEP, || {
            self.take(client)?;
            Ok((self.n_answered >= before + 50).then_some(()))
        })?;
        let made = self.n_answered;
        wait_for(&format!("reports of {made} calls"), STEP, || {
            let found = succeeded(chancery, "first")?;
            self.take(client)?;
            // One call may be reported before its client has counted it.
            if found > self.n_answered + 1 {
                bail!("{found} calls are reported, {} were made", self.n_answered);
            }
            if found >= made { Ok(Some(())) } else { bail!("{found} calls are reported") }
        })
    }

    fn take(&mut self, client: &mut GrpcClient) -> Result<()> {
        let answers = client.take()?.answers;
        self.n_answered += answers.iter().map(|(_, n)| n).sum::<u64>();
        Ok(())
    }
}
