//! What can be set about a replica's store.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use crate::{REPLICA_ID_MAX, TlsConfig};

/// Settings of a [`crate::Replica`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data directory. Made if it is not there.
    pub data_dir: PathBuf,
    /// This replica's number in its cluster; kept in the directory, which no other replica can use.
    pub replica_id: u64,
    /// Where to listen for other replicas; `None` for a cluster of one that stays one.
    pub listen: Option<SocketAddr>,
    /// Where other replicas reach this one, as `HOST:PORT`; empty for the address it listens on.
    pub advertise: String,
    /// Where to ask to join a cluster, as long as the directory is empty.
    pub join: Vec<String>,
    /// All replicas of the cluster, this one too, by number: another way to form and join one. Looked at
    /// as long as the directory is empty.
    pub peers: BTreeMap<u64, String>,
    /// The certificates of replicas; `None`: what they say to each other is neither encrypted nor
    /// authenticated.
    pub tls: Option<TlsConfig>,
    /// Most connections of other replicas at a time. One more takes the place of another, which is one that
    /// has said nothing yet, or else has been silent for the longest time.
    pub connections_max: usize,
    /// This replica joins as one that is to stay a learner: it serves streams, and votes only if somebody promotes it.
    pub learner: bool,
    /// A snapshot is taken, and the log purged, after so many entries.
    pub snapshot_log_entries: u64,
    /// The same, after so many bytes of entries.
    pub snapshot_log_bytes: u64,
    /// So many entries stay in the log when it is purged, for replicas that are a little behind.
    pub log_entries_keep: u64,
    /// At most so many bytes of entries stay in the log when it is purged.
    pub log_bytes_keep: u64,
    /// Writes are refused while the file system of the data directory has fewer bytes free. At least
    /// [`Config::FREE_BYTES_LEAST`], or 0: then nothing is kept free, and a disk that fills up stops the
    /// replica until there is space and it is started again.
    pub free_bytes_min: u64,
    /// Largest encoded transaction.
    pub transaction_bytes_max: usize,
    /// Encoded transactions in flight at a time, in bytes; further ones wait.
    pub in_flight_bytes_max: usize,
    /// A transaction that has not been committed by then fails.
    pub transact_timeout: Duration,
    /// A change of the membership that has not been made by then fails.
    pub change_timeout: Duration,
    /// A snapshot for another replica is begun anew when nothing of it was taken or written there for so long.
    pub snapshot_stall_timeout: Duration,
    /// Opening fails if the replica has not caught up by then.
    pub open_timeout: Duration,
}

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, but has to be {rule}")]
pub struct ConfigError {
    /// The setting.
    pub key: &'static str,
    /// Its value.
    pub value: u64,
    /// What it has to be.
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
            free_bytes_min: 256 << 20,
            transaction_bytes_max: 64 << 20,
            in_flight_bytes_max: 256 << 20,
            transact_timeout: Duration::from_secs(10),
            change_timeout: Duration::from_secs(10),
            snapshot_stall_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// Largest [`Config::transaction_bytes_max`]: below protobuf's 2 GiB and RocksDB's 4 GiB.
    pub const TRANSACTION_BYTES_LIMIT: usize = 1 << 30;

    /// Smallest [`Config::free_bytes_min`] that can be kept free. What is in memory has to fit on the
    /// disk when writes are refused: two write buffers of each family, 56 MiB; the files in which
    /// RocksDB says what it has, some more. Merging tables may need more for a while, up to as much
    /// as there is already: if that takes the last of it, the replica takes no writes until it is started
    /// again with space. Nothing that was acknowledged is lost either way.
    pub const FREE_BYTES_LEAST: u64 = 64 << 20;

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not.
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
        let free = self.free_bytes_min;
        check(
            free == 0 || free >= Self::FREE_BYTES_LEAST,
            "free_bytes_min",
            free,
            "at least 64 MiB, because so much of what is in memory may still have to be written when \
             writes are refused; or 0, to keep nothing free",
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
    fn the_defaults_are_valid_and_each_rule_is_checked() {
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
        assert_eq!(key(|c| c.free_bytes_min = (64 << 20) - 1), "free_bytes_min");
        assert_eq!(key(|c| c.transaction_bytes_max = 0), "transaction_bytes_max");
        assert_eq!(key(|c| c.in_flight_bytes_max = 1), "in_flight_bytes_max");
        assert_eq!(key(|c| c.transact_timeout = Duration::ZERO), "transact_timeout");
        assert_eq!(key(|c| c.snapshot_stall_timeout = Duration::ZERO), "snapshot_stall_timeout");
        assert_eq!(key(|c| c.open_timeout = Duration::ZERO), "open_timeout");
        let config = Config { free_bytes_min: 4 << 20, ..Config::default() };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "free_bytes_min is 4194304, but has to be at least 64 MiB, because so much of what is in \
             memory may still have to be written when writes are refused; or 0, to keep nothing free"
        );
        let config = Config { free_bytes_min: 0, ..Config::default() };
        assert_eq!(config.validate(), Ok(()));
    }
}
