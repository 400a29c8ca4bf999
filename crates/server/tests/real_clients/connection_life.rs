//! Connections that end by their age, by a drain, or by silence. Clients survive this without a
//! failed request, and receive the resources that are published meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::json;

use crate::{
    grpc_life,
    support::{
        STEP,
        chancery::Chancery,
        envoy::{Envoy, Mode},
        grpc::{GrpcClient, GrpcServer, Kind},
        http, in_directory,
        load::Load,
        manifests::{TYPES, proxied, service},
        tap::Tap,
        upstream, wait_for,
    },
};

/// Connections of this age, plus or minus a tenth, receive GOAWAY, and are closed half a second
/// later.
const SHORT_LIVES: [(&str, &str); 2] =
    [("CHANCERY_XDS_CONNECTION_AGE_MAX", "2s"), ("CHANCERY_XDS_CONNECTION_AGE_GRACE", "500ms")];
/// The number of reconnects of a client.
const RECONNECTS: usize = 5;
/// The number of reconnects of grpc-js in the test of moving services. grpc-js waits longer before each reconnect.
const RECONNECTS_OF_NODE: usize = 3;
/// Several times the duration of the reconnects.
const LIFE: Duration = Duration::from_secs(90);

/// OPS-13, SOTW-14, SOTW-100, CLI-E-10: the connection of an aggregated SotW stream ends at its
/// age, five times. Envoy receives the same versions, and changes nothing.
#[test]
fn sotw_ads_survives_five_connection_ends() -> Result<()> {
    ages(Mode::SotwAds)
}

/// OPS-13, DELTA-58, DELTA-70, CLI-E-21: the connection of an aggregated delta stream ends at its
/// age, five times. Resources that Envoy reports as present are not sent again.
#[test]
fn delta_ads_survives_five_connection_ends() -> Result<()> {
    ages(Mode::DeltaAds)
}

/// OPS-13, DELTA-58, DELTA-70, ADS-24: all delta streams of an Envoy share one connection, which
/// ends at its age, five times.
#[test]
fn delta_per_type_survives_five_connection_ends() -> Result<()> {
    ages(Mode::DeltaPerType)
}

/// Calls `change` with 1, 2, ... until the client has reconnected `reconnects` times and the number of calls is even.
/// Returns the number of calls.
fn change_until_reconnected(
    tap: &Tap,
    reconnects: usize,
    mut change: impl FnMut(usize) -> Result<()>,
) -> Result<usize> {
    let (mut round, start) = (0, Instant::now());
    while tap.seen().n_connections <= reconnects || round % 2 == 1 {
        if start.elapsed() > LIFE {
            bail!("after {LIFE:?} there are {:?}", tap.seen());
        }
        round += 1;
        change(round)?;
    }
    Ok(round)
}

fn ages(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start_with(dir, &SHORT_LIVES)?;
        let tap = Tap::start(chancery.at.xds)?;
        chancery.publish(&proxied(mode, port, "one", a))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-ages", tap.port)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-ages", "synced", &TYPES)?;
        let counts = envoy.change_counts()?;

        let n_changes = change_until_reconnected(&tap, RECONNECTS, |round| {
            let to_b = round % 2 == 1;
            chancery.publish(&proxied(mode, port, "one", if to_b { b } else { a }))?;
            load.wait_for_only(if to_b { "b" } else { "a" })
        })?;
        chancery.wait_for_node("envoy-ages", "synced", &TYPES)?;

        tap.seen().expect_no_goaway_error()?;
        expect_moved_streams(&chancery)?;
        let again = envoy.change_counts()?;
        if again != counts {
            bail!("Envoy changed something: before {counts:?}, afterwards {again:?}");
        }
        if mode.is_delta() {
            // Wildcard subscriptions resume from the versions that the client reports. Named
            // resources are sent once per new stream (DELTA-22), and there is at most one stream
            // per connection.
            let n_streams = tap.seen().n_connections;
            let allowed = [
                ("cluster", 1),
                ("listener", 1),
                ("route", n_streams),
                ("endpoint", n_streams + n_changes),
            ];
            for (alias, n_allowed) in allowed {
                let label = format!("type=\"{alias}\"");
                let n_pushed = chancery.metric("chancery_xds_pushed_resources_total", &label)?;
                if n_pushed > f64::from(u32::try_from(n_allowed)?) {
                    bail!(
                        "{n_pushed} resources of {alias} were sent, but only {n_allowed} were necessary"
                    );
                }
            }
        }
        envoy.expect_running()?;
        load.finish_without_failure(1000)?;
        Ok(())
    })
}

