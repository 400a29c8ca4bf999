//! What each key means: the text of `chancery config print`.

use toml::{Table, Value};

use super::Config;

/// Every section and key, in the order in which they are printed, with what they mean.
pub(super) const KEYS: &[(&str, &[(&str, &str)])] = &[
    (
        "store",
        &[
            ("data_dir", "Directory of the replica's data. One process at a time."),
            ("snapshot_log_entries", "A snapshot is taken after so many log entries."),
            ("snapshot_log_bytes", "The same, after so many bytes of log entries."),
            (
                "free_bytes_min",
                "Writes are refused while the disk has less than this left: 64MiB at least, or 0.",
            ),
            (
                "transaction_bytes_max",
                "Largest transaction, of all its encoded resources together. The same on all replicas: raise it on all before anyone uses it.",
            ),
            ("transact_timeout", "A write that is not committed by then fails."),
            (
                "open_timeout",
                "How long the start may take until the state is loaded and caught up.",
            ),
        ],
    ),
    (
        "raft",
        &[
            ("replica_id", "Number of this replica in its cluster, from 1."),
            (
                "address",
                "Address for other replicas. If it is not given and is in use, a cluster of one goes on without it.",
            ),
            (
                "allow_plaintext",
                "Whether the address may be other than loopback although the port is not encrypted.",
            ),
            (
                "tls_cert",
                "This replica's certificate (PEM), for both sides of a connection; with tls_key and tls_ca, or empty: no TLS. The files are read again when they change.",
            ),
            ("tls_key", "The key of tls_cert (PEM)."),
            (
                "tls_ca",
                "The CA of the replicas alone (PEM): whoever has a certificate of it is taken for one, everybody else is refused.",
            ),
            (
                "tls_server_name",
                "The name that all replicas' certificates have; empty: each has the host of its address.",
            ),
            (
                "advertise",
                "Where other replicas reach this one, as HOST:PORT; empty is its entry in peers, or else the address.",
            ),
            (
                "join",
                "Replicas of a cluster to join, as HOST:PORT: one that answers is enough. Only for an empty directory.",
            ),
            (
                "peers",
                "All replicas of a new cluster, this one too, as ID=HOST:PORT: the first forms it when all are there, the others join. Only for an empty directory.",
            ),
            (
                "learner",
                "Whether this replica joins as one that stays a learner: it serves streams and is not made a voter by itself.",
            ),
            (
                "catch_up_timeout",
                "A replica that starts and finds no leader serves what it has after so long.",
            ),
            (
                "connections_max",
                "Connections of other replicas at a time; one more takes the place of one that has said nothing, or has been silent the longest.",
            ),
        ],
    ),
    (
        "xds",
        &[
            ("address", "Address for xDS clients. Port 0 takes a free one."),
            (
                "allow_plaintext",
                "Whether the address may be other than loopback although the port is not encrypted.",
            ),
            (
                "shards",
                "Tasks that the streams are divided among, at most 1024; 0 is one per core.",
            ),
            (
                "catch_up_timeout",
                "How long a stream that begins may wait until this replica has what the cluster has committed.",
            ),
            (
                "ack_timeout",
                "How long a client may be silent on a response before it is sent the next one all the same.",
            ),
            (
                "ack_close_after",
                "A stream is closed when its client has been silent on a response for so long; 0s is never. Longer than the slowest client takes to receive and try out a state. Envoy may wait for a correction for ever.",
            ),
            (
                "response_bytes_target",
                "Responses are cut at this size where the protocol allows. gRPC clients take 4 MiB by default.",
            ),
            ("streams_max", "Streams at a time; one more is refused with RESOURCE_EXHAUSTED."),
            (
                "subscriptions_bytes_max",
                "Memory for the names that all streams subscribe to; when it is full, a stream over its share is refused.",
            ),
            ("connections_max", "Connections at a time; one more is told so and closed."),
            (
                "connections_per_peer_max",
                "The same, from one address (one /64 of IPv6). A host with Linux's own port range opens 28232 at most.",
            ),
            (
                "streams_per_connection_max",
                "Streams at a time on one connection. Envoy opens one per EDS cluster if EDS is not aggregated.",
            ),
            (
                "request_bytes_max",
                "Largest request of a client. A delta client that reconnects lists all it holds in one.",
            ),
            (
                "large_requests_bytes_max",
                "Requests over 256KiB that are being read at a time, all together; others wait.",
            ),
            (
                "large_request_timeout",
                "How long a request over 256KiB may take to arrive; of each tenth of it 64KiB have to come.",
            ),
            ("types_max", "Most types that one stream may ask for."),
            ("names_max", "Most names that one stream may subscribe to."),
            (
                "names_per_request_max",
                "Most names in one request. A delta client that reconnects sends each name twice.",
            ),
            (
                "name_bytes_max",
                "Longest resource name in a request; no resource has more than 4KiB.",
            ),
            ("nack_message_bytes_max", "What is kept of the message of a NACK."),
            ("requests_per_second_max", "Requests per second on one stream, over time."),
            ("requests_burst_max", "Requests that a stream may send at once after a quiet time."),
            ("node_bytes_max", "Largest Node message of a client. That of Envoy has about 61KiB."),
            ("node_metadata_max", "Most scalars in the metadata of a Node."),
            (
                "header_list_bytes_max",
                "Largest header list of an HTTP/2 request, each header with 32 bytes more.",
            ),
            (
                "stream_window_bytes",
                "What a client may send on a stream before it is read. From 65535 to 2147483647.",
            ),
            ("connection_window_bytes", "The same, on all streams of a connection together."),
            ("send_buffer_bytes_max", "What waits to be written on one stream."),
            (
                "pending_resets_max",
                "Streams that a client may open and reset before they are looked at (HTTP/2 rapid reset).",
            ),
            (
                "error_resets_max",
                "Streams of a connection that may have to be reset for its client's mistakes.",
            ),
            (
                "control_frames_per_second_max",
                "HTTP/2 frames without data per second on one connection, over time.",
            ),
            ("control_frames_burst_max", "The same, at once after a quiet time."),
            ("keepalive_interval", "How long a connection may be quiet before it is probed."),
            (
                "keepalive_timeout",
                "How long a probe may stay unanswered. A client that takes nothing for both times is cut off.",
            ),
            (
                "first_stream_timeout",
                "How long a new connection may take to open its first stream, the handshake included.",
            ),
            ("idle_timeout", "How long a connection may have no stream."),
            (
                "connection_age_max",
                "Age at which a client is asked to connect anew, give or take a tenth, so that load spreads; 0s is never.",
            ),
            ("connection_age_grace", "How long its streams may go on after that."),
            (
                "drain_connections_per_second",
                "Connections per second that are ended after SIGTERM; more if half of shutdown.timeout is too short.",
            ),
            ("close_timeout", "How long a client may take to close when its streams have ended."),
        ],
    ),
    (
        "admin",
        &[
            (
                "address",
                "Address for the command line, the HTTP API and metrics. Port 0 takes a free one.",
            ),
            (
                "allow_plaintext",
                "Whether the address may be other than loopback although the port is not encrypted.",
            ),
            (
                "hosts",
                "Host names under which the HTTP API may be called, without a port. IP addresses, localhost and the host of raft.advertise always may; /metrics, /healthz, /readyz and gRPC answer to every name.",
            ),
            ("request_bytes_max", "Largest request, of all manifests of one apply together."),
            (
                "connections_max",
                "Connections at a time; one more takes the place of an idle one, or is refused if all are busy.",
            ),
            (
                "header_timeout",
                "How long a new connection may take to the end of the header of its first request.",
            ),
            (
                "idle_timeout",
                "How long a connection may have no request, or not take what it is sent.",
            ),
            ("body_timeout", "How long a request may take to come, besides 1s for each 16KiB."),
        ],
    ),
    (
        "log",
        &[
            (
                "level",
                "error, warn, info, debug, trace or off, also per module: info,chancery_xds=debug.",
            ),
            ("format", "text or json. The log goes to the standard error."),
        ],
    ),
    ("shutdown", &[("timeout", "How long streams and requests may take to end after SIGTERM.")]),
];

