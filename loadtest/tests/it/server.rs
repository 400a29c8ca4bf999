//! The location of the server's binary, for any way to run the tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::SystemTime,
};

static BINARY: LazyLock<PathBuf> = LazyLock::new(find);

/// Returns the binary to test. That is the one in `CHANCERY_BIN`, or the one in the directory of `loadtest`,
/// which cargo builds when it tests the whole workspace. If it does not exist or is older than a source, it
/// is built now.
pub(crate) fn binary() -> &'static Path {
    &BINARY
}

fn find() -> PathBuf {
    if let Some(path) = std::env::var_os("CHANCERY_BIN") {
        return path.into();
    }
    let ours = Path::new(env!("CARGO_BIN_EXE_loadtest"));
    let binary = ours.with_file_name("chancery");
    if !is_current(&binary) {
        build(ours);
    }
    assert!(binary.is_file(), "no binary at {}", binary.display());
    binary
}

fn is_current(binary: &Path) -> bool {
    let made = fs::metadata(binary).and_then(|it| it.modified());
    made.is_ok_and(|made| root().is_some_and(|root| newest(&root.join("crates")) <= made))
}

/// Returns the time of the last change of a source of the binary.
fn newest(dir: &Path) -> SystemTime {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let times = entries.filter_map(|entry| {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            return (name != "tests" && name != "xtask").then(|| newest(&path));
        }
        if path.extension().is_some_and(|it| it == "rs" || it == "proto") {
            entry.metadata().ok()?.modified().ok()
        } else {
            None
        }
    });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Builds the binary in the profile and the directory of `loadtest`.
fn build(ours: &Path) {
    let profile = ours.parent().and_then(Path::file_name);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", "chancery-server", "--bin", "chancery", "--target-dir"]);
    cargo.arg(ours.ancestors().nth(2).unwrap());
    if profile.is_some_and(|profile| profile == "release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(root().unwrap()).status().unwrap();
    assert!(status.success(), "cargo could not build the server: {status}");
}

fn root() -> Option<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent()
}
