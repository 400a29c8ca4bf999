//! The settings of a replica's store.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use chancery_secrets::Secrets;
use chancery_tls::{ClientCertificates, MinVersion, TlsError, TlsPort, check_server_name};

use crate::{HISTORY_MAX, Retention};

/// The maximum ID of a replica, which is the maximum integer in a configuration file.
pub const REPLICA_ID_MAX: u64 = (1 << 63) - 1;

/// The settings of a [`crate::Replica`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data directory. The replica creates the directory if it does not exist.
    pub data_dir: PathBuf,
    /// The ID of this replica in its cluster. The directory stores the ID, and no other replica can
    /// use the directory.
    pub replica_id: u64,
    /// The listen address for other replicas. `None` for a cluster of one that never grows.
    pub listen: Option<SocketAddr>,
    /// The address at which other replicas reach this one, as `HOST:PORT`. Empty means the listen
    /// address.
    pub advertise: String,
    /// The addresses of replicas to ask to join a cluster. Used only while the directory is empty.
    pub join: Vec<String>,
    /// The addresses of all replicas of the cluster, including this one, by ID: another way to form
    /// and join a cluster. Used only while the directory is empty.
    pub peers: BTreeMap<u64, String>,
    /// The certificates for connections between replicas. With `None`, these connections are
    /// neither encrypted nor authenticated.
    pub tls: Option<TlsConfig>,
    /// The maximum number of connections from other replicas. A connection beyond the limit
    /// replaces another one: one that has sent nothing yet, or else the one that has been silent
    /// longest.
    pub connections_max: usize,
    /// Whether this replica stays a learner after it joins. A learner serves streams, and votes
    /// only if an operator promotes it.
    pub learner: bool,
    /// The number of log entries after which the replica takes a snapshot and purges the log.
    pub snapshot_log_entries: u64,
    /// The size of log entries, in bytes, after which the replica takes a snapshot and purges the
    /// log.
    pub snapshot_log_bytes: u64,
    /// The number of entries that a purge leaves in the log, for replicas that are slightly behind.
    pub log_entries_keep: u64,
    /// The maximum size of entries that a purge leaves in the log, in bytes.
    pub log_bytes_keep: u64,
    /// The limits of the replaced records that the history keeps. The settings of the leader count.
    pub retention: Retention,
    /// The free space of the file system of the data directory, in bytes, that a leader keeps. A leader
    /// refuses writes that would use it, and transfers leadership to a voter with more space. A
    /// follower writes what the leader sends until the disk is full. It then accepts no writes until
    /// the process has started again with free space. At least [`Config::FREE_BYTES_LEAST`], or 0 for no reserve.
    pub free_bytes_min: u64,
    /// The maximum size of an encoded transaction, in bytes.
    pub transaction_bytes_max: usize,
    /// The maximum total size of encoded transactions in flight, in bytes. Further transactions
    /// wait.
    pub in_flight_bytes_max: usize,
    /// The time after which an uncommitted transaction fails.
    pub transact_timeout: Duration,
    /// The time after which an unfinished change of the membership fails.
    pub change_timeout: Duration,
    /// The time without progress after which the sender restarts the transfer of a snapshot.
    /// Progress means that the receiver has taken or written a part of the snapshot.
    pub snapshot_stall_timeout: Duration,
    /// The time after which opening fails if the replica has not caught up.
    pub open_timeout: Duration,
    /// The keys with which the replica seals and opens secrets. By default, it seals nothing.
    pub secrets: Secrets,
}

/// The PEM files for TLS between replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The file with this replica's certificate and the intermediate certificates up to the CA. It serves
    /// outgoing and incoming connections. If it has an extended key usage (EKU), that must include
    /// `clientAuth` and `serverAuth`.
    pub cert: PathBuf,
    /// The file with the private key of the certificate.
    pub key: PathBuf,
    /// The file with the CA of the cluster; several CAs while one replaces another. Every holder of a
    /// certificate of the CA counts as a replica, so the CA must sign nothing else.
    pub ca: PathBuf,
    /// The DNS name (`subjectAltName`) in the certificates of all replicas; `None` if each certificate has
    /// the host of its address.
    pub server_name: Option<String>,
}

impl TlsConfig {
    /// Reads and checks the files, like a replica at its start. Returns all problems. A file with an
    /// empty path is ignored.
    #[must_use]
    pub fn check(&self) -> Vec<TlsError> {
        let name = self.server_name.as_deref().and_then(|name| check_server_name(name).err());
        name.into_iter().chain(self.files().check()).collect()
    }

    /// Returns the settings of a port with these files.
    pub(crate) fn files(&self) -> chancery_tls::TlsConfig {
        chancery_tls::TlsConfig {
            port: TlsPort::Raft,
            cert: self.cert.clone(),
            key: self.key.clone(),
            ca: self.ca.clone(),
            crl: PathBuf::new(),
            min_version: MinVersion::Tls13,
            clients: ClientCertificates::default(),
        }
    }
}

