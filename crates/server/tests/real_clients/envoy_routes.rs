//! Routes by scope (SRDS) and by virtual host (VHDS).

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http::{self, Request},
    in_directory,
    load::Load,
    manifests::{
        CLUSTER, ENDPOINT, LISTENER, ROUTE, SCOPED_ROUTE, add_on_demand_filter, cluster,
        connection_manager, endpoints, listener_of, route, scope, scoped_connection_manager,
    },
    upstream, wait_for,
};

const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
/// The time that Envoy waits for a missing resource.
const FETCH: &str = "60s";
/// The maximum duration of a step. No step may need that timeout.
const PROMPT: Duration = Duration::from_secs(30);

/// SOTW-73, CLI-E-01, ADS-03: scopes are sent in full over SotW. A changed, added or removed scope
/// does not affect the others.
#[test]
fn sotw_scoped_routes_are_added_changed_and_removed() -> Result<()> {
    scoped_routes(Mode::SotwAds)
}

/// DELTA-42, DELTA-52, CLI-E-20, ADS-03: the same over delta.
#[test]
fn delta_scoped_routes_are_added_changed_and_removed() -> Result<()> {
    scoped_routes(Mode::DeltaAds)
}

/// CLI-E-20: scopes, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn sotw_scoped_routes_are_added_changed_and_removed_on_own_streams() -> Result<()> {
    scoped_routes(Mode::SotwPerType)
}

/// CLI-E-20: scopes, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn delta_scoped_routes_are_added_changed_and_removed_on_own_streams() -> Result<()> {
    scoped_routes(Mode::DeltaPerType)
}

fn scoped_routes(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-scoped";
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let manager = scoped_connection_manager(mode, "main");
        let with = |scopes: &[Value]| {
            let base = [
                cluster(mode, "one", "1s"),
                endpoints("one", a),
                cluster(mode, "two", "1s"),
                endpoints("two", b),
                listener_of("main", port, &manager),
                route("to-a", "one"),
                route("to-b", "two"),
            ];
            [base.as_slice(), scopes].concat()
        };
        let ask = |name: &str| http::ask(port, &Request::with_header("x-scope", name));
        let wait_for_status = |name: &str, status: u16| {
            wait_for(&format!("{status} in the scope {name}"), STEP, || {
                Ok((ask(name)?.status == status).then_some(()))
            })
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with(&[scope("s1", "to-a"), scope("s2", "to-b")]))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        wait_for_status("s1", 200)?;
        let types = [LISTENER, ROUTE, CLUSTER, ENDPOINT, SCOPED_ROUTE];
        chancery.wait_for_node(NODE, "synced", &types)?;
        let (one, two) = ["s1", "s2"]
            .map(|name| Load::start_with(port, Request::with_header("x-scope", name)))
            .into();
        one.wait_for_only("a")?;
        two.wait_for_only("b")?;

        chancery.publish(&with(&[scope("s1", "to-b"), scope("s2", "to-b")]))?;
        one.wait_for_only("b")?;
        wait_for_status("s3", 404)?;
        chancery.publish(&with(&[
            scope("s1", "to-b"),
            scope("s2", "to-b"),
            scope("s3", "to-a"),
        ]))?;
        wait_for_status("s3", 200)?;
        chancery.publish(&with(&[scope("s1", "to-a"), scope("s2", "to-b")]))?;
        wait_for_status("s3", 404)?;
        one.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        // Envoy rejects two scopes with one key, and keeps the old ones.
        let mut bad = scope("s4", "to-b");
        bad["key"] = scope("s1", "to-b")["key"].take();
        let good = [scope("s1", "to-a"), scope("s2", "to-b")];
        chancery.publish_rejected(
            NODE,
            SCOPED_ROUTE,
            &with(&[good.as_slice(), &[bad]].concat()),
        )?;
        one.wait_for_only("a")?;
        chancery.publish(&with(&[good.as_slice(), &[scope("s4", "to-a")]].concat()))?;
        wait_for_status("s4", 200)?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        envoy.expect_running()?;
        one.finish_without_failure(300)?;
        two.finish_without_failure(300)?;
        Ok(())
    })
}

/// Returns a virtual host of the route configuration `main`. Envoy requests it by its aliases.
pub(crate) fn virtual_host(name: &str, cluster: &str) -> Value {
    let domain = format!("{name}.test");
    json!({
        "name": format!("main/{name}"),
        "aliases": [format!("main/{domain}")],
        "resource": {
            "@type": VIRTUAL_HOST,
            "name": format!("main/{name}"),
            "domains": [domain],
            "routes": [{"match": {"prefix": ""}, "route": {"cluster": cluster}}],
        },
    })
}

