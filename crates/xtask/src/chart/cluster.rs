//! A real API server of Kubernetes with its etcd, on loopback, and calls of kubectl and Helm.
//!
//! There are no controllers and no nodes: objects are stored, and nothing happens to them. Each call has a time limit.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::render::{Chart, NAMESPACE};
use crate::{
    proc::{self, Guard, eventually, free_addresses},
    setup::ClusterTools,
};

/// The time limit for the start.
const START: Duration = Duration::from_secs(120);
/// The time limit for a call, as the program `timeout` takes it. After another 5 s the call is killed.
const CALL: [&str; 2] = ["--kill-after=5", "60"];
/// The records of releases, which Helm stores as Secrets.
const RECORDS: &str = "Secret/sh.helm.release.";

/// A running API server. Both processes end when this value is dropped, or when xtask ends.
#[derive(Debug)]
pub(super) struct Cluster {
    kubectl: PathBuf,
    helm: PathBuf,
    dir: PathBuf,
    apiserver: Guard,
    etcd: Guard,
}

/// The output of a call that succeeded.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) out: String,
    errors: String,
}

impl Said {
    /// Fails if the API server has warned. PodSecurity warns of pods that a namespace would refuse.
    pub(super) fn without_warnings(self) -> Result<String> {
        ensure!(
            !self.errors.to_lowercase().contains("warn"),
            "there are warnings: {}",
            self.errors
        );
        Ok(self.out)
    }

    /// Returns the warnings.
    pub(super) fn warnings(&self) -> &str {
        &self.errors
    }
}

impl Cluster {
    /// Starts both processes, and waits until the API server is ready. Their files are in `dir`.
    pub(super) fn start(tools: &ClusterTools, chart: &Chart, dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let [clients, peers, api] = free_addresses()?;
        let etcd = start_etcd(&dir, &clients, &peers)?;
        let apiserver = start_apiserver(tools, &dir, &clients, &api)?;
        let (kubectl, helm) = (tools.kubectl.clone(), chart.tools.helm.clone());
        let mut cluster = Self { kubectl, helm, dir, apiserver, etcd };
        let ready = eventually(START, "the API server is not ready", || {
            cluster.etcd.expect_running()?;
            cluster.apiserver.expect_running()?;
            Ok(cluster.kubectl(&["get", "--raw", "/readyz"]).ok())
        });
        ready.with_context(|| last_lines(&cluster.dir.join("apiserver.log")))?;
        Ok(cluster)
    }

    /// Calls kubectl in the namespace of the release.
    pub(super) fn kubectl(&self, args: &[&str]) -> Result<Said> {
        self.kubectl_with(args, None)
    }

    /// Calls kubectl with a file of objects.
    pub(super) fn kubectl_with(&self, args: &[&str], file: Option<&Path>) -> Result<Said> {
        let mut call = self.call(&self.kubectl, args);
        if let Some(file) = file {
            call.arg("-f").arg(file);
        }
        succeeded(&mut call)
    }

    /// Calls Helm, and fails if Helm fails.
    pub(super) fn helm<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Said> {
        succeeded(&mut self.call(&self.helm, args))
    }

