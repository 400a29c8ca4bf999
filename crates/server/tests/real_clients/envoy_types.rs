//! Further types that a proxy requests by name: runtime values, extensions and secrets. Requests
//! show which values are in use. The removal of a resource that is still referenced never breaks
//! them.

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{
        CLUSTER, ENDPOINT, LISTENER, ROUTE, cluster, connection_manager, endpoints, listener,
        listener_of, route,
    },
    tls::{Identity, SECRET, cluster_over_tls, listener_over_tls},
    upstream, wait_for,
};

const RUNTIME: &str = "type.googleapis.com/envoy.service.runtime.v3.Runtime";
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// SOTW-76, DELTA-48, CLI-E-38: runtime values come first over SotW and decide a route. Envoy would
/// reject their removal, so that it is not sent.
#[test]
fn sotw_runtime_values_decide_a_route() -> Result<()> {
    runtime_values(Mode::SotwAds)
}

/// DELTA-48, CLI-E-38: the same over delta.
#[test]
fn delta_runtime_values_decide_a_route() -> Result<()> {
    runtime_values(Mode::DeltaAds)
}

/// CLI-E-38: runtime values, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn sotw_runtime_values_decide_a_route_on_own_streams() -> Result<()> {
    runtime_values(Mode::SotwPerType)
}

/// CLI-E-38: runtime values, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn delta_runtime_values_decide_a_route_on_own_streams() -> Result<()> {
    runtime_values(Mode::DeltaPerType)
}

fn runtime_values(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-runtime";
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut routes = route("main", "one");
        let by_default = routes["virtual_hosts"][0]["routes"][0].take();
        let fraction = json!({"default_value": {"numerator": 0}, "runtime_key": "routing.two"});
        let chosen = json!({"match": {"prefix": "", "runtime_fraction": fraction}, "route": {"cluster": "two"}});
        routes["virtual_hosts"][0]["routes"] = json!([chosen, by_default]);
        let with = |percent: Option<u32>| {
            let mut resources = vec![
                cluster(mode, "one", "1s"),
                endpoints("one", a),
                cluster(mode, "two", "1s"),
                endpoints("two", b),
                listener(mode, "main", port, "main", "main"),
                routes.clone(),
            ];
            resources.extend(percent.map(
                |percent| json!({"@type": RUNTIME, "name": "rt", "layer": {"routing.two": percent}}),
            ));
            resources
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with(Some(100)))?;
        let mut bootstrap = mode.bootstrap(NODE, chancery.at.xds);
        let layers = bootstrap["layered_runtime"]["layers"].as_array_mut().context("no layers")?;
        layers.push(
            json!({"name": "rt", "rtds_layer": {"name": "rt", "rtds_config": mode.config_source()}}),
        );
        let mut envoy = Envoy::start_with(dir, NODE, &bootstrap)?;
        // No request takes the default route, because the values arrive before anything listens.
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_more(100)?;
        if load.tally().answers.keys().any(|name| name != "b") {
            bail!("requests came before the runtime values: {:?}", load.tally());
        }
        let types = [LISTENER, ROUTE, CLUSTER, ENDPOINT, RUNTIME];
        chancery.wait_for_node(NODE, "synced", &types)?;

        chancery.publish(&with(Some(0)))?;
        load.wait_for_only("a")?;
        chancery.publish(&with(Some(100)))?;
        load.wait_for_only("b")?;
        // Envoy rejects a list, and keeps the values.
        let mut bad = with(Some(100));
        bad[6]["layer"]["routing.two"] = json!([1]);
        chancery.publish_rejected(NODE, RUNTIME, &bad)?;
        load.wait_for_more(100)?;
        chancery.publish(&with(Some(0)))?;
        load.wait_for_only("a")?;
        chancery.publish(&with(Some(100)))?;
        load.wait_for_only("b")?;
        let errors = envoy.stat("runtime.load_error")?;
        // The values are removed. A later change of another type arrives, so the removal would have
        // arrived, too.
        let mut removed = with(None);
        removed[1] = endpoints("one", b);
        chancery.publish(&removed)?;
        wait_for("what was published with the removal", STEP, || {
            Ok((envoy.stat("cluster.one.update_success")? >= 2).then_some(()))
        })?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        if envoy.stat("runtime.load_error")? > errors {
            bail!("Envoy rejected runtime values");
        }
        load.wait_for_only("b")?;
        chancery.publish(&with(Some(0)))?;
        load.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// SVC-25, DELTA-48, ADS-19: an HTTP filter is requested by its configured name over SotW. Its
/// removal is not sent while the listener refers to it.
#[test]
fn sotw_extensions_change_a_filter() -> Result<()> {
    extensions(Mode::SotwAds)
}

/// SVC-25, DELTA-48, ADS-19: the same over delta, where a removal would break the filter at once.
#[test]
fn delta_extensions_change_a_filter() -> Result<()> {
    extensions(Mode::DeltaAds)
}

/// SVC-25: an HTTP filter, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn sotw_extensions_change_a_filter_on_own_streams() -> Result<()> {
    extensions(Mode::SotwPerType)
}

