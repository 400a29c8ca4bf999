//! Real clients of a server that reports missing names as resource errors. Envoy ignores them. C-core
//! reads them if an environment variable enables this.

use anyhow::{Result, bail};
use chancery_testing::reserve_port;

use crate::{
    grpc_life::with,
    support::{
        STEP,
        chancery::Chancery,
        envoy::{Envoy, Mode},
        grpc::{GrpcClient, GrpcServer, Kind},
        http, in_directory,
        load::Load,
        manifests::{TYPES, cluster, endpoints, listener, route, service},
        upstream, wait_for,
    },
};

const ENABLED: &[(&str, &str)] = &[("CHANCERY_XDS_RESOURCE_ERRORS", "true")];
const READS_ERRORS: &[(&str, &str)] = &[("GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING", "true")];
const SERVICE: &str = "greeter.e2e";
const NODE: &str = "errors";

/// ERR-01, ERR-05, ERR-16: calls of a service that does not exist fail with the text of the error. They
/// succeed when it exists, also while it is deleted and returns.
#[test]
fn c_core_follows_a_service_with_resource_errors() -> Result<()> {
    with(Kind::Python, |dir| {
        let server = GrpcServer::start(dir, "a")?;
        let chancery = Chancery::start_with(dir, ENABLED)?;
        let (xds, kind) = (chancery.at.xds, Kind::Python);
        let mut client = GrpcClient::start_with(dir, kind, NODE, xds, &[SERVICE], READS_ERRORS)?;
        let is_text = |(reason, _): &(String, u64)| {
            reason.contains("this node has no resource of this type and name")
        };
        let failed = client.wait_for_failures()?;
        if !failed.iter().all(is_text) {
            bail!("calls of a missing service failed with {failed:?}");
        }
        let state = service(SERVICE, "one", server.port);
        chancery.publish(&state)?;
        client.wait_for_recovery("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(100)?;
        // Without the feature fail_on_data_errors, C-core keeps a deleted service (ERR-08).
        chancery.cli(&["delete", "listener", SERVICE], "")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(100)?;
        chancery.publish(&state)?;
        client.wait_for_more(100)?;
        client.expect_own_faults(0)
    })
}

/// ERR-02, ERR-11: the SotW client of Envoy ignores errors. Missing endpoints of one cluster disturb
/// no other.
#[test]
fn sotw_envoy_ignores_resource_errors() -> Result<()> {
    ignored(Mode::SotwAds)
}

/// ERR-02, ERR-09: the delta client of Envoy ignores errors beside removals.
#[test]
fn delta_envoy_ignores_resource_errors() -> Result<()> {
    ignored(Mode::DeltaAds)
}

fn ignored(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let upstream = upstream::spawn("a")?;
        let port = reserve_port();
        let chancery = Chancery::start_with(dir, ENABLED)?;
        let base = [
            cluster(mode, "one", "1s"),
            endpoints("one", upstream),
            listener(mode, "main", port, "main", "main"),
            route("main", "one"),
        ];
        chancery.publish(&base)?;
        let envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        for present in [false, true, false, true] {
            // The cluster has no endpoints, then some, and then none again.
            let mut state = [&base[..], &[cluster(mode, "two", "1s")]].concat();
            if present {
                state.push(endpoints("two", upstream));
            }
            chancery.publish(&state)?;
            load.wait_for_more(100)?;
            if present {
                wait_for("the cluster to be in use", STEP, || {
                    Ok(envoy.active_cluster("two")?.map(|_| ()))
                })?;
            }
            chancery.wait_for_node(NODE, "synced", &TYPES)?;
        }
        for counter in ["cluster_manager.cds.update_rejected", "cluster.two.update_rejected"] {
            let n = envoy.stat(counter)?;
            if n > 0 {
                bail!("{counter} is {n}");
            }
        }
        load.finish_without_failure(400)?;
        Ok(())
    })
}