    /// Calls Helm, which must refuse the call, and returns its reason.
    pub(super) fn helm_refuses<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<String> {
        let mut call = self.call(&self.helm, args);
        let Output { status, stderr, .. } = call.output().context("start helm")?;
        ensure!(!status.success(), "{} succeeds", proc::shown(&call));
        Ok(String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Returns the version of each object in the namespace, by kind and name, except for Helm's own and for events.
    pub(super) fn objects(&self) -> Result<BTreeMap<String, String>> {
        let kinds =
            self.kubectl(&["api-resources", "--verbs=list", "--namespaced", "-o", "name"])?;
        let kinds = kinds.out.lines().filter(|kind| !kind.starts_with("events"));
        let kinds = kinds.collect::<Vec<_>>().join(",");
        let listed = self.kubectl(&["get", &kinds, "-o", "json"])?;
        let listed: Value = serde_json::from_str(&listed.out).context("read the objects")?;
        let items = listed["items"].as_array().context("the list has no objects")?;
        let objects = items.iter().map(|object| {
            let part = |part: &Value| part.as_str().unwrap_or_default().to_owned();
            let name = format!("{}/{}", part(&object["kind"]), part(&object["metadata"]["name"]));
            (name, part(&object["metadata"]["resourceVersion"]))
        });
        Ok(objects.filter(|(name, _)| !name.starts_with(RECORDS)).collect())
    }

    /// Returns an object.
    pub(super) fn get(&self, kind: &str, name: &str) -> Result<Value> {
        let object = self.kubectl(&["get", kind, name, "-o", "json"])?;
        serde_json::from_str(&object.out).context("read an object")
    }

    /// Returns the version of the API server.
    pub(super) fn version(&self) -> Result<String> {
        let version = self.kubectl(&["get", "--raw", "/version"])?;
        let version: Value = serde_json::from_str(&version.out).context("read the version")?;
        Ok(version["gitVersion"].as_str().context("the API server has no version")?.to_owned())
    }

    /// Returns a call that depends on nothing of this machine.
    fn call<A: AsRef<OsStr>>(&self, program: &Path, args: &[A]) -> Command {
        let mut call = Command::new("timeout");
        call.args(CALL).arg(program).args(args).args(["--namespace", NAMESPACE]);
        call.env_clear().env("HOME", &self.dir).env("KUBECONFIG", self.dir.join("kubeconfig"));
        call.stdin(Stdio::null());
        call
    }
}

fn succeeded(call: &mut Command) -> Result<Said> {
    let Output { status, stdout, stderr } =
        call.output().with_context(|| format!("start {}", proc::shown(call)))?;
    let [out, errors] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if status.code() == Some(124) {
        bail!("{} has not ended within {} s", proc::shown(call), CALL[1]);
    }
    ensure!(status.success(), "{} failed: {status}\n{out}{errors}", proc::shown(call));
    Ok(Said { out, errors })
}

fn start_etcd(dir: &Path, clients: &str, peers: &str) -> Result<Guard> {
    let [clients, peers] = [clients, peers].map(|address| format!("http://{address}"));
    let mut etcd = proc::leashed(Path::new("etcd"));
    etcd.arg("--data-dir").arg(dir.join("etcd"));
    for (name, value) in [
        ("--listen-client-urls", &clients),
        ("--advertise-client-urls", &clients),
        ("--listen-peer-urls", &peers),
        ("--initial-advertise-peer-urls", &peers),
        ("--initial-cluster", &format!("default={peers}")),
    ] {
        etcd.args([name, value]);
    }
    logged("etcd", &mut etcd, dir)
}

fn start_apiserver(tools: &ClusterTools, dir: &Path, etcd: &str, api: &str) -> Result<Guard> {
    let key = dir.join("service-accounts.key");
    proc::output(Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048"))?;
    let token = proc::output(Command::new("openssl").args(["rand", "-hex", "16"]))?;
    let token = token.trim();
    let tokens = dir.join("tokens.csv");
    write(&tokens, &format!("{token},operator,operator,system:masters\n"))?;
    let certificates = dir.join("certificates");
    let (host, port) = api.split_once(':').context("an address has no port")?;
    let mut server = proc::leashed(&tools.apiserver);
    for (name, file) in [
        ("--cert-dir", &certificates),
        ("--token-auth-file", &tokens),
        ("--service-account-key-file", &key),
        ("--service-account-signing-key-file", &key),
    ] {
        server.arg(name).arg(file);
    }
    server.args(["--bind-address", host, "--advertise-address", host, "--secure-port", port]);
    server.args(["--etcd-servers", &format!("http://{etcd}"), "--authorization-mode=RBAC"]);
    server.args(["--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"]);
    server.arg("--service-account-issuer=https://kubernetes.default.svc");
    let guard = logged("apiserver", &mut server, dir)?;
    // The API server writes its certificate with the CA that has signed it.
    let authority = certificates.join("apiserver.crt");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://{api}"), "certificate-authority": authority}}],
        "users": [{"name": "c", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    write(&dir.join("kubeconfig"), &config.to_string())?;
    Ok(guard)
}

fn logged(name: &str, command: &mut Command, dir: &Path) -> Result<Guard> {
    let path = dir.join(format!("{name}.log"));
    let log = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let errors = log.try_clone().context("duplicate a log file")?;
    Guard::spawn(name, command.current_dir(dir).stdin(Stdio::null()).stdout(log).stderr(errors))
}

/// Returns the end of a log, for messages.
fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    format!(
        "the last lines of its log are:\n{}",
        lines[lines.len().saturating_sub(10)..].join("\n")
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
