//! The rules and dashboards of the chart: copies of the files in `deploy/mixin`, because Helm reads only its own directory.

use std::{collections::BTreeMap, ffi::OsStr, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::golden::Golden;
use super::render::{CHART, Chart, of_kind};
use crate::paths::Paths;

/// Files of which the chart has a copy.
struct Copies {
    /// The directory of the originals.
    original: &'static str,
    /// The directory in the chart.
    copy: &'static str,
    /// The extension of the files.
    extension: &'static str,
    /// The value that renders the files, and the kind of the objects with them.
    value: &'static str,
    kind: &'static str,
}

const COPIES: [Copies; 2] = [
    Copies {
        original: "deploy/mixin",
        copy: "files/rules",
        extension: "yaml",
        value: "metrics.prometheusRule.enabled=true",
        kind: "PrometheusRule",
    },
    Copies {
        original: "deploy/mixin/dashboards",
        copy: "files/dashboards",
        extension: "json",
        value: "metrics.dashboards.enabled=true",
        kind: "ConfigMap",
    },
];

/// Compares or writes the copies.
pub(super) fn check_copies(paths: &Paths, golden: Golden) -> Result<()> {
    for Copies { original, copy, extension, .. } in COPIES {
        let dir = paths.root.join(CHART).join(copy);
        let originals = files(&paths.root.join(original), extension)?;
        if golden == Golden::Write && !originals.is_empty() {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
            for name in files(&dir, extension)?.keys().filter(|name| !originals.contains_key(*name))
            {
                fs::remove_file(dir.join(name)).with_context(|| format!("remove {name}"))?;
            }
            for (name, text) in &originals {
                fs::write(dir.join(name), text).with_context(|| format!("write {name}"))?;
            }
        }
        ensure!(
            files(&dir, extension)? == originals,
            "{CHART}/{copy} differs from {original}; run `cargo xtask chart --update`"
        );
    }
    Ok(())
}

/// Checks the objects with the copies, if there are any.
pub(super) fn check_objects(chart: &Chart, paths: &Paths) -> Result<()> {
    for Copies { copy, extension, value, kind, .. } in COPIES {
        let expected = files(&chart.dir.join(copy), extension)?;
        if expected.is_empty() {
            continue;
        }
        let without = chart.objects(paths, "everything-on.yaml", &[])?;
        let with = chart.objects(paths, "everything-on.yaml", &["--set", value])?;
        let n_more = of_kind(&with, kind).count() - of_kind(&without, kind).count();
        let n_expected = if kind == "PrometheusRule" { 1 } else { expected.len() };
        ensure!(n_more == n_expected, "{value} adds {n_more} objects of the kind {kind}");
    }
    Ok(())
}

/// Returns the files of a directory by name. A directory that does not exist has none.
fn files(dir: &Path, extension: &str) -> Result<BTreeMap<String, String>> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(BTreeMap::new()) };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths =
        paths.collect::<Result<Vec<_>, _>>().with_context(|| format!("list {}", dir.display()))?;
    paths.retain(|path| path.extension() == Some(OsStr::new(extension)));
    let read = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text))
    };
    paths.iter().map(read).collect()
}
