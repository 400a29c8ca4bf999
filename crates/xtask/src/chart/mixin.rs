//! The rules and dashboards of the chart: links to the files in `deploy/mixin`, because Helm reads only its own directory.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::render::{CHART, Chart, of_kind};
use crate::paths::Paths;

/// Files to which the chart has links.
struct Links {
    /// The directory of the files.
    files: &'static str,
    /// The directory of the links in the chart.
    links: &'static str,
    /// The extension of the files.
    extension: &'static str,
    /// The value that renders the files, and the kind of the objects with them.
    value: &'static str,
    kind: &'static str,
}

const LINKS: [Links; 2] = [
    Links {
        files: "deploy/mixin",
        links: "files/rules",
        extension: "yaml",
        value: "metrics.prometheusRule.enabled=true",
        kind: "PrometheusRule",
    },
    Links {
        files: "deploy/mixin/dashboards",
        links: "files/dashboards",
        extension: "json",
        value: "metrics.dashboards.enabled=true",
        kind: "ConfigMap",
    },
];

/// Checks that the chart has a link to each file, and creates objects with the files.
pub(super) fn check(chart: &Chart, paths: &Paths) -> Result<()> {
    for Links { files, links, extension, value, kind } in LINKS {
        let expected = resolved(&paths.root.join(files), extension)?;
        let linked = resolved(&chart.dir.join(links), extension)?;
        ensure!(linked == expected, "{CHART}/{links} has no link to each .{extension} in {files}");
        let without = chart.objects(paths, "everything-on.yaml", &[])?;
        let with = chart.objects(paths, "everything-on.yaml", &["--set", value])?;
        let n_more = of_kind(&with, kind).count() - of_kind(&without, kind).count();
        let n_expected = if kind == "PrometheusRule" { 1 } else { expected.len() };
        ensure!(n_more == n_expected, "{value} adds {n_more} objects of the kind {kind}");
    }
    Ok(())
}

/// Returns the files of a directory by name, without symbolic links in their paths.
fn resolved(dir: &Path, extension: &str) -> Result<BTreeMap<OsString, PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            let file = path.canonicalize().with_context(|| format!("find {}", path.display()))?;
            files.insert(path.file_name().unwrap_or_default().to_owned(), file);
        }
    }
    Ok(files)
}
