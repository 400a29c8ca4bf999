//! What a build script tells cargo, on its standard output.

use std::{
    io::{self, Write},
    path::Path,
};

/// Run again when `path`, or anything under it, changes.
pub(crate) fn rerun_if_changed(path: &Path) -> io::Result<()> {
    writeln!(io::stdout(), "cargo:rerun-if-changed={}", path.display())
}

/// Run again when the environment variable changes.
pub(crate) fn rerun_if_env_changed(variable: &str) -> io::Result<()> {
    writeln!(io::stdout(), "cargo:rerun-if-env-changed={variable}")
}
