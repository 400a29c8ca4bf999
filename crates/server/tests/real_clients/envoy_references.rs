//! References that move between resources in use. After `{p1 → x, p2 → y}` becomes `{p1 → y, p3 →
//! x}`, all of them work, for each kind of parent and child.

use std::{
    path::Path,
    time::{Duration, Instant},
};

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
        cluster, connection_manager, endpoints, listener, listener_of, route, scope,
        scoped_connection_manager,
    },
    tls::{Identity, cluster_over_tls, listener_over_tls, trust},
    upstream, wait_for,
};

const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const HEADER_MUTATION: &str =
    "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";

/// The maximum duration of a move. Envoy waits at least 14 s for a missing child.
const PROMPT: Duration = Duration::from_secs(12);

/// ADS-12, ADS-18: scopes and routes over SotW.
#[test]
fn sotw_scopes_swap_routes_without_loss() -> Result<()> {
    scopes(Mode::SotwAds)
}

/// ADS-18: scopes and routes over delta.
#[test]
fn delta_scopes_swap_routes_without_loss() -> Result<()> {
    scopes(Mode::DeltaAds)
}

/// ADS-18: listeners and routes over SotW.
#[test]
fn sotw_listeners_swap_routes_without_loss() -> Result<()> {
    listeners(Mode::SotwAds)
}

/// ADS-18: listeners and routes over delta.
#[test]
fn delta_listeners_swap_routes_without_loss() -> Result<()> {
    listeners(Mode::DeltaAds)
}

/// ADS-11: clusters and endpoints over SotW.
#[test]
fn sotw_clusters_swap_endpoints_without_loss() -> Result<()> {
    clusters(Mode::SotwAds)
}

/// ADS-11: clusters and endpoints over delta.
#[test]
fn delta_clusters_swap_endpoints_without_loss() -> Result<()> {
    clusters(Mode::DeltaAds)
}

/// ADS-19: listeners and extensions over SotW.
#[test]
fn sotw_listeners_swap_extensions_without_loss() -> Result<()> {
    extensions(Mode::SotwAds)
}

/// ADS-19: listeners and extensions over delta.
#[test]
fn delta_listeners_swap_extensions_without_loss() -> Result<()> {
    extensions(Mode::DeltaAds)
}

/// ADS-19: clusters and their client certificates over SotW.
#[test]
fn sotw_clusters_swap_secrets_without_loss() -> Result<()> {
    client_certificates(Mode::SotwAds)
}

/// ADS-19: clusters and their client certificates over delta.
#[test]
fn delta_clusters_swap_secrets_without_loss() -> Result<()> {
    client_certificates(Mode::DeltaAds)
}

/// ADS-19: listeners and their certificates over SotW.
#[test]
fn sotw_listeners_swap_secrets_without_loss() -> Result<()> {
    server_certificates(Mode::SotwAds)
}

/// ADS-19: listeners and their certificates over delta.
#[test]
fn delta_listeners_swap_secrets_without_loss() -> Result<()> {
    server_certificates(Mode::DeltaAds)
}

/// ADS-18: scopes and routes. Each subscription has its own stream.
#[test]
fn sotw_scopes_swap_routes_without_loss_on_own_streams() -> Result<()> {
    scopes(Mode::SotwPerType)
}

/// ADS-18: scopes and routes. Each subscription has its own stream.
#[test]
fn delta_scopes_swap_routes_without_loss_on_own_streams() -> Result<()> {
    scopes(Mode::DeltaPerType)
}

/// ADS-19: listeners and extensions. Each subscription has its own stream.
#[test]
fn sotw_listeners_swap_extensions_without_loss_on_own_streams() -> Result<()> {
    extensions(Mode::SotwPerType)
}

/// ADS-19: listeners and extensions. Each subscription has its own stream.
#[test]
fn delta_listeners_swap_extensions_without_loss_on_own_streams() -> Result<()> {
    extensions(Mode::DeltaPerType)
}

/// ADS-19: clusters and their client certificates. Each subscription has its own stream.
#[test]
fn sotw_clusters_swap_secrets_without_loss_on_own_streams() -> Result<()> {
    client_certificates(Mode::SotwPerType)
}

