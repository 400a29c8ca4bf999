//! Replicas without CPU time or file descriptors, and one whose log nobody reads.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    super::monitor::eventually,
    budgets::EDGE,
    scenario::{Group, Scenario, alert},
    stage::Stage,
};
use crate::proc;

/// The number of clients of a busy replica.
const CLIENTS: f64 = 100.0;

pub(super) const GROUP: Group = Group {
    name: "load",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[alert("ChanceryShardBusy", &[("instance", "@2")])],
            also: &[],
            is_early: false,
            fault: "clients change large subscriptions without a pause",
            repair: "the clients end",
            inject: flood,
            recover: |stage| {
                stage.stop("flood");
                Ok(())
            },
        },
        Scenario {
            alerts: &[alert("ChanceryRequestsWait", &[])],
            also: &[],
            is_early: false,
            fault: "a replica with busy clients gets little CPU time",
            repair: "the machine has CPU time, and the clients use another replica",
            inject: |stage| {
                busy_clients(stage, 2)?;
                // The clients must be established before the flood.
                eventually("the clients have no streams", || {
                    let streams = stage.cluster.metric(2, "chancery_xds_streams");
                    Ok(streams.is_some_and(|n| n >= CLIENTS).then_some(()))
                })?;
                flood(stage)?;
                let pid = stage.cluster.pid(2)?.to_string();
                let script = "kill -STOP \"$0\"; sleep 1.4; kill -CONT \"$0\"";
                // Most requests that arrive in such a short time are in an inbox when the next pause begins.
                stage.repeat("pauses", Duration::from_millis(100), move || {
                    proc::succeeds(Command::new("sh").args(["-c", script, &pid]));
                });
                Ok(())
            },
            recover: |stage| {
                stage.stop("pauses");
                stage.stop("flood");
                busy_clients(stage, 3)
            },
        },
        Scenario {
            alerts: &[
                alert("ChanceryCannotAccept", &[("instance", "@3"), ("severity", "critical")]),
                alert("ChanceryFileDescriptorsRunOut", &[("instance", "@3")]),
            ],
            also: &[],
            is_early: false,
            fault: "a replica has no more file descriptors, and clients connect",
            repair: "the limit of open files is raised",
            inject: |stage| {
                let pid = stage.cluster.pid(3)?;
                let files = std::fs::read_dir(format!("/proc/{pid}/fd")).context("list files")?;
                limit_files(pid, files.count())?;
                let address = stage.cluster.xds(3);
                let mut connections = Vec::new();
                stage.repeat("connections", Duration::from_millis(100), move || {
                    connections.extend(std::net::TcpStream::connect(&address));
                    let n = connections.len();
                    connections.drain(..n.saturating_sub(20));
                });
                Ok(())
            },
            recover: |stage| {
                limit_files(stage.cluster.pid(3)?, 4096)?;
                stage.stop("connections");
                Ok(())
            },
        },
        Scenario {
            alerts: &[alert("ChanceryLogLinesLost", &[("instance", "@3")])],
            also: &[],
            is_early: false,
            fault: "nobody reads the log of a replica with the level trace",
            repair: "the log is read, and has the configured level",
            inject: |stage| {
                // Without an election, no critical alert fires.
                stage.cluster.lead(1)?;
                stage.cluster.kill(3);
                stage.cluster.start_unread(3)?;
                stage.cluster.expect_ready()?;
                set_log_level(stage, "trace")?;
                stage.author(3, 50, "edge")
            },
            recover: |stage| {
                let unread = stage.cluster.stderr(3)?;
                let log = std::fs::File::create(stage.cluster.dir.join("unread-3.log"))?;
                stage.process("reader", Command::new("cat").stdin(unread).stdout(log))?;
                set_log_level(stage, "")?;
                stage.stop("author");
                Ok(())
            },
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    stage.cluster.set("CHANCERY_XDS_SHARDS", "1");
    stage.cluster.start_all()?;
    stage.cluster.lead(1)?;
    stage.cluster.apply(EDGE)
}

/// Sets the limit of open files of a process.
fn limit_files(pid: u32, n: usize) -> Result<()> {
    let limit = format!("--nofile={n}:");
    proc::run(Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]))
}

/// Starts clients of a replica, and an author whose writes concern them.
fn busy_clients(stage: &mut Stage, id: usize) -> Result<()> {
    let address = stage.cluster.xds(id);
    stage.client("fleet", &["subscribe", &address, "--streams", &CLIENTS.to_string()])?;
    let admin = stage.cluster.admin(1);
    stage.client("author", &["write", &admin, "--rate", "10", "--extra", "10", "--scope", "edge"])
}

/// Sets the log level of the third replica. An empty level is the configured one.
fn set_log_level(stage: &Stage, level: &str) -> Result<()> {
    let server = stage.cluster.admin(3);
    // After a start, the replica may not answer yet.
    eventually("the log level cannot be changed", || {
        Ok(stage.cluster.run(&["log", "level", level, "--server", &server]).ok().map(drop))
    })
}

/// Starts clients of the second replica that change their subscriptions without a pause.
fn flood(stage: &mut Stage) -> Result<()> {
    let address = stage.cluster.xds(2);
    stage.client("flood", &["flood", &address, "--streams", "16", "--names", "300"])
}
