//! The board for writes and Raft.

use super::table::{Board, Row, lines};

pub(super) const BOARD: Board = Board {
    uid: "chancery-store",
    title: "Chancery / Writes and Raft",
    description: "Writes of authors, the log, the replicas and their disks.",
    rows: &[
        Row {
            title: "Writes",
            panels: &[
                lines("Writes by outcome", "reqps", "Writes of authors. refused_input and refused_precondition are errors of the author.", &[(
                    "sum by (outcome) (rate(chancery_admin_writes_total[$__rate_interval]))", "{{outcome}}",
                )])
                .alerts(&["ChanceryWritesFail"]),
                lines("Duration of writes", "s", "The duration of a write, without the wait for clients.", &[
                    ("histogram_quantile(0.5, sum by (le) (rate(chancery_admin_write_seconds_bucket[$__rate_interval])))", "median"),
                    ("histogram_quantile(0.99, sum by (le) (rate(chancery_admin_write_seconds_bucket[$__rate_interval])))", "slowest 1%"),
                ]),
                lines("Refused transactions", "reqps", "Transactions that were refused before they reached the log.", &[(
                    "sum by (reason) (rate(chancery_store_refused_writes_total[$__rate_interval]))", "{{reason}}",
                )]),
                lines("Forwarded writes", "reqps", "Writes that a replica sent to the leader.", &[(
                    "sum by (instance) (rate(chancery_store_forwarded_writes_total[$__rate_interval]))", "{{instance}}",
                )]),
            ],
        },
        Row {
            title: "Raft",
            panels: &[
                lines("Leader", "short", "1 on the replica that leads.", &[(
                    "max by (instance) (chancery_raft_is_leader)", "{{instance}}",
                )]),
                lines("Changes of the leader", "short", "Changes of the leader in 10 minutes, as each replica sees them.", &[(
                    "increase(chancery_raft_leader_changes_total[10m])", "{{instance}}",
                )])
                .alerts(&["ChanceryLeaderFlaps"]),
                lines("Elections", "short", "Elections in which a replica was a candidate, in 10 minutes.", &[(
                    "increase(chancery_raft_elections_total[10m])", "{{instance}}",
                )]),
                lines("Lag of members", "short", "Log entries that a member lacks, as the leader sees it.", &[(
                    "max by (replica) (chancery_raft_replication_lag_entries)", "replica {{replica}}",
                )])
                .alerts(&["ChanceryMemberLags"]),
                lines("Entries that wait to be applied", "short", "Log entries that a replica has and has not applied.", &[(
                    "chancery_store_last_log_index - chancery_store_applied_index", "{{instance}}",
                )])
                .alerts(&["ChanceryApplyLags"]),
                lines("States that differ", "short", "Voters whose state differs at the same position of the log. Any value other than 0 is an incident.", &[
                    ("max by (instance) (chancery_raft_state_differences)", "{{instance}} sees others"),
                    ("max by (instance) (chancery_raft_diverged)", "{{instance}} has stopped"),
                ])
                .alerts(&["ChanceryStatesDiffer"]),
                lines("Rejected connections", "reqps", "Connections to the replication port that were rejected or closed.", &[(
                    "sum by (reason) (rate(chancery_raft_refused_connections_total[$__rate_interval]))", "{{reason}}",
                )])
                .alerts(&["ChanceryReplicasRefused"]),
                lines("Installed snapshots", "short", "Snapshots of the leader that a replica has installed in an hour.", &[(
                    "increase(chancery_store_snapshots_installed_total[1h])", "{{instance}}",
                )]),
            ],
        },
        Row {
            title: "Disk",
            panels: &[
                lines("Syncs (slowest 1%)", "s", "The time that a sync of the write-ahead log takes. Each write waits for the syncs of a majority.", &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(chancery_store_fsync_seconds_bucket[$__rate_interval])))", "{{instance}}",
                )])
                .alerts(&["ChanceryFsyncSlow"]),
                lines("Appends (slowest 1%)", "s", "From the handover of entries to the log until they are durable.", &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(chancery_store_append_seconds_bucket[$__rate_interval])))", "{{instance}}",
                )]),
                lines("Free space", "bytes", "Bytes free on the file system of the data directory.", &[(
                    "min by (instance) (chancery_store_free_bytes)", "{{instance}}",
                )])
                .alerts(&["ChanceryDiskFull"]),
                lines("Free space in a day", "bytes", "The free space in a day at the rate of the last 6 hours.", &[(
                    "min by (instance) (predict_linear(chancery_store_free_bytes[6h], 24 * 3600))", "{{instance}}",
                )])
                .alerts(&["ChanceryDiskFillsSoon"]),
                lines("Log", "bytes", "Bytes of log entries that are not purged.", &[(
                    "max by (instance) (chancery_store_log_bytes)", "{{instance}}",
                )]),
                lines("Failed replicas", "short", "1 if a replica has failed and accepts no writes.", &[(
                    "max by (instance) (chancery_store_failed)", "{{instance}}",
                )])
                .alerts(&["ChanceryStoreFailed"]),
                lines("Held resources", "short", "Resources that writes have changed in frozen scopes, once per freeze.", &[(
                    "max(chancery_held_resources)", "held",
                )])
                .alerts(&["ChanceryChangesHeld"]),
                lines("Freezes", "short", "Freezes of scopes, or of all scopes.", &[(
                    "max(chancery_freezes)", "freezes",
                )]),
                lines("Resources", "short", "Resources in the state.", &[(
                    "max(chancery_store_resources)", "resources",
                )]),
            ],
        },
    ],
};
