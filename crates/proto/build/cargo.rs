//! The instructions that the build script prints for cargo.

use std::{
    io::{self, Write},
    path::Path,
};

/// Tells cargo to run the build script again when `path`, or a file below it, changes.
pub(crate) fn rerun_if_changed(path: &Path) -> io::Result<()> {
    writeln!(io::stdout(), "cargo:rerun-if-changed={}", path.display())
}

/// Tells cargo to run the build script again when the environment variable changes.
pub(crate) fn rerun_if_env_changed(variable: &str) -> io::Result<()> {
    writeln!(io::stdout(), "cargo:rerun-if-env-changed={variable}")
}
