//! Refusals that depend on the running StatefulSets of the release, which Helm looks up.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::api_server::ApiServer;
use super::refusals;
use super::render::{Chart, NAMESPACE};

/// The StatefulSet of the voters.
const VOTERS: &str = "release-chancery";
/// The StatefulSet of the learners.
const LEARNERS: &str = "release-chancery-learner";
/// The reason of Kubernetes.
const FIXED: &str = "Kubernetes does not change the volumes of a StatefulSet";

/// Values that the chart refuses for the running StatefulSets, and a part of the text that says why.
fn refused() -> Vec<(&'static [&'static str], String)> {
    let set = |name: &str| format!("the StatefulSet {NAMESPACE}/{name}");
    let (voters, learners) = (set(VOTERS), set(LEARNERS));
    let delete = |name: &str| {
        format!(
            "run `kubectl --namespace {NAMESPACE} delete statefulset {name} --cascade=orphan`, and repeat the upgrade"
        )
    };
    vec![
        (&["learners.enabled=true"], fewer_voters(VOTERS)),
        (
            &["replicaCount=5"],
            format!(
                "learners.enabled is false, and {learners} has 3 replicas: the others would remain members of the cluster; \
                 run `chancery cluster remove` for the replicas 101 to 103, the highest first, and then set allowShrink to true"
            ),
        ),
        (
            &["replicaCount=5", "learners.enabled=true", "learners.replicaCount=2"],
            fewer_learners(LEARNERS),
        ),
        (
            &["allowShrink=true", "persistence.size=20Gi"],
            format!(
                "persistence.size is 20Gi, and {voters} requests 10Gi: {FIXED}; request 20Gi in each claim, {} \
                 (docs/kubernetes.md, \"Grow a volume\")",
                delete(VOTERS)
            ),
        ),
        (
            &["allowShrink=true", "persistence.size=10239Mi"],
            format!(
                "persistence.size is 10239Mi, and the volumes of {voters} have 10Gi: a volume cannot become smaller; set 10Gi \
                 or more"
            ),
        ),
        (
            &["allowShrink=true", "persistence.storageClass=fast"],
            format!(
                "persistence.storageClass is \"fast\", and {voters} has \"\": {FIXED}; set the previous value, or, to change only volumes created later, {}",
                delete(VOTERS)
            ),
        ),
        (
            &["allowShrink=true", "persistence.accessModes={ReadWriteOncePod}"],
            format!(
                "persistence.accessModes is [\"ReadWriteOncePod\"], and {voters} has [\"ReadWriteOnce\"]: {FIXED}; set the \
                 previous value, or, to change only volumes created later, {}",
                delete(VOTERS)
            ),
        ),
        (
            &["allowShrink=true", "persistence.annotations.a=b"],
            format!(
                "persistence.annotations is {{\"a\":\"b\"}}, and {voters} has {{}}: {FIXED}; set the previous value, or, to change only volumes created later, {}",
                delete(VOTERS)
            ),
        ),
        (
            &["allowShrink=true", "replicaCount=1", "persistence.enabled=false"],
            format!(
                "persistence.enabled is false, and {voters} has volumes: {FIXED}; set persistence.enabled to true, or install \
                 another release"
            ),
        ),
    ]
}

/// Values that the chart accepts for them.
const ACCEPTED: [&[&str]; 4] = [
    &["allowShrink=true"],
    &["replicaCount=5", "learners.enabled=true", "learners.replicaCount=3"],
    &["replicaCount=7", "learners.enabled=true", "learners.replicaCount=4"],
    &["allowShrink=true", "persistence.size=10240Mi"],
];

/// Checks that a cluster does not become smaller by accident, and that the reason for fixed volumes is given. Returns
/// the number of refusals.
pub(super) fn check(chart: &Chart) -> Result<usize> {
    let server = ApiServer::start(NAMESPACE, &[(VOTERS, set(5)), (LEARNERS, set(3))])?;
    let url = server.url();
    let said = |values: &[&str]| {
        let live = ["--dry-run=server", "--kube-apiserver", &url];
        let values: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
        refusals::refusal(chart, &[live.as_slice(), &values].concat())
    };
    let refused = refused();
    for (values, expected) in &refused {
        let said = said(values)?;
        ensure!(said.contains(expected), "the chart refuses {values:?} with another text: {said}");
    }
    for values in ACCEPTED {
        // After rendering, Helm requests objects that this server does not have.
        let said = said(values)?;
        ensure!(!said.contains("execution error"), "{values:?} is refused: {said}");
        ensure!(said.contains("unable to build kubernetes objects"), "{values:?}: {said}");
    }
    let renders = refused.len() + ACCEPTED.len();
    let lookups = server.lookups();
    ensure!(
        lookups >= renders,
        "Helm looked up the StatefulSets {lookups} times in {renders} renderings"
    );
    Ok(refused.len())
}

/// Returns a StatefulSet with the volumes that the chart creates by default.
fn set(replicas: u32) -> Value {
    json!({
        "replicas": replicas,
        "volumeClaimTemplates": [{
            "metadata": {"name": "data", "labels": {"app.kubernetes.io/name": "chancery"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}, "volumeMode": "Filesystem"},
            "status": {"phase": "Pending"},
        }],
    })
}

/// Returns the sentence that refuses three voters for a StatefulSet with five.
pub(super) fn fewer_voters(name: &str) -> String {
    format!(
        "replicaCount is 3, and the StatefulSet {NAMESPACE}/{name} has 5 replicas: the others would remain voters, \
         and the cluster could lose its majority; run `chancery cluster remove` for the replicas 4 to 5, the highest \
         first, and then set allowShrink to true"
    )
}

/// Returns the sentence that refuses two learners for a StatefulSet with three.
pub(super) fn fewer_learners(name: &str) -> String {
    format!(
        "learners.replicaCount is 2, and the StatefulSet {NAMESPACE}/{name} has 3 replicas: the others would remain members \
         of the cluster; run `chancery cluster remove` for the replicas 103 to 103, the highest first, and then set \
         allowShrink to true"
    )
}
