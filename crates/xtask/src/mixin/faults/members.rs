//! Replicas that end, lag, lose data, or run another version.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    super::monitor::{eventually, get},
    budgets::EDGE,
    cluster::REPLICAS,
    scenario::{Group, Scenario, alert},
    stage::Stage,
};
use crate::proc;

/// The time within which a stopped follower lags enough.
const LAG: Duration = Duration::from_secs(240);

pub(super) const GROUP: Group = Group {
    name: "members",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[
                alert("ChanceryVoterDown", &[]),
                alert("ChanceryReplicaGone", &[("severity", "warning")]),
            ],
            also: &[],
            is_early: false,
            fault: "the process of a voter is killed",
            repair: "the process is started",
            inject: |stage| {
                let follower = choose_follower(stage)?;
                stage.cluster.kill(follower);
                Ok(())
            },
            recover: |stage| {
                let follower = chosen(stage)?;
                stage.cluster.start(follower)
            },
        },
        Scenario {
            alerts: &[alert("ChanceryLeaderFlaps", &[])],
            also: &[],
            is_early: false,
            fault: "the process of each leader gets no CPU time for 1.1 s",
            repair: "the machines have CPU time again",
            inject: |stage| {
                let pids = REPLICAS.map(|id| stage.cluster.pid(id));
                let pids = pids.into_iter().collect::<Result<Vec<_>>>()?;
                let admins = REPLICAS.map(|id| stage.cluster.admin(id));
                stage.repeat("pauses", Duration::from_millis(50), move || {
                    let leads = |admin: &str| {
                        get(admin, "/metrics")
                            .is_ok_and(|text| text.contains("\nchancery_raft_is_leader 1\n"))
                    };
                    if let Some(index) = admins.iter().position(|admin| leads(admin)) {
                        let script = "kill -STOP \"$0\"; sleep 1.1; kill -CONT \"$0\"";
                        let pid = pids[index].to_string();
                        proc::succeeds(Command::new("sh").args(["-c", script, &pid]));
                    }
                });
                Ok(())
            },
            recover: |stage| {
                stage.stop("pauses");
                stage.cluster.expect_ready()
            },
        },
        Scenario {
            alerts: &[alert("ChanceryMemberLags", &[])],
            also: &[],
            is_early: false,
            fault: "a follower stops during more than 10,000 writes",
            repair: "the follower continues, and receives the entries",
            inject: |stage| lag(stage, &["--writers", "24"], 10_500.0).map(drop),
            recover: |stage| {
                let follower = chosen(stage)?;
                stage.cluster.signal(follower, "CONT")
            },
        },
        Scenario {
            alerts: &[alert("ChanceryApplyLags", &[])],
            also: &[],
            is_early: false,
            fault: "a follower with little CPU time receives 2,500 large transactions",
            repair: "the replica is restarted with enough CPU time",
            inject: |stage| {
                let follower = lag(stage, &["--writers", "8", "--extra", "60"], 2_500.0)?;
                let pid = stage.cluster.pid(follower)?.to_string();
                let script = "kill -CONT \"$0\"; sleep 0.1; kill -STOP \"$0\"; sleep 0.4";
                stage.repeat("throttle", Duration::ZERO, move || {
                    proc::succeeds(Command::new("sh").args(["-c", script, &pid]));
                });
                Ok(())
            },
            recover: |stage| {
                stage.stop("throttle");
                let follower = chosen(stage)?;
                stage.cluster.kill(follower);
                stage.cluster.start(follower)?;
                stage.cluster.expect_ready()
            },
        },
        Scenario {
            alerts: &[alert("ChanceryVersionsDiffer", &[])],
            also: &[],
            is_early: false,
            fault: "a replica runs a program with another version",
            repair: "the replica runs the previous version again",
            inject: |stage| {
                let other = other_version(stage)?;
                stage.cluster.kill(3);
                stage.cluster.start_program(3, &other)?;
                stage.cluster.expect_ready()
            },
            recover: |stage| {
                stage.cluster.kill(3);
                stage.cluster.start(3)?;
                stage.cluster.expect_ready()
            },
        },
        Scenario {
            alerts: &[alert("ChanceryStatesDiffer", &[("severity", "critical")])],
            // The leader informs the replica that it lacks acknowledged entries, and the replica stops serving.
            also: &["ChanceryStoreFailed"],
            is_early: false,
            fault: "an older copy replaces the data directory of a follower",
            repair: "the directory is emptied, and the replica joins again",
            inject: |stage| {
                stage.cluster.lead(1)?;
                let data = stage.cluster.data(3);
                let copy = stage.cluster.dir.join("copy-3");
                stage.cluster.kill(3);
                let copied = Command::new("cp").arg("-a").arg(&data).arg(&copy).status();
                copied.context("copy a directory")?;
                stage.cluster.start(3)?;
                stage.cluster.expect_ready()?;
                stage.cluster.apply(&EDGE.replace("good", "newer"))?;
                eventually("the follower lacks the change", || {
                    let revision = |id| stage.cluster.metric(id, "chancery_store_revision");
                    Ok((revision(3) == revision(1)).then_some(()))
                })?;
                stage.cluster.kill(3);
                stage.cluster.empty(3)?;
                fs::rename(copy, data).context("replace a directory")?;
                stage.cluster.start(3)
            },
            recover: |stage| {
                stage.cluster.kill(3);
                stage.cluster.empty(3)?;
                stage.cluster.start(3)?;
                stage.cluster.expect_ready()
            },
        },
        Scenario {
            alerts: &[alert("ChanceryAllReplicasGone", &[("severity", "critical")])],
            also: &[],
            is_early: false,
            fault: "all replicas are killed",
            repair: "all replicas are started",
            inject: |stage| {
                for id in REPLICAS {
                    stage.cluster.kill(id);
                }
                Ok(())
            },
            recover: |stage| stage.cluster.start_all(),
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    stage.cluster.start_all()?;
    stage.cluster.apply(EDGE)
}

