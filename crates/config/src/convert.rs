//! Conversion of the configuration to the settings of each component.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin::ConsoleSettings;
use chancery_auth::Authenticator;
use chancery_load::{Clusters, Limits, LoadReports, Settings};
use chancery_tls::PortTls;

use crate::{Config, ConsoleMode, rules::canonical_authority};

/// Returns the settings of the store.
pub fn store(config: &Config) -> chancery_store::Config {
    let defaults = chancery_store::Config::default();
    let transaction_bytes_max = config.store.transaction_bytes_max.size();
    chancery_store::Config {
        data_dir: config.store.data_dir.clone(),
        replica_id: config.raft.replica_id,
        listen: Some(config.raft.address),
        advertise: config.raft.advertised(),
        join: config.raft.join.clone(),
        peers: config.raft.peers(),
        learner: config.raft.learner,
        tls: config.raft.tls(),
        connections_max: config.raft.connections_max,
        snapshot_log_entries: config.store.snapshot_log_entries,
        snapshot_log_bytes: config.store.snapshot_log_bytes.bytes(),
        log_bytes_keep: defaults.log_bytes_keep.min(config.store.snapshot_log_bytes.bytes()),
        free_bytes_min: config.store.free_bytes_min.bytes(),
        retention: chancery_store::Retention {
            revisions: config.store.history_revisions,
            bytes: config.store.history_bytes.bytes(),
            age: config.store.history_age.duration(),
        },
        transaction_bytes_max,
        in_flight_bytes_max: defaults.in_flight_bytes_max.max(transaction_bytes_max),
        transact_timeout: config.store.transact_timeout.duration(),
        open_timeout: config.store.open_timeout.duration(),
        secrets: config.secrets.keys(),
        ..defaults
    }
}

/// Returns the settings of the fan-out.
pub fn fanout(config: &Config) -> chancery_fanout::Config {
    let defaults = chancery_fanout::Config::default();
    chancery_fanout::Config {
        shards: config.xds.shards,
        streams_max: config.xds.streams_max,
        subscriptions_bytes_max: config.xds.subscriptions_bytes_max.size(),
        renewals_stop_after: config.xds.renewals_stop_after.duration(),
        control_plane: format!("chancery/{}", config.raft.replica_id),
        session: chancery_protocol::Config {
            ack_timeout_ms: config.xds.ack_timeout.millis(),
            ack_close_after_ms: Some(config.xds.ack_close_after.millis()).filter(|ms| *ms > 0),
            drain_hold_ms: config.xds.drain_hold.millis(),
            response_bytes_target: config.xds.response_bytes_target.size(),
            names_max: config.xds.names_max,
            types_max: config.xds.types_max,
            nack_message_bytes_max: config.xds.nack_message_bytes_max.size(),
            resource_errors: config.xds.resource_errors,
            authorities: authorities(config),
            collections: (!config.xds.collections.is_empty())
                .then(|| Arc::new(config.xds.collections.iter().cloned().collect())),
            ignore_other_collections: config.xds.ignore_other_collections,
            ..defaults.session
        },
        secrets: chancery_fanout::SecretFinder::new(chancery_admin::secret_values),
        access: config.access.control(),
        ..defaults
    }
}

/// Returns the sinks of MCP to which the leader connects.
pub fn remote_sinks(config: &Config, tls: Option<&PortTls>) -> Vec<chancery_xds::RemoteSink> {
    let sends_trigger = config.mcp.sinks_trigger;
    let sink = |address: &String| chancery_xds::RemoteSink {
        address: address.clone(),
        sends_trigger,
        tls: tls.cloned(),
    };
    config.mcp.sinks.iter().map(sink).collect()
}

/// Returns the authorities of structured names that clients can request; `None` for all.
fn authorities(config: &Config) -> Option<Arc<BTreeSet<String>>> {
    let all = config.xds.authorities.iter().filter_map(|authority| canonical_authority(authority));
    (!config.xds.authorities.is_empty()).then(|| Arc::new(all.collect()))
}

/// Returns the settings of the console; `None` if it is off.
#[must_use]
pub fn console(config: &Config) -> Option<ConsoleSettings> {
    let is_secure = config.admin.tls().is_some();
    (config.admin.console == ConsoleMode::On).then_some(ConsoleSettings { is_secure })
}

/// Returns the host names that the admin port accepts: `admin.hosts` and the host of
/// `raft.advertise`.
pub fn admin_hosts(config: &Config) -> Vec<String> {
    let advertised = store(config).advertise;
    let host = advertised.rsplit_once(':').map(|(host, _)| host.to_owned());
    config.admin.hosts.iter().cloned().chain(host).collect()
}

