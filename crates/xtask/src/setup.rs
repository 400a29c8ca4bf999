//! `cargo xtask setup`: installs missing dependencies.
//!
//! These are a compiler and libclang from the system's package manager, RocksDB (compiled once), the
//! real clients that the tests run, and the tools that check the Helm chart.
//!
//! Invariant: the cache contains only complete artifacts. A rename creates RocksDB's archive, and the
//! clients' directories get their stamps last. A lock file prevents concurrent setups.

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

mod browser;
mod chart;
mod clients;
mod cluster;
mod far;
mod oracle;
mod packages;
mod packaging;
mod prometheus;
mod rocksdb;
mod versions;

pub(crate) use chart::ChartTools;
pub(crate) use clients::read;
pub(crate) use cluster::ClusterTools;
pub(crate) use far::{Istio, Java};
use packages::{Need, install, is_root, missing};
pub(crate) use packaging::FileCheckers;

use crate::{paths::Paths, proc, say::say};

/// Installs everything.
pub(crate) fn all(paths: &Paths) -> Result<()> {
    build_needs(paths)?;
    real_clients(paths)?;
    chart_tools(paths).map(drop)
}

/// Installs Helm and the schemas of Kubernetes.
pub(crate) fn chart_tools(paths: &Paths) -> Result<ChartTools> {
    let _one_at_a_time = lock(paths)?;
    chart::install_tools(paths)
}

/// Installs an API server of Kubernetes, which is compiled once, and what it needs.
pub(crate) fn cluster_tools(paths: &Paths) -> Result<ClusterTools> {
    let _one_at_a_time = lock(paths)?;
    cluster::install_tools(paths)
}

/// Installs the dependencies of the demo, which needs only some of the real clients.
pub(crate) fn demo_needs(paths: &Paths) -> Result<()> {
    install(&missing(&[CPP, LIBCLANG, clients::PYTHON]))?;
    build_needs(paths)?;
    let _one_at_a_time = lock(paths)?;
    clients::install_python(paths)
}

/// Installs the dependencies for compiling the workspace.
pub(crate) fn build_needs(paths: &Paths) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    if !paths.rocksdb.join("librocksdb.a").is_file() {
        install(&missing(&[CPP, LIBCLANG]))?;
        rocksdb::build(paths)?;
    }
    // Each build generates the bindings, so libclang is necessary even if the archive exists.
    install(&missing(&[CPP, LIBCLANG]))
}

/// Installs Chromium, Envoy and axe-core, and returns the script of axe-core.
pub(crate) fn browser(paths: &Paths) -> Result<PathBuf> {
    let _one_at_a_time = lock(paths)?;
    clients::install_python(paths)?;
    browser::install_browser(paths)
}

/// Installs Envoy, gRPC clients in three languages, Prometheus, and etcd, which a load test uses for
/// comparison.
pub(crate) fn real_clients(paths: &Paths) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    install(&missing(&[cluster::ETCD]))?;
    prometheus::program(paths, "prometheus")?;
    clients::install_all(paths)
}

/// Installs the versions of clients that the corpus asks: those that `only` names, or all.
pub(crate) fn corpus_clients(paths: &Paths, only: Option<&str>) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    clients::install_python(paths)?;
    versions::install_all(paths, only)
}

/// Compiles istiod and istio-agent once.
pub(crate) fn istio(paths: &Paths) -> Result<Istio> {
    let _one_at_a_time = lock(paths)?;
    far::istio(paths)
}

/// Compiles a client of Kitex once, and returns its path.
pub(crate) fn kitex(paths: &Paths) -> Result<PathBuf> {
    let _one_at_a_time = lock(paths)?;
    far::kitex(paths)
}

/// Installs the libraries of Armeria and grpc-java.
pub(crate) fn java(paths: &Paths) -> Result<Java> {
    let _one_at_a_time = lock(paths)?;
    far::java(paths)
}

/// Returns the path of promtool, and installs it first if necessary.
pub(crate) fn promtool(paths: &Paths) -> Result<PathBuf> {
    let _one_at_a_time = lock(paths)?;
    prometheus::program(paths, "promtool")
}

/// Returns the path of Prometheus, and installs it first if necessary.
pub(crate) fn prometheus(paths: &Paths) -> Result<PathBuf> {
    let _one_at_a_time = lock(paths)?;
    prometheus::program(paths, "prometheus")
}