/// Chooses a follower for a fault.
fn choose_follower(stage: &mut Stage) -> Result<usize> {
    let follower = stage.cluster.follower()?;
    stage.notes.insert("follower", follower.to_string());
    Ok(follower)
}

/// Stops a follower during writes, until it lacks `n` entries. Returns its ID.
fn lag(stage: &mut Stage, writers: &[&str], n: f64) -> Result<usize> {
    let follower = choose_follower(stage)?;
    let leader = stage.cluster.leader()?;
    stage.cluster.signal(follower, "STOP")?;
    let address = stage.cluster.admin(leader);
    stage.client("burst", &[&["write", &address, "--scope", "burst"], writers].concat())?;
    proc::eventually(LAG, "the follower does not lag enough", || {
        // Only the leader knows the lag, and another replica may lead now.
        let others = REPLICAS.into_iter().filter(|id| *id != follower);
        let lags =
            others.map(|id| stage.cluster.metric(id, "chancery_raft_replication_lag_entries"));
        Ok(lags.flatten().any(|lag| lag > n).then_some(()))
    })?;
    stage.stop("burst");
    Ok(follower)
}

/// Returns the follower with the fault.
fn chosen(stage: &Stage) -> Result<usize> {
    let follower = stage.notes.get("follower").context("there is no chosen follower")?;
    follower.parse().context("parse the follower")
}

/// Creates a program with another version: a copy in which the text of the version is changed.
fn other_version(stage: &Stage) -> Result<std::path::PathBuf> {
    let shown = proc::output(Command::new(&stage.cluster.program).arg("--version"))?;
    let version = shown.trim().rsplit(' ').next().context("there is no version")?.to_owned();
    let (rest, last) = version.split_at(version.len() - 1);
    let other = format!("{rest}{}", if last == "9" { "8" } else { "9" });
    let path = stage.cluster.dir.join("chancery-other");
    fs::copy(&stage.cluster.program, &path).context("copy the program")?;
    let change = format!("s/{}/{other}/g", version.replace('.', "[.]"));
    let mut sed = Command::new("sed");
    proc::run(sed.env("LC_ALL", "C").args(["-i", &change]).arg(&path))?;
    Ok(path)
}
