//! References that move between resources in use: after `{p1 → x, p2 → y}` becomes `{p1 → y, p3 → x}`, all of them
//! work, for each kind of parent and child.

use std::time::Duration;

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
    manifests::{cluster, connection_manager, endpoints, listener, listener_of, route},
    upstream, wait_for,
};

const SCOPED_ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration";
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const HEADER_MUTATION: &str =
    "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";

/// The maximum duration of a move. Envoy waits 15 s for a child that does not come.
const PROMPT: Duration = Duration::from_secs(9);

/// ADS-12, ADS-18: scopes and routes over SotW.
#[test]
fn sotw_scopes_exchange_their_routes() -> Result<()> {
    scopes(Mode::SotwAds)
}

/// ADS-18: scopes and routes over delta.
#[test]
fn delta_scopes_exchange_their_routes() -> Result<()> {
    scopes(Mode::DeltaAds)
}

/// ADS-18: listeners and routes over SotW.
#[test]
fn sotw_listeners_exchange_their_routes() -> Result<()> {
    listeners(Mode::SotwAds)
}

/// ADS-18: listeners and routes over delta.
#[test]
fn delta_listeners_exchange_their_routes() -> Result<()> {
    listeners(Mode::DeltaAds)
}

/// ADS-11: clusters and endpoints over SotW.
#[test]
fn sotw_clusters_exchange_their_endpoints() -> Result<()> {
    clusters(Mode::SotwAds)
}

/// ADS-11: clusters and endpoints over delta.
#[test]
fn delta_clusters_exchange_their_endpoints() -> Result<()> {
    clusters(Mode::DeltaAds)
}

/// ADS-19: listeners and extensions over SotW.
#[test]
fn sotw_listeners_exchange_their_extensions() -> Result<()> {
    extensions(Mode::SotwAds)
}

/// ADS-19: listeners and extensions over delta.
#[test]
fn delta_listeners_exchange_their_extensions() -> Result<()> {
    extensions(Mode::DeltaAds)
}

/// Publishes the resources and waits until each request is answered by the named service.
fn move_and_expect(
    chancery: &Chancery,
    resources: &[Value],
    expected: &[(u16, Option<&str>, &str)],
) -> Result<()> {
    chancery.publish(resources)?;
    let begun = std::time::Instant::now();
    for (port, scope, service) in expected {
        wait_for(&format!("{service} on {port} in {scope:?}"), STEP, || {
            let answer = match scope {
                Some(scope) => {
                    let answer = http::ask(*port, &Request::with_header("x-scope", scope));
                    answer.ok().filter(|answer| answer.status == 200).map(|answer| answer.body)
                }
                None => http::get(*port, "/").ok(),
            };
            Ok((answer.as_deref() == Some(*service)).then_some(()))
        })?;
    }
    if begun.elapsed() > PROMPT {
        bail!("the move took {:?}: Envoy waited for something", begun.elapsed());
    }
    Ok(())
}

fn scope(name: &str, route: &str) -> Value {
    json!({
        "@type": SCOPED_ROUTE,
        "name": name,
        "route_configuration_name": route,
        "key": {"fragments": [{"string_key": name}]},
    })
}

fn scopes(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut manager = connection_manager(mode, "", "main");
        manager["rds"].take();
        manager["scoped_routes"] = json!({
            "name": "scopes",
            "scope_key_builder": {"fragments": [
                {"header_value_extractor": {"name": "x-scope", "index": 0}},
            ]},
            "rds_config_source": mode.config_source(),
            "scoped_rds": {"scoped_rds_config_source": mode.config_source()},
        });
        let base = [
            cluster(mode, "one", "1s"),
            endpoints("one", a),
            cluster(mode, "two", "1s"),
            endpoints("two", b),
            listener_of("main", port, &manager),
            route("ra", "one"),
            route("rb", "two"),
        ];
        let with = |scopes: &[Value]| [base.as_slice(), scopes].concat();
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with(&[scope("s1", "ra"), scope("s2", "rb")]))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-scopes-move", chancery.at.xds)?;
        let before = with(&[scope("s1", "ra"), scope("s2", "rb")]);
        move_and_expect(&chancery, &before, &[(port, Some("s1"), "a"), (port, Some("s2"), "b")])?;
        let load = Load::start_with(port, Request::with_header("x-scope", "s1"));
        load.wait_for_only("a")?;
        let after = with(&[scope("s1", "rb"), scope("s3", "ra")]);
        move_and_expect(&chancery, &after, &[(port, Some("s1"), "b"), (port, Some("s3"), "a")])?;
        load.wait_for_only("b")?;
        move_and_expect(&chancery, &before, &[(port, Some("s1"), "a"), (port, Some("s2"), "b")])?;
        envoy.expect_running()?;
        load.finish_without_failure(100)?;
        Ok(())
    })
}

