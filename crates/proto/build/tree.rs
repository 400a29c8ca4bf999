//! A recursive search for `.proto` files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Returns all `.proto` files under `root`, sorted by name so that builds are reproducible.
pub(crate) fn protos(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "proto") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
