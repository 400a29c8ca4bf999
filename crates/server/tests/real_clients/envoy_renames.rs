//! Scopes and virtual hosts get other names and keep their keys and domains, under load. Envoy rejects two scopes
//! with one key and two hosts with one domain, so that it must lose the old name with the new one.

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::{
    envoy_routes::virtual_host,
    support::{
        STEP,
        chancery::{Addresses, Chancery},
        envoy::{Envoy, Mode},
        http::{self, Request},
        in_directory,
        load::Load,
        manifests::{
            CLUSTER, ENDPOINT, LISTENER, ROUTE, SCOPED_ROUTE, add_on_demand_filter, cluster,
            connection_manager, endpoints, listener, listener_of, route, scope,
            scoped_connection_manager,
        },
        report, upstream, wait_for,
    },
};

const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
const NODE: &str = "envoy-rename";

/// ADS-08, ADS-09, SOTW-73: no request fails over SotW. This includes the first second of a stream, a changed
/// listener, a rejected listener, and a rename while Envoy is away.
#[test]
fn sotw_renamed_scopes_lose_no_request() -> Result<()> {
    renames(Mode::SotwAds, Kind::Scopes)
}

/// ADS-08, ADS-09, DELTA-46, DELTA-53: the same over delta.
#[test]
fn delta_renamed_scopes_lose_no_request() -> Result<()> {
    renames(Mode::DeltaAds, Kind::Scopes)
}

/// ADS-08, ADS-09, DELTA-46, DELTA-60: virtual hosts in the same situations.
#[test]
fn delta_renamed_virtual_hosts_lose_no_request() -> Result<()> {
    renames(Mode::DeltaAds, Kind::Hosts)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scopes,
    Hosts,
}

impl Kind {
    fn type_url(self) -> &'static str {
        match self {
            Self::Scopes => SCOPED_ROUTE,
            Self::Hosts => VIRTUAL_HOST,
        }
    }

    fn request(self) -> Request {
        match self {
            Self::Scopes => Request::with_header("x-scope", "shop"),
            Self::Hosts => Request::to_host("shop.test"),
        }
    }

    /// Returns the resource with this name, which routes to the upstream `a` or `b`.
    fn named(self, name: &str, upstream: &str) -> Value {
        match self {
            Self::Scopes => {
                let mut scope = scope("shop", &format!("to-{upstream}"));
                scope["name"] = name.into();
                scope
            }
            Self::Hosts => {
                let mut host = virtual_host("shop", upstream);
                host["name"] = format!("main/{name}").into();
                host["resource"]["name"] = host["name"].clone();
                host
            }
        }
    }

    /// Returns the resources around it. `parent` is part of the content of the parent.
    fn base(self, mode: Mode, port: u16, [a, b]: [u16; 2], parent: &str) -> Vec<Value> {
        let mut all = vec![
            cluster(mode, "a", "1s"),
            endpoints("a", a),
            cluster(mode, "b", "1s"),
            endpoints("b", b),
        ];
        match self {
            Self::Scopes => all.extend([
                listener_of("main", port, &scoped_connection_manager(mode, parent)),
                route("to-a", "a"),
                route("to-b", "b"),
                // Envoy has both tables before the scope refers to them.
                scope("always-a", "to-a"),
                scope("always-b", "to-b"),
            ]),
            Self::Hosts => {
                let mut manager = connection_manager(mode, "main", "main");
                add_on_demand_filter(&mut manager, json!({}));
                let vhds = json!({"config_source": mode.config_source()});
                all.extend([
                    listener_of("main", port, &manager),
                    json!({"@type": ROUTE, "name": "main", "vhds": vhds,
                        "response_headers_to_add": [{"header": {"key": "x-parent", "value": parent}}]}),
                ]);
            }
        }
        all
    }
}

