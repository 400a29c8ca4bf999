//! A real Envoy process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    STEP, http,
    process::{Process, python},
    wait_for,
};

/// How an Envoy receives its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    SotwAds,
    DeltaAds,
    SotwPerType,
    DeltaPerType,
    /// With Envoy's unified implementation of both variants, which sends fewer requests on its own.
    SotwAdsUnified,
    DeltaAdsUnified,
    /// REST-JSON polling over HTTP/1.1.
    Rest,
    RestHttp2,
}

impl Mode {
    pub(crate) fn is_delta(self) -> bool {
        matches!(self, Self::DeltaAds | Self::DeltaPerType | Self::DeltaAdsUnified)
    }

    pub(crate) fn is_aggregated(self) -> bool {
        !matches!(self, Self::SotwPerType | Self::DeltaPerType) && !self.is_rest()
    }

    fn is_rest(self) -> bool {
        matches!(self, Self::Rest | Self::RestHttp2)
    }

    fn is_unified(self) -> bool {
        matches!(self, Self::SotwAdsUnified | Self::DeltaAdsUnified)
    }

    /// Returns the `ConfigSource` of resources and of the bootstrap.
    pub(crate) fn config_source(self) -> Value {
        if self.is_aggregated() {
            return json!({"resource_api_version": "V3", "ads": {}});
        }
        json!({"resource_api_version": "V3", "api_config_source": self.api_config_source()})
    }

    fn api_config_source(self) -> Value {
        if self.is_rest() {
            return json!({
                "api_type": "REST",
                "transport_api_version": "V3",
                "cluster_names": ["chancery"],
                "refresh_delay": "0.1s",
                "request_timeout": "1s",
            });
        }
        json!({
            "api_type": if self.is_delta() { "DELTA_GRPC" } else { "GRPC" },
            "transport_api_version": "V3",
            "set_node_on_first_message_only": true,
            "grpc_services": [{"envoy_grpc": {"cluster_name": "chancery"}}],
        })
    }

    /// Returns the bootstrap of a node that connects to the server at `xds`.
    pub(crate) fn bootstrap(self, node: &str, xds: u16) -> Value {
        let mut dynamic =
            json!({"lds_config": self.config_source(), "cds_config": self.config_source()});
        if self.is_aggregated() {
            dynamic["ads_config"] = self.api_config_source();
        }
        let http = match self {
            Self::Rest => json!({"http_protocol_options": {}}),
            _ => json!({"http2_protocol_options": {}}),
        };
        json!({
            "node": {"id": node, "cluster": "e2e"},
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "dynamic_resources": dynamic,
            "layered_runtime": {"layers": [{
                "name": "static",
                "static_layer": {"envoy.reloadable_features.unified_mux": self.is_unified()},
            }]},
            "static_resources": {"clusters": [{
                "name": "chancery",
                "type": "STATIC",
                "connect_timeout": "1s",
                "load_assignment": {
                    "cluster_name": "chancery",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {
                        "socket_address": {"address": "127.0.0.1", "port_value": xds}
                    }}}]}],
                },
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                        "explicit_http_config": http,
                    },
                },
            }]},
        })
    }
}

/// Replaces the Python process by the Envoy binary of the package, so that the test kills the
/// process that it started.
const EXEC: &str = "\
import os, sys, envoy
binary = os.path.join(list(envoy.__path__)[0], '_bin', 'envoy')
os.execv(binary, ['envoy', *sys.argv[1:]])";

/// Returns the path of the Envoy binary of the package.
pub(crate) fn binary() -> Result<PathBuf> {
    let print =
        "import os, envoy; print(os.path.join(list(envoy.__path__)[0], '_bin', 'envoy'), end='')";
    let output = Command::new(python()?).args(["-c", print]).output()?;
    Ok(String::from_utf8(output.stdout)?.into())
}

/// A running Envoy.
#[derive(Debug)]
pub(crate) struct Envoy {
    process: Process,
    pub(crate) admin: u16,
}

impl Envoy {
    pub(crate) fn start(dir: &Path, mode: Mode, node: &str, xds: u16) -> Result<Self> {
        Self::start_with(dir, node, &mode.bootstrap(node, xds))
    }

