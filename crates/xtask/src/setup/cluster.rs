//! The tools of `cargo xtask chart --apiserver`: an API server of Kubernetes, kubectl, and the definitions (CRDs) of the
//! objects of cert-manager and of the Prometheus Operator. etcd and openssl are system packages.
//!
//! Invariant: setup writes the stamp last, and the stamp contains the pinned versions with their checksums.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::clients::{
    GO, GO_MINOR_MIN, create_empty, go, is_stamped, packaged_go_minor, read, write,
};
use super::packages::{Need, install, missing};
use crate::{paths::Paths, proc, say::say};

/// The directory with the exact versions and checksums, which no other file contains.
const PINS: &str = "crates/xtask/src/setup/cluster";
const KUBERNETES: &str = "k8s.io/kubernetes";

pub(super) const ETCD: Need = Need::program("etcd", "etcd-server");
const OPENSSL: Need = Need {
    what: "openssl",
    package: "openssl",
    probe: Some(|| proc::succeeds(Command::new("openssl").arg("version"))),
};

/// The installed tools.
#[derive(Debug)]
pub(crate) struct ClusterTools {
    /// The program `kube-apiserver`.
    pub(crate) apiserver: PathBuf,
    /// The program `kubectl`.
    pub(crate) kubectl: PathBuf,
    /// A directory with one file for each CRD.
    pub(crate) crds: PathBuf,
}

/// Installs the tools. The caller holds the lock.
pub(super) fn install_tools(paths: &Paths) -> Result<ClusterTools> {
    install(&missing(&[ETCD, OPENSSL]))?;
    let pins = paths.root.join(PINS);
    let mut wanted = String::new();
    for file in ["go.mod", "go.sum", "crds.txt"] {
        wanted += &read(&pins.join(file))?;
    }
    let dir = paths.cache.join("cluster-tools");
    let tools = ClusterTools {
        apiserver: dir.join("kube-apiserver"),
        kubectl: dir.join("kubectl"),
        crds: dir.join("crds"),
    };
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(tools);
    }
    if let Some(minor) = packaged_go_minor()?.filter(|minor| *minor < GO_MINOR_MIN) {
        bail!(
            "cannot build an API server: it needs Go 1.{GO_MINOR_MIN} or later, and the package manager provides \
             1.{minor}; install a newer Go, so that go is in the PATH"
        );
    }
    install(&missing(&[GO]))?;
    let go = go().context("find the installed Go")?;
    create_empty(&dir)?;
    build(go, &pins, &dir)?;
    download_crds(go, &pins, &tools.crds)?;
    let version = proc::output(Command::new(&tools.apiserver).arg("--version"))?;
    say!("installed an API server of {}", version.trim_end());
    write(&stamp, &wanted)?;
    Ok(tools)
}

/// Compiles the API server and kubectl.
fn build(go: &str, pins: &Path, dir: &Path) -> Result<()> {
    let module = read(&pins.join("go.mod"))?;
    let version = locked_version(&module)?;
    say!("compiling Kubernetes {version} into {} (10 minutes on two cores)", dir.display());
    let [major, minor] = version_parts(version)?;
    // Helm reads the version from the API server, and this package has it only in a released program.
    let package = "k8s.io/component-base/version";
    let mut build = Command::new(go);
    build.current_dir(pins).args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false"]);
    build.arg(format!(
        "-ldflags=-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    ));
    // A directory ends with a slash, so that the programs keep their names.
    build.arg("-o").arg(dir.join(""));
    build.args(["kube-apiserver", "kubectl"].map(|name| format!("{KUBERNETES}/cmd/{name}")));
    proc::run(build.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0"))
}

/// Returns the version of Kubernetes in a `go.mod`, such as `v1.36.3`.
fn locked_version(module: &str) -> Result<&str> {
    let mut lines = module.lines().map(|line| line.trim().trim_start_matches("require "));
    lines
        .find_map(|line| line.strip_prefix(KUBERNETES)?.split_whitespace().next())
        .with_context(|| format!("go.mod has no version of {KUBERNETES}"))
}

/// Returns the major and the minor version.
fn version_parts(version: &str) -> Result<[&str; 2]> {
    let mut parts = version.trim_start_matches('v').split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok([major, minor]),
        _ => bail!("{version:?} is not a version"),
    }
}

/// Copies the pinned CRDs out of the modules that contain them.
fn download_crds(go: &str, pins: &Path, dir: &Path) -> Result<()> {
    create_empty(dir)?;
    let list = read(&pins.join("crds.txt"))?;
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let [module, sum, file] = line.split(' ').collect::<Vec<_>>()[..] else {
            bail!("crds.txt: {line:?} has not three parts")
        };
        let mut download = Command::new(go);
        download.current_dir(pins).args(["mod", "download", "-json", module]);
        let answer = proc::output(download.env("GOTOOLCHAIN", "local"))?;
        let answer: Value = serde_json::from_str(&answer).context("read the answer of go")?;
        ensure!(
            answer["Sum"] == sum,
            "{module} has the checksum {} instead of {sum}",
            answer["Sum"]
        );
        let source = Path::new(answer["Dir"].as_str().context("go names no directory")?).join(file);
        let name = source.file_name().context("a CRD has no file name")?;
        // The cache of Go is read-only, and a copy would be too.
        write(&dir.join(name), &read(&source)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_comes_from_go_mod() {
        let module = "require (\n\tk8s.io/klog/v2 v2.140.0 // indirect\n\tk8s.io/kubernetes v1.36.3 // indirect\n)";
        assert_eq!(locked_version(module).unwrap(), "v1.36.3");
        assert_eq!(version_parts("v1.36.3").unwrap(), ["1", "36"]);
        assert!(locked_version("module x").is_err());
    }
}