/// A configuration as a table of sections.
pub(super) fn table(config: &Config) -> Table {
    Table::try_from(config)
        .expect("all keys are text, and all values numbers, text or truth values")
}

/// A configuration as a file, each key with what it means.
pub(super) fn render(config: &Config) -> String {
    let table = table(config);
    let mut out =
        "# The environment overrides a key by CHANCERY_<SECTION>_<KEY>, a flag both.\n".to_owned();
    for (section, keys) in KEYS {
        out.push_str(&format!("\n[{section}]\n"));
        for (key, meaning) in *keys {
            let value = table.get(*section).and_then(|section| section.get(key));
            let value = value.map(Value::to_string).unwrap_or_default();
            out.push_str(&format!("# {meaning}\n{key} = {value}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_described_and_nothing_else() {
        let described: Vec<String> = KEYS
            .iter()
            .flat_map(|(section, keys)| keys.iter().map(move |(key, _)| format!("{section}.{key}")))
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
    fn what_is_printed_reads_back_as_the_same_configuration() {
        let config = Config::default();
        assert_eq!(toml::from_str::<Config>(&render(&config)).unwrap(), config);
    }

    /// The page on hostile clients says `| \`xds.key\` | \`default\` |`.
    #[test]
    fn defaults_in_the_page_on_hostile_clients_are_the_defaults() {
        let page = include_str!("../../../../docs/hostile-clients.md");
        let table = table(&Config::default());
        let mut n_limits = 0;
        for line in page.lines() {
            let row = line.strip_prefix("| `xds.").and_then(|row| row.split_once('`'));
            let Some((key, rest)) = row else { continue };
            // Rows of other tables have a sentence there.
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
