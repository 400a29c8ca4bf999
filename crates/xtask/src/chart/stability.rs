//! Immutable fields that an upgrade keeps, pods that scaling keeps, and names that no other release has.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::render::{Chart, NAMESPACE, name_of, of_kind, succeeded};
use crate::paths::Paths;

const VALUES: &str = "learners.yaml";
/// Changes that an upgrade may contain.
pub(super) const UPGRADE: [&str; 14] = [
    "--set",
    "image.tag=0.2.0",
    "--set",
    "commonLabels.team=edge",
    "--set",
    "podLabels.a=b",
    "--set",
    "config.xds.streams_max=1000",
    "--set",
    "resources.limits.cpu=2",
    "--set",
    "service.xds.port=443",
    "--set",
    "minReadySeconds=20",
];
/// The fields of a StatefulSet that may change.
const MUTABLE: [&str; 7] = [
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "revisionHistoryLimit",
    "template",
    "updateStrategy",
];

/// Checks upgrades, changes of the number of replicas, and a second release.
pub(super) fn check(chart: &Chart, paths: &Paths) -> Result<()> {
    let before = chart.objects(paths, VALUES, &[])?;
    let after = chart.objects(paths, VALUES, &UPGRADE)?;
    for (before, after) in sets(&before).zip(sets(&after)) {
        ensure!(
            immutable(before) == immutable(after),
            "an upgrade changes a fixed field of {}",
            name_of(before)
        );
        ensure!(
            before["spec"]["template"] != after["spec"]["template"],
            "an upgrade changes no pod"
        );
    }
    let grown =
        chart.objects(paths, VALUES, &["--set", "replicaCount=7,learners.replicaCount=9"])?;
    for (before, after) in sets(&before).zip(sets(&grown)) {
        ensure!(
            before["spec"]["replicas"] != after["spec"]["replicas"],
            "the number of replicas is fixed"
        );
        ensure!(
            before["spec"]["template"] == after["spec"]["template"],
            "a larger cluster restarts the pods of {}",
            name_of(before)
        );
    }
    other_release(chart)
}

fn sets(objects: &[Value]) -> impl Iterator<Item = &Value> {
    of_kind(objects, "StatefulSet")
}

/// Returns the fields that the API server does not let change.
fn immutable(set: &Value) -> Vec<(&String, &Value)> {
    let fields = set["spec"].as_object().into_iter().flatten();
    fields.filter(|(name, _)| !MUTABLE.contains(&name.as_str())).collect()
}

/// Checks that two releases in one namespace have no object in common.
fn other_release(chart: &Chart) -> Result<()> {
    let names = |release: &str| -> Result<BTreeSet<String>> {
        let values = chart.dir.join("ci/access-rules.yaml");
        let text = succeeded(chart.helm("template", release).arg("-f").arg(values))?;
        let mut kind = String::new();
        let mut names = BTreeSet::new();
        for line in text.lines() {
            if let Some(of) = line.strip_prefix("kind: ") {
                of.clone_into(&mut kind);
            }
            names.extend(line.strip_prefix("  name: ").map(|name| format!("{kind} {name}")));
        }
        Ok(names)
    };
    let (one, other) = (names("one")?, names("chancery")?);
    ensure!(
        one.len() > 10 && one.len() == other.len(),
        "the releases have {} and {} objects",
        one.len(),
        other.len()
    );
    let both = one.intersection(&other).next();
    ensure!(both.is_none(), "two releases in {NAMESPACE} share {}", both.context("nothing")?);
    Ok(())
}
