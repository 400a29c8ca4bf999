//! `cargo xtask chart --apiserver`: the chart in a real API server of Kubernetes.
//!
//! Each file of values is applied by a server-side dry run, installed, upgraded and uninstalled. One release also grows
//! and shrinks. The namespace enforces the PodSecurity level `restricted`, and no call may cause a warning. There are no
//! controllers and no nodes, so no pod starts.

use std::{collections::BTreeSet, fs, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, Said},
    live, page,
    render::{Case, Chart, NAMESPACE, RELEASE, Scratch, succeeded},
    stability::UPGRADE,
};
use crate::{paths::Paths, say::say, setup};

/// The values of the release that grows and shrinks: three voters, and all objects that the chart has.
const GROWING: &str = "access-rules.yaml";
/// The annotation that keeps an object after `helm uninstall`.
const KEPT: &str = "helm.sh/resource-policy: keep";

/// Runs all checks.
pub(super) fn check(paths: &Paths) -> Result<()> {
    let start = Instant::now();
    let scratch = Scratch::new(paths)?;
    let chart = Chart::new(paths, &scratch)?;
    let tools = setup::cluster_tools(paths)?;
    let cluster = Cluster::start(&tools, &chart, chart.scratch.join("cluster"))?;
    say!("an API server of Kubernetes {} is ready", cluster.version()?);
    prepare(&cluster, &tools, &chart)?;
    say!("the namespace enforces the PodSecurity level restricted, and warns of other pods");
    let cases = chart.cases()?;
    let mut n_objects = 0;
    for case in &cases {
        n_objects += one_case(&cluster, &chart, case)
            .with_context(|| format!("the values {}", case.name))?;
    }
    say!(
        "{n_objects} objects of {} sets of values are accepted by a server-side dry run",
        cases.len()
    );
    say!(
        "each of these releases was installed with its notes, upgraded without a change, and uninstalled"
    );
    growth(&cluster, &chart)?;
    for (line, objects) in page::examples(paths)?.0 {
        dry_run(&cluster, &chart, &objects, &[])
            .with_context(|| format!("{}:{line}", page::PAGE))?;
    }
    say!("the objects in {} are accepted", page::PAGE);
    say!("the chart works in a real API server ({} s)", start.elapsed().as_secs());
    Ok(())
}

/// Creates the CRDs, the namespace, and the service account that a controller would create.
fn prepare(cluster: &Cluster, tools: &setup::ClusterTools, chart: &Chart) -> Result<()> {
    cluster.kubectl_with(&["apply", "--server-side"], Some(&tools.crds))?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"])?;
    let labels = ["enforce", "audit", "warn"]
        .map(|mode| (format!("pod-security.kubernetes.io/{mode}"), json!("restricted")));
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": Value::Object(labels.into_iter().collect())},
    });
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE},
    });
    for object in [namespace, account] {
        apply(cluster, chart, &object.to_string(), &[])?.without_warnings()?;
    }
    // The namespace warns of a chart that is less strict. Without this, the absence of warnings would show nothing.
    let values = chart.dir.join("ci/minimal.yaml");
    let mut render = chart.helm("template", RELEASE);
    render.arg("-f").arg(values).args(["--set", "podSecurityContext.runAsNonRoot=false"]);
    let manifest = succeeded(&mut render)?;
    let said = apply(cluster, chart, &manifest, &["--dry-run=server"])?;
    ensure!(
        said.warnings()
            .contains("would violate PodSecurity \"restricted:latest\": runAsNonRoot != true"),
        "the API server does not warn of pods that may run as root: {}",
        said.warnings()
    );
    Ok(())
}

/// Applies, installs, upgrades and uninstalls one set of values. Returns the number of its objects.
fn one_case(cluster: &Cluster, chart: &Chart, case: &Case) -> Result<usize> {
    let before = names(cluster)?;
    let mut without_hooks = chart.helm("template", RELEASE);
    without_hooks.args(["--no-hooks", "-f"]).arg(&case.values);
    let n_objects = dry_run(cluster, chart, &succeeded(&mut without_hooks)?, &[])?;
    ensure!(names(cluster)? == before, "a dry run creates objects");

    let values = case.values.to_string_lossy();
    let dir = chart.dir.to_string_lossy();
    let said = cluster.helm(&["install", RELEASE, &dir, "-f", &values])?.without_warnings()?;
    let notes = said.split_once("\nNOTES:\n").map(|(_, notes)| notes.trim_end());
    ensure!(
        notes == Some(case.notes.trim_end()),
        "the notes are {notes:?} instead of {:?}",
        case.notes
    );
    let installed = cluster.objects()?;
    let n_installed = installed.len() - before.len();
    ensure!(n_installed == n_objects, "helm installs {n_installed} of {n_objects} objects");

    // The pod of `helm test` needs the service account of the release. Helm owns the fields of the other objects.
    dry_run(cluster, chart, &case.manifest, &["--force-conflicts"])?;
    cluster.helm(&["upgrade", RELEASE, &dir, "-f", &values])?.without_warnings()?;
    // The API server writes a claim again even if nothing changes.
    let changed = cluster.objects()?.into_iter().find(|(name, version)| {
        !name.starts_with("PersistentVolumeClaim/") && installed.get(name) != Some(version)
    });
    ensure!(changed.is_none(), "a repeated upgrade changes {changed:?}");
    uninstall(cluster, &case.manifest, &before)?;
    Ok(n_objects)
}