fn listeners(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let [p1, p2, p3] = [reserve_port(), reserve_port(), reserve_port()];
        let base = [
            cluster(mode, "one", "1s"),
            endpoints("one", a),
            cluster(mode, "two", "1s"),
            endpoints("two", b),
            route("ra", "one"),
            route("rb", "two"),
        ];
        let with = |listeners: &[Value]| [base.as_slice(), listeners].concat();
        let before =
            with(&[listener(mode, "l1", p1, "ra", "l1"), listener(mode, "l2", p2, "rb", "l2")]);
        // The new listener takes the routes by a block of its own (ADS-18).
        let mut manager = connection_manager(mode, "ra", "l3");
        manager["rds"]["config_source"]["initial_fetch_timeout"] = json!("14s");
        let after = with(&[listener(mode, "l1", p1, "rb", "l1"), listener_of("l3", p3, &manager)]);
        let chancery = Chancery::start(dir)?;
        chancery.publish(&before)?;
        let mut envoy = Envoy::start(dir, mode, "envoy-listeners-move", chancery.at.xds)?;
        move_and_expect(&chancery, &before, &[(p1, None, "a"), (p2, None, "b")])?;
        let load = Load::start(p1);
        load.wait_for_only("a")?;
        move_and_expect(&chancery, &after, &[(p1, None, "b"), (p3, None, "a")])?;
        load.wait_for_only("b")?;
        move_and_expect(&chancery, &before, &[(p1, None, "a"), (p2, None, "b")])?;
        envoy.expect_running()?;
        load.finish_without_failure(100)?;
        Ok(())
    })
}

fn clusters(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let [p1, p2, p3] = [reserve_port(), reserve_port(), reserve_port()];
        let of = |name: &str, service: &str| {
            let mut cluster = cluster(mode, name, "1s");
            cluster["eds_cluster_config"]["service_name"] = json!(service);
            cluster
        };
        let mut base = vec![endpoints("x", a), endpoints("y", b)];
        for (n, port) in [p1, p2, p3].into_iter().enumerate() {
            let (route_name, cluster_name) = (format!("r{}", n + 1), format!("c{}", n + 1));
            base.push(route(&route_name, &cluster_name));
            base.push(listener(mode, &format!("l{}", n + 1), port, &route_name, &route_name));
        }
        let with = |clusters: &[Value]| [base.as_slice(), clusters].concat();
        let before = with(&[of("c1", "x"), of("c2", "y")]);
        let after = with(&[of("c1", "y"), of("c3", "x")]);
        let chancery = Chancery::start(dir)?;
        chancery.publish(&before)?;
        let mut envoy = Envoy::start(dir, mode, "envoy-clusters-move", chancery.at.xds)?;
        move_and_expect(&chancery, &before, &[(p1, None, "a"), (p2, None, "b")])?;
        let load = Load::start(p1);
        load.wait_for_only("a")?;
        move_and_expect(&chancery, &after, &[(p1, None, "b"), (p3, None, "a")])?;
        load.wait_for_only("b")?;
        move_and_expect(&chancery, &before, &[(p1, None, "a"), (p2, None, "b")])?;
        envoy.expect_running()?;
        load.finish_without_failure(100)?;
        Ok(())
    })
}

fn extensions(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let echo = upstream::spawn_echo("x-stamp")?;
        let [p1, p2, p3] = [reserve_port(), reserve_port(), reserve_port()];
        let stamp = |name: &str| {
            json!({"@type": EXTENSION, "name": name, "typed_config": {
                "@type": HEADER_MUTATION,
                "mutations": {"request_mutations": [{"append": {
                    "header": {"key": "x-stamp", "value": name},
                    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                }}]},
            }})
        };
        let of = |name: &str, port: u16, extension: &str| {
            let mut manager = connection_manager(mode, "main", name);
            let router = manager["http_filters"][0].take();
            let discovered = json!({"name": extension, "config_discovery": {
                "config_source": mode.config_source(),
                "type_urls": [HEADER_MUTATION],
            }});
            manager["http_filters"] = json!([discovered, router]);
            listener_of(name, port, &manager)
        };
        let base = [
            cluster(mode, "one", "1s"),
            endpoints("one", echo),
            route("main", "one"),
            stamp("x"),
            stamp("y"),
        ];
        let with = |listeners: &[Value]| [base.as_slice(), listeners].concat();
        let before = with(&[of("l1", p1, "x"), of("l2", p2, "y")]);
        let after = with(&[of("l1", p1, "y"), of("l3", p3, "x")]);
        let chancery = Chancery::start(dir)?;
        chancery.publish(&before)?;
        let mut envoy = Envoy::start(dir, mode, "envoy-extensions-move", chancery.at.xds)?;
        move_and_expect(&chancery, &before, &[(p1, None, "x"), (p2, None, "y")])?;
        let load = Load::start(p1);
        load.wait_for_only("x")?;
        move_and_expect(&chancery, &after, &[(p1, None, "y"), (p3, None, "x")])?;
        load.wait_for_only("y")?;
        move_and_expect(&chancery, &before, &[(p1, None, "x"), (p2, None, "y")])?;
        envoy.expect_running()?;
        load.finish_without_failure(100)?;
        Ok(())
    })
}
