//! The configuration of a replica: one TOML file in which every key has a default. Environment
//! variables (`CHANCERY_<SECTION>_<KEY>`) override the file, and flags override both.
//!
//! No other module reads the environment for settings of a replica. Errors name the key, the value,
//! its source and the rule.

mod access;
mod audit;
mod auth;
mod bounds;
mod convert;
mod error;
mod guards;
mod keys;
mod load;
mod manual;
mod mcp;
mod named_files;
mod otel_variables;
mod raft;
mod refused;
mod rules;
mod schema;
mod secrets;
mod source_file;
mod suggestions;
mod tls;
mod trace;
mod types;
mod units;
mod unknown_variables;
mod users;
mod validation;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub(crate) use error::{ConfigError, Source};
pub(crate) use load::{FlagValue, Flags, Loaded, list, load};
pub(crate) use manual::manual;
pub(crate) use named_files::{NamedFiles, read_descriptor_set};
pub(crate) use raft::Raft;
pub(crate) use refused::Refused;
pub(crate) use rules::{LISTEN_RULE, log_level_rules};
pub(crate) use schema::schema;
pub(crate) use tls::{TlsClientCert, TlsMin};
pub(crate) use trace::endpoint_rule;
use types::TypeOfResources;
pub(crate) use types::configured_types;
pub(crate) use units::{ByteSize, Span};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    pub(crate) store: Store,
    pub(crate) raft: Raft,
    pub(crate) xds: Xds,
    pub(crate) load_reports: LoadReports,
    pub(crate) mcp: mcp::Mcp,
    pub(crate) admin: Admin,
    pub(crate) auth: auth::Auth,
    pub(crate) access: access::Access,
    pub(crate) guards: guards::Guards,
    pub(crate) validation: validation::Validation,
    pub(crate) references: validation::References,
    pub(crate) secrets: secrets::SecretsSection,
    pub(crate) audit: audit::Audit,
    pub(crate) log: Log,
    pub(crate) trace: trace::Trace,
    pub(crate) shutdown: Shutdown,
}

/// The section `[store]`: the data directory and the limits of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Store {
    pub(crate) data_dir: PathBuf,
    pub(crate) snapshot_log_entries: u64,
    pub(crate) snapshot_log_bytes: ByteSize,
    pub(crate) free_bytes_min: ByteSize,
    pub(crate) transaction_bytes_max: ByteSize,
    pub(crate) transact_timeout: Span,
    pub(crate) open_timeout: Span,
}

/// The section `[xds]`: the port for xDS clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Xds {
    pub(crate) address: SocketAddr,
    pub(crate) allow_plaintext: bool,
    pub(crate) tls_cert: String,
    pub(crate) tls_key: String,
    pub(crate) tls_client_ca: String,
    pub(crate) tls_client_cert: TlsClientCert,
    pub(crate) tls_crl: String,
    pub(crate) tls_trust_domains: Vec<String>,
    pub(crate) client_ca_name: String,
    pub(crate) client_ca_cn: bool,
    pub(crate) tls_min: TlsMin,
    pub(crate) v2_services: bool,
    pub(crate) resource_errors: bool,
    pub(crate) shards: usize,
    pub(crate) catch_up_timeout: Span,
    pub(crate) ack_timeout: Span,
    pub(crate) drain_hold: Span,
    pub(crate) ack_close_after: Span,
    pub(crate) renewals_stop_after: Span,
    pub(crate) response_bytes_target: ByteSize,
    pub(crate) streams_max: usize,
    pub(crate) subscriptions_bytes_max: ByteSize,
    pub(crate) connections_max: usize,
    pub(crate) connections_per_peer_max: usize,
    pub(crate) streams_per_connection_max: u32,
    pub(crate) request_bytes_max: ByteSize,
    pub(crate) large_requests_bytes_max: ByteSize,
    pub(crate) large_request_timeout: Span,
    pub(crate) types_max: usize,
    pub(crate) names_max: usize,
    pub(crate) names_per_request_max: usize,
    pub(crate) name_bytes_max: ByteSize,
    pub(crate) nack_message_bytes_max: ByteSize,
    pub(crate) requests_per_second_max: u32,
    pub(crate) requests_burst_max: u32,
    pub(crate) node_bytes_max: ByteSize,
    pub(crate) node_metadata_max: usize,
    pub(crate) header_list_bytes_max: ByteSize,
    pub(crate) stream_window_bytes: ByteSize,
    pub(crate) connection_window_bytes: ByteSize,
    pub(crate) send_buffer_bytes_max: ByteSize,
    pub(crate) pending_resets_max: usize,
    pub(crate) error_resets_max: usize,
    pub(crate) control_frames_per_second_max: u32,
    pub(crate) control_frames_burst_max: u32,
    pub(crate) keepalive_interval: Span,
    pub(crate) keepalive_timeout: Span,
    pub(crate) first_stream_timeout: Span,
    pub(crate) idle_timeout: Span,
    pub(crate) connection_age_max: Span,
    pub(crate) connection_age_grace: Span,
    pub(crate) drain_connections_per_second: u32,
    pub(crate) close_timeout: Span,
    pub(crate) poll_hold: Span,
    pub(crate) poll_bytes_max: ByteSize,
    pub(crate) descriptor_sets: Vec<String>,
    pub(crate) types: Vec<TypeOfResources>,
    pub(crate) authorities: Vec<String>,
    pub(crate) collections: Vec<String>,
    pub(crate) ignore_other_collections: bool,
}

