//! Refusals that depend on the running StatefulSet of the release, which Helm looks up.

use anyhow::{Result, ensure};

use super::api_server::ApiServer;
use super::refusals;
use super::render::{Chart, NAMESPACE, RELEASE};

/// Checks that a cluster does not become smaller by accident. Returns the number of refusals.
pub(super) fn check(chart: &Chart) -> Result<usize> {
    let name = format!("{RELEASE}-chancery");
    let server = ApiServer::start(NAMESPACE, &name, 5)?;
    let url = server.url();
    let live = ["--dry-run=server", "--kube-apiserver", &url];
    let said = refusals::refusal(chart, &live)?;
    let expected = refusal(&name);
    ensure!(said.contains(&expected), "a smaller cluster is not refused: {said}");
    for allowed in ["allowShrink=true", "replicaCount=5", "replicaCount=7"] {
        // After rendering, Helm requests objects that this server does not have.
        let said = refusals::refusal(chart, &[live.as_slice(), &["--set", allowed]].concat())?;
        ensure!(!said.contains("execution error"), "{allowed} is refused: {said}");
        ensure!(said.contains("unable to build kubernetes objects"), "{allowed}: {said}");
    }
    ensure!(server.lookups() == 4, "Helm looked up the StatefulSet {} times", server.lookups());
    Ok(1)
}

/// Returns the sentence that refuses three replicas for a StatefulSet with five.
pub(super) fn refusal(name: &str) -> String {
    format!(
        "replicaCount is 3, and the StatefulSet {NAMESPACE}/{name} has 5 replicas: the others would remain voters, \
         and the cluster could lose its majority; run `chancery cluster remove` for the replicas 4 to 5, the highest \
         first, and then set allowShrink to true"
    )
}