/// ADS-19: clusters and their client certificates. Each subscription has its own stream.
#[test]
fn delta_clusters_swap_secrets_without_loss_on_own_streams() -> Result<()> {
    client_certificates(Mode::DeltaPerType)
}

/// ADS-19: listeners and their certificates. Each subscription has its own stream.
#[test]
fn sotw_listeners_swap_secrets_without_loss_on_own_streams() -> Result<()> {
    server_certificates(Mode::SotwPerType)
}

/// ADS-19: listeners and their certificates. Each subscription has its own stream.
#[test]
fn delta_listeners_swap_secrets_without_loss_on_own_streams() -> Result<()> {
    server_certificates(Mode::DeltaPerType)
}

/// ADS-18: listeners and routes. Each subscription has its own stream.
#[test]
fn sotw_listeners_swap_routes_without_loss_on_own_streams() -> Result<()> {
    listeners(Mode::SotwPerType)
}

/// ADS-18: listeners and routes. Each subscription has its own stream.
#[test]
fn delta_listeners_swap_routes_without_loss_on_own_streams() -> Result<()> {
    listeners(Mode::DeltaPerType)
}

/// ADS-11: clusters and endpoints. Each subscription has its own stream.
#[test]
fn sotw_clusters_swap_endpoints_without_loss_on_own_streams() -> Result<()> {
    clusters(Mode::SotwPerType)
}

/// ADS-11: clusters and endpoints. Each subscription has its own stream.
#[test]
fn delta_clusters_swap_endpoints_without_loss_on_own_streams() -> Result<()> {
    clusters(Mode::DeltaPerType)
}

/// A parent: the port of its listener, and the header that selects it.
type Parent = (u16, Option<(&'static str, &'static str)>);

/// Returns a request to a parent.
fn request(header: Option<(&str, &str)>) -> Request {
    header.map_or_else(|| Request::new("/"), |(name, value)| Request::with_header(name, value))
}

/// Publishes the resources, and waits until requests to each parent are answered with the given
/// child. Fails if Envoy waited for a timeout.
fn move_and_expect(
    chancery: &Chancery,
    resources: &[Value],
    expected: [(Parent, &str); 2],
) -> Result<()> {
    chancery.publish(resources)?;
    let begun = Instant::now();
    expect(expected)?;
    if begun.elapsed() > PROMPT {
        bail!("the move took {:?}: Envoy waited for a timeout", begun.elapsed());
    }
    Ok(())
}

/// Waits until requests to each parent are answered with the given child.
fn expect(expected: [(Parent, &str); 2]) -> Result<()> {
    for ((port, header), child) in expected {
        wait_for(&format!("{child} on {port} with {header:?}"), STEP, || {
            let answer = http::ask(port, &request(header)).ok();
            let is_there = answer.is_some_and(|it| it.status == 200 && it.body == child);
            Ok(is_there.then_some(()))
        })?;
    }
    Ok(())
}

/// Starts the server and Envoy, and runs [`exchange`].
fn exchange_from_start(
    dir: &Path,
    mode: Mode,
    [before, after]: [&[Value]; 2],
    parents: [Parent; 3],
    children: [&str; 2],
) -> Result<()> {
    let chancery = Chancery::start(dir)?;
    chancery.publish(before)?;
    let envoy = Envoy::start(dir, mode, "envoy-exchange", chancery.at.xds)?;
    exchange(&chancery, envoy, [before, after], parents, children)
}

/// Changes `{p1 → x, p2 → y}` to `{p1 → y, p3 → x}` and back, with load on `p1`.
pub(crate) fn exchange(
    chancery: &Chancery,
    mut envoy: Envoy,
    [before, after]: [&[Value]; 2],
    [p1, p2, p3]: [Parent; 3],
    [x, y]: [&str; 2],
) -> Result<()> {
    // Envoy is starting.
    chancery.publish(before)?;
    expect([(p1, x), (p2, y)])?;
    let (port, header) = p1;
    let load = Load::start_with(port, request(header));
    load.wait_for_only(x)?;
    move_and_expect(chancery, after, [(p1, y), (p3, x)])?;
    load.wait_for_only(y)?;
    move_and_expect(chancery, before, [(p1, x), (p2, y)])?;
    load.wait_for_only(x)?;
    load.wait_for_more(100)?;
    envoy.expect_running()?;
    load.finish_without_failure(100)?;
    Ok(())
}

