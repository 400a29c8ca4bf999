//! The board "Overview": the state of the clients and of the cluster.

use super::table::{Board, Kind, Row, lines, stat};

pub(super) const BOARD: Board = Board {
    uid: "chancery-overview",
    title: "Chancery / Overview",
    description: "The state of the fleet and of the cluster.",
    rows: &[
        Row {
            title: "Now",
            panels: &[
                stat("Streams", "short", "Streams that have sent a request.", &[("sum(chancery_xds_streams)", "")])
                    .alerts(&["ChanceryStreamsLost"]),
                stat("Rejecting streams", "short", "Streams whose client rejects (NACK) a response, and keeps the previous version.", &[(
                    "sum(chancery_xds_rejecting_streams)", "",
                )])
                .alerts(&["ChanceryClientsReject"]),
                stat("Longest silence", "s", "The longest time for which a client has left a response unanswered.", &[(
                    "max(chancery_xds_oldest_unanswered_seconds)", "",
                )])
                .alerts(&["ChanceryClientSilent"]),
                stat("Replicas with a leader", "short", "Replicas that hear a leader. Without a leader a replica accepts no writes.", &[(
                    "sum(chancery_raft_has_leader)", "",
                )])
                .alerts(&["ChanceryNoLeader", "ChanceryReplicaWithoutLeader"]),
                stat("Voters that answer", "short", "Voters that the leader has heard recently. Compare with the number of voters.", &[
                    ("max(chancery_raft_voters_up)", "answer"),
                    ("max(chancery_raft_voters)", "all"),
                ])
                .alerts(&["ChanceryVoterDown"]),
                stat("Revision", "short", "The revision of the state. Each write that changes something increases it.", &[(
                    "max(chancery_store_revision)", "",
                )]),
            ],
        },
        Row {
            title: "Objectives",
            panels: &[
                lines("Slow changes", "percentunit", "The share of changes that take longer than 5 s until the client acknowledges them. The objective is 1% over 30 days.", &[
                    ("chancery:push_slow:ratio_rate1h", "{{namespace}} {{job}} 1 hour"),
                    ("chancery:push_slow:ratio_rate6h", "{{namespace}} {{job}} 6 hours"),
                    ("chancery:push_slow:ratio_rate3d", "{{namespace}} {{job}} 3 days"),
                ])
                .alerts(&["ChanceryPushBudgetBurnsFast", "ChanceryPushBudgetBurnsSlowly"]),
                lines("Failed writes", "percentunit", "The share of writes that fail for a reason that their authors did not cause. The objective is 0.1% over 30 days.", &[
                    ("chancery:write_failed:ratio_rate1h", "{{namespace}} {{job}} 1 hour"),
                    ("chancery:write_failed:ratio_rate6h", "{{namespace}} {{job}} 6 hours"),
                    ("chancery:write_failed:ratio_rate3d", "{{namespace}} {{job}} 3 days"),
                ])
                .alerts(&["ChanceryWriteBudgetBurnsFast", "ChanceryWriteBudgetBurnsSlowly"]),
            ],
        },
        Row {
            title: "Clients",
            panels: &[
                lines("Nodes by state", "short", "Connected nodes, by the worst state of their streams, as `chancery nodes` shows it.", &[(
                    "sum by (state) (chancery_xds_nodes)", "{{state}}",
                )]),
                lines("Time until clients have a change", "s", "From the arrival of a change at the replica to the acknowledgment of the client.", &[
                    ("histogram_quantile(0.5, sum by (le) (rate(chancery_xds_convergence_seconds_bucket[$__rate_interval])))", "median"),
                    ("histogram_quantile(0.99, sum by (le) (rate(chancery_xds_convergence_seconds_bucket[$__rate_interval])))", "slowest 1%"),
                ])
                .alerts(&["ChanceryConvergenceSlow"]),
                lines("Convergence", "s", "The distribution of the time until clients have a change.", &[(
                    "sum by (le) (increase(chancery_xds_convergence_seconds_bucket[$__rate_interval]))", "{{le}}",
                )])
                .kind(Kind::Heatmap),
                lines("Rejections by type", "reqps", "Responses that clients reject (NACK).", &[(
                    "sum by (type) (rate(chancery_xds_nacks_total[$__rate_interval]))", "{{type}}",
                )])
                .alerts(&["ChanceryRejectionsBurst"]),
                lines("Streams by replica", "short", "Streams that have sent a request.", &[(
                    "sum by (instance) (chancery_xds_streams)", "{{instance}}",
                )]),
            ],
        },
        Row {
            title: "Replicas",
            panels: &[
                lines("Replicas that answer", "short", "Replicas that answer Prometheus, and members of the cluster.", &[
                    ("count(chancery_build_info)", "answer"),
                    ("max(chancery_raft_voters + chancery_raft_learners)", "members"),
                ])
                .alerts(&["ChanceryReplicaGone", "ChanceryAllReplicasGone"]),
                lines("Versions", "short", "The version of each replica, the revision of its source, and its compiler.", &[(
                    "count by (instance, version, revision, rustc) (chancery_build_info)", "",
                )])
                .kind(Kind::Table)
                .alerts(&["ChanceryVersionsDiffer"]),
                lines("Replication certificates", "s", "The time until other replicas reject the certificate of a replica. +Inf without TLS.", &[(
                    "min by (instance) (chancery_raft_certificate_seconds_left)", "{{instance}}",
                )])
                .alerts(&["ChanceryCertificateExpires", "ChanceryCertificateExpiresInADay"]),
                lines("Certificates of the ports", "s", "The time until the certificate of a port expires. +Inf without TLS.", &[(
                    "min by (instance, port) (chancery_tls_certificate_seconds_left)", "{{instance}} {{port}}",
                )])
                .alerts(&["ChanceryPortCertificateExpires", "ChanceryPortCertificateExpiresInADay"]),
                lines("Lost lines of the log", "short", "Lines that replicas dropped in 10 minutes, because the reader of standard error is too slow.", &[(
                    "sum by (instance) (increase(chancery_log_lines_dropped_total[10m]))", "{{instance}}",
                )])
                .alerts(&["ChanceryLogLinesLost"]),
            ],
        },
        Row {
            title: "Processes",
            panels: &[
                lines("CPU", "short", "The cores that a replica uses.", &[(
                    "rate(process_cpu_seconds_total[$__rate_interval]) and on (cluster, namespace, job, instance) chancery_build_info", "{{instance}}",
                )]),
                lines("Memory", "bytes", "Resident memory.", &[(
                    "process_resident_memory_bytes and on (cluster, namespace, job, instance) chancery_build_info", "{{instance}}",
                )]),
                lines("Open file descriptors", "percentunit", "The open file descriptors as a share of the limit.", &[(
                    "process_open_fds / process_max_fds and on (cluster, namespace, job, instance) chancery_build_info", "{{instance}}",
                )])
                .alerts(&["ChanceryFileDescriptorsRunOut"]),
                lines("Threads", "short", "Threads of a replica, with those of its database.", &[(
                    "process_threads and on (cluster, namespace, job, instance) chancery_build_info", "{{instance}}",
                )]),
                lines("Busy worker threads", "percentunit", "The share of time in which the worker threads of a runtime were busy. chancery: streams. chancery-opening: new connections.", &[(
                    "rate(chancery_runtime_busy_seconds_total[$__rate_interval]) / chancery_runtime_workers", "{{instance}} {{runtime}}",
                )]),
                lines("Tasks that wait for a worker", "short", "Tasks in the global queue of a runtime. A queue that stays long means that its threads are too few.", &[(
                    "chancery_runtime_queued_tasks", "{{instance}} {{runtime}}",
                )]),
                lines("Tasks", "short", "Tasks of a runtime that have not ended. Each connection has a few.", &[(
                    "chancery_runtime_alive_tasks", "{{instance}} {{runtime}}",
                )]),
            ],
        },
    ],
};
