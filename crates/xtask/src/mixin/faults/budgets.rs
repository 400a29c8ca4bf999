//! Slow clients and a lost majority: the alerts of the objectives, whose windows are the longest.

use anyhow::Result;

use super::{
    scenario::{Group, Scenario, alert, late},
    stage::Stage,
};

/// A manifest with one cluster in the scope `edge`, which all nodes receive.
pub(super) const EDGE: &str = "
assignments:
- {name: edge, priority: 1, match: {id: '*'}, scopes: [edge]}
---
scope: edge
resources:
- {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: web, alt_stat_name: good}
";

pub(super) const GROUP: Group = Group {
    name: "budgets",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[
                alert("ChanceryConvergenceSlow", &[]),
                late("ChanceryPushBudgetBurnsFast", &[("severity", "critical")]),
                late("ChanceryPushBudgetBurnsSlowly", &[("severity", "warning")]),
            ],
            also: &[],
            is_early: false,
            fault: "clients acknowledge each change 6 s late",
            repair: "the clients acknowledge quickly again",
            inject: |stage| fleet(stage, &["--answer-after", "6"]),
            recover: |stage| fleet(stage, &[]),
        },
        Scenario {
            alerts: &[
                alert("ChanceryNoLeader", &[("severity", "critical")]),
                alert("ChanceryRenewalsPaused", &[("instance", "@1")]),
                alert("ChanceryWritesFail", &[]),
                late("ChanceryWriteBudgetBurnsFast", &[("severity", "critical")]),
                late("ChanceryWriteBudgetBurnsSlowly", &[("severity", "warning")]),
            ],
            also: &[],
            is_early: false,
            fault: "two of three replicas stop, and writes continue",
            repair: "both replicas continue",
            inject: |stage| {
                stage.cluster.signal(2, "STOP")?;
                stage.cluster.signal(3, "STOP")
            },
            recover: |stage| {
                stage.cluster.signal(2, "CONT")?;
                stage.cluster.signal(3, "CONT")?;
                stage.cluster.expect_ready()
            },
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    stage.cluster.set("CHANCERY_XDS_RENEWALS_STOP_AFTER", "1s");
    stage.cluster.set("CHANCERY_XDS_ACK_TIMEOUT", "1m");
    stage.cluster.set("CHANCERY_STORE_TRANSACT_TIMEOUT", "2s");
    stage.cluster.start_all()?;
    stage.cluster.apply(EDGE)?;
    fleet(stage, &[])?;
    stage.author(1, 4, "edge")
}

/// Starts clients, one after the other, that receive the scope `edge` from the first replica. They replace those that run.
fn fleet(stage: &mut Stage, args: &[&str]) -> Result<()> {
    let address = stage.cluster.xds(1);
    let usual = ["subscribe", address.as_str(), "--streams", "32", "--arrive", "0.2"];
    stage.client("fleet", &[&usual, args].concat())
}