/// DELTA-60 to -66, CLI-E-40: Envoy requests the hosts of a route configuration when traffic needs them. The
/// server answers at once if a host does not exist, and sends it after its creation. Changes and removals
/// arrive.
#[test]
fn virtual_hosts_are_delivered_on_demand() -> Result<()> {
    virtual_hosts(Mode::DeltaAds)
}

/// DELTA-60, CLI-E-40: virtual hosts, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn virtual_hosts_are_delivered_on_demand_on_own_streams() -> Result<()> {
    virtual_hosts(Mode::DeltaPerType)
}

#[expect(clippy::too_many_lines, reason = "the life of one Envoy, step by step")]
fn virtual_hosts(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-vhds";
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut manager = connection_manager(mode, "main", "main");
        manager["rds"]["config_source"]["initial_fetch_timeout"] = FETCH.into();
        add_on_demand_filter(&mut manager, json!({}));
        let mut vhds = json!({"config_source": mode.config_source()});
        vhds["config_source"]["initial_fetch_timeout"] = FETCH.into();
        let with = |vhds: &Value, hosts: &[Value]| {
            let base = [
                cluster(mode, "one", "1s"),
                endpoints("one", a),
                cluster(mode, "two", "1s"),
                endpoints("two", b),
                listener_of("main", port, &manager),
                json!({"@type": ROUTE, "name": "main", "vhds": vhds}),
            ];
            [base.as_slice(), hosts].concat()
        };
        let ask = |host: &str| http::ask(port, &Request::to_host(host));
        let wait_for_status = |host: &str, status: u16| {
            wait_for(&format!("{status} from {host}"), STEP, || {
                let answer = ask(host)?;
                if answer.status == status {
                    return Ok(Some(()));
                }
                bail!("it answers {answer:?}")
            })
        };
        let mut chancery = Chancery::start(dir)?;
        let start = Instant::now();
        chancery.publish(&with(&vhds, &[virtual_host("a", "one"), virtual_host("b", "two")]))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        wait_for_status("a.test", 200)?;
        let types = [LISTENER, ROUTE, CLUSTER, ENDPOINT, VIRTUAL_HOST];
        chancery.wait_for_node(NODE, "synced", &types)?;
        let (one, two) =
            ["a.test", "b.test"].map(|host| Load::start_with(port, Request::to_host(host))).into();
        one.wait_for_only("a")?;
        two.wait_for_only("b")?;
        if start.elapsed() > PROMPT {
            bail!("the start took {:?}", start.elapsed());
        }

        // The host does not exist. Envoy holds the request until it knows that, and no longer.
        let start = Instant::now();
        let answer = ask("c.test")?;
        if answer.status != 404 || start.elapsed() > PROMPT {
            bail!("a host that does not exist: {answer:?} after {:?}", start.elapsed());
        }
        let (host_a, host_b, host_c) =
            (virtual_host("a", "two"), virtual_host("b", "two"), virtual_host("c", "one"));
        chancery.publish(&with(&vhds, &[host_a.clone(), host_b.clone(), host_c.clone()]))?;
        one.wait_for_only("b")?;
        wait_for_status("c.test", 200)?;

        // Envoy rejects an invalid expression, and keeps the old host.
        let mut bad = virtual_host("a", "one");
        bad["resource"]["routes"][0]["match"] = json!({"safe_regex": {"regex": "("}});
        for (host, is_valid, answer) in
            [(&bad, false, "b"), (&virtual_host("a", "one"), true, "a"), (&host_a, true, "b")]
        {
            let resources = with(&vhds, &[host.clone(), host_b.clone(), host_c.clone()]);
            if is_valid {
                drop(chancery.publish(&resources)?)
            } else {
                drop(chancery.publish_rejected(NODE, VIRTUAL_HOST, &resources)?)
            }
            one.wait_for_only(answer)?;
        }
        chancery.wait_for_node(NODE, "synced", &types)?;

        // After a restart Envoy requests the same names again.
        chancery.kill()?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        chancery.publish(&with(&vhds, &[host_a, host_b]))?;
        wait_for_status("c.test", 404)?;

        // With another config source, Envoy drops all hosts and requests them again.
        vhds["config_source"]["initial_fetch_timeout"] = "10s".into();
        let hosts = [virtual_host("a", "one"), virtual_host("b", "two"), virtual_host("c", "one")];
        chancery.publish(&with(&vhds, &hosts))?;
        one.wait_for_only("a")?;
        wait_for_status("c.test", 200)?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        envoy.expect_running()?;
        one.finish_without_failure(300)?;
        two.finish_without_failure(300)?;
        Ok(())
    })
}