/// SVC-25: an HTTP filter, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn delta_extensions_change_a_filter_on_own_streams() -> Result<()> {
    extensions(Mode::DeltaPerType)
}

/// Returns a filter with the name `stamp` that adds the header `x-stamp` to requests.
fn stamp(value: &str) -> Value {
    json!({
        "@type": EXTENSION,
        "name": "stamp",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"append": {
                "header": {"key": "x-stamp", "value": value},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }}]},
        },
    })
}

fn extensions(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-extensions";
    in_directory(|dir| {
        let echo = upstream::spawn_echo("x-stamp")?;
        let port = reserve_port();
        let plain = connection_manager(mode, "main", "main");
        let mut manager = plain.clone();
        let router = manager["http_filters"][0].take();
        let discovered = json!({"name": "stamp", "config_discovery": {
            "config_source": mode.config_source(),
            "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"],
        }});
        manager["http_filters"] = json!([discovered, router]);
        let with = |manager: &Value, connect_timeout: &str, stamp: Option<Value>| {
            let mut resources = vec![
                cluster(mode, "one", connect_timeout),
                endpoints("one", echo),
                listener_of("main", port, manager),
                route("main", "one"),
            ];
            resources.extend(stamp);
            resources
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with(&manager, "1s", Some(stamp("first"))))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("first")?;
        let types = [LISTENER, ROUTE, CLUSTER, ENDPOINT, EXTENSION];
        chancery.wait_for_node(NODE, "synced", &types)?;

        chancery.publish(&with(&manager, "1s", Some(stamp("second"))))?;
        load.wait_for_only("second")?;
        // Envoy rejects a filter of a type that the listener does not name, and keeps the old one.
        let mut bad = stamp("bad");
        bad["typed_config"] =
            json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"});
        chancery.publish_rejected(NODE, EXTENSION, &with(&manager, "1s", Some(bad)))?;
        load.wait_for_more(100)?;
        chancery.publish(&with(&manager, "1s", Some(stamp("corrected"))))?;
        load.wait_for_only("corrected")?;
        chancery.publish(&with(&manager, "1s", Some(stamp("second"))))?;
        load.wait_for_only("second")?;
        // The filter is removed together with a visible change.
        chancery.publish(&with(&manager, "3s", None))?;
        wait_for("what was published with the removal", STEP, || {
            Ok(envoy.active_cluster("one")?.filter(|it| it["connect_timeout"] == "3s"))
        })?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        load.wait_for_more(200)?;
        load.wait_for_only("second")?;
        // The listener no longer refers to the filter. Later it does again, and the extension
        // returns.
        chancery.publish(&with(&plain, "3s", None))?;
        wait_for("a listener without the filter", STEP, || {
            Ok((http::get(port, "/")? == "none").then_some(()))
        })?;
        chancery.publish(&with(&manager, "3s", Some(stamp("third"))))?;
        wait_for("the listener with its filter", STEP, || {
            Ok((http::get(port, "/")? == "third").then_some(()))
        })?;
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// ADS-19, DELTA-49, CLI-E-25: certificates over SotW are rotated under load. A removed secret that
/// is in use remains in use.
#[test]
fn sotw_secrets_rotate() -> Result<()> {
    secrets(Mode::SotwAds)
}

/// ADS-19, DELTA-49, CLI-E-25: the same over delta.
#[test]
fn delta_secrets_rotate() -> Result<()> {
    secrets(Mode::DeltaAds)
}

/// CLI-E-25: certificates, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn sotw_secrets_rotate_on_own_streams() -> Result<()> {
    secrets(Mode::SotwPerType)
}

/// CLI-E-25: certificates, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn delta_secrets_rotate_on_own_streams() -> Result<()> {
    secrets(Mode::DeltaPerType)
}

