//! A frozen scope on three replicas under write load: Envoys and gRPC clients keep what they have, whichever replica is
//! killed, wherever they reconnect, and whoever leads.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, Result, ensure};
use chancery_testing::{Lack, reserve_port, skip};
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    grpc::{GrpcClient, GrpcServer, Kind},
    http, in_directory,
    load::Load,
    manifests::{cluster, proxied, service},
    switch::Switch,
    upstream, wait_for,
};

const SERVICE: &str = "greeter.frozen";
/// The writes while one replica is down.
const WRITES: usize = 20;

/// An Envoy with a scope of its own, and the load through it.
struct Proxy {
    scope: String,
    mode: Mode,
    port: u16,
    switch: Switch,
    envoy: Envoy,
    load: Load,
}

/// A gRPC client of the scope `grpc`.
struct Caller {
    switch: Switch,
    client: GrpcClient,
}

struct Fleet {
    replicas: [Chancery; 3],
    proxies: Vec<Proxy>,
    callers: Vec<Caller>,
    upstreams: [u16; 2],
    servers: [GrpcServer; 2],
    n_writes: usize,
}

/// SOTW-14, DELTA-22: frozen clients of all kinds receive nothing through kills of each replica under write load.
#[test]
fn frozen_fleet_keeps_its_content_through_the_loss_of_each_replica() -> Result<()> {
    in_directory(|dir| {
        let mut fleet = Fleet::start(dir)?;
        fleet.replicas[1].cli(&["freeze", "--all", "--reason", "incident"], "")?;
        let (counts, pushed) = (fleet.counts()?, fleet.pushed()?);
        let n_committed = fleet.write_new_contents(WRITES)?;
        ensure!(n_committed == WRITES, "only {n_committed} writes were committed");
        let pushed_again = fleet.pushed()?;
        ensure!(pushed_again == pushed, "{pushed:?} bytes were sent, then {pushed_again:?}");
        let mut leaders = BTreeSet::new();
        for lost in 0..3 {
            leaders.insert(fleet.leader()?);
            fleet.lose(lost)?;
        }
        leaders.insert(fleet.leader()?);
        ensure!(leaders.len() > 1, "replica {leaders:?} led all the time");
        let again = fleet.counts()?;
        ensure!(again == counts, "an Envoy changed something: {counts:?}, afterwards {again:?}");

        fleet.replicas[2].cli(&["thaw", "--all"], "")?;
        fleet.expect_only("b")?;
        for proxy in fleet.proxies {
            let Proxy { mut envoy, load, .. } = proxy;
            envoy.expect_running()?;
            load.finish_without_failure(200)?;
        }
        Ok(())
    })
}

impl Fleet {
    fn start(dir: &Path) -> Result<Self> {
        let replicas = Chancery::start_three(dir, &[])?;
        let servers = [GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?];
        let upstreams = [upstream::spawn("a")?, upstream::spawn("b")?];
        let rules = json!({"assignments": [
            {"name": "proxies", "priority": 10, "match": {"id": "edge-*"}, "scopes": ["{node.id}"]},
            {"name": "callers", "priority": 5, "match": {"id": "grpc-*"}, "scopes": ["grpc"]},
        ]});
        replicas[0].cli(&["apply", "-f", "-"], &rules.to_string())?;
        apply(&replicas[0], "grpc", &service(SERVICE, "calls", servers[0].port))?;
        let mut proxies = Vec::new();
        for (n, mode) in [Mode::SotwAds, Mode::DeltaAds, Mode::SotwAds].into_iter().enumerate() {
            let (scope, port) = (format!("edge-{n}"), reserve_port());
            apply(&replicas[2], &scope, &proxied(mode, port, "one", upstreams[0]))?;
            let switch = Switch::start(replicas[n].at.xds)?;
            let envoy = Envoy::start(dir, mode, &scope, switch.port)?;
            http::wait_for_answer(port)?;
            proxies.push(Proxy { scope, mode, port, switch, envoy, load: Load::start(port) });
        }
        let mut callers = Vec::new();
        for (n, kind) in [Kind::Python, Kind::Node, Kind::Go].into_iter().enumerate() {
            if let Some(reason) = kind.absence()? {
                skip(Lack::Go, &format!("the fleet has no grpc-go: {reason}"));
                continue;
            }
            let switch = Switch::start(replicas[n].at.xds)?;
            let id = format!("grpc-{n}");
            let client = GrpcClient::start(dir, kind, &id, switch.port, SERVICE)?;
            callers.push(Caller { switch, client });
        }
        let mut fleet = Self { replicas, proxies, callers, upstreams, servers, n_writes: 0 };
        fleet.expect_only("a")?;
        wait_for("all nodes to be synced", STEP, || {
            let shown = fleet.replicas[0].ask(&["nodes", "--state", "synced"], "")?.json;
            let n = fleet.proxies.len() + fleet.callers.len();
            Ok((shown["nodes"].as_array().map(Vec::len) == Some(n)).then_some(()))
        })?;
        Ok(fleet)
    }

