//! The descriptions of all keys, which `chancery config print` shows.

use chancery_store::REPLICA_ID_MAX;
use toml::{Table, Value};

use super::{
    Config, access, audit, auth,
    bounds::{
        Bounds, FREE, GIB, HOUR, KIB, Key, LISTEN, MIB, MINUTE, SECOND, bytes, count, time, words,
    },
    mcp, secrets, tls, trace, types,
};

/// The range of HTTP/2 windows (RFC 9113, 6.9.1).
const WINDOW_MIN: u64 = 65_535;
const WINDOW_MAX: u64 = 2_147_483_647;

/// The sections and keys in the order in which they are printed, each key with its bounds and its
/// description.
pub(super) const KEYS: &[(&str, &[Key])] = &[
    (
        "store",
        &[
            (
                "data_dir",
                FREE,
                "The directory of the replica's data. Only one process at a time can use it.",
            ),
            (
                "snapshot_log_entries",
                count(1, 100_000_000),
                "The replica takes a snapshot after this number of log entries.",
            ),
            (
                "snapshot_log_bytes",
                bytes(64 * KIB, 64 * GIB),
                "The replica also takes a snapshot after this many bytes of log entries.",
            ),
            (
                "free_bytes_min",
                bytes(64 * MIB, 1024 * 1024 * GIB).or_zero(),
                "A leader rejects writes that would leave less free space than this on its disk, and transfers leadership to a voter with more space. 0 disables the check.",
            ),
            (
                "transaction_bytes_max",
                bytes(64 * KIB, GIB),
                "The maximum size of a transaction: the sum of its encoded resources. All replicas need the same value; raise it on all of them before a larger transaction is sent.",
            ),
            (
                "transact_timeout",
                time(100, 10 * MINUTE),
                "A write that is not committed within this time fails.",
            ),
            (
                "open_timeout",
                time(SECOND, 24 * HOUR),
                "The maximum time of a start to form a new cluster, or to apply what the only voter has committed. Reading the data has no limit.",
            ),
        ],
    ),
    (
        "raft",
        &[
            (
                "replica_id",
                count(1, REPLICA_ID_MAX),
                "The ID of this replica, unique in its cluster.",
            ),
            (
                "address",
                LISTEN,
                "The address to listen on for other replicas. If it is not set and the default is in use, a cluster of one replica continues without it.",
            ),
            (
                "allow_plaintext",
                FREE,
                "Whether an unencrypted port may listen on addresses other than loopback.",
            ),
            (
                "tls_cert",
                FREE,
                "The certificate file of this replica (PEM), for both sides of a connection. TLS needs tls_cert, tls_key and tls_ca; without them there is no TLS. The files are read again when they change.",
            ),
            ("tls_key", FREE, "The file with the private key of tls_cert (PEM)."),
            (
                "tls_ca",
                FREE,
                "The file of a CA that is used for replicas only (PEM). Everybody with a certificate of this CA is accepted as a replica, and all others are rejected.",
            ),
            (
                "tls_server_name",
                FREE,
                "The DNS name (subjectAltName) in the certificates of all replicas. If it is empty, each certificate contains the host of its replica's address.",
            ),
            (
                "advertise",
                FREE,
                "The address at which other replicas reach this one, as HOST:PORT. If it is empty, its entry in peers, or else the address to listen on.",
            ),
            (
                "join",
                FREE,
                "Members of the cluster to join, as HOST:PORT; one reachable address is enough. Only for an empty data directory.",
            ),
            (
                "peers",
                FREE,
                "All replicas of a new cluster, including this one, as ID=HOST:PORT. The one with the lowest ID forms the cluster after all others have reported that they are in no cluster. The others join it. Only for an empty data directory.",
            ),
            (
                "learner",
                FREE,
                "Whether this replica joins as a learner, which serves streams and does not become a voter by itself.",
            ),
            (
                "catch_up_timeout",
                time(100, 10 * MINUTE),
                "A replica that starts and finds no leader within this time serves the state that it has.",
            ),
            (
                // Each of 64 members has three connections, and more while broken connections have
                // not been detected.
                "connections_max",
                count(256, 65_536),
                "The maximum number of connections from other replicas. A further connection replaces one that has sent nothing yet, or else the one that has been silent longest.",
            ),
        ],
    ),
    (
        "xds",
        &[
            (
                "address",
                LISTEN,
                "The address to listen on for xDS clients. Port 0 selects a free port.",
            ),
            (
                "allow_plaintext",
                FREE,
                "Whether an unencrypted port may listen on addresses other than loopback.",
            ),
            (
                "tls_cert",
                FREE,
                "The certificate file of the port (PEM), with intermediate certificates. With tls_cert and tls_key, the port uses TLS. The files are read again when they change.",
            ),
            ("tls_key", FREE, "The file with the private key of tls_cert (PEM)."),
            (
                "tls_client_ca",
                FREE,
                "The file with the CAs that sign the certificates of clients (PEM). If it is set, clients without such a certificate are rejected.",
            ),
            tls::CLIENT_CERT,
            tls::CRL,
            tls::TRUST_DOMAINS,
            tls::CLIENT_CA_NAME,
            tls::CLIENT_CA_CN,
            (
                "tls_min",
                words(&["1.2", "1.3"]),
                "The lowest TLS version: 1.2 or 1.3. Envoy connects with at most 1.2 unless its bootstrap sets tls_maximum_protocol_version.",
            ),
            (
                "v2_services",
                FREE,
                "Whether the services of xDS v2 are served. They serve only resources that are stored under types of v2.",
            ),
            (
                "resource_errors",
                FREE,
                "Whether responses list subscribed names without a resource in the field resource_errors. Clients that do not know the field ignore it.",
            ),
            (
                "shards",
                count(0, 1024),
                "The number of tasks that the streams are divided among. 0 means one per core.",
            ),
            (
                "catch_up_timeout",
                time(1, MINUTE),
                "The maximum time that a new stream waits until this replica has everything that the cluster has committed.",
            ),
            (
                "ack_timeout",
                time(100, 10 * MINUTE),
                "If a client leaves a response unanswered for this time, it receives the next one anyway.",
            ),
            (
                "drain_hold",
                time(SECOND, 24 * HOUR).or_zero(),
                "While a client subscribes to a route table that no longer exists, its clusters are kept for at most this time. Set it to more than Envoy's --drain-time-s. 0s keeps none.",
            ),
            (
                "ack_close_after",
                time(10 * SECOND, 24 * HOUR).or_zero(),
                "If a client leaves a response unanswered for this time, its stream is closed. The time must be longer than the slowest client takes to receive and apply a full state. 0s disables this; Envoy may then wait indefinitely for a correction.",
            ),
            (
                "renewals_stop_after",
                time(SECOND, 24 * HOUR),
                "If this replica has had no contact to the majority of the replicas for this time, it no longer renews the ttl of resources. Clients then drop these resources.",
            ),
            (
                "response_bytes_target",
                bytes(64 * KIB, GIB),
                "Responses are split at this size where the protocol allows it. gRPC clients accept 4 MiB by default.",
            ),
            (
                "streams_max",
                count(1, 10_000_000),
                "The maximum number of streams. Further streams are rejected with RESOURCE_EXHAUSTED.",
            ),
            (
                "subscriptions_bytes_max",
                bytes(MIB, 1024 * GIB),
                "The maximum memory for the names to which all streams subscribe. When it is full, a stream over its share is rejected.",
            ),
            (
                "connections_max",
                count(1, 1_000_000),
                "The maximum number of connections. A further connection replaces one without an accepted request: the oldest one of the address with the most of them. If every connection has had an accepted request, the server closes the new one with an explanation.",
            ),
            (
                "connections_per_peer_max",
                count(1, 1_000_000),
                "The maximum number of connections from one address (one /64 network of IPv6). A host with the default port range of Linux opens at most 28232.",
            ),
            (
                "streams_per_connection_max",
                count(1, 1_000_000),
                "The maximum number of concurrent streams on one connection. Envoy opens one per EDS cluster if EDS is not aggregated.",
            ),
            (
                "request_bytes_max",
                bytes(KIB, GIB),
                "The maximum size of a client's request. A delta client that reconnects lists all its resources in one request.",
            ),
            (
                "large_requests_bytes_max",
                bytes(MIB, 64 * GIB),
                "The maximum size of all requests over 256KiB that are read at the same time. Others wait.",
            ),
            (
                "large_request_timeout",
                time(SECOND, HOUR),
                "The maximum time for a request over 256KiB to arrive. At least 64KiB must arrive in each tenth of it.",
            ),
            (
                "types_max",
                count(1, 1000),
                "The maximum number of types that one stream may request.",
            ),
            (
                "names_max",
                count(1, 100_000_000),
                "The maximum number of names to which one stream may subscribe.",
            ),
            (
                "names_per_request_max",
                count(1, 200_000_000),
                "The maximum number of names in one request. A delta client that reconnects sends each name twice.",
            ),
            (
                "name_bytes_max",
                bytes(1, 4 * KIB),
                "The maximum length of a resource name in a request. No resource has a name over 4KiB.",
            ),
            (
                "nack_message_bytes_max",
                bytes(64, 64 * KIB),
                "The maximum length to which the message of a NACK is kept.",
            ),
            (
                "requests_per_second_max",
                count(1, 1_000_000),
                "The maximum rate of requests on one stream, averaged over time.",
            ),
            (
                "requests_burst_max",
                count(1, 10_000_000),
                "The maximum number of requests that a stream may send at once after a quiet time.",
            ),
            (
                "node_bytes_max",
                bytes(KIB, 16 * MIB),
                "The maximum size of a client's Node message. Envoy sends about 61KiB.",
            ),
            (
                "node_metadata_max",
                count(1, 1_000_000),
                "The maximum number of scalars in the metadata of a Node.",
            ),
            (
                "header_list_bytes_max",
                bytes(KIB, 16 * MIB),
                "The maximum size of the header list of an HTTP/2 request. Each header counts 32 bytes more.",
            ),
            (
                "stream_window_bytes",
                bytes(WINDOW_MIN, WINDOW_MAX),
                "The HTTP/2 receive window of a stream: what a client may send before it is read.",
            ),
            (
                "connection_window_bytes",
                bytes(WINDOW_MIN, WINDOW_MAX),
                "The HTTP/2 receive window of a connection, for all its streams together.",
            ),
            (
                "send_buffer_bytes_max",
                bytes(16 * KIB, GIB),
                "The maximum number of bytes that wait to be sent on one stream.",
            ),
            (
                "pending_resets_max",
                count(1, 100_000),
                "The maximum number of streams that a client may open and reset before the server handles them (HTTP/2 rapid reset).",
            ),
            (
                "error_resets_max",
                count(1, 1_000_000),
                "The maximum number of streams of a connection that the server resets because of the client's errors.",
            ),
            (
                "control_frames_per_second_max",
                count(1, 1_000_000),
                "The maximum rate of HTTP/2 frames without data on one connection, averaged over time.",
            ),
            (
                "control_frames_burst_max",
                count(100, 10_000_000),
                "The maximum number of HTTP/2 frames without data at once after a quiet time.",
            ),
            (
                "keepalive_interval",
                time(SECOND, HOUR),
                "The server sends a PING on a connection that has been quiet for this time.",
            ),
            (
                "keepalive_timeout",
                time(SECOND, 10 * MINUTE),
                "The maximum time for the answer to a PING. A client that reads nothing for the sum of both times is disconnected.",
            ),
            (
                "first_stream_timeout",
                time(SECOND, HOUR),
                "The maximum time until a new connection opens its first stream, including the handshake.",
            ),
            (
                "idle_timeout",
                time(SECOND, 24 * HOUR),
                "The maximum time that a connection may have no stream.",
            ),
            (
                "connection_age_max",
                time(SECOND, 720 * HOUR).or_zero(),
                "The age at which a client is asked to reconnect, plus or minus a tenth, so that load spreads. 0s disables this.",
            ),
            (
                "connection_age_grace",
                time(0, 24 * HOUR),
                "The maximum time that the streams of a connection continue after that.",
            ),
            (
                "drain_connections_per_second",
                count(1, 1_000_000),
                "The number of connections that are ended per second after SIGTERM. The rate is higher if half of shutdown.timeout would be too short.",
            ),
            (
                "close_timeout",
                time(100, 10 * MINUTE),
                "The maximum time for a client to close its connection after its streams have ended.",
            ),
            (
                "poll_hold",
                time(0, 10 * MINUTE),
                "The maximum time that a REST poll waits for a change (long polling). It must be less than the request_timeout of the clients, which is 1s for Envoy by default. 0s answers at once.",
            ),
            (
                "poll_bytes_max",
                bytes(MIB, 1024 * GIB),
                "The maximum size of the JSON responses to all REST polls together, including those that slow clients still read. Further responses are rejected with 503.",
            ),
            (
                "descriptor_sets",
                FREE,
                "Files with the descriptors of types that are not in Envoy's API (protoc --include_imports --descriptor_set_out). Manifests and REST polls can then use these types. All replicas need the same files.",
            ),
            types::TYPES,
            (
                "authorities",
                FREE,
                "The authorities of xdstp:// names that clients can request. Names of other authorities do not exist for them. An empty list means all.",
            ),
            (
                "collections",
                FREE,
                "The collections that sinks of MCP can request, such as istio/networking/v1alpha3/virtualservices. An empty list means all. The list does not limit MCP over xDS.",
            ),
            (
                "ignore_other_collections",
                FREE,
                "Whether the server ignores a request of a sink for another collection. If false, such a request ends the stream with INVALID_ARGUMENT.",
            ),
        ],
    ),
    (
        "load_reports",
        &[
            (
                "enabled",
                FREE,
                "Whether clients may report their load (LRS) on the port for xDS clients. If false, the service answers UNIMPLEMENTED.",
            ),
            (
                "clusters",
                FREE,
                "The names of the clusters that clients report. The only item * means all clusters, an empty list none. `chancery load set` overrides clusters, interval and endpoints until the replica restarts.",
            ),
            ("interval", time(SECOND, HOUR), "The time between two reports of a client."),
            (
                "endpoints",
                FREE,
                "Whether clients report the load of each endpoint. Only Envoy supports this.",
            ),
            (
                "bytes_max",
                bytes(MIB, 64 * GIB),
                "The maximum memory for the sums of all reports. Items beyond it are not kept; chancery_load_omitted_total counts them.",
            ),
        ],
    ),
    ("mcp", mcp::KEYS),
    (
        "admin",
        &[
            (
                "address",
                LISTEN,
                "The address to listen on for the command line, the HTTP API and metrics. Port 0 selects a free port.",
            ),
            (
                "allow_plaintext",
                FREE,
                "Whether an unencrypted port may listen on addresses other than loopback.",
            ),
            (
                "tls_cert",
                FREE,
                "The certificate file of the port (PEM), with intermediate certificates. With tls_cert and tls_key, the port uses TLS 1.3. The files are read again when they change.",
            ),
            ("tls_key", FREE, "The file with the private key of tls_cert (PEM)."),
            (
                "tls_client_ca",
                FREE,
                "The file with the CAs that sign the certificates of authors, operators and monitoring (PEM). If it is set, clients without such a certificate are rejected.",
            ),
            tls::CLIENT_CERT,
            tls::CRL,
            tls::TRUST_DOMAINS,
            tls::CLIENT_CA_NAME,
            tls::CLIENT_CA_CN,
            (
                "socket",
                FREE,
                "The path of a UNIX socket that serves the same API, such as /run/chancery/admin.sock; empty for none. Its owner and root may connect (mode 600). The principal is unix:UID.",
            ),
            (
                "hosts",
                FREE,
                "The host names, without a port, under which the HTTP API may be called. IP addresses, localhost and the host of raft.advertise are always allowed. /metrics, /healthz, /readyz and gRPC accept every name.",
            ),
            (
                "request_bytes_max",
                bytes(64 * KIB, 2 * GIB),
                "The maximum size of a request, which contains all manifests of one apply.",
            ),
            (
                "connections_max",
                count(1, 100_000),
                "The maximum number of connections. A further connection replaces an idle one, or is rejected if all are busy.",
            ),
            (
                "header_timeout",
                time(100, HOUR),
                "The maximum time from the start of a connection to the end of its first request header.",
            ),
            (
                "idle_timeout",
                time(100, HOUR),
                "The maximum time that a connection may have no request, or not read its response.",
            ),
            (
                "body_timeout",
                time(100, HOUR),
                "The maximum time for the body of a request to arrive, plus 1s for each 16KiB.",
            ),
        ],
    ),
    ("auth", auth::KEYS),
    ("access", access::KEYS),
    (
        "guards",
        &[
            (
                "off",
                FREE,
                "The guards that this replica does not apply: mass-deletion, empty-endpoints, cluster-in-use, view-change, sotw-size, unasked, or all. Guards reject writes that may take down connected nodes, unless the write confirms them (--confirm).",
            ),
            (
                "deletion_percent",
                count(1, 100),
                "mass-deletion: the maximum share of the resources of one type in the view of a node that a write may delete, in percent.",
            ),
            (
                "deletion_resources_min",
                count(1, 100_000_000),
                "mass-deletion: in a view with fewer resources of the type, a write may delete any share.",
            ),
            (
                "sotw_bytes_max",
                bytes(64 * KIB, GIB),
                "sotw-size: the maximum size of a SotW response with all resources of a type. gRPC clients accept 4 MiB by default.",
            ),
            (
                "scopes",
                FREE,
                "The settings of scopes that differ, as SCOPE=KEY:VALUE, with the keys of this section: edge=deletion_percent:10, lab=off:mass-deletion.",
            ),
        ],
    ),
    (
        "validation",
        &[
            (
                "mode",
                words(&["enforce", "warn", "off"]),
                "The treatment of resources that clients would reject: enforce refuses the write, warn stores them and reports the findings, off does not check them. All replicas need the same value.",
            ),
            (
                "scopes",
                FREE,
                "The modes of scopes that differ from mode, as SCOPE=MODE. The mode of a call (--validation) overrides both.",
            ),
            (
                "profiles",
                FREE,
                "The clients that see a scope, as SCOPE=PROFILE+PROFILE, such as mesh=grpc-go@1.70+envoy; * stands for all other scopes. Without an entry, the connected clients decide.",
            ),
            (
                "external_command",
                FREE,
                "A program with its arguments that checks the resources of each write; empty for none. {file} stands for the path of its input, which is also the standard input. Exit code 0 accepts the resources.",
            ),
            (
                "external_input",
                words(&["bootstrap", "manifest"]),
                "The input of external_command: bootstrap (of Envoy, in JSON) or manifest.",
            ),
            (
                "external_timeout",
                time(100, 10 * MINUTE),
                "The maximum time of external_command. Then its process group is killed.",
            ),
            (
                "external_memory_max",
                bytes(16 * MIB, 1024 * GIB),
                "The maximum data memory of each process of external_command.",
            ),
            (
                "external_required",
                FREE,
                "Whether a write is refused if external_command does not check it: it does not start, exceeds its time, or is killed.",
            ),
        ],
    ),
    (
        "references",
        &[
            (
                "mode",
                words(&["enforce", "warn", "off"]),
                "The treatment of references to resources that are missing in the views of nodes: warn reports them, enforce refuses the write, off does not check them. All replicas need the same value.",
            ),
            (
                "scopes",
                FREE,
                "The modes of scopes that differ from mode, as SCOPE=MODE. The mode of a write is that of the scope in which it changes a resource.",
            ),
        ],
    ),
    ("secrets", secrets::KEYS),
    ("audit", audit::KEYS),
    (
        "log",
        &[
            (
                "level",
                FREE,
                "The log level: error, warn, info, debug, trace or off; also per module: info,chancery_xds=debug. `chancery log level` changes it while the replica runs.",
            ),
            (
                "format",
                words(&["text", "json"]),
                "The log format: text or json, with one object per line. The log goes to standard error. Text has colors on a terminal, unless NO_COLOR is set.",
            ),
        ],
    ),
    ("trace", trace::KEYS),
    (
        "shutdown",
        &[(
            "timeout",
            time(SECOND, 10 * MINUTE),
            "The maximum time for streams and requests to end after SIGTERM.",
        )],
    ),
];

