//! The clients of `cargo xtask far-clients`: istiod, istio-agent and Kitex, which are compiled, and Armeria and grpc-java.
//!
//! Invariant: setup writes the stamp of a client last, and the stamp contains its sources and pinned versions.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{
    clients::{GO, GO_MINOR_MIN, create_empty, go, is_stamped, packaged_go_minor, read, write},
    packages::{Need, install, missing},
};
use crate::{paths::Paths, proc, say::say};

/// The directory with the sources and the exact versions.
const SOURCES: &str = "crates/xtask/src/far";
const ISTIO: &str = "istio.io/istio";
/// The plugin of Maven that copies the libraries.
pub(super) const COPY: &str =
    "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

pub(super) const JAVA: Need = Need::program("javac", "default-jdk-headless");
pub(super) const MAVEN: Need = Need::program("mvn", "maven");

/// The installed programs of Istio.
#[derive(Debug)]
pub(crate) struct Istio {
    /// The program istiod.
    pub(crate) istiod: PathBuf,
    /// The program istio-agent.
    pub(crate) agent: PathBuf,
    /// A stub of the Kubernetes API.
    pub(crate) kube_stub: PathBuf,
    /// The template of the bootstrap that istio-agent gives to its Envoy.
    pub(crate) envoy_bootstrap: PathBuf,
}

/// Compiles istiod and istio-agent once. The caller holds the lock.
pub(super) fn istio(paths: &Paths) -> Result<Istio> {
    let dir = paths.clients.join("istio");
    let istio = Istio {
        istiod: dir.join("pilot-discovery"),
        agent: dir.join("pilot-agent"),
        kube_stub: dir.join("kube-stub"),
        envoy_bootstrap: dir.join("envoy_bootstrap.json"),
    };
    let source = paths.root.join(SOURCES).join("istio");
    installed(&dir, &source, &["go.mod", "go.sum", "main.go"], || {
        say!("compiling istiod and istio-agent into {} (30 minutes on two cores)", dir.display());
        let programs =
            ["pilot-discovery", "pilot-agent"].map(|name| format!("{ISTIO}/pilot/cmd/{name}"));
        build(&source, &dir.join(""), &programs.each_ref().map(String::as_str))?;
        build(&source, &istio.kube_stub, &["."])?;
        let mut list = Command::new(installed_go()?);
        list.current_dir(&source).args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", ISTIO]);
        let module = proc::output(list.env("GOTOOLCHAIN", "local"))?;
        let bootstrap =
            Path::new(module.trim()).join("tools/packaging/common/envoy_bootstrap.json");
        // Only this machine uses the Envoy.
        let local = read(&bootstrap)?.replace("{{ .wildcard }}", "127.0.0.1");
        write(&istio.envoy_bootstrap, &local)
    })?;
    Ok(istio)
}

/// Compiles a client of Kitex, and returns its path. The caller holds the lock.
pub(super) fn kitex(paths: &Paths) -> Result<PathBuf> {
    let dir = paths.clients.join("kitex");
    let program = dir.join("kitex-client");
    let source = paths.root.join(SOURCES).join("kitex");
    installed(&dir, &source, &["go.mod", "go.sum", "main.go"], || {
        say!("compiling a client of Kitex into {}", dir.display());
        build(&source, &program, &["."])
    })?;
    Ok(program)
}

/// The libraries of the Java clients, and the directory with the sources of the clients.
#[derive(Debug)]
pub(crate) struct Java {
    libraries: PathBuf,
    sources: PathBuf,
}

impl Java {
    /// Returns a command that runs a client from its source.
    pub(crate) fn command(&self, client: &str) -> Command {
        let mut command = proc::leashed(Path::new("java"));
        command.args(["-XX:+UseSerialGC", "-Xmx256m", "-cp"]).arg(self.libraries.join("*"));
        command.arg(self.sources.join(format!("{client}.java")));
        command
    }
}

/// Installs the libraries of Armeria and grpc-java. The caller holds the lock.
pub(super) fn java(paths: &Paths) -> Result<Java> {
    install(&missing(&[JAVA, MAVEN]))?;
    let (dir, sources) = (paths.clients.join("java"), paths.root.join(SOURCES).join("java"));
    installed(&dir, &sources, &["pom.xml"], || {
        say!("installing Armeria and grpc-java into {}", dir.display());
        let mut copy = Command::new("mvn");
        copy.args(["--quiet", "--batch-mode", COPY, "--file"]).arg(sources.join("pom.xml"));
        proc::run(copy.arg(format!("-DoutputDirectory={}", dir.join("lib").display())))
    })?;
    Ok(Java { libraries: dir.join("lib"), sources })
}

/// Runs `make` in an empty directory, unless the directory has the stamp of these files.
fn installed(
    dir: &Path,
    source: &Path,
    files: &[&str],
    make: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut wanted = String::new();
    for file in files {
        wanted += &read(&source.join(file))?;
    }
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(());
    }
    create_empty(dir)?;
    make()?;
    write(&stamp, &wanted)
}

/// Compiles Go packages, one at a time, and with a low priority.
fn build(source: &Path, output: &Path, packages: &[&str]) -> Result<()> {
    let mut build = Command::new("nice");
    build.current_dir(source).args(["-n", "10", installed_go()?, "build", "-p", "1"]);
    build
        .args(["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"])
        .arg(output);
    proc::run(build.args(packages).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0"))
}

/// Returns the installed Go. Installs it first if necessary.
fn installed_go() -> Result<&'static str> {
    if let Some(minor) = packaged_go_minor()?.filter(|minor| *minor < GO_MINOR_MIN) {
        bail!(
            "the client needs Go 1.{GO_MINOR_MIN} or later, and the package manager provides 1.{minor}; install a newer \
             Go, so that go is in the PATH"
        );
    }
    install(&missing(&[GO]))?;
    go().context("find the installed Go")
}