    /// Writes new content `n` times, through all replicas in turn. Returns the number of writes that were committed.
    fn write_new_contents(&mut self, n: usize) -> Result<usize> {
        let mut n_committed = 0;
        for _ in 0..n {
            n_committed += usize::from(self.write_new_content()?);
        }
        Ok(n_committed)
    }

    /// Writes content that leads all traffic elsewhere, through one replica. Returns whether it was committed.
    fn write_new_content(&mut self) -> Result<bool> {
        self.n_writes += 1;
        let (n, [_, upstream]) = (self.n_writes, self.upstreams);
        let replica = &self.replicas[n % 3];
        let scopes = self.proxies.iter().map(|proxy| {
            let more = cluster(proxy.mode, "more", &format!("{n}s"));
            let changed = proxied(proxy.mode, proxy.port, "one", upstream);
            let resources = [&changed[..], &[more]].concat();
            json!({"scope": proxy.scope, "resources": resources})
        });
        let calls = service(SERVICE, "calls", self.servers[1].port);
        let calls = json!({"scope": "grpc", "resources": calls});
        let manifest: Vec<Value> = scopes.chain([calls]).collect();
        let documents: Vec<String> = manifest.iter().map(Value::to_string).collect();
        let done = replica.ask(&["apply", "-f", "-"], &documents.join("\n---\n"))?;
        // The contacted replica may be the one that is down, or there may be no leader.
        let code = done.status.code();
        ensure!(matches!(code, Some(0 | 1 | 3 | 4 | 5)), "{done:?}");
        Ok(code == Some(0))
    }

    /// Kills a replica under write load and moves its clients to the next one. All replicas answer afterwards.
    fn lose(&mut self, lost: usize) -> Result<()> {
        self.replicas[lost].kill()?;
        let next = self.replicas[(lost + 1) % 3].at.xds;
        let proxies = self.proxies.iter().map(|proxy| &proxy.switch);
        for switch in proxies.chain(self.callers.iter().map(|caller| &caller.switch)) {
            // Those of other replicas move, too.
            switch.cut();
            switch.connect(next);
        }
        // Those through the lost replica fail, and others may while there is no leader.
        let n_committed = self.write_new_contents(WRITES)?;
        ensure!(
            n_committed >= WRITES / 3,
            "only {n_committed} writes without replica {}",
            lost + 1
        );
        self.expect_still("a").with_context(|| format!("replica {} is down", lost + 1))?;
        self.replicas[lost].start_again()?;
        self.replicas[lost].wait_for_voters(3)?;
        let n_committed = self.write_new_contents(3)?;
        ensure!(n_committed > 0, "no write was committed with replica {}", lost + 1);
        self.expect_still("a").with_context(|| format!("replica {} is back", lost + 1))
    }

    /// Checks that all requests so far, and all calls since the last check, had this answer. New ones have it, too.
    fn expect_still(&mut self, answer: &str) -> Result<()> {
        for proxy in &self.proxies {
            let answers = proxy.load.tally().answers;
            ensure!(answers.keys().eq([answer]), "{}: {answers:?}", proxy.scope);
        }
        for Caller { client, .. } in &mut self.callers {
            let tally = client.take()?;
            let is_other = tally.answers.iter().any(|(name, _)| name != answer);
            ensure!(!is_other && tally.failed.is_empty(), "{tally:?}");
        }
        self.expect_only(answer)
    }

    /// Waits until all calls and requests have this answer.
    fn expect_only(&mut self, answer: &str) -> Result<()> {
        for proxy in &self.proxies {
            proxy.load.wait_for_only(answer)?;
        }
        for caller in &mut self.callers {
            caller.client.wait_for_only(answer)?;
        }
        Ok(())
    }

    /// Returns how often each Envoy changed its configuration.
    fn counts(&self) -> Result<Vec<Vec<(&'static str, u64)>>> {
        self.proxies.iter().map(|proxy| proxy.envoy.change_counts()).collect()
    }

    /// Returns the bytes that each replica has sent to clients.
    fn pushed(&self) -> Result<Vec<f64>> {
        let of = |replica: &Chancery| replica.metric("chancery_xds_pushed_bytes_total", "");
        self.replicas.iter().map(of).collect()
    }

    /// Returns the ID of the leader.
    fn leader(&self) -> Result<u64> {
        wait_for("a leader", STEP, || {
            let status = self.replicas[0].ask(&["cluster", "status"], "")?.json;
            Ok(status["leader"].as_u64().filter(|id| *id > 0))
        })
    }
}

/// Publishes resources before there are clients.
fn apply(replica: &Chancery, scope: &str, resources: &[Value]) -> Result<()> {
    let manifest = json!({"scope": scope, "resources": resources}).to_string();
    replica.cli(&["apply", "-f", "-"], &manifest).map(drop)
}
