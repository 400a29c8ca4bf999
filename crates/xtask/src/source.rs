//! The files of the tree, as our own checks read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::paths::Paths;

/// What is not source: git's own (a file in a linked work tree), build output, and data a replica left
/// in the checkout.
const SKIPPED: &[&str] = &[".git", "target", "chancery-data"];

/// A text file of the tree.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its path inside the workspace, with `/`.
    pub(crate) path: String,
    /// What it holds.
    pub(crate) text: String,
}

/// All text files below `dir` (relative to the workspace), sorted by path. Files that are not UTF-8
/// are no text.
pub(crate) fn files(paths: &Paths, dir: &str) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut dirs: Vec<PathBuf> = vec![paths.root.join(dir)];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", dir.display()))?;
            let path = entry.path();
            let kind = entry.file_type().with_context(|| format!("look at {}", path.display()))?;
            if entry.file_name().to_str().is_some_and(|name| SKIPPED.contains(&name)) {
                continue;
            }
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found.iter().filter_map(|path| read(paths, path).transpose()).collect()
}

fn read(paths: &Paths, path: &Path) -> Result<Option<Source>> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let Ok(text) = String::from_utf8(bytes) else { return Ok(None) };
    let path = paths.relative(path).to_string_lossy().replace('\\', "/");
    Ok(Some(Source { path, text }))
}
