//! Values that the chart refuses, each with its sentence.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};

use super::render::{Chart, RELEASE};

/// The arguments that change `ci/minimal.yaml`, and a part of the message. [`super::live`] tests the refusals that
/// depend on the running StatefulSet. [`super::values`] tests those of unknown names.
const REFUSALS: &[(&[&str], &str)] = &[
    (
        &["image.repository="],
        "image.repository is empty: no image of Chancery has been published yet; build one, and set image.registry and \
         image.repository",
    ),
    (
        &["image.tag=latest"],
        "image.tag is \"latest\": replicas that restart later could run another version; set a version or image.digest",
    ),
    (
        &["replicaCount=2"],
        "replicaCount is 2: an even number of voters tolerates no more failures than 1; set an odd number",
    ),
    (&["replicaCount=9"], "at '/replicaCount': maximum: got 9, want 7"),
    (&["replicaCount=0"], "at '/replicaCount': minimum: got 0, want 1"),
    (
        &["persistence.enabled=false"],
        "persistence.enabled is false: a replica that moves to another node loses its data, and with a majority of the \
         replicas the cluster loses acknowledged writes; enable it, or use one replica without learners for tests",
    ),
    (
        &["persistence.enabled=false", "replicaCount=1", "learners.enabled=true"],
        "persistence.enabled is false: a replica that moves",
    ),
    (
        &["tls.xds.certManager.enabled=false"],
        "the xds port has no TLS: its traffic would cross the network unencrypted and unauthenticated; set \
         tls.xds.existingSecret or tls.xds.certManager, or config.xds.allow_plaintext to true if the network is trusted",
    ),
    (&["tls.admin.certManager.enabled=false"], "the admin port has no TLS: its traffic would"),
    (&["tls.raft.certManager.enabled=false"], "the raft port has no TLS: its traffic would"),
    (
        &["tls.raft.certManager.enabled=false", "config.raft.allow_plaintext=false"],
        "the raft port has no TLS: its traffic would",
    ),
    (
        &["tls.xds.existingSecret=mine"],
        "tls.xds.existingSecret and tls.xds.certManager.enabled are both set: a port has one certificate; set only one of \
         them",
    ),
    (
        &["tls.raft.certManager.issuerRef.name="],
        "tls.raft.certManager.issuerRef.name is empty: cert-manager needs an issuer; name an Issuer or ClusterIssuer",
    ),
    (
        &["podDisruptionBudget.maxUnavailable=2"],
        "podDisruptionBudget.maxUnavailable is 2: of 3 replicas, at most 1 may be unavailable, or no write can be \
         committed; set a smaller number",
    ),
    (
        &["updateStrategy.rollingUpdate.maxUnavailable=50%"],
        "updateStrategy.rollingUpdate.maxUnavailable is 50%: an update that restarts several replicas at once can leave \
         the cluster without a majority; remove it",
    ),
    (
        &["existingConfigSecret=mine", "config.log.format=json"],
        "config and existingConfigSecret are both set: a replica reads one configuration; set only one of them",
    ),
    (
        &["existingConfigSecret=mine", "secrets.existingSecret=keys"],
        "secrets.existingSecret and existingConfigSecret are both set: the chart cannot change the configuration in your \
         Secret; set secrets.key_file there to a file of extraVolumes, and remove secrets.existingSecret",
    ),
    (
        &["secrets.existingSecret=keys", "config.secrets.key_file=/x"],
        "config.secrets.key_file and secrets.existingSecret are both set: a replica has one key file; set only one of them",
    ),
    (
        &["config.raft.peers={1=a:1}"],
        "config.raft.peers is set: the chart sets this key for each replica; remove it",
    ),
    (
        &["config.xds.tls_cert=/x"],
        "config.xds.tls_cert is set: the chart sets this key for each replica; use tls.xds",
    ),
    (
        &["config.store.data_dir=/x"],
        "config.store.data_dir is set: the chart sets this key for each replica; remove it",
    ),
    (&["config.xds=1"], "at '/config/xds': got number, want object"),
    (
        &["metrics.serviceMonitor.enabled=true"],
        "metrics.serviceMonitor.enabled is true, and networkPolicy.metricsFrom is empty: Prometheus could not connect; set \
         metricsFrom to the pods of Prometheus",
    ),
    (
        &[
            "metrics.serviceMonitor.enabled=true",
            "networkPolicy.enabled=false",
            "tls.admin.certManager.enabled=false",
            "tls.admin.existingSecret=mine",
        ],
        "metrics.serviceMonitor.enabled is true, and the admin port accepts certificates of tls.admin.existingSecret: the \
         chart has no certificate for Prometheus; use tls.admin.certManager, or define a ServiceMonitor in extraObjects",
    ),
    (
        &[
            "backup.enabled=true",
            "tls.admin.certManager.enabled=false",
            "tls.admin.existingSecret=mine",
        ],
        "backup.enabled is true, and the admin port accepts certificates of its CA: the backup needs the certificate of an \
         operator; set backup.existingSecret, or use tls.admin.certManager",
    ),
    (
        &["console.enabled=true"],
        "console.enabled is true: this version of Chancery has no console; set it to false",
    ),
    (
        &["terminationGracePeriodSeconds=10"],
        "at '/terminationGracePeriodSeconds': minimum: got 10, want 30",
    ),
    (
        &["config.shutdown.timeout=10001ms", "terminationGracePeriodSeconds=30"],
        "terminationGracePeriodSeconds is 30, and shutdown.timeout is 10001ms: after this timeout, the replica transfers \
         leadership and closes its store, and Kubernetes might kill it first; set terminationGracePeriodSeconds to at least 31",
    ),
    (
        &["config.shutdown.timeout=2m", "terminationGracePeriodSeconds=139"],
        "terminationGracePeriodSeconds is 139, and shutdown.timeout is 2m: after this timeout, the replica transfers \
         leadership and closes its store, and Kubernetes might kill it first; set terminationGracePeriodSeconds to at least 140",
    ),
    (
        &["metrics.prometheusRule.backupMaxAge=26h"],
        "metrics.prometheusRule.backupMaxAge is set, and backup.enabled is false: there would be no backups to watch; enable \
         them, or remove backupMaxAge",
    ),
    (
        &["metrics.prometheusRule.runbookBase=https://git.example/chancery"],
        "at '/metrics/prometheusRule/runbookBase': 'https://git.example/chancery' does not match pattern",
    ),
];
/// A version of Kubernetes that is too old.
const OLD_KUBERNETES: [&str; 2] = ["--kube-version", "1.27.9"];

/// Checks all refusals, and returns their number.
pub(super) fn check(chart: &Chart) -> Result<usize> {
    for (values, expected) in REFUSALS {
        let args: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
        let said = refusal(chart, &args)?;
        ensure!(said.contains(expected), "the chart refuses {values:?} with another text: {said}");
    }
    let said = refusal(chart, &OLD_KUBERNETES)?;
    ensure!(said.contains("chart requires kubeVersion: >=1.28.0-0"), "Kubernetes 1.27: {said}");
    Ok(REFUSALS.len() + 1)
}

/// Renders `ci/minimal.yaml` with further arguments, and returns why the chart refuses them.
pub(super) fn refusal(chart: &Chart, args: &[&str]) -> Result<String> {
    let mut helm = chart.helm("template", RELEASE);
    helm.arg("-f").arg(chart.dir.join("ci/minimal.yaml")).args(args);
    let Output { status, stderr, .. } = helm.output().context("start helm")?;
    ensure!(!status.success(), "the chart accepts {args:?}");
    Ok(String::from_utf8_lossy(&stderr).into_owned())
}
