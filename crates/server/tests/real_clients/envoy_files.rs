//! Envoy with files that `chancery mirror` keeps: no connection to the control plane, and no lost request.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::{BINARY, Chancery},
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{cluster, endpoints, listener, route},
    process::Process,
    upstream, wait_for,
};

const NODE: &str = "envoy-files";

/// The files of a mirror, and how Envoy refers to them.
struct Files<'a> {
    dir: &'a Path,
    encoding: &'static str,
    xds: u16,
}

impl Files<'_> {
    fn root(&self) -> String {
        self.dir.join("files").display().to_string()
    }

    /// Starts a mirror.
    fn mirror(&self) -> Result<Process> {
        let mut mirror = Command::new(BINARY);
        mirror.args(["mirror", "--node", NODE, "--cluster", "e2e", "--encoding", self.encoding]);
        mirror.args(["--xds", &format!("127.0.0.1:{}", self.xds), "--dir", &self.root()]);
        Process::spawn("mirror", self.dir, &mirror)
    }

    /// Returns a config source that watches a file. FS-12: `path_config_source`, as in the documentation.
    fn source(&self, directory: &str, name: &str) -> Value {
        let directory = format!("{}{directory}", self.root());
        let path = format!("{directory}/{name}.{}", self.encoding);
        json!({
            "resource_api_version": "V3",
            "path_config_source": {"path": path, "watched_directory": {"path": directory}},
        })
    }

    fn cluster(&self, name: &str) -> Value {
        let mut cluster = cluster(Mode::SotwAds, name, "1s");
        cluster["eds_cluster_config"]["eds_config"] = self.source("/eds", name);
        cluster
    }

    fn listener(&self, port: u16) -> Value {
        let mut listener = listener(Mode::SotwAds, "main", port, "main", "main");
        listener["filter_chains"][0]["filters"][0]["typed_config"]["rds"]["config_source"] =
            self.source("/rds", "main");
        listener
    }

    /// Starts Envoy when the mirror has written the listeners.
    fn envoy(&self) -> Result<Envoy> {
        let lds = Path::new(&self.root()).join(format!("lds.{}", self.encoding));
        wait_for("the mirrored files", STEP, || Ok(lds.exists().then_some(())))?;
        let bootstrap = json!({
            "node": {"id": NODE, "cluster": "e2e"},
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "dynamic_resources": {
                "lds_config": self.source("", "lds"),
                "cds_config": self.source("", "cds"),
            },
        });
        Envoy::start_with(self.dir, NODE, &bootstrap)
    }
}

fn expect_nothing_rejected(envoy: &Envoy) -> Result<()> {
    for counter in [
        "cluster_manager.cds.update_rejected",
        "listener_manager.lds.update_rejected",
        "http.main.rds.main.update_rejected",
        "cluster.one.update_rejected",
        "cluster.two.update_rejected",
    ] {
        let n = envoy.stat(counter)?;
        if n > 0 {
            bail!("{counter} is {n}");
        }
    }
    Ok(())
}

/// FS-01, FS-04, FS-06, FS-07, FS-09, FS-12, FS-13, FS-14: LDS, CDS, RDS and EDS from files. Endpoints move, and
/// traffic moves to a new cluster while the old one is removed. The mirror and the server are killed under load, and
/// changes arrive when they are back.
#[test]
fn envoy_with_mirrored_files_loses_no_request_through_kills_of_mirror_and_server() -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        let files = Files { dir, encoding: "json", xds: chancery.at.xds };
        let with = |name: &str, upstream: u16| {
            [
                files.cluster(name),
                endpoints(name, upstream),
                files.listener(port),
                route("main", name),
            ]
        };
        chancery.publish(&with("one", a))?;
        let mut mirror = files.mirror()?;
        let mut envoy = files.envoy()?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;

        chancery.publish(&with("one", b))?;
        load.wait_for_only("b")?;
        // A new cluster, its endpoints and the route to it come with the removal of the old cluster.
        chancery.publish(&with("two", a))?;
        load.wait_for_only("a")?;
        wait_for("the removal of the old cluster", STEP, || {
            Ok((envoy.active_cluster_names()? == ["two"]).then_some(()))
        })?;
        expect_nothing_rejected(&envoy)?;

        mirror.kill()?;
        chancery.publish(&with("one", b))?;
        load.wait_for_more(200)?;
        load.wait_for_only("a")?;
        let mut mirror = files.mirror()?;
        load.wait_for_only("b")?;

        chancery.kill()?;
        load.wait_for_more(200)?;
        load.wait_for_only("b")?;
        chancery.start_again()?;
        chancery.publish(&with("two", a))?;
        load.wait_for_only("a")?;
        wait_for("the removal of the old cluster", STEP, || {
            Ok((envoy.active_cluster_names()? == ["two"]).then_some(()))
        })?;
        expect_nothing_rejected(&envoy)?;
        mirror.expect_running()?;
        envoy.expect_running()?;
        load.finish_without_failure(1000)?;
        Ok(())
    })
}

/// FS-02, FS-03: Envoy starts from the files of each encoding, and takes an update of each.
#[test]
fn envoy_reads_mirrored_files_in_every_encoding() -> Result<()> {
    for encoding in ["yaml", "pb", "pb_text"] {
        in_directory(|dir| {
            let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
            let port = reserve_port();
            let chancery = Chancery::start(dir)?;
            let files = Files { dir, encoding, xds: chancery.at.xds };
            let with = |name: &str, upstream: u16| {
                [
                    files.cluster(name),
                    endpoints(name, upstream),
                    files.listener(port),
                    route("main", name),
                ]
            };
            chancery.publish(&with("one", a))?;
            let _mirror = files.mirror()?;
            let mut envoy = files.envoy()?;
            http::wait_for_answer(port)?;
            let load = Load::start(port);
            load.wait_for_only("a")?;
            chancery.publish(&with("two", b))?;
            load.wait_for_only("b")?;
            expect_nothing_rejected(&envoy)?;
            envoy.expect_running()?;
            load.finish_without_failure(100)?;
            Ok(())
        })?;
    }
    Ok(())
}