/// Uninstalls the release. Only the objects that the chart keeps remain, and are then deleted.
fn uninstall(cluster: &Cluster, manifest: &str, before: &BTreeSet<String>) -> Result<()> {
    cluster.helm(&["uninstall", RELEASE])?.without_warnings()?;
    let remaining: BTreeSet<_> = names(cluster)?.difference(before).cloned().collect();
    let kept: BTreeSet<_> =
        manifest.split("\n---\n").filter(|object| object.contains(KEPT)).filter_map(name).collect();
    ensure!(remaining == kept, "{remaining:?} remain after the release, instead of {kept:?}");
    for object in &kept {
        // Only a controller removes the finalizer of a volume's claim.
        cluster.kubectl(&[
            "patch",
            object,
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])?;
        cluster.kubectl(&["delete", object])?;
    }
    Ok(())
}

/// Returns the kind and name of a rendered object.
fn name(object: &str) -> Option<String> {
    let line = |start: &str| object.lines().find_map(|line| line.strip_prefix(start));
    Some(format!("{}/{}", line("kind: ")?, line("  name: ")?))
}

fn names(cluster: &Cluster) -> Result<BTreeSet<String>> {
    Ok(cluster.objects()?.into_keys().collect())
}

/// One release with more and fewer replicas.
fn growth(cluster: &Cluster, chart: &Chart) -> Result<()> {
    let before = names(cluster)?;
    let name = format!("{RELEASE}-chancery");
    let (dir, values) = (chart.dir.to_string_lossy(), chart.dir.join("ci").join(GROWING));
    let values = values.to_string_lossy();
    let release = |action, args: &[&'static str]| {
        let call = [&[action, RELEASE, &dir, "-f", &values], args].concat();
        call.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let upgrade = |args| cluster.helm(&release("upgrade", args))?.without_warnings();
    let set = || Ok::<_, anyhow::Error>(cluster.get("statefulset", &name)?["spec"].clone());
    cluster.helm(&release("install", &[]))?.without_warnings()?;
    let small = set()?;
    upgrade(&["--set", "replicaCount=5"])?;
    let large = set()?;
    ensure!(small["replicas"] == 3 && large["replicas"] == 5, "the upgrade adds no replicas");
    ensure!(small["template"] == large["template"], "a larger cluster restarts its pods");
    say!("an upgrade from 3 to 5 replicas changes no pod template");

    let refuses = |args: &[&'static str], refusal: &str| {
        let said = cluster.helm_refuses(&release("upgrade", args))?;
        ensure!(said.contains(refusal), "{args:?} is not refused: {said}");
        Ok(())
    };
    refuses(&[], &live::fewer_voters(&name))?;
    ensure!(set()? == large, "a refused upgrade changes the StatefulSet");
    upgrade(&["--set", "allowShrink=true"])?;
    ensure!(set()?["replicas"] == 3, "allowShrink removes no replicas");
    say!("an upgrade from 5 to 3 replicas is refused without allowShrink");

    upgrade(&["--set", "learners.enabled=true,learners.replicaCount=3"])?;
    let learners = format!("{name}-learner");
    let fewer = ["--set", "learners.enabled=true,learners.replicaCount=2"];
    refuses(&fewer, &live::fewer_learners(&learners))?;
    refuses(&[], "learners.enabled is false, and the StatefulSet")?;
    upgrade(&["--set", "allowShrink=true"])?;
    say!("fewer learners, and no learners, are refused without allowShrink");

    refuses(&["--set", "persistence.size=20Gi"], "(docs/kubernetes.md, \"Grow a volume\")")?;
    // No controller runs that would release the pods and then remove the StatefulSet.
    cluster.kubectl(&["delete", "statefulset", &name, "--cascade=orphan", "--wait=false"])?;
    let released = r#"{"metadata": {"finalizers": null}}"#;
    cluster.kubectl(&["patch", "statefulset", &name, "--type=merge", "--patch", released])?;
    upgrade(&["--set", "persistence.size=20Gi"])?;
    let claim =
        set()?["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].clone();
    ensure!(claim == "20Gi", "the volumes have {claim}");
    say!("larger volumes are refused until the StatefulSet was deleted without its pods");

    upgrade(&[UPGRADE.as_slice(), &["--set", "persistence.size=20480Mi"]].concat())?;
    ensure!(set()?["template"] != small["template"], "an upgrade changes no pod");
    say!("an upgrade of the image, the configuration and the service changes no fixed field");

    let rendered = succeeded(chart.helm("template", RELEASE).arg("-f").arg(&*values))?;
    uninstall(cluster, &rendered, &before)
}

/// Applies objects by a server-side dry run without warnings. Returns their number.
fn dry_run(cluster: &Cluster, chart: &Chart, manifest: &str, args: &[&str]) -> Result<usize> {
    let args = [&["--dry-run=server"], args].concat();
    let said = apply(cluster, chart, manifest, &args)?.without_warnings()?;
    let n_objects = manifest.lines().filter(|line| line.starts_with("kind: ")).count();
    let n_accepted = said.lines().filter(|line| line.ends_with("(server dry run)")).count();
    ensure!(n_accepted == n_objects, "{n_accepted} of {n_objects} objects are accepted: {said}");
    Ok(n_objects)
}

fn apply(cluster: &Cluster, chart: &Chart, manifest: &str, args: &[&str]) -> Result<Said> {
    let file = chart.scratch.join("objects.yaml");
    fs::write(&file, manifest).with_context(|| format!("write {}", file.display()))?;
    let args = [&["apply", "--server-side"], args].concat();
    cluster.kubectl_with(&args, Some(&file))
}
