//! The text files of the tree, which xtask's own checks read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::paths::Paths;

/// The names of files and directories that are not source.
///
/// These are git's own (a file in a linked worktree), build output, and the data of a replica that ran
/// in the checkout.
const SKIPPED: &[&str] = &[".git", "target", "chancery-data"];

/// A text file of the tree.
#[derive(Debug)]
pub(crate) struct Source {
    /// The path inside the workspace, with `/` as separator.
    pub(crate) path: String,
    /// The content.
    pub(crate) text: String,
}

/// Returns all text files below `dir` (relative to the workspace), sorted by path. A file is a text
/// file if it is valid UTF-8.
pub(crate) fn files(paths: &Paths, dir: &str) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut dirs: Vec<PathBuf> = vec![paths.root.join(dir)];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", dir.display()))?;
            let path = entry.path();
            let kind = entry
                .file_type()
                .with_context(|| format!("read the type of {}", path.display()))?;
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