/// Requests go through a listener, over TLS to a second listener of the same Envoy, and to the
/// service.
fn secrets(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-secrets";
    in_directory(|dir| {
        let a = upstream::spawn("a")?;
        let (port, tls_port) = (reserve_port(), reserve_port());
        let (old, new) = (Identity::make(dir, "old")?, Identity::make(dir, "new")?);
        let secret = |name: &str| json!({"name": name, "sds_config": mode.config_source()});
        let hop = cluster_over_tls(
            cluster(mode, "hop", "1s"),
            &json!({"validation_context_sds_secret_config": secret("trusted")}),
        );
        let tls = listener_over_tls(
            listener(mode, "tls", tls_port, "to-service", "tls"),
            &json!({"tls_certificate_sds_secret_configs": [secret("shown")]}),
        );
        let with = |secrets: &[Value]| {
            let base = [
                hop.clone(),
                endpoints("hop", tls_port),
                cluster(mode, "service", "1s"),
                endpoints("service", a),
                tls.clone(),
                listener(mode, "main", port, "to-hop", "main"),
                route("to-service", "service"),
                route("to-hop", "hop"),
            ];
            [base.as_slice(), secrets].concat()
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with(&[old.shown("shown")?, old.trusted("trusted")?]))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        wait_for("the first answer over TLS", STEP, || http::get(port, "/").map(Some))?;
        let load = Load::start(port);
        let types = [LISTENER, ROUTE, CLUSTER, ENDPOINT, SECRET];
        chancery.wait_for_node(NODE, "synced", &types)?;
        load.wait_for_more(100)?;
        load.finish_without_failure(100)?;

        // Both secrets change. Envoy decides which side changes first, so that no requests run
        // meanwhile.
        chancery.publish_and_wait(&with(&[new.shown("shown")?, new.trusted("trusted")?]))?;
        wait_for("an answer with the new certificate", STEP, || http::get(port, "/").map(Some))?;
        let load = Load::start(port);
        load.wait_for_more(100)?;
        // Envoy rejects a certificate with the key of another one, and keeps the old secret.
        let mut bad = old.shown("shown")?;
        bad["tls_certificate"]["certificate_chain"] =
            new.tls_certificate()?["certificate_chain"].take();
        chancery.publish_rejected(NODE, SECRET, &with(&[bad, new.trusted("trusted")?]))?;
        load.wait_for_more(100)?;
        chancery.publish_and_wait(&with(&[new.shown("shown")?, new.trusted("trusted")?]))?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        // Both secrets are removed while both sides refer to them.
        chancery.publish_and_wait(&with(&[]))?;
        load.wait_for_more(200)?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        load.finish_without_failure(300)?;

        // Only one side has its old secret again. It is in use, because requests fail.
        chancery.publish_and_wait(&with(&[old.shown("shown")?]))?;
        wait_for("a certificate that nobody trusts", STEP, || {
            Ok(http::get(port, "/").is_err().then_some(()))
        })?;
        chancery.publish_and_wait(&with(&[old.shown("shown")?, old.trusted("trusted")?]))?;
        wait_for("an answer with the old certificate", STEP, || http::get(port, "/").map(Some))?;
        let load = Load::start(port);
        load.wait_for_more(100)?;
        envoy.expect_running()?;
        load.finish_without_failure(100)?;
        Ok(())
    })
}
