//! The board for access, certificates, the audit log, and other sources of resources.

use super::table::{Board, Row, lines};

pub(super) const BOARD: Board = Board {
    uid: "chancery-security",
    title: "Chancery / Security and admission",
    description: "Refused callers, certificates, the audit log, sealed secrets, and resources of other systems.",
    rows: &[
        Row {
            title: "Access",
            panels: &[
                lines("Refused callers", "reqps", "Streams, polls and calls that access rules or missing credentials refuse.", &[(
                    "sum by (port, reason) (rate(chancery_access_refused_total[$__rate_interval]))", "{{port}} {{reason}}",
                )])
                .alerts(&["ChanceryAccessRefused"]),
                lines("Failed credentials", "reqps", "Credentials that are not accepted, by port, method and reason.", &[(
                    "sum by (port, method, result) (rate(chancery_auth_results_total{result!=\"ok\"}[$__rate_interval]))", "{{port}} {{method}} {{result}}",
                )])
                .alerts(&["ChanceryAuthenticationsFail"]),
                lines("Accepted credentials", "reqps", "Streams and calls whose caller is known. none: the caller has no credential.", &[(
                    "sum by (port, method) (rate(chancery_auth_results_total{result=\"ok\"}[$__rate_interval]))", "{{port}} {{method}}",
                )]),
                lines("Age of the keys of issuers", "s", "The time since the keys were last known to be current.", &[(
                    "max by (instance, issuer) (chancery_jwks_age_seconds)", "{{instance}} {{issuer}}",
                )])
                .alerts(&["ChanceryJwksStale"]),
                lines("Attempts to read keys", "reqps", "Attempts to read the keys of an issuer, by result.", &[(
                    "sum by (issuer, result) (rate(chancery_jwks_fetches_total[$__rate_interval]))", "{{issuer}} {{result}}",
                )]),
                lines("Refused writes", "reqps", "Writes that the replica refused. refused_precondition: a precondition of the write does not hold.", &[(
                    "sum by (outcome) (rate(chancery_admin_writes_total{outcome=~\"refused_.*\"}[$__rate_interval]))", "{{outcome}}",
                )]),
            ],
        },
        Row {
            title: "TLS",
            panels: &[
                lines("Handshakes", "reqps", "TLS handshakes of incoming connections, by result.", &[(
                    "sum by (port, result) (rate(chancery_tls_handshakes_total[$__rate_interval])) > 0", "{{port}} {{result}}",
                )])
                .alerts(&["ChanceryClientsFailHandshake"]),
                lines("Attempts to read certificate files", "short", "Attempts in an hour. After a failure the previous certificates stay in use.", &[(
                    "sum by (instance, port, result) (increase(chancery_tls_reloads_total[1h]))", "{{instance}} {{port}} {{result}}",
                )])
                .alerts(&["ChanceryCertificateFilesUnusable"]),
                lines("Connections ended because of a certificate", "reqps", "Connections that end because the certificate of their client is no longer valid.", &[(
                    "sum by (port, reason) (rate(chancery_tls_ended_connections_total[$__rate_interval]))", "{{port}} {{reason}}",
                )]),
            ],
        },
        Row {
            title: "Audit log",
            panels: &[
                lines("Audit records", "reqps", "Records by sink and result. dropped: the record is lost.", &[(
                    "sum by (sink, result) (rate(chancery_audit_records_total[$__rate_interval]))", "{{sink}} {{result}}",
                )])
                .alerts(&["ChanceryAuditRecordsLost", "ChanceryAuditSyncFails"]),
                lines("Oldest unwritten record", "s", "The age of the oldest audit record that a sink has not written.", &[(
                    "max by (instance) (chancery_audit_oldest_unwritten_seconds)", "{{instance}}",
                )])
                .alerts(&["ChanceryAuditBehind"]),
            ],
        },
        Row {
            title: "Sealed secrets",
            panels: &[
                lines("Sealed resources", "short", "Resources whose content is encrypted in the store.", &[(
                    "max by (instance) (chancery_secrets_sealed)", "{{instance}}",
                )]),
                lines("Sealed resources that cannot be opened", "short", "Sealed resources that the replica cannot open, because it lacks a key.", &[(
                    "max by (instance) (chancery_secrets_unopened)", "{{instance}}",
                )])
                .alerts(&["ChancerySecretsUnavailable"]),
                lines("Ages of the data keys", "s", "The ages of the newest and of the oldest data key.", &[(
                    "max by (kind) (chancery_keys_age_seconds)", "{{kind}}",
                )]),
            ],
        },
        Row {
            title: "Other systems",
            panels: &[
                lines("Streams to MCP sources", "short", "1 if a replica has a stream to the source. Only the leader has one.", &[(
                    "max by (source) (chancery_mcp_connected)", "{{source}}",
                )])
                .alerts(&["ChanceryMcpSourceDisconnected"]),
                lines("Held deletions", "short", "Resources whose deletion by an MCP source waits for a confirmation.", &[(
                    "max by (source) (chancery_mcp_held_deletions)", "{{source}}",
                )])
                .alerts(&["ChanceryMcpDeletionsHeld"]),
                lines("Messages of MCP sources", "reqps", "Messages by result. held: the message deletes too much.", &[(
                    "sum by (source, result) (rate(chancery_mcp_messages_total[$__rate_interval]))", "{{source}} {{result}}",
                )]),
                lines("Failed streams to MCP sinks", "short", "Streams to sinks that ended or did not begin, in 15 minutes.", &[(
                    "sum(increase(chancery_mcp_sink_failures_total[15m]))", "failures",
                )])
                .alerts(&["ChanceryMcpSinksFail"]),
                lines("Omitted items of load reports", "short", "Items that the replica did not keep, in an hour.", &[(
                    "sum by (kind) (increase(chancery_load_omitted_total[1h]))", "{{kind}}",
                )])
                .alerts(&["ChanceryLoadReportsOmitted"]),
                lines("Requests that clients report", "reqps", "Requests in the load reports of clients, by outcome.", &[(
                    "sum by (outcome) (rate(chancery_load_requests_total[$__rate_interval]))", "{{outcome}}",
                )]),
            ],
        },
    ],
};
