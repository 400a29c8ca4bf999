//! Guards against writes that take down nodes: a rejected write leaves the traffic of Envoy unaffected,
//! and the same write with a confirmation breaks it.

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, cluster, endpoints, listener, proxied, route},
    upstream, wait_for,
};

/// The removal of a cluster waits up to 15 s for its routes.
const BREAKS: Duration = Duration::from_secs(60);
const MODE: Mode = Mode::DeltaAds;
const NODE: &str = "envoy-guards";

/// A replica with the guards that these tests show, and an Envoy that sends requests on `port` to the upstream `blue`.
struct Proxy {
    chancery: Chancery,
    _envoy: Envoy,
    load: Load,
    port: u16,
}

impl Proxy {
    fn start(dir: &Path, port: u16, manifest: &Value) -> Result<Self> {
        let chancery = Chancery::start_with(dir, &[("CHANCERY_GUARDS_OFF", "sotw-size")])?;
        chancery.cli(&["apply", "-f", "-"], &manifest.to_string())?;
        let envoy = Envoy::start(dir, MODE, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("blue")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        Ok(Self { chancery, _envoy: envoy, load, port })
    }

    /// Expects that the guard rejects a write and that the traffic continues. Then confirms the write,
    /// and expects that new connections fail.
    fn expect_guarded(self, guard: &str, effect: &str, manifest: &Value) -> Result<()> {
        let Self { chancery, _envoy, load, port } = self;
        let apply = ["apply", "-f", "-", "--prune"];
        let Err(rejected) = chancery.cli(&apply, &manifest.to_string()) else {
            bail!("the write was not rejected");
        };
        let expected = format!("guard `{guard}` rejects the write: {effect}");
        let rejected = format!("{rejected:#}");
        if !rejected.contains(&expected) || !rejected.contains("nothing was written") {
            bail!("the error is {rejected:?}, and does not contain {expected:?}");
        }
        load.wait_for_more(500)?;
        http::get(port, "/")?;
        load.finish_without_failure(500)?;
        let dry_run = chancery
            .cli(&[&apply[..], &["--dry-run", "--exit-zero"]].concat(), &manifest.to_string())?;
        let guards: Vec<&str> = dry_run["guards"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|finding| finding["guard"].as_str())
            .collect();
        let confirm = guards.join(",");
        if !guards.contains(&guard) {
            bail!("the dry run trips {confirm:?}");
        }
        chancery.cli(&[&apply[..], &["--confirm", &confirm]].concat(), &manifest.to_string())?;
        wait_for("a failure of a new connection", BREAKS, || {
            Ok(http::get(port, "/").is_err().then_some(()))
        })
    }
}

fn scope(resources: &[Value]) -> Value {
    json!({"scope": "default", "resources": resources})
}

/// A node that is moved to an empty scope loses its listeners.
#[test]
fn move_to_an_empty_view_is_rejected_and_would_break_traffic() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let resources = proxied(MODE, port, "blue", upstream::spawn("blue")?);
        let proxy = Proxy::start(dir, port, &scope(&resources))?;
        let moved = json!({"scope": "unused", "assignments": [
            {"name": "all", "priority": 10, "match": {"id": "*"}, "scopes": ["empty"]},
        ]});
        let effect = "1 node: default → empty, 4 → 0 resources";
        proxy.expect_guarded("view-change", effect, &moved)
    })
}

#[test]
fn empty_endpoints_are_rejected_and_would_break_traffic() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let mut resources = proxied(MODE, port, "blue", upstream::spawn("blue")?);
        let proxy = Proxy::start(dir, port, &scope(&resources))?;
        resources[1]["endpoints"] = json!([]);
        let effect = "view default (1 node): 1 → 0 endpoints of \"blue\"";
        proxy.expect_guarded("empty-endpoints", effect, &scope(&resources))
    })
}

#[test]
fn removal_of_a_used_cluster_is_rejected_and_would_break_traffic() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let resources = proxied(MODE, port, "blue", upstream::spawn("blue")?);
        let proxy = Proxy::start(dir, port, &scope(&resources))?;
        let effect =
            "view default (1 node): RouteConfiguration \"main\" still uses the cluster \"blue\"";
        proxy.expect_guarded("cluster-in-use", effect, &scope(&resources[2..]))
    })
}

#[test]
fn deletion_of_most_listeners_is_rejected_and_would_break_traffic() -> Result<()> {
    const LISTENERS: usize = 20;
    in_directory(|dir| {
        let ports: Vec<u16> = (0..LISTENERS).map(|_| reserve_port()).collect();
        let with = |ports: &[u16]| {
            let mut resources = vec![
                cluster(MODE, "blue", "1s"),
                endpoints("blue", upstream::spawn("blue")?),
                route("main", "blue"),
            ];
            for port in ports {
                resources.push(listener(MODE, &format!("l{port}"), *port, "main", "main"));
            }
            anyhow::Ok(resources)
        };
        let all = with(&ports)?;
        let proxy = Proxy::start(dir, ports[0], &scope(&all))?;
        let rest = [&all[..3], &all[10..]].concat();
        let effect =
            "view default (1 node): 20 → 13 resources of type Listener, more than 30 % deleted";
        proxy.expect_guarded("mass-deletion", effect, &scope(&rest))
    })
}
