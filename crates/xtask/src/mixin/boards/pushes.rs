//! The board "Streams and pushes": the duration of each step of a push, and the answers of clients.

use super::table::{Board, Row, lines};

pub(super) const BOARD: Board = Board {
    uid: "chancery-pushes",
    title: "Chancery / Streams and pushes",
    description: "The steps from a change to its acknowledgment, and the streams of the clients.",
    rows: &[
        Row {
            title: "From the change to the acknowledgment (slowest 1%)",
            panels: &[
                lines("1. Commit", "s", "From the arrival of the change until the shard has marked all affected streams.", &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(chancery_xds_commit_seconds_bucket[$__rate_interval])))", "{{instance}}",
                )]),
                lines("2. Queue", "s", "From the mark until the shard polls the stream. Lane bulk is for streams that load a state.", &[(
                    "histogram_quantile(0.99, sum by (lane, le) (rate(chancery_xds_queue_wait_seconds_bucket[$__rate_interval])))", "{{lane}}",
                )])
                .alerts(&["ChanceryUpdatesWait"]),
                lines("3. Transport", "s", "The time that a response waits until the connection takes it, counted only if it waits.", &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(chancery_xds_transport_wait_seconds_bucket[$__rate_interval])))", "{{instance}}",
                )]),
                lines("4. Acknowledgment", "s", "From the response to the acknowledgment of the client.", &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(chancery_xds_ack_seconds_bucket[$__rate_interval])))", "{{instance}}",
                )]),
            ],
        },
        Row {
            title: "Streams",
            panels: &[
                lines("Streams by protocol and type", "short", "Streams that have sent a request.", &[(
                    "sum by (protocol, type) (chancery_xds_streams) > 0", "{{protocol}} {{type}}",
                )]),
                lines("Ends of streams", "reqps", "Streams that end, by reason. refused: the client broke a rule or a limit. silent: the client did not answer.", &[(
                    "sum by (reason) (rate(chancery_xds_stream_ends_total[$__rate_interval]))", "{{reason}}",
                )])
                .alerts(&["ChanceryStreamsRefused"]),
                lines("First sync (slowest 1%)", "s", "From the first request of a stream until the client has accepted all resources. Clients stop waiting after 15 s.", &[(
                    "histogram_quantile(0.99, sum by (le) (rate(chancery_xds_first_sync_seconds_bucket[$__rate_interval])))", "slowest 1%",
                )])
                .alerts(&["ChanceryFirstSyncSlow"]),
                lines("Streams that do not take data", "short", "Streams with a response that waits because the transport does not accept it.", &[(
                    "sum by (instance) (chancery_xds_blocked_streams)", "{{instance}}",
                )])
                .alerts(&["ChanceryClientsReadSlowly"]),
                lines("Connections", "short", "Open connections of the xDS port.", &[(
                    "sum by (instance) (chancery_xds_connections)", "{{instance}}",
                )]),
                lines("Ends of connections", "reqps", "Connections that end, by reason.", &[(
                    "sum by (reason) (rate(chancery_xds_connection_ends_total[$__rate_interval]))", "{{reason}}",
                )]),
                lines("Failed accepts", "reqps", "Connections that could not be accepted, usually for lack of file descriptors.", &[(
                    "sum by (instance) (rate(chancery_xds_accept_errors_total[$__rate_interval]))", "{{instance}}",
                )])
                .alerts(&["ChanceryCannotAccept"]),
                lines("Exceeded limits", "reqps", "Requests, streams and connections that exceed a limit, by limit.", &[(
                    "sum by (limit) (rate(chancery_xds_limits_hit_total[$__rate_interval])) > 0", "{{limit}}",
                )])
                .alerts(&["ChanceryLimitHit"]),
            ],
        },
        Row {
            title: "Responses",
            panels: &[
                lines("Responses by type", "reqps", "Discovery responses that the server sends.", &[(
                    "sum by (type) (rate(chancery_xds_pushes_total[$__rate_interval]))", "{{type}}",
                )]),
                lines("Bytes by type", "Bps", "Bytes of discovery responses.", &[(
                    "sum by (type) (rate(chancery_xds_pushed_bytes_total[$__rate_interval]))", "{{type}}",
                )]),
                lines("Answers", "reqps", "Responses that clients accept and reject.", &[
                    ("sum(rate(chancery_xds_acks_total[$__rate_interval]))", "accepted"),
                    ("sum(rate(chancery_xds_nacks_total[$__rate_interval]))", "rejected"),
                ]),
                lines("Avoided responses", "reqps", "Responses that the server did not have to send, by reason.", &[(
                    "sum by (reason) (rate(chancery_xds_suppressed_resends_total[$__rate_interval]))", "{{reason}}",
                )]),
                lines("Large responses", "short", "Responses of more than 4 MiB in an hour. gRPC clients reject them by default.", &[(
                    "sum by (protocol) (increase(chancery_xds_response_bytes_count[1h])) - sum by (protocol) (increase(chancery_xds_response_bytes_bucket{le=~\"4194304|4[.]194304e[+]06\"}[1h]))",
                    "{{protocol}}",
                )])
                .alerts(&["ChanceryResponseTooLargeForGrpc"]),
                lines("Requests by kind", "reqps", "Discovery requests. repeat contains nothing new.", &[(
                    "sum by (kind) (rate(chancery_xds_requests_by_kind_total[$__rate_interval]))", "{{kind}}",
                )]),
            ],
        },
        Row {
            title: "Shards",
            panels: &[
                lines("Work of shards", "percentunit", "The share of one core that each shard uses.", &[(
                    "rate(chancery_xds_shard_turn_seconds_sum[$__rate_interval])", "{{instance}} {{shard}}",
                )])
                .alerts(&["ChanceryShardBusy"]),
                lines("Wait of requests (slowest 1%)", "s", "The time that a request waits for its shard. Lane updates is for established streams.", &[(
                    "histogram_quantile(0.99, sum by (lane, le) (rate(chancery_xds_inbox_wait_seconds_bucket[$__rate_interval])))", "{{lane}}",
                )])
                .alerts(&["ChanceryRequestsWait"]),
                lines("Streams that wait", "short", "Streams that wait to be polled.", &[(
                    "sum by (instance) (chancery_xds_pending_sessions)", "{{instance}}",
                )]),
                lines("Memory of subscriptions", "bytes", "Bytes that the subscriptions of all streams hold.", &[(
                    "sum by (instance) (chancery_xds_subscription_bytes)", "{{instance}}",
                )]),
                lines("Renewals of lifetimes are paused", "short", "1 while a replica renews no lifetimes, because it has no contact to the majority.", &[(
                    "max by (instance) (chancery_xds_renewals_paused)", "{{instance}}",
                )])
                .alerts(&["ChanceryRenewalsPaused"]),
                lines("REST polls by result", "reqps", "Polls of clients over REST.", &[(
                    "sum by (result) (rate(chancery_xds_polls_total[$__rate_interval]))", "{{result}}",
                )]),
            ],
        },
    ],
};
