//! The descriptors of the whole Envoy API.
//!
//! They come out of a registry package, pinned in the workspace manifest and checked against
//! Cargo.lock, never from files in this repository.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::{cargo, resolver::Resolver, tree};

const PACKAGE: &str = "envoy-types";

/// Roots of import paths inside the package's `proto` directory.
const ROOTS: [&str; 8] = [
    "data-plane-api",
    "xds",
    "protoc-gen-validate",
    "googleapis",
    "cel-spec/proto",
    "opentelemetry-proto",
    "client_model",
    "ratelimit/api",
];

/// Compiles the package's files, and those under `<here>/proto` that it lacks, to `OUT_DIR/envoy.fds`.
pub(crate) fn generate(here: &Path, out: &Path) -> anyhow::Result<()> {
    let tree = package(here)?.join("proto");
    let mut roots: Vec<PathBuf> = ROOTS.iter().map(|root| tree.join(root)).collect();
    roots.push(here.join("proto"));
    let mut files = Vec::new();
    for root in &roots {
        files.extend(tree::protos(root)?);
    }
    let mut compiler = protox::Compiler::with_file_resolver(Resolver::new(roots));
    compiler.include_imports(true);
    for file in &files {
        compiler.open_file(file).with_context(|| file.display().to_string())?;
    }
    // Not `file_descriptor_set()`: prost-types drops extension options, which would lose every
    // validation rule without a word.
    fs::write(out.join("envoy.fds"), compiler.encode_file_descriptor_set())?;
    Ok(())
}

/// The directory of the package's sources, in the version that Cargo.lock has.
fn package(here: &Path) -> anyhow::Result<PathBuf> {
    cargo::rerun_if_env_changed("CARGO_HOME")?;
    // Another version makes cargo build and run this script again: it is a dependency of it.
    let version = locked_version(&here.join("../../Cargo.lock"))?;
    match unpacked(&version) {
        Some(directory) => Ok(directory),
        None => from_metadata(here, &version),
    }
}

fn locked_version(lock: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(lock).with_context(|| lock.display().to_string())?;
    let name = format!("name = \"{PACKAGE}\"");
    let mut lines = text.lines().skip_while(|line| *line != name);
    lines
        .nth(1)
        .and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .map(str::to_owned)
        .with_context(|| format!("{} has no {PACKAGE}", lock.display()))
}

/// Where cargo unpacks packages of a registry. It has done so by now, because the package is a
/// dependency of this build script; no process and no network is needed.
fn unpacked(version: &str) -> Option<PathBuf> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => env::home_dir()?.join(".cargo"),
    };
    let mut registries: Vec<PathBuf> = fs::read_dir(home.join("registry/src"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    registries.sort();
    registries
        .into_iter()
        .map(|registry| registry.join(format!("{PACKAGE}-{version}")))
        .find(|directory| directory.join("proto/data-plane-api").is_dir())
}

/// Asks cargo: vendored and replaced sources are elsewhere.
fn from_metadata(here: &Path, version: &str) -> anyhow::Result<PathBuf> {
    let cargo = env::var_os("CARGO").context("cargo sets CARGO")?;
    let target = env::var("TARGET").context("cargo sets TARGET")?;
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &target])
        .arg("--manifest-path")
        .arg(here.join("Cargo.toml"))
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == PACKAGE && package["version"] == version)
        .and_then(|package| package["manifest_path"].as_str())
        .with_context(|| format!("{PACKAGE} {version} is not in the dependency graph"))?;
    let directory = Path::new(manifest).parent().context("a manifest is in a directory")?;
    Ok(directory.to_owned())
}