    /// Starts Envoy with a bootstrap that the test supplies.
    pub(crate) fn start_with(dir: &Path, node: &str, bootstrap: &Value) -> Result<Self> {
        Self::start_with_options(dir, node, bootstrap, &[])
    }

    /// Starts Envoy with further options of its command line.
    pub(crate) fn start_with_options(
        dir: &Path,
        node: &str,
        bootstrap: &Value,
        options: &[&str],
    ) -> Result<Self> {
        let path = dir.join(format!("{node}.json"));
        fs::write(&path, bootstrap.to_string())?;
        let address = dir.join(format!("{node}.admin"));
        let mut command = Command::new(python()?);
        command
            .args(["-c", EXEC, "-c"])
            .arg(&path)
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"])
            .args(["--component-log-level", "upstream:info,config:info"])
            .args(options)
            .arg("--admin-address-path")
            .arg(&address);
        let mut process = Process::spawn(node, dir, &command)?;
        let admin = wait_for("Envoy's admin address", STEP, || {
            process.expect_running()?;
            admin_port(&address)
        })?;
        Ok(Self { process, admin })
    }

    pub(crate) fn expect_running(&mut self) -> Result<()> {
        self.process.expect_running()
    }

    /// Sends SIGSTOP. Envoy keeps its connections and does nothing.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.signal("STOP")
    }

    /// Sends SIGCONT.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.signal("CONT")
    }

    /// Returns a counter or gauge, or 0 if Envoy does not have it yet.
    pub(crate) fn stat(&self, name: &str) -> Result<u64> {
        let page = http::get(self.admin, "/stats?format=json")?;
        let page: Value = serde_json::from_str(&page)?;
        let stats = page["stats"].as_array().context("no stats")?;
        Ok(stats
            .iter()
            .find(|stat| stat["name"] == name)
            .map_or(0, |stat| stat["value"].as_u64().unwrap_or_default()))
    }

    /// Returns the dynamic clusters in use.
    fn active_clusters(&self) -> Result<Vec<Value>> {
        self.dump("dynamic_active_clusters", "cluster")
    }

    /// Returns the names of the dynamic clusters in use.
    pub(crate) fn active_cluster_names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self
            .active_clusters()?
            .iter()
            .filter_map(|cluster| cluster["name"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Returns the active dynamic cluster with this name.
    pub(crate) fn active_cluster(&self, name: &str) -> Result<Option<Value>> {
        Ok(self.active_clusters()?.into_iter().find(|cluster| cluster["name"] == name))
    }

    /// Returns the cluster of the bootstrap with this name.
    pub(crate) fn static_cluster(&self, name: &str) -> Result<Option<Value>> {
        let clusters = self.dump("static_clusters", "cluster")?;
        Ok(clusters.into_iter().find(|cluster| cluster["name"] == name))
    }

    fn dump(&self, resource: &str, field: &str) -> Result<Vec<Value>> {
        let page = http::get(self.admin, &format!("/config_dump?resource={resource}"))?;
        let mut page: Value = serde_json::from_str(&page)?;
        let Some(configs) = page["configs"].as_array_mut() else { return Ok(Vec::new()) };
        Ok(configs.iter_mut().map(|config| config[field].take()).collect())
    }

    /// Returns the counters of accepted changes. They stay the same if nothing new was sent.
    pub(crate) fn change_counts(&self) -> Result<Vec<(&'static str, u64)>> {
        const COUNTERS: [&str; 8] = [
            "cluster_manager.cluster_added",
            "cluster_manager.cluster_modified",
            "cluster_manager.cluster_removed",
            "listener_manager.listener_added",
            "listener_manager.listener_modified",
            "listener_manager.listener_removed",
            "listener_manager.listener_in_place_updated",
            "cluster_manager.cds.update_rejected",
        ];
        COUNTERS.into_iter().map(|name| Ok((name, self.stat(name)?))).collect()
    }
}

/// Returns the port in the file that Envoy writes after it has bound the port.
fn admin_port(path: &PathBuf) -> Result<Option<u16>> {
    let Ok(address) = fs::read_to_string(path) else { return Ok(None) };
    match address.rsplit(':').next().map(str::parse) {
        Some(Ok(port)) => Ok(Some(port)),
        _ => bail!("Envoy's admin address is {address:?}"),
    }
}