/// Returns the settings of access to the admin port.
pub fn admin_access(config: &Config, auth: &Authenticator) -> chancery_admin::AdminAccess {
    chancery_admin::AdminAccess {
        control: config.access.control(),
        admins: config.access.admins(),
        auth: Some(auth.clone()),
    }
}

/// Returns the MCP sources.
pub fn mcp_sources(config: &Config) -> Vec<chancery_mcp::Remote> {
    config.mcp.remotes(&format!("chancery/{}", config.raft.replica_id))
}

/// Returns the thresholds of the guards.
pub fn guards(config: &Config) -> chancery_admin::GuardSettings {
    config.guards.settings()
}

/// Returns the settings of the list of nodes that were connected recently.
pub fn recent_nodes(config: &Config) -> chancery_admin::RecentNodesSettings {
    chancery_admin::RecentNodesSettings {
        keep: config.xds.disconnected_keep.duration(),
        file: Some(config.store.data_dir.join("recent-nodes")),
    }
}

/// Returns the treatment of dangling references.
pub fn references(config: &Config) -> chancery_admin::ReferenceSettings {
    chancery_admin::ReferenceSettings {
        modes: config.references.modes(),
        authorities: authorities(config),
    }
}

/// Returns empty load reports; `None` if clients may not report their load.
///
/// # Errors
/// Fails if the settings are invalid. The rules of the configuration exclude that.
pub fn load_reports(config: &Config) -> Result<Option<LoadReports>, chancery_load::SettingsError> {
    let section = &config.load_reports;
    if !section.enabled {
        return Ok(None);
    }
    let settings = Settings {
        clusters: Clusters::from_list(section.clusters.clone())?,
        interval: section.interval.duration(),
        endpoints: section.endpoints,
    };
    let limits = Limits { bytes_max: section.bytes_max.size(), ..Limits::default() };
    LoadReports::new(settings, limits).map(Some)
}

/// Returns the settings of the discovery services, without the certificates and the load reports.
pub fn xds(config: &Config) -> chancery_xds::Config {
    let xds = &config.xds;
    let age = xds.connection_age_max.duration();
    chancery_xds::Config {
        auth: None,
        tls: None,
        v2_services: xds.v2_services,
        connections_max: xds.connections_max,
        connections_per_peer_max: xds.connections_per_peer_max,
        streams_per_connection_max: xds.streams_per_connection_max,
        request_bytes_max: xds.request_bytes_max.size(),
        large_requests_bytes_max: xds.large_requests_bytes_max.size(),
        large_request_timeout: xds.large_request_timeout.duration(),
        names_per_request_max: xds.names_per_request_max,
        name_bytes_max: xds.name_bytes_max.size(),
        nack_message_bytes_max: xds.nack_message_bytes_max.size(),
        requests_per_second_max: xds.requests_per_second_max,
        requests_burst_max: xds.requests_burst_max,
        node_bytes_max: xds.node_bytes_max.size(),
        node_metadata_max: xds.node_metadata_max,
        header_list_bytes_max: xds.header_list_bytes_max.size_u32(),
        stream_window_bytes: xds.stream_window_bytes.size_u32(),
        connection_window_bytes: xds.connection_window_bytes.size_u32(),
        send_buffer_bytes_max: xds.send_buffer_bytes_max.size(),
        pending_resets_max: xds.pending_resets_max,
        error_resets_max: xds.error_resets_max,
        control_frames_per_second_max: xds.control_frames_per_second_max,
        control_frames_burst_max: xds.control_frames_burst_max,
        keepalive_interval: xds.keepalive_interval.duration(),
        keepalive_timeout: xds.keepalive_timeout.duration(),
        first_stream_timeout: xds.first_stream_timeout.duration(),
        idle_timeout: xds.idle_timeout.duration(),
        connection_age_max: (!age.is_zero()).then_some(age),
        connection_age_grace: xds.connection_age_grace.duration(),
        drain_connections_per_second: xds.drain_connections_per_second,
        // The other half is for clients to close, and for the shutdown of the other components.
        drain_spread_max: config.shutdown.timeout.duration() / 2,
        close_timeout: xds.close_timeout.duration(),
        poll_hold: xds.poll_hold.duration(),
        poll_bytes_max: xds.poll_bytes_max.size(),
        json: chancery_xds::BodyEncoder::new(|type_url, body| {
            chancery_admin::canonical_json(type_url, body).map(|json| json.to_string())
        }),
        load_reports: None,
    }
}