/// The section `[load_reports]`: the load reporting service (LRS) on the port for xDS clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LoadReports {
    pub(crate) enabled: bool,
    pub(crate) clusters: Vec<String>,
    pub(crate) interval: Span,
    pub(crate) endpoints: bool,
    pub(crate) bytes_max: ByteSize,
}

/// The section `[admin]`: the port for authors and operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Admin {
    pub(crate) address: SocketAddr,
    pub(crate) allow_plaintext: bool,
    pub(crate) tls_cert: String,
    pub(crate) tls_key: String,
    pub(crate) tls_client_ca: String,
    pub(crate) tls_client_cert: TlsClientCert,
    pub(crate) tls_crl: String,
    pub(crate) tls_trust_domains: Vec<String>,
    pub(crate) client_ca_name: String,
    pub(crate) client_ca_cn: bool,
    pub(crate) socket: String,
    pub(crate) hosts: Vec<String>,
    pub(crate) request_bytes_max: ByteSize,
    pub(crate) connections_max: usize,
    pub(crate) header_timeout: Span,
    pub(crate) idle_timeout: Span,
    pub(crate) body_timeout: Span,
}

/// The section `[log]`: the log on standard error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Log {
    pub(crate) level: String,
    pub(crate) format: LogFormat,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The section `[shutdown]`: the end of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shutdown {
    pub(crate) timeout: Span,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Default for Store {
    fn default() -> Self {
        let store = chancery_store::Config::default();
        Self {
            data_dir: "./chancery-data".into(),
            snapshot_log_entries: store.snapshot_log_entries,
            snapshot_log_bytes: ByteSize::new(store.snapshot_log_bytes),
            free_bytes_min: ByteSize::new(store.free_bytes_min),
            // One transaction can publish a scope of 100,000 resources of 1 KB with --prune.
            transaction_bytes_max: ByteSize::mib(256),
            transact_timeout: Span::new(store.transact_timeout),
            open_timeout: Span::new(store.open_timeout),
        }
    }
}

impl Default for Xds {
    fn default() -> Self {
        let xds = chancery_xds::Config::default();
        let fanout = chancery_fanout::Config::default();
        let session = fanout.session;
        Self {
            address: loopback(18000),
            allow_plaintext: false,
            tls_cert: String::new(),
            tls_key: String::new(),
            tls_client_ca: String::new(),
            tls_client_cert: TlsClientCert::Required,
            tls_crl: String::new(),
            tls_trust_domains: Vec::new(),
            client_ca_name: "clients".into(),
            client_ca_cn: false,
            tls_min: TlsMin::Tls12,
            v2_services: xds.v2_services,
            resource_errors: session.resource_errors,
            shards: fanout.shards,
            catch_up_timeout: Span::seconds(1),
            ack_timeout: Span::new(Duration::from_millis(session.ack_timeout_ms)),
            drain_hold: Span::new(Duration::from_millis(session.drain_hold_ms)),
            ack_close_after: Span::new(Duration::from_millis(
                session.ack_close_after_ms.unwrap_or_default(),
            )),
            renewals_stop_after: Span::new(fanout.renewals_stop_after),
            response_bytes_target: ByteSize::new(session.response_bytes_target as u64),
            streams_max: fanout.streams_max,
            subscriptions_bytes_max: ByteSize::new(fanout.subscriptions_bytes_max as u64),
            connections_max: xds.connections_max,
            connections_per_peer_max: xds.connections_per_peer_max,
            streams_per_connection_max: xds.streams_per_connection_max,
            request_bytes_max: ByteSize::new(xds.request_bytes_max as u64),
            large_requests_bytes_max: ByteSize::new(xds.large_requests_bytes_max as u64),
            large_request_timeout: Span::new(xds.large_request_timeout),
            types_max: session.types_max,
            names_max: session.names_max,
            names_per_request_max: xds.names_per_request_max,
            name_bytes_max: ByteSize::new(xds.name_bytes_max as u64),
            nack_message_bytes_max: ByteSize::new(xds.nack_message_bytes_max as u64),
            requests_per_second_max: xds.requests_per_second_max,
            requests_burst_max: xds.requests_burst_max,
            node_bytes_max: ByteSize::new(xds.node_bytes_max as u64),
            node_metadata_max: xds.node_metadata_max,
            header_list_bytes_max: ByteSize::new(xds.header_list_bytes_max.into()),
            stream_window_bytes: ByteSize::new(xds.stream_window_bytes.into()),
            connection_window_bytes: ByteSize::new(xds.connection_window_bytes.into()),
            send_buffer_bytes_max: ByteSize::new(xds.send_buffer_bytes_max as u64),
            pending_resets_max: xds.pending_resets_max,
            error_resets_max: xds.error_resets_max,
            control_frames_per_second_max: xds.control_frames_per_second_max,
            control_frames_burst_max: xds.control_frames_burst_max,
            keepalive_interval: Span::new(xds.keepalive_interval),
            keepalive_timeout: Span::new(xds.keepalive_timeout),
            first_stream_timeout: Span::new(xds.first_stream_timeout),
            idle_timeout: Span::new(xds.idle_timeout),
            connection_age_max: Span::new(xds.connection_age_max.unwrap_or_default()),
            connection_age_grace: Span::new(xds.connection_age_grace),
            drain_connections_per_second: xds.drain_connections_per_second,
            close_timeout: Span::new(xds.close_timeout),
            poll_hold: Span::new(xds.poll_hold),
            poll_bytes_max: ByteSize::new(xds.poll_bytes_max as u64),
            descriptor_sets: Vec::new(),
            types: Vec::new(),
            authorities: Vec::new(),
            collections: Vec::new(),
            ignore_other_collections: session.ignore_other_collections,
        }
    }
}

impl Default for LoadReports {
    fn default() -> Self {
        let settings = chancery_load::Settings::default();
        let limits = chancery_load::Limits::default();
        Self {
            enabled: true,
            clusters: settings.clusters.to_list(),
            interval: Span::new(settings.interval),
            endpoints: settings.endpoints,
            bytes_max: ByteSize::new(limits.bytes_max as u64),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            address: loopback(18001),
            allow_plaintext: false,
            tls_cert: String::new(),
            tls_key: String::new(),
            tls_client_ca: String::new(),
            tls_client_cert: TlsClientCert::Required,
            tls_crl: String::new(),
            tls_trust_domains: Vec::new(),
            client_ca_name: "operators".into(),
            client_ca_cn: false,
            socket: String::new(),
            hosts: Vec::new(),
            request_bytes_max: ByteSize::mib(512),
            connections_max: 1000,
            header_timeout: Span::seconds(10),
            // Longer than the usual interval between two requests for metrics.
            idle_timeout: Span::seconds(120),
            body_timeout: Span::seconds(30),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { timeout: Span::seconds(10) }
    }
}
