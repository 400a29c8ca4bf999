//! The configuration as the components take it.

use super::Config;
use crate::serve::Limits;

impl Config {
    /// Settings of the store.
    pub(crate) fn store(&self) -> chancery_store::Config {
        let defaults = chancery_store::Config::default();
        let transaction_bytes_max = self.store.transaction_bytes_max.size();
        chancery_store::Config {
            data_dir: self.store.data_dir.clone(),
            replica_id: self.raft.replica_id,
            snapshot_log_entries: self.store.snapshot_log_entries,
            snapshot_log_bytes: self.store.snapshot_log_bytes.bytes(),
            log_bytes_keep: defaults.log_bytes_keep.min(self.store.snapshot_log_bytes.bytes()),
            free_bytes_min: self.store.free_bytes_min.bytes(),
            transaction_bytes_max,
            in_flight_bytes_max: defaults.in_flight_bytes_max.max(transaction_bytes_max),
            transact_timeout: self.store.transact_timeout.duration(),
            open_timeout: self.store.open_timeout.duration(),
            ..defaults
        }
    }

    /// Settings of the fan-out.
    pub(crate) fn fanout(&self) -> chancery_fanout::Config {
        let defaults = chancery_fanout::Config::default();
        chancery_fanout::Config {
            shards: self.xds.shards,
            streams_max: self.xds.streams_max,
            control_plane: format!("chancery/{}", self.raft.replica_id),
            session: chancery_protocol::Config {
                ack_timeout_ms: self.xds.ack_timeout.millis(),
                response_bytes_target: self.xds.response_bytes_target.size(),
                names_max: self.xds.names_max,
                ..defaults.session
            },
            ..defaults
        }
    }

    /// Limits in time of connections to the admin port.
    pub(crate) fn admin_limits(&self) -> Limits {
        Limits {
            header: self.admin.header_timeout.duration(),
            idle: self.admin.idle_timeout.duration(),
            body: self.admin.body_timeout.duration(),
        }
    }

    /// Settings of the discovery services.
    pub(crate) fn xds(&self) -> chancery_xds::Config {
        let xds = &self.xds;
        let age = xds.connection_age_max.duration();
        let defaults = chancery_xds::Config::default();
        chancery_xds::Config {
            connections_max: xds.connections_max,
            streams_per_connection_max: xds.streams_per_connection_max,
            request_bytes_max: xds.request_bytes_max.size(),
            names_per_request_max: defaults.names_per_request_max.max(xds.names_max),
            requests_per_second_max: xds.requests_per_second_max,
            requests_burst_max: xds.requests_burst_max,
            node_bytes_max: xds.node_bytes_max.size(),
            keepalive_interval: xds.keepalive_interval.duration(),
            keepalive_timeout: xds.keepalive_timeout.duration(),
            idle_timeout: xds.idle_timeout.duration(),
            connection_age_max: (!age.is_zero()).then_some(age),
            connection_age_grace: xds.connection_age_grace.duration(),
            ..defaults
        }
    }
}