struct World {
    chancery: Chancery,
    envoy: Envoy,
    load: Load,
    types: [&'static str; 5],
}

impl World {
    /// Waits until the renamed resource is in use. No request has failed until then. Each worker of Envoy applies the
    /// removal and the addition of a scope in two steps (`ScopedRdsConfigSubscription::onConfigUpdate`), so each
    /// connection may get one 404 between them. The report of the test has these.
    fn expect(&self, upstream: &str, what: &str) -> Result<()> {
        self.load.wait_for_only(upstream)?;
        self.chancery.wait_for_node(NODE, "synced", &self.types)?;
        self.load.wait_for_more(100)?;
        let tally = self.load.take();
        let n_races_max = if self.types[4] == SCOPED_ROUTE { 2 } else { 0 };
        if tally.n_failed > 0 {
            report(&format!("{what}: {} requests failed: {:?}", tally.n_failed, tally.failures));
        }
        if tally.n_failed > n_races_max
            || tally.answers.keys().any(|answer| !["a", "b"].contains(&answer.as_str()))
        {
            bail!("{what}: {} requests failed: {:#?}", tally.n_failed, tally.failures);
        }
        Ok(())
    }
}

fn renames(mode: Mode, kind: Kind) -> Result<()> {
    in_directory(|dir| {
        let upstreams = [upstream::spawn("a")?, upstream::spawn("b")?];
        let (port, other_port) = (reserve_port(), reserve_port());
        let base = |parent: &str| kind.base(mode, port, upstreams, parent);
        let with = |parent: &str, resource: Value| [base(parent).as_slice(), &[resource]].concat();
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with("one", kind.named("n0", "a")))?;
        let envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        wait_for("an answer", STEP, || {
            Ok((http::ask(port, &kind.request())?.status == 200).then_some(()))
        })?;
        let load = Load::start_with(port, kind.request());
        load.wait_for_more(20)?;
        // Removals wait in the first second of a stream.
        let types = [LISTENER, ROUTE, CLUSTER, ENDPOINT, kind.type_url()];
        let mut world = World { chancery, envoy, load, types };
        world.chancery.publish(&with("one", kind.named("n1", "b")))?;
        world.expect("b", "in the first second")?;

        world.chancery.publish(&with("two", kind.named("n2", "a")))?;
        world.expect("a", "with a changed parent")?;

        // An unrelated listener is rejected, and repaired later.
        let bad = |is_valid: bool| {
            let mut other = listener(mode, "other", other_port, "other", "other");
            if !is_valid {
                other["address"]["socket_address"]["address"] = "not-an-address".into();
            }
            [other, route("other", "a")]
        };
        let beside = |is_valid: bool, resource: Value| {
            [with("two", resource).as_slice(), &bad(is_valid)].concat()
        };
        world.chancery.publish_rejected(NODE, LISTENER, &beside(false, kind.named("n2", "a")))?;
        let rename = beside(false, kind.named("n3", "b"));
        world.chancery.publish_rejected(NODE, LISTENER, &rename)?;
        world.load.wait_for_only("b")?;
        world.chancery.publish(&beside(true, kind.named("n3", "b")))?;
        world.expect("b", "with a rejected listener")?;

        // A server with the same data runs on other ports, so that Envoy does not see it.
        expect_no_rejection(&world.chancery, kind)?;
        world.chancery.kill()?;
        let seen_by_envoy = std::mem::replace(&mut world.chancery.at, Addresses::free()?);
        world.chancery.start_again()?;
        world.chancery.publish(&beside(true, kind.named("n4", "a")))?;
        world.chancery.terminate()?;
        world.chancery.at = seen_by_envoy;
        world.chancery.start_again()?;
        world.expect("a", "while Envoy is away")?;

        expect_no_rejection(&world.chancery, kind)?;
        let World { mut envoy, load, .. } = world;
        envoy.expect_running()?;
        load.finish_without_failure(1)?;
        Ok(())
    })
}

/// Fails if Envoy rejected a response of the type since the last start of the server.
fn expect_no_rejection(chancery: &Chancery, kind: Kind) -> Result<()> {
    let label = match kind {
        Kind::Scopes => "type=\"scoped-route\"",
        Kind::Hosts => "type=\"virtual-host\"",
    };
    match chancery.metric("chancery_xds_nacks_total", label)? {
        0.0 => Ok(()),
        n => bail!("Envoy rejected {n} responses"),
    }
}
