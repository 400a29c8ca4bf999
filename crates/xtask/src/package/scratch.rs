//! The directories of packages and of their checks, in the target directory.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::paths::Paths;

/// The directory that contains all others.
const DIR: &str = "packages";

/// Returns an empty directory of this name.
pub(super) fn fresh_dir(paths: &Paths, name: &str) -> Result<PathBuf> {
    let dir = paths.target.join(DIR).join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}