/// Fails unless the server ended streams because of their age, and for no other reason.
fn expect_moved_streams(chancery: &Chancery) -> Result<()> {
    let n_moved = chancery.metric("chancery_xds_stream_ends_total", "reason=\"moved\"")?;
    let n_refused = chancery.metric("chancery_xds_stream_ends_total", "reason=\"refused\"")?;
    if n_moved < f64::from(u32::try_from(RECONNECTS)?) || n_refused > 0.0 {
        bail!("{n_moved} streams were asked to reconnect, {n_refused} were refused");
    }
    Ok(())
}

/// OPS-13, CLI-G-15: C-core reconnects at once each time its connection has ended at its age.
#[test]
fn c_core_survives_five_connection_ends() -> Result<()> {
    grpc_ages(Kind::Python)
}

/// OPS-13, CLI-G-15: grpc-js reconnects each time its connection has ended at its age.
#[test]
fn grpc_js_survives_five_connection_ends() -> Result<()> {
    grpc_ages(Kind::Node)
}

/// OPS-13, CLI-G-15: grpc-go reconnects each time its connection has ended at its age.
#[test]
fn grpc_go_survives_five_connection_ends() -> Result<()> {
    grpc_ages(Kind::Go)
}

fn grpc_ages(kind: Kind) -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    const NODE: &str = "grpc-ages";
    grpc_life::with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let chancery = Chancery::start_with(dir, &SHORT_LIVES)?;
        let tap = Tap::start(chancery.at.xds)?;
        let state = |port| service(SERVICE, "one", port);
        chancery.publish(&state(a.port))?;
        let mut client = GrpcClient::start(dir, kind, NODE, tap.port, SERVICE)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        change_until_reconnected(&tap, RECONNECTS, |round| {
            let to_b = round % 2 == 1;
            chancery.publish(&state(if to_b { b.port } else { a.port }))?;
            client.wait_for_only(if to_b { "b" } else { "a" })
        })?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        tap.seen().expect_no_goaway_error()?;
        expect_moved_streams(&chancery)?;
        client.wait_for_more(100)
    })
}

/// OPS-15, CLI-E-13: SIGTERM ends an aggregated SotW stream with GOAWAY. Envoy continues to serve,
/// reconnects to the restarted server, and applies later changes.
#[test]
fn sotw_ads_survives_drain_and_restart() -> Result<()> {
    drained(Mode::SotwAds)
}

/// OPS-15, CLI-E-13: SIGTERM ends an aggregated delta stream with GOAWAY, and Envoy reconnects.
#[test]
fn delta_ads_survives_drain_and_restart() -> Result<()> {
    drained(Mode::DeltaAds)
}

fn drained(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        let tap = Tap::start(chancery.at.xds)?;
        chancery.publish(&proxied(mode, port, "one", a))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-drained", tap.port)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-drained", "synced", &TYPES)?;
        let counts = envoy.change_counts()?;

        chancery.terminate()?;
        wait_for("a GOAWAY", STEP, || expect_goaway(&tap).map(Some))?;
        load.wait_for_more(100)?;
        chancery.start_again()?;
        chancery.wait_for_node("envoy-drained", "synced", &TYPES)?;
        let again = envoy.change_counts()?;
        if again != counts {
            bail!("Envoy changed something: before {counts:?}, afterwards {again:?}");
        }
        chancery.publish(&proxied(mode, port, "one", b))?;
        load.wait_for_only("b")?;
        envoy.expect_running()?;
        load.finish_without_failure(300)?;
        Ok(())
    })
}

