//! The directory of a file, and failures with files.

use std::{io, path::Path};

use crate::failure::Failure;

/// Returns the directory of a file.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the failure to do something with a file.
pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot {what} {}: {error}", path.display()))
}