/// Returns the path of Jsonnet, and installs it first if necessary.
pub(crate) fn jsonnet(paths: &Paths) -> Result<PathBuf> {
    let _one_at_a_time = lock(paths)?;
    install(&missing(&[JSONNET]))?;
    Ok(PathBuf::from("jsonnet"))
}

/// Installs what the faults of the alerts need in addition to the demo.
pub(crate) fn fault_needs(paths: &Paths) -> Result<()> {
    demo_needs(paths)?;
    install(&missing(&[FAKETIME]))
}

/// Installs the tools that read, unpack and run an image. Fails without root permissions.
pub(crate) fn image_tools(paths: &Paths) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    packaging::image_tools()
}

/// Installs systemd's checker of units.
pub(crate) fn unit_tools(paths: &Paths) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    packaging::unit_tools()
}

/// Installs the checkers of the Dockerfile and of the Compose file.
pub(crate) fn file_checkers(paths: &Paths) -> Result<FileCheckers> {
    let _one_at_a_time = lock(paths)?;
    packaging::file_checkers(paths)
}

/// Installs schemathesis, and returns the program.
pub(crate) fn schemathesis(paths: &Paths) -> Result<PathBuf> {
    let _one_at_a_time = lock(paths)?;
    packaging::schemathesis(paths)
}

/// Installs the dependencies of `cargo xtask bare`. Fails without root permissions.
pub(crate) fn bare_needs() -> Result<()> {
    ensure!(is_root()?, "`cargo xtask bare` needs root to mount and chroot; run it as root");
    install(&missing(&[DEBOOTSTRAP, GIT]))
}

const CPP: Need = Need {
    what: "a C++ compiler",
    package: "g++",
    probe: Some(|| {
        let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
        proc::succeeds(Command::new(compiler).arg("--version"))
    }),
};
const LIBCLANG: Need =
    Need { what: "libclang with its headers", package: "libclang-dev", probe: Some(has_libclang) };

/// The hidden xtask command that runs [`probe_libclang`].
pub(crate) const PROBE_LIBCLANG_COMMAND: &str = "probe-libclang";
/// The headers that `rocksdb/c.h` includes, for which bindgen generates bindings.
const PROBE_HEADER: &str = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n";

const DEBOOTSTRAP: Need = Need::program("debootstrap", "debootstrap");
/// The program `faketime`, which runs another program with a different clock.
const FAKETIME: Need = Need::program("faketime", "faketime");
const JSONNET: Need = Need::program("jsonnet", "jsonnet");
const GIT: Need = Need::program("git", "git");

/// Returns whether bindgen will find libclang.
///
/// The check runs in a separate process. After one failure the loader never searches again, and a
/// broken library may crash the process that loads it.
fn has_libclang() -> bool {
    // This link works even if the program's file has been replaced.
    proc::succeeds(Command::new("/proc/self/exe").arg(PROBE_LIBCLANG_COMMAND))
}

/// Fails unless bindgen would succeed.
///
/// The loader that bindgen uses must find libclang, and libclang must find the compiler's headers.
/// `libclang-cpp.so` is a different library. `libclang1` without its headers cannot parse a file that
/// includes `stddef.h`.
pub(crate) fn probe_libclang() -> Result<()> {
    let clang = clang::Clang::new().map_err(anyhow::Error::msg).context("load libclang")?;
    let index = clang::Index::new(&clang, false, false);
    let header = clang::Unsaved::new("probe.h", PROBE_HEADER);
    let unit = index.parser("probe.h").unsaved(&[header]).parse().context("parse a header")?;
    let errors = unit
        .get_diagnostics()
        .into_iter()
        .filter(|diagnostic| diagnostic.get_severity() >= clang::diagnostic::Severity::Error);
    match errors.map(|diagnostic| diagnostic.get_text()).next() {
        Some(error) => bail!("parse a header: {error}"),
        None => Ok(()),
    }
}

fn lock(paths: &Paths) -> Result<fs::File> {
    fs::create_dir_all(&paths.cache)
        .with_context(|| format!("create {}", paths.cache.display()))?;
    let path = paths.cache.join("setup.lock");
    let file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    if file.try_lock().is_err() {
        say!("waiting for another setup that uses {}", paths.cache.display());
        file.lock().with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(file)
}
