//! Clients that reject, stay silent, read slowly, break limits, or disappear.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;

use super::{
    scenario::{Group, Scenario, alert, late},
    stage::Stage,
};

/// The assignments: all nodes receive the scope `edge`, and `heavy-…` also the scope `bulk`.
const ASSIGNMENTS: &str = "
assignments:
- {name: edge, priority: 1, match: {id: '*'}, scopes: [edge]}
- {name: heavy, priority: 2, match: {id: 'heavy-*'}, scopes: [edge, bulk]}
";
const LIGHT: &str = "
assignments:
- {name: heavy, priority: 2, match: {id: 'heavy-*'}, scopes: [edge]}
";

/// The number of clients that behave well.
const FLEET: &str = "40";

pub(super) const GROUP: Group = Group {
    name: "clients",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[alert("ChanceryClientsReject", &[])],
            also: &[],
            is_early: false,
            fault: "three clients reject a cluster",
            repair: "the previous version is published",
            inject: |stage| {
                subscribers(stage, "critics", &["--streams", "3", "--reject", "bad"])?;
                publish(stage, "bad")
            },
            recover: |stage| publish(stage, "good"),
        },
        Scenario {
            alerts: &[alert(
                "ChanceryRejectionsBurst",
                &[("severity", "critical"), ("type", "cluster")],
            )],
            also: &[],
            is_early: false,
            fault: "a rollout publishes clusters that many clients reject",
            repair: "the rollout ends, and the previous version is published",
            inject: |stage| {
                subscribers(stage, "critics", &["--streams", "30", "--reject", "bad"])?;
                let mut command = stage.cluster.command();
                let dir = stage.cluster.dir.clone();
                command.args(["apply", "--file", "rollout.yaml"]);
                let mut n_rollouts = 0_u64;
                stage.repeat("rollout", Duration::from_millis(300), move || {
                    n_rollouts += 1;
                    let manifest = web(&format!("bad-{n_rollouts}"));
                    // If the command fails, the next step repeats it.
                    drop(std::fs::write(dir.join("rollout.yaml"), manifest));
                    crate::proc::succeeds(&mut command);
                });
                Ok(())
            },
            recover: |stage| {
                stage.stop("rollout");
                publish(stage, "good")
            },
        },
        Scenario {
            alerts: &[alert("ChanceryClientSilent", &[])],
            also: &[],
            is_early: false,
            fault: "a client hangs, and answers nothing",
            repair: "the client is restarted",
            inject: |stage| subscribers(stage, "critics", &["--never-answer"]),
            recover: |stage| subscribers(stage, "critics", &[]),
        },
        Scenario {
            alerts: &[alert("ChanceryFirstSyncSlow", &[])],
            also: &[],
            is_early: false,
            fault: "many new clients need 14 s until they accept their first resources",
            repair: "all clients have their resources",
            inject: |stage| {
                let slow = ["--streams", "90", "--arrive", "0.25", "--first-answer-after", "14"];
                subscribers(stage, "critics", &slow)
            },
            recover: |_| Ok(()),
        },
        Scenario {
            alerts: &[alert("ChanceryClientsReadSlowly", &[])],
            also: &[],
            is_early: false,
            fault: "clients do not read responses of 3 MB, and resources change",
            repair: "the clients read again",
            inject: |stage| {
                stage.stop("critics");
                stage.cluster.apply(&bulk(380))?;
                subscribers(stage, "heavy", &["--streams", "12", "--never-read"])?;
                // A stream is blocked if it has a further response to send.
                stage.author(1, 2, "edge")
            },
            recover: |stage| {
                stage.stop("author");
                subscribers(stage, "heavy", &["--streams", "12"])
            },
        },
        Scenario {
            alerts: &[late("ChanceryResponseTooLargeForGrpc", &[("protocol", "sotw")])],
            also: &[],
            is_early: false,
            fault: "clients receive 5 MB in one response",
            repair: "the clients receive fewer scopes",
            inject: |stage| stage.cluster.apply(&bulk(640)),
            recover: |stage| stage.cluster.apply_confirmed(LIGHT, &["--confirm", "view-change"]),
        },
        Scenario {
            alerts: &[
                alert("ChanceryStreamsRefused", &[("reason", "refused")]),
                late("ChanceryLimitHit", &[("limit", "names")]),
            ],
            also: &[],
            is_early: false,
            fault: "a client subscribes to more names than xds.names_max",
            repair: "the client is corrected",
            inject: |stage| subscribers(stage, "critics", &["--names", "200"]),
            recover: |stage| subscribers(stage, "critics", &["--names", "20"]),
        },
        Scenario {
            alerts: &[late("ChanceryLoadReportsOmitted", &[("kind", "value")])],
            also: &[],
            is_early: false,
            fault: "a client reports a load that is not a number",
            repair: "the client is corrected",
            inject: |stage| {
                let address = stage.cluster.xds(1);
                stage.client("load", &["load", &address])
            },
            recover: |stage| {
                stage.stop("load");
                Ok(())
            },
        },
        Scenario {
            alerts: &[alert("ChanceryStreamsLost", &[])],
            also: &[],
            is_early: false,
            fault: "most clients disappear",
            repair: "the clients connect again",
            inject: |stage| {
                stage.stop("fleet");
                Ok(())
            },
            recover: steady_fleet,
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    stage.cluster.set("CHANCERY_XDS_NAMES_MAX", "100");
    stage.cluster.set("CHANCERY_GUARDS_OFF", "sotw-size");
    stage.cluster.start_all()?;
    stage.cluster.apply(ASSIGNMENTS)?;
    publish(stage, "good")?;
    steady_fleet(stage)
}

/// Returns a manifest with the cluster `web`.
fn web(text: &str) -> String {
    format!(
        "scope: edge\nresources:\n- {{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, \
         name: web, alt_stat_name: {text}}}\n"
    )
}

/// Returns a manifest with clusters of 8 KB.
fn bulk(n: usize) -> String {
    let mut manifest = "scope: bulk\nresources:\n".to_owned();
    let text = "x".repeat(8000);
    for at in 0..n {
        writeln!(
            manifest,
            "- {{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: bulk-{at}, \
             metadata: {{filter_metadata: {{chancery.test: {{text: {text}}}}}}}}}"
        )
        .expect("writing to a String cannot fail");
    }
    manifest
}

fn publish(stage: &mut Stage, text: &str) -> Result<()> {
    stage.cluster.apply(&web(text))
}

/// Starts clients of the first replica.
fn subscribers(stage: &mut Stage, name: &str, args: &[&str]) -> Result<()> {
    let address = stage.cluster.xds(1);
    let usual = ["subscribe", address.as_str(), "--node", name];
    stage.client(name, &[&usual, args].concat())
}

fn steady_fleet(stage: &mut Stage) -> Result<()> {
    let addresses = [stage.cluster.xds(1), stage.cluster.xds(2)].join(",");
    stage.client("fleet", &["subscribe", &addresses, "--streams", FLEET])
}