/// A setting with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, but must be {rule}")]
pub struct ConfigError {
    /// The name of the setting.
    pub key: &'static str,
    /// The value of the setting.
    pub value: u64,
    /// The rule for the value, as a phrase that follows "must be".
    pub rule: &'static str,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("chancery-data"),
            replica_id: 1,
            listen: None,
            advertise: String::new(),
            join: Vec::new(),
            peers: BTreeMap::new(),
            tls: None,
            connections_max: 1024,
            learner: false,
            snapshot_log_entries: 50_000,
            snapshot_log_bytes: 64 << 20,
            log_entries_keep: 10_000,
            log_bytes_keep: 32 << 20,
            retention: Retention::default(),
            free_bytes_min: 256 << 20,
            transaction_bytes_max: 64 << 20,
            in_flight_bytes_max: 256 << 20,
            transact_timeout: Duration::from_secs(10),
            change_timeout: Duration::from_secs(10),
            snapshot_stall_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(60),
            secrets: Secrets::default(),
        }
    }
}

impl Config {
    /// The upper limit of [`Config::transaction_bytes_max`]: below protobuf's 2 GiB and RocksDB's 4
    /// GiB.
    pub const TRANSACTION_BYTES_LIMIT: usize = 1 << 30;

    /// The lower limit of [`Config::free_bytes_min`], other than 0.
    ///
    /// When a leader refuses writes, the disk must still have space for the data in memory. This
    /// is two write buffers of each family, 56 MiB, and some space for RocksDB's own files. A
    /// compaction may temporarily need more, at most the size of the existing tables. If a
    /// compaction uses up the reserve, the replica stops writing until it is restarted with free
    /// space. No acknowledged write is lost in either case.
    pub const FREE_BYTES_LEAST: u64 = 64 << 20;

    /// Checks that the settings are valid and consistent.
    ///
    /// # Errors
    /// Returns the first setting that is not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |holds: bool, key, value: u64, rule| {
            if holds { Ok(()) } else { Err(ConfigError { key, value, rule }) }
        };
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let id = self.replica_id;
        let rule = "at least 1, and at most 9223372036854775807";
        check((1..=REPLICA_ID_MAX).contains(&id), "replica_id", id, rule)?;
        let connections = self.connections_max;
        check(connections > 0, "connections_max", connections as u64, "at least 1")?;
        let entries = self.snapshot_log_entries;
        check(entries > 0, "snapshot_log_entries", entries, "at least 1")?;
        let bytes = self.snapshot_log_bytes;
        check(bytes > 0, "snapshot_log_bytes", bytes, "at least 1")?;
        let keep = self.log_bytes_keep;
        check(keep <= bytes, "log_bytes_keep", keep, "at most snapshot_log_bytes")?;
        let (revisions, max) = (self.retention.revisions, HISTORY_MAX as u64);
        let rule = "between 1 and 10000, the number of revisions in the history";
        check((1..=max).contains(&revisions), "history_revisions", revisions, rule)?;
        let free = self.free_bytes_min;
        check(
            free == 0 || free >= Self::FREE_BYTES_LEAST,
            "free_bytes_min",
            free,
            "at least 64 MiB, the space for data that is still in memory when the replica refuses \
             writes; or 0, to reserve no space",
        )?;
        let max = self.transaction_bytes_max;
        check(
            (1..=Self::TRANSACTION_BYTES_LIMIT).contains(&max),
            "transaction_bytes_max",
            max as u64,
            "between 1 and 1 GiB",
        )?;
        let in_flight = self.in_flight_bytes_max;
        check(
            in_flight >= max && u32::try_from(in_flight).is_ok(),
            "in_flight_bytes_max",
            in_flight as u64,
            "between transaction_bytes_max and 4 GiB",
        )?;
        let timeout = millis(self.transact_timeout);
        check(timeout > 0, "transact_timeout", timeout, "at least 1 ms")?;
        let timeout = millis(self.snapshot_stall_timeout);
        check(timeout > 0, "snapshot_stall_timeout", timeout, "at least 1 ms")?;
        let timeout = millis(self.open_timeout);
        check(timeout > 0, "open_timeout", timeout, "at least 1 ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_each_rule_is_checked() {
        assert_eq!(Config::default().validate(), Ok(()));
        let key = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.validate().unwrap_err().key
        };
        assert_eq!(key(|c| c.replica_id = 0), "replica_id");
        assert_eq!(key(|c| c.connections_max = 0), "connections_max");
        assert_eq!(key(|c| c.snapshot_log_entries = 0), "snapshot_log_entries");
        assert_eq!(key(|c| c.snapshot_log_bytes = 0), "snapshot_log_bytes");
        assert_eq!(key(|c| c.log_bytes_keep = u64::MAX), "log_bytes_keep");
        assert_eq!(key(|c| c.retention.revisions = 0), "history_revisions");
        assert_eq!(key(|c| c.retention.revisions = 10_001), "history_revisions");
        assert_eq!(key(|c| c.free_bytes_min = (64 << 20) - 1), "free_bytes_min");
        assert_eq!(key(|c| c.transaction_bytes_max = 0), "transaction_bytes_max");
        assert_eq!(key(|c| c.in_flight_bytes_max = 1), "in_flight_bytes_max");
        assert_eq!(key(|c| c.transact_timeout = Duration::ZERO), "transact_timeout");
        assert_eq!(key(|c| c.snapshot_stall_timeout = Duration::ZERO), "snapshot_stall_timeout");
        assert_eq!(key(|c| c.open_timeout = Duration::ZERO), "open_timeout");
        let config = Config { free_bytes_min: 4 << 20, ..Config::default() };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "free_bytes_min is 4194304, but must be at least 64 MiB, the space for data that is \
             still in memory when the replica refuses writes; or 0, to reserve no space"
        );
        let config = Config { free_bytes_min: 0, ..Config::default() };
        assert_eq!(config.validate(), Ok(()));
    }
}