fn expect_goaway(tap: &Tap) -> Result<()> {
    let seen = tap.seen();
    if seen.goaways.is_empty() {
        bail!("no GOAWAY was sent: {seen:?}");
    }
    seen.expect_no_goaway_error()
}

/// OPS-14, CLI-E-43: an Envoy that sends four PINGs per second keeps its connection.
#[test]
fn frequent_pings_of_envoy_are_answered() -> Result<()> {
    const PINGS: usize = 20;
    in_directory(|dir| {
        let mode = Mode::DeltaAds;
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let tap = Tap::start(chancery.at.xds)?;
        chancery.publish(&proxied(mode, port, "one", a))?;
        let mut bootstrap = mode.bootstrap("envoy-pings", tap.port);
        bootstrap["static_resources"]["clusters"][0]["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
            ["explicit_http_config"]["http2_protocol_options"] =
            json!({"connection_keepalive": {"interval": "0.25s", "timeout": "20s"}});
        let mut envoy = Envoy::start_with(dir, "envoy-pings", &bootstrap)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-pings", "synced", &TYPES)?;
        wait_for("PINGs and their answers", LIFE, || {
            let seen = tap.seen();
            Ok((seen.n_client_pings >= PINGS && seen.n_answered_pings >= PINGS).then_some(()))
        })?;
        chancery.publish(&proxied(mode, port, "one", b))?;
        load.wait_for_only("b")?;
        let seen = tap.seen();
        if seen.n_connections != 1 || !seen.goaways.is_empty() {
            bail!("one permanent connection was expected: {seen:?}");
        }
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// OPS-14: an Envoy that no longer answers loses its stream. When it continues, it reconnects and
/// receives what it has missed.
#[test]
fn frozen_envoy_is_disconnected_and_reconnects() -> Result<()> {
    const NODE: &str = "envoy-frozen";
    let settings =
        [("CHANCERY_XDS_KEEPALIVE_INTERVAL", "1s"), ("CHANCERY_XDS_KEEPALIVE_TIMEOUT", "1s")];
    in_directory(|dir| {
        let mode = Mode::DeltaAds;
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start_with(dir, &settings)?;
        chancery.publish(&proxied(mode, port, "one", a))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let load = Load::start(port);
        load.wait_for_more(200)?;
        // A frozen proxy answers no requests.
        load.finish_without_failure(200)?;

        envoy.freeze()?;
        wait_for("the stream to be closed", STEP, || {
            let is_free = chancery.total("chancery_xds_connections")? == 0.0
                && chancery.n_streams(NODE)? == 0;
            Ok(is_free.then_some(()))
        })?;
        chancery.publish(&proxied(mode, port, "one", b))?;
        envoy.thaw()?;
        let load = Load::start(port);
        load.wait_for_only("b")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        envoy.expect_running()?;
        load.finish_without_failure(10)?;
        Ok(())
    })
}

/// ADS-06, ADS-08, DELTA-46, DELTA-58, OPS-13: clusters and routes change continuously, even right
/// after the connection of a delta stream has ended.
#[test]
fn delta_ads_follows_route_moves_across_connection_ends() -> Result<()> {
    storm(Mode::DeltaAds)
}

fn storm(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-moves";
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start_with(dir, &SHORT_LIVES)?;
        let tap = Tap::start(chancery.at.xds)?;
        let state = |round: usize| {
            let name = format!("cluster-{round}");
            proxied(mode, port, &name, if round.is_multiple_of(2) { a } else { b })
        };
        chancery.publish(&state(0))?;
        let mut envoy = Envoy::start(dir, mode, NODE, tap.port)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let n_rounds = change_until_reconnected(&tap, RECONNECTS, |round| {
            chancery.publish(&state(round))?;
            Ok(())
        })?;
        load.wait_for_only("a")?;
        wait_for("only the last cluster to be left", STEP, || {
            Ok((envoy.active_cluster_names()? == [format!("cluster-{n_rounds}")]).then_some(()))
        })?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        tap.seen().expect_no_goaway_error()?;
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// ADS-06, ADS-08, SOTW-100, CLI-E-10: the cluster of Envoy's route is replaced while Envoy has no
/// stream. A SotW client does not report its resources when it reconnects, but the server remembers
/// them.
#[test]
fn sotw_ads_gets_route_move_made_while_disconnected() -> Result<()> {
    missed_moves(Mode::SotwAds)
}

/// ADS-06, ADS-08, DELTA-46: the same in delta, where the client reports its resources.
#[test]
fn delta_ads_gets_route_move_made_while_disconnected() -> Result<()> {
    missed_moves(Mode::DeltaAds)
}

fn missed_moves(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-missed";
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start_with(dir, &SHORT_LIVES)?;
        let state = |round: usize| {
            let name = format!("cluster-{round}");
            proxied(mode, port, &name, if round.is_multiple_of(2) { a } else { b })
        };
        chancery.publish(&state(0))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        for round in 1..=RECONNECTS {
            chancery.wait_for_node(NODE, "synced", &TYPES)?;
            wait_for("the end of the connection", STEP, || {
                Ok((chancery.total("chancery_xds_connections")? == 0.0).then_some(()))
            })?;
            chancery.publish(&state(round))?;
            load.wait_for_only(if round.is_multiple_of(2) { "a" } else { "b" })?;
            wait_for("the removal of the old cluster", STEP, || {
                Ok((envoy.active_cluster_names()? == [format!("cluster-{round}")]).then_some(()))
            })?;
        }
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// ADS-06, ADS-08, CLI-G-08, CLI-G-15: clusters and routes change continuously, even while the
/// connection ends. C-core reconnects with the resources that it had.
#[test]
fn c_core_follows_route_moves_across_connection_ends() -> Result<()> {
    grpc_moves(Kind::Python)
}

/// ADS-06, ADS-08, CLI-G-08, CLI-G-15: the same with grpc-js.
#[test]
fn grpc_js_follows_route_moves_across_connection_ends() -> Result<()> {
    grpc_moves(Kind::Node)
}

/// ADS-06, ADS-08, CLI-G-08, CLI-G-15: the same with grpc-go.
#[test]
fn grpc_go_follows_route_moves_across_connection_ends() -> Result<()> {
    grpc_moves(Kind::Go)
}

fn grpc_moves(kind: Kind) -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    const NODE: &str = "grpc-moves";
    grpc_life::with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let chancery = Chancery::start_with(dir, &SHORT_LIVES)?;
        let tap = Tap::start(chancery.at.xds)?;
        let state = |round: usize| {
            let name = format!("cluster-{round}");
            service(SERVICE, &name, if round.is_multiple_of(2) { a.port } else { b.port })
        };
        chancery.publish(&state(0))?;
        let mut client = GrpcClient::start(dir, kind, NODE, tap.port, SERVICE)?;
        client.wait_for_only("a")?;
        let reconnects = if kind == Kind::Node { RECONNECTS_OF_NODE } else { RECONNECTS };
        let n_rounds = change_until_reconnected(&tap, reconnects, |round| {
            chancery.publish(&state(round))?;
            client.wait_for_more(10)
        })?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        tap.seen().expect_no_goaway_error()?;
        client.wait_for_more(100)?;
        client.expect_own_faults(20 * u64::try_from(n_rounds)?)
    })
}
