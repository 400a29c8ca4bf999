//! The section `[xds]`: the port for xDS clients.

use std::{net::SocketAddr, time::Duration};

use chancery_tls::{TlsConfig, TlsPort};

use super::{
    bounds::{GIB, HOUR, KIB, LISTEN, MIB, MINUTE, SECOND, bytes, count, tables, time, words},
    loopback,
    section::section,
    tls::{self, TlsClientCert, TlsMin},
    types::TypeOfResources,
    units::{ByteSize, Span},
};

/// The range of HTTP/2 windows (RFC 9113, 6.9.1).
const WINDOW_MIN: u64 = 65_535;
const WINDOW_MAX: u64 = 2_147_483_647;

section! {
    /// The section `[xds]`: the port for xDS clients.
    pub struct Xds {
        let xds = chancery_xds::Config::default();
        let fanout = chancery_fanout::Config::default();
        let session = fanout.session;

        /// The address to listen on for xDS clients. Port 0 selects a free port.
        address: SocketAddr = loopback(18000), LISTEN;
        /// Whether an unencrypted port may listen on addresses other than loopback.
        allow_plaintext: bool;
        /// The certificate file of the port (PEM), with intermediate certificates. With tls_cert
        /// and tls_key, the port uses TLS. The files are read again when they change.
        tls_cert: String;
        /// The file with the private key of tls_cert (PEM).
        tls_key: String;
        /// The file with the CAs that sign the certificates of clients (PEM). If it is set, clients
        /// without such a certificate are rejected.
        tls_client_ca: String;
        #[doc = tls::CLIENT_CERT]
        tls_client_cert: TlsClientCert = TlsClientCert::Required, words(TlsClientCert::WORDS);
        #[doc = tls::CRL]
        tls_crl: String;
        #[doc = tls::TRUST_DOMAINS]
        tls_trust_domains: Vec<String>;
        #[doc = tls::CLIENT_CA_NAME]
        client_ca_name: String = "clients".into();
        #[doc = tls::CLIENT_CA_CN]
        client_ca_cn: bool;
        /// The lowest TLS version: 1.2 or 1.3. Envoy connects with at most 1.2 unless its bootstrap
        /// sets tls_maximum_protocol_version.
        tls_min: TlsMin = TlsMin::Tls12, words(TlsMin::WORDS);
        /// Whether the services of xDS v2 are served. They serve only resources that are stored
        /// under types of v2.
        v2_services: bool = xds.v2_services;
        /// Whether responses list subscribed names without a resource in the field resource_errors.
        /// Clients that do not know the field ignore it.
        resource_errors: bool = session.resource_errors;
        /// The number of tasks that the streams are divided among. 0 means one per core.
        shards: usize = fanout.shards, count(0, 1024);
        /// The maximum time that a new stream waits until this replica has everything that the
        /// cluster has committed.
        catch_up_timeout: Span = Span::seconds(1), time(1, MINUTE);
        /// If a client leaves a response unanswered for this time, it receives the next one anyway.
        ack_timeout: Span = Span::new(Duration::from_millis(session.ack_timeout_ms)),
            time(100, 10 * MINUTE);
        /// While a client subscribes to a route table that no longer exists, its clusters are kept
        /// for at most this time. Set it to more than Envoy's --drain-time-s. 0s keeps none.
        drain_hold: Span = Span::new(Duration::from_millis(session.drain_hold_ms)),
            time(SECOND, 24 * HOUR).or_zero();
        /// If a client leaves a response unanswered for this time, its stream is closed. The time
        /// must be longer than the slowest client takes to receive and apply a full state. 0s
        /// disables this; Envoy may then wait indefinitely for a correction.
        ack_close_after: Span =
            Span::new(Duration::from_millis(session.ack_close_after_ms.unwrap_or_default())),
            time(10 * SECOND, 24 * HOUR).or_zero();
        /// The time for which a node without streams stays in the list of nodes, also through a restart
        /// of the replica. With 0s, the list has only connected nodes.
        disconnected_keep: Span = Span::new(Duration::from_secs(600)), time(SECOND, 24 * HOUR).or_zero();
        /// If this replica has had no contact to the majority of the replicas for this time, it no
        /// longer renews the ttl of resources. Clients then drop these resources.
        renewals_stop_after: Span = Span::new(fanout.renewals_stop_after), time(SECOND, 24 * HOUR);
        /// Responses are split at this size where the protocol allows it. gRPC clients accept 4 MiB
        /// by default.
        response_bytes_target: ByteSize = ByteSize::new(session.response_bytes_target as u64),
            bytes(64 * KIB, GIB);
        /// The maximum number of streams. Further streams are rejected with RESOURCE_EXHAUSTED.
        streams_max: usize = fanout.streams_max, count(1, 10_000_000);
        /// The maximum memory for the names to which all streams subscribe. When it is full, a
        /// stream over its share is rejected.
        subscriptions_bytes_max: ByteSize = ByteSize::new(fanout.subscriptions_bytes_max as u64),
            bytes(MIB, 1024 * GIB);
        /// The maximum number of connections. A further connection replaces one without an accepted
        /// request: the oldest one of the address with the most of them. If every connection has
        /// had an accepted request, the server closes the new one with an explanation.
        connections_max: usize = xds.connections_max, count(1, 1_000_000);
        /// The maximum number of connections from one address (one /64 network of IPv6). A host
        /// with the default port range of Linux opens at most 28232.
        connections_per_peer_max: usize = xds.connections_per_peer_max, count(1, 1_000_000);
        /// The maximum number of concurrent streams on one connection. Envoy opens one per EDS
        /// cluster if EDS is not aggregated.
        streams_per_connection_max: u32 = xds.streams_per_connection_max, count(1, 1_000_000);
        /// The maximum size of a client's request. A delta client that reconnects lists all its
        /// resources in one request.
        request_bytes_max: ByteSize = ByteSize::new(xds.request_bytes_max as u64), bytes(KIB, GIB);
        /// The maximum size of all requests over 256KiB that are read at the same time. Others
        /// wait.
        large_requests_bytes_max: ByteSize = ByteSize::new(xds.large_requests_bytes_max as u64),
            bytes(MIB, 64 * GIB);
        /// The maximum time for a request over 256KiB to arrive. At least 64KiB must arrive in each
        /// tenth of it.
        large_request_timeout: Span = Span::new(xds.large_request_timeout), time(SECOND, HOUR);
        /// The maximum number of types that one stream may request.
        types_max: usize = session.types_max, count(1, 1000);
        /// The maximum number of names to which one stream may subscribe.
        names_max: usize = session.names_max, count(1, 100_000_000);
        /// The maximum number of names in one request. A delta client that reconnects sends each
        /// name twice.
        names_per_request_max: usize = xds.names_per_request_max, count(1, 200_000_000);
        /// The maximum length of a resource name in a request. No resource has a name over 4KiB.
        name_bytes_max: ByteSize = ByteSize::new(xds.name_bytes_max as u64), bytes(1, 4 * KIB);
        /// The maximum length to which the message of a NACK is kept.
        nack_message_bytes_max: ByteSize = ByteSize::new(xds.nack_message_bytes_max as u64),
            bytes(64, 64 * KIB);
        /// The maximum rate of requests on one stream, averaged over time.
        requests_per_second_max: u32 = xds.requests_per_second_max, count(1, 1_000_000);
        /// The maximum number of requests that a stream may send at once after a quiet time.
        requests_burst_max: u32 = xds.requests_burst_max, count(1, 10_000_000);
        /// The maximum size of a client's Node message. Envoy sends about 61KiB.
        node_bytes_max: ByteSize = ByteSize::new(xds.node_bytes_max as u64), bytes(KIB, 16 * MIB);
        /// The maximum number of scalars in the metadata of a Node.
        node_metadata_max: usize = xds.node_metadata_max, count(1, 1_000_000);
        /// The maximum size of the header list of an HTTP/2 request. Each header counts 32 bytes
        /// more.
        header_list_bytes_max: ByteSize = ByteSize::new(xds.header_list_bytes_max.into()),
            bytes(KIB, 16 * MIB);
        /// The HTTP/2 receive window of a stream: what a client may send before it is read.
        stream_window_bytes: ByteSize = ByteSize::new(xds.stream_window_bytes.into()),
            bytes(WINDOW_MIN, WINDOW_MAX);
        /// The HTTP/2 receive window of a connection, for all its streams together.
        connection_window_bytes: ByteSize = ByteSize::new(xds.connection_window_bytes.into()),
            bytes(WINDOW_MIN, WINDOW_MAX);
        /// The maximum number of bytes that wait to be sent on one stream.
        send_buffer_bytes_max: ByteSize = ByteSize::new(xds.send_buffer_bytes_max as u64),
            bytes(16 * KIB, GIB);
        /// The maximum number of streams that a client may open and reset before the server handles
        /// them (HTTP/2 rapid reset).
        pending_resets_max: usize = xds.pending_resets_max, count(1, 100_000);
        /// The maximum number of streams of a connection that the server resets because of the
        /// client's errors.
        error_resets_max: usize = xds.error_resets_max, count(1, 1_000_000);
        /// The maximum rate of HTTP/2 frames without data on one connection, averaged over time.
        control_frames_per_second_max: u32 = xds.control_frames_per_second_max, count(1, 1_000_000);
        /// The maximum number of HTTP/2 frames without data at once after a quiet time.
        control_frames_burst_max: u32 = xds.control_frames_burst_max, count(100, 10_000_000);
        /// The server sends a PING on a connection that has been quiet for this time.
        keepalive_interval: Span = Span::new(xds.keepalive_interval), time(SECOND, HOUR);
        /// The maximum time for the answer to a PING. A client that reads nothing for the sum of
        /// both times is disconnected.
        keepalive_timeout: Span = Span::new(xds.keepalive_timeout), time(SECOND, 10 * MINUTE);
        /// The maximum time until a new connection opens its first stream, including the handshake.
        first_stream_timeout: Span = Span::new(xds.first_stream_timeout), time(SECOND, HOUR);
        /// The maximum time that a connection may have no stream.
        idle_timeout: Span = Span::new(xds.idle_timeout), time(SECOND, 24 * HOUR);
        /// The age at which a client is asked to reconnect, plus or minus a tenth, so that load
        /// spreads. 0s disables this.
        connection_age_max: Span = Span::new(xds.connection_age_max.unwrap_or_default()),
            time(SECOND, 720 * HOUR).or_zero();
        /// The maximum time that the streams of a connection continue after that.
        connection_age_grace: Span = Span::new(xds.connection_age_grace), time(0, 24 * HOUR);
        /// The number of connections that are ended per second after SIGTERM. The rate is higher if
        /// half of shutdown.timeout would be too short.
        drain_connections_per_second: u32 = xds.drain_connections_per_second, count(1, 1_000_000);
        /// The maximum time for a client to close its connection after its streams have ended.
        close_timeout: Span = Span::new(xds.close_timeout), time(100, 10 * MINUTE);
        /// The maximum time that a REST poll waits for a change (long polling). It must be less
        /// than the request_timeout of the clients, which is 1s for Envoy by default. 0s answers at
        /// once.
        poll_hold: Span = Span::new(xds.poll_hold), time(0, 10 * MINUTE);
        /// The maximum size of the JSON responses to all REST polls together, including those that
        /// slow clients still read. Further responses are rejected with 503.
        poll_bytes_max: ByteSize = ByteSize::new(xds.poll_bytes_max as u64), bytes(MIB, 1024 * GIB);
        /// Files with the descriptors of types that are not in Envoy's API (protoc
        /// --include_imports --descriptor_set_out). Manifests and REST polls can then use these
        /// types. All replicas need the same files.
        descriptor_sets: Vec<String>;
        /// The behavior of types that Chancery does not know. All replicas need the same types.
        types: Vec<TypeOfResources>, tables(TypeOfResources::FIELDS);
        /// The authorities of xdstp:// names that clients can request. Names of other authorities
        /// do not exist for them. An empty list means all.
        authorities: Vec<String>;
        /// The collections that sinks of MCP can request, such as
        /// istio/networking/v1alpha3/virtualservices. An empty list means all. The list does not
        /// limit MCP over xDS.
        collections: Vec<String>;
        /// Whether the server ignores a request of a sink for another collection. If false, such a
        /// request ends the stream with INVALID_ARGUMENT.
        ignore_other_collections: bool = session.ignore_other_collections;
    }
}

impl Xds {
    pub(crate) fn tls_keys(&self) -> tls::Keys<'_> {
        tls::Keys {
            section: "xds",
            port: TlsPort::Xds,
            cert: &self.tls_cert,
            key: &self.tls_key,
            client_ca: &self.tls_client_ca,
            client_cert: self.tls_client_cert,
            crl: &self.tls_crl,
            trust_domains: &self.tls_trust_domains,
            ca_name: &self.client_ca_name,
            ca_cn: self.client_ca_cn,
            min: self.tls_min,
        }
    }

    /// Returns the files for TLS on the port, or `None` without TLS.
    pub fn tls(&self) -> Option<TlsConfig> {
        self.tls_keys().config()
    }
}