/// Returns two clusters whose upstreams give different answers.
fn two_clusters(mode: Mode) -> Result<[Value; 4]> {
    Ok([
        cluster(mode, "one", "1s"),
        endpoints("one", upstream::spawn("a")?),
        cluster(mode, "two", "1s"),
        endpoints("two", upstream::spawn("b")?),
    ])
}

fn scopes(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let base = [
            two_clusters(mode)?.as_slice(),
            &[
                listener_of("main", port, &scoped_connection_manager(mode, "main")),
                route("ra", "one"),
                route("rb", "two"),
            ],
        ]
        .concat();
        let with = |scopes: &[Value]| [base.as_slice(), scopes].concat();
        let before = with(&[scope("s1", "ra"), scope("s2", "rb")]);
        let after = with(&[scope("s1", "rb"), scope("s3", "ra")]);
        let parents = ["s1", "s2", "s3"].map(|name| (port, Some(("x-scope", name))));
        exchange_from_start(dir, mode, [&before, &after], parents, ["a", "b"])
    })
}

fn listeners(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let ports = [reserve_port(), reserve_port(), reserve_port()];
        let [p1, p2, p3] = ports;
        let base =
            [two_clusters(mode)?.as_slice(), &[route("ra", "one"), route("rb", "two")]].concat();
        let with = |listeners: &[Value]| [base.as_slice(), listeners].concat();
        let before =
            with(&[listener(mode, "l1", p1, "ra", "l1"), listener(mode, "l2", p2, "rb", "l2")]);
        // A different config source gives the new listener its own subscription to the route
        // (ADS-18).
        let mut manager = connection_manager(mode, "ra", "l3");
        manager["rds"]["config_source"]["initial_fetch_timeout"] = json!("14s");
        let after = with(&[listener(mode, "l1", p1, "rb", "l1"), listener_of("l3", p3, &manager)]);
        exchange_from_start(
            dir,
            mode,
            [&before, &after],
            ports.map(|port| (port, None)),
            ["a", "b"],
        )
    })
}

fn clusters(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let ports = [reserve_port(), reserve_port(), reserve_port()];
        let of = |name: &str, service: &str| {
            let mut cluster = cluster(mode, name, "1s");
            cluster["eds_cluster_config"]["service_name"] = json!(service);
            cluster
        };
        let mut base =
            vec![endpoints("x", upstream::spawn("a")?), endpoints("y", upstream::spawn("b")?)];
        for (n, port) in ports.into_iter().enumerate() {
            let (route_name, cluster_name) = (format!("r{}", n + 1), format!("c{}", n + 1));
            base.push(route(&route_name, &cluster_name));
            base.push(listener(mode, &format!("l{}", n + 1), port, &route_name, &route_name));
        }
        let with = |clusters: &[Value]| [base.as_slice(), clusters].concat();
        let before = with(&[of("c1", "x"), of("c2", "y")]);
        let after = with(&[of("c1", "y"), of("c3", "x")]);
        exchange_from_start(
            dir,
            mode,
            [&before, &after],
            ports.map(|port| (port, None)),
            ["a", "b"],
        )
    })
}

fn extensions(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let echo = upstream::spawn_echo("x-stamp")?;
        let ports = [reserve_port(), reserve_port(), reserve_port()];
        let [p1, p2, p3] = ports;
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
        exchange_from_start(
            dir,
            mode,
            [&before, &after],
            ports.map(|port| (port, None)),
            ["x", "y"],
        )
    })
}

/// Returns a TLS context with a certificate from SDS. A different `fetch_timeout` creates a
/// separate subscription to the same secret (ADS-18), so that Envoy requests the secret again.
fn tls_context_with_secret(mode: Mode, secret: &str, fetch_timeout: &str) -> Value {
    let mut source = mode.config_source();
    source["initial_fetch_timeout"] = json!(fetch_timeout);
    json!({"tls_certificate_sds_secret_configs": [{"name": secret, "sds_config": source}]})
}

/// Returns a route to the service that adds a property of the listener's TLS connection to the
/// request. The service returns it.
fn route_with_tls_property(what: &str) -> Value {
    let mut route = route("service", "service");
    route["request_headers_to_add"] = json!([{
        "header": {"key": "x-subject", "value": what},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }]);
    route
}

