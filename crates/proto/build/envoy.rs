//! Generates the descriptors of the whole Envoy API.
//!
//! The sources are the files that Envoy itself links, and a registry package, which the manifest of this crate pins and
//! Cargo.lock verifies. The package also has the files of extensions that the usual build of Envoy does not link.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::{cargo, linked, resolver::Resolver};

const PACKAGE: &str = "envoy-types";

/// The flag under which the package is a dependency of this script (see `Cargo.toml`).
const FLAG: &str = "chancery_envoy_protos";

/// The roots of import paths inside the package's `proto` directory.
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

/// A file of the package that has another name in Envoy 1.40.
const RENAMED: &str = "envoy/type/ai/v3/api_protocol.proto";

/// Compiles the files of the sets under `<here>/sets` and the package's files to `OUT_DIR/envoy.fds`.
pub(crate) fn generate(here: &Path, out: &Path) -> anyhow::Result<()> {
    let tree = package(here)?.join("proto");
    let roots: Vec<PathBuf> = ROOTS.iter().map(|root| tree.join(root)).collect();
    let linked = linked::read(&here.join("sets"))?;
    let mut files: Vec<PathBuf> = linked.keys().map(PathBuf::from).collect();
    for root in &roots {
        files.extend(chancery_proto_build::protos(root)?);
    }
    files.retain(|file| !file.ends_with(RENAMED));
    let mut compiler = protox::Compiler::with_file_resolver(Resolver::new(linked, roots));
    compiler.include_imports(true);
    for file in &files {
        compiler.open_file(file).with_context(|| file.display().to_string())?;
    }
    // `file_descriptor_set()` would silently lose every validation rule, because prost-types drops
    // extension options.
    fs::write(out.join("envoy.fds"), compiler.encode_file_descriptor_set())?;
    Ok(())
}

/// Returns the source directory of the package, in the version that the manifest of this crate pins.
fn package(here: &Path) -> anyhow::Result<PathBuf> {
    cargo::rerun_if_env_changed("CARGO_HOME")?;
    let version = pinned_version(&here.join("Cargo.toml"))?;
    match unpacked(&version) {
        Some(directory) => Ok(directory),
        None => from_metadata(here, &version),
    }
}

/// Returns the version that the manifest pins.
fn pinned_version(manifest: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
    let pin = format!("{PACKAGE} = \"=");
    text.lines()
        .find_map(|line| line.strip_prefix(&pin)?.strip_suffix('"'))
        .map(str::to_owned)
        .with_context(|| format!("{} does not pin {PACKAGE}", manifest.display()))
}

/// Returns the directory into which cargo unpacked the package, if an earlier build or `cargo fetch`
/// downloaded it.
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
        // Cargo writes this file last.
        .find(|directory| directory.join(".cargo-ok").is_file())
}

/// Makes cargo download, verify and unpack the package, or find its vendored or replaced source.
///
/// `cargo metadata` does this for all dependencies under the given flags, and compiles none of them.
fn from_metadata(here: &Path, version: &str) -> anyhow::Result<PathBuf> {
    let cargo = env::var_os("CARGO").context("cargo sets CARGO")?;
    let target = env::var("TARGET").context("cargo sets TARGET")?;
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &target])
        .arg("--manifest-path")
        .arg(here.join("Cargo.toml"))
        // Cargo sets this variable for build scripts. It overrides all other sources of flags.
        .env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg\x1f{FLAG}"))
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
