//! Full, slow and failing disks, of the data and of the audit log.

use std::time::Duration;

use anyhow::Result;

use super::{
    budgets::EDGE,
    scenario::{Group, Scenario, alert},
    stage::Stage,
};

const GIB: u64 = 1 << 30;
/// The size of the disks of the first two replicas.
const DISK: u64 = 4 * GIB;
/// The size of the file systems of the audit logs.
const AUDIT_DISK: u64 = 1 << 20;
/// The steps in which the first disk fills: 6 MB per second.
const STEP: u64 = 12_000_000;
const STEP_PAUSE: Duration = Duration::from_secs(2);

pub(super) const GROUP: Group = Group {
    name: "disks",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[alert("ChanceryFsyncSlow", &[("instance", "@2")])],
            also: &[],
            is_early: false,
            fault: "each sync of the leader takes 400 ms",
            repair: "another replica leads, and the disk is fast again",
            inject: |stage| {
                stage.cluster.lead(2)?;
                stage.inject(2, "fdatasync,fsync:delay_enter=400000", None)
            },
            recover: |stage| {
                stage.cluster.lead(1)?;
                stage.end_injection(2);
                Ok(())
            },
        },
        Scenario {
            alerts: &[alert(
                "ChanceryStoreFailed",
                &[("instance", "@2"), ("severity", "critical")],
            )],
            also: &[],
            is_early: false,
            fault: "the disk of a replica returns EIO for each sync",
            repair: "the disk works again, and the replica is restarted",
            inject: |stage| stage.inject(2, "fdatasync,fsync:error=EIO", None),
            recover: |stage| {
                stage.end_injection(2);
                stage.cluster.kill(2);
                stage.cluster.start(2)?;
                stage.cluster.expect_ready()
            },
        },
        Scenario {
            alerts: &[alert("ChanceryDiskFull", &[("instance", "@2"), ("severity", "critical")])],
            also: &[],
            is_early: false,
            fault: "a file fills the disk of a replica to 1 GiB",
            repair: "the file is deleted",
            inject: |stage| Stage::fill(&stage.cluster.dir.join("disk-2"), "filler", DISK - GIB),
            recover: |stage| Ok(std::fs::remove_file(stage.cluster.dir.join("disk-2/filler"))?),
        },
        Scenario {
            alerts: &[
                alert("ChanceryAuditBehind", &[("instance", "@3")]),
                alert("ChanceryAuditRecordsLost", &[("instance", "@3"), ("sink", "file")]),
            ],
            also: &[],
            is_early: false,
            fault: "the file system of an audit log is full",
            repair: "disk space is freed",
            inject: |stage| fill_up(&stage.cluster.dir.join("audit-3")),
            recover: |stage| Ok(std::fs::remove_file(stage.cluster.dir.join("audit-3/filler"))?),
        },
        Scenario {
            alerts: &[alert("ChanceryAuditSyncFails", &[("instance", "@3"), ("sink", "file")])],
            also: &[],
            is_early: false,
            fault: "syncs of the audit file return EIO",
            repair: "the disk works again, and `chancery audit verify` accepts the file",
            inject: |stage| {
                let file = stage.cluster.dir.join("audit-3/audit.jsonl");
                stage.inject(3, "fdatasync,fsync:error=EIO", Some(&file))
            },
            recover: |stage| {
                stage.end_injection(3);
                stage.cluster.run(&["audit", "verify", "audit-3/audit.jsonl"]).map(drop)
            },
        },
        Scenario {
            alerts: &[alert("ChanceryDiskFillsSoon", &[("instance", "@1")])],
            also: &[],
            is_early: true,
            fault: "since the start of the group, a file grows by 6 MB per second",
            repair: "the file is deleted",
            inject: |_| Ok(()),
            recover: |stage| {
                stage.stop("filling");
                Ok(std::fs::remove_file(stage.cluster.dir.join("disk-1/filler"))?)
            },
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    for id in [1, 2] {
        let disk = stage.mount(&format!("disk-{id}"), DISK)?;
        std::os::unix::fs::symlink(disk.join("data"), stage.cluster.data(id))?;
        std::fs::create_dir(disk.join("data"))?;
    }
    for id in super::cluster::REPLICAS {
        stage.mount(&format!("audit-{id}"), AUDIT_DISK)?;
    }
    stage.cluster.set("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB");
    stage.cluster.set("CHANCERY_AUDIT_SINKS", "file:{dir}/audit-{id}/audit.jsonl");
    stage.cluster.set("CHANCERY_AUDIT_QUEUE_MAX", "16");
    stage.cluster.set("CHANCERY_AUDIT_FILE_BYTES_MAX", "128KiB");
    stage.cluster.set("CHANCERY_AUDIT_FILES_MAX", "2");
    stage.cluster.start_all()?;
    stage.cluster.apply(EDGE)?;
    let disk = stage.cluster.dir.join("disk-1");
    // The thread ignores errors: if the file does not grow, the alert does not fire, and the scenario fails.
    stage.repeat("filling", STEP_PAUSE, move || drop(Stage::fill(&disk, "filler", STEP)));
    stage.author(3, 5, "edge")
}

/// Writes a file until the file system is full.
fn fill_up(dir: &std::path::Path) -> Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::create(dir.join("filler"))?;
    while file.write_all(&[0; 4096]).is_ok() {}
    // A small rest may have been left for single bytes.
    while file.write_all(&[0]).is_ok() {}
    Ok(())
}