/// Returns listeners `l1` to `l3`, each with a route to its own cluster, `c1` to `c3`. The
/// clusters' endpoints are the ports `to`.
fn routed_listeners(mode: Mode, ports: [u16; 3], to: [u16; 3]) -> Vec<Value> {
    let mut routed_listeners = Vec::new();
    for (n, (port, to)) in ports.into_iter().zip(to).enumerate() {
        let (listener_name, cluster_name) = (format!("l{}", n + 1), format!("c{}", n + 1));
        routed_listeners.push(listener(mode, &listener_name, port, &cluster_name, &listener_name));
        routed_listeners.push(route(&cluster_name, &cluster_name));
        routed_listeners.push(endpoints(&cluster_name, to));
    }
    routed_listeners
}

/// Requests go through a listener and its cluster, over TLS to another listener of the same Envoy.
/// The answer is the subject of the client's certificate.
fn client_certificates(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let service = upstream::spawn_echo("x-subject")?;
        let ports = [reserve_port(), reserve_port(), reserve_port()];
        let tls = reserve_port();
        let (x, y) = (Identity::make(dir, "x")?, Identity::make(dir, "y")?);
        let context = json!({
            "tls_certificates": [Identity::make(dir, "server")?.tls_certificate()?],
            "validation_context": trust(&[&x, &y])?,
        });
        let mut base = vec![
            cluster(mode, "service", "1s"),
            endpoints("service", service),
            route_with_tls_property("%DOWNSTREAM_PEER_SUBJECT%"),
            listener_over_tls(listener(mode, "tls", tls, "service", "tls"), &context),
            x.shown("x")?,
            y.shown("y")?,
        ];
        base.extend(routed_listeners(mode, ports, [tls; 3]));
        let of = |name: &str, secret: &str, fetch_timeout: &str| {
            cluster_over_tls(
                cluster(mode, name, "1s"),
                &tls_context_with_secret(mode, secret, fetch_timeout),
            )
        };
        let with = |clusters: &[Value]| [base.as_slice(), clusters].concat();
        let before = with(&[of("c1", "x", "15s"), of("c2", "y", "15s")]);
        let after = with(&[of("c1", "y", "15s"), of("c3", "x", "14s")]);
        exchange_from_start(
            dir,
            mode,
            [&before, &after],
            ports.map(|port| (port, None)),
            ["CN=x", "CN=y"],
        )
    })
}

/// Requests go through a listener and its cluster, over TLS to another listener of the same Envoy.
/// The answer is the subject of that listener's certificate.
fn server_certificates(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let service = upstream::spawn_echo("x-subject")?;
        let ports = [reserve_port(), reserve_port(), reserve_port()];
        let behind = [reserve_port(), reserve_port(), reserve_port()];
        let [t1, t2, t3] = behind;
        let (x, y) = (Identity::make(dir, "x")?, Identity::make(dir, "y")?);
        let mut base = vec![
            cluster(mode, "service", "1s"),
            endpoints("service", service),
            route_with_tls_property("%DOWNSTREAM_LOCAL_SUBJECT%"),
            x.shown("x")?,
            y.shown("y")?,
        ];
        let context = json!({"validation_context": trust(&[&x, &y])?});
        for name in ["c1", "c2", "c3"] {
            base.push(cluster_over_tls(cluster(mode, name, "1s"), &context));
        }
        base.extend(routed_listeners(mode, ports, behind));
        let of = |name: &str, port: u16, secret: &str, fetch_timeout: &str| {
            let context = tls_context_with_secret(mode, secret, fetch_timeout);
            listener_over_tls(listener(mode, name, port, "service", name), &context)
        };
        let with = |listeners: &[Value]| [base.as_slice(), listeners].concat();
        let before = with(&[of("t1", t1, "x", "15s"), of("t2", t2, "y", "15s")]);
        let after = with(&[of("t1", t1, "y", "15s"), of("t3", t3, "x", "14s")]);
        exchange_from_start(
            dir,
            mode,
            [&before, &after],
            ports.map(|port| (port, None)),
            ["CN=x", "CN=y"],
        )
    })
}