/// Converts a configuration to a table of sections.
pub(super) fn table(config: &Config) -> Table {
    Table::try_from(config).expect("all keys are text, and TOML can represent all values")
}

/// Returns the description of a key with its range.
pub(super) fn about(bounds: &Bounds, meaning: &str) -> String {
    let range = bounds.range().map(|range| format!(" The value is {range}."));
    format!("{meaning}{}", range.unwrap_or_default())
}

/// Converts a configuration to a TOML file, with a comment for each key.
pub(super) fn render(config: &Config) -> String {
    let table = table(config);
    let mut out =
        "# The variable CHANCERY_<SECTION>_<KEY> overrides a key, and a flag overrides both.\n"
            .to_owned();
    for (section, keys) in KEYS {
        out.push_str(&format!("\n[{section}]\n"));
        for (key, bounds, meaning) in *keys {
            let value = table.get(*section).and_then(|section| section.get(key));
            let value = value.map(Value::to_string).unwrap_or_default();
            out.push_str(&format!("# {}\n{key} = {value}\n", about(bounds, meaning)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_key_is_described_and_no_other() {
        let described: Vec<String> = KEYS
            .iter()
            .flat_map(|(section, keys)| {
                keys.iter().map(move |(key, ..)| format!("{section}.{key}"))
            })
            .collect();
        let mut described_sorted = described.clone();
        described_sorted.sort();
        let mut actual: Vec<String> = table(&Config::default())
            .iter()
            .flat_map(|(section, keys)| {
                let keys = keys.as_table().unwrap();
                keys.keys().map(move |key| format!("{section}.{key}"))
            })
            .collect();
        actual.sort();
        assert_eq!(described_sorted, actual);
    }

    #[test]
    fn printed_configuration_parses_as_the_same_configuration() {
        let config = Config::default();
        assert_eq!(toml::from_str::<Config>(&render(&config)).unwrap(), config);
    }

    /// The page on hostile clients has rows `| \`xds.key\` | \`default\` |`.
    #[test]
    fn hostile_clients_page_shows_the_actual_defaults() {
        let page = include_str!("../../../../docs/hostile-clients.md");
        let table = table(&Config::default());
        let mut n_limits = 0;
        for line in page.lines() {
            let row = line.strip_prefix("| `xds.").and_then(|row| row.split_once('`'));
            let Some((key, rest)) = row else { continue };
            // Rows of other tables have a sentence in this column.
            let Some(rest) = rest.strip_prefix(" | `") else { continue };
            let shown = rest.split('`').next().unwrap();
            let value = table["xds"].get(key).unwrap_or_else(|| panic!("no key {key}"));
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(shown, value, "{key}");
            n_limits += 1;
        }
        assert!(n_limits > 20, "only {n_limits} limits were found");
    }
}
