//! The settings of the fan-out, with defaults and validation.

use std::{num::NonZeroUsize, time::Duration};

use crate::{AccessControl, SecretFinder, messages::client_events::ClientObserver};

/// The settings of the fan-out.
#[derive(Debug, Clone)]
pub struct Config {
    /// The number of shards. 0 means one per core.
    pub shards: usize,
    /// The maximum number of events in each inbox of a shard. While an inbox is full, the readers of
    /// its streams wait, and TCP makes their clients wait. The shard never waits.
    pub inbox_events: usize,
    /// The maximum number of events, sessions and timers that a shard handles before it lets other
    /// tasks run.
    pub turn_work_max: usize,
    /// The maximum number of streams of the replica. Further streams are rejected with
    /// `RESOURCE_EXHAUSTED` (OPS-11).
    pub streams_max: usize,
    /// The maximum number of bytes for the subscriptions of all streams together. At the limit, a
    /// stream over its share (the limit divided by the number of streams with subscriptions) is
    /// rejected with `RESOURCE_EXHAUSTED`. For a stream within its share, the replica ends the stream
    /// that holds most instead.
    pub subscriptions_bytes_max: usize,
    /// The time without contact to the majority of the replicas after which lifetimes are no longer
    /// renewed (TTL-11).
    pub renewals_stop_after: Duration,
    /// The value of `ControlPlane.identifier` in every response. It names this replica (SVC-20).
    pub control_plane: String,
    /// The settings of the protocol.
    pub session: chancery_protocol::Config,
    /// Finds the secrets that a client may quote in a rejection.
    pub secrets: SecretFinder,
    /// Whether the access rules apply to clients.
    pub access: AccessControl,
    /// Receives the events of clients that the audit log records.
    pub observer: ClientObserver,
}

/// A setting with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, less than the minimum of {min}; raise it")]
pub struct ConfigError {
    /// The field of [`Config`].
    pub key: &'static str,
    /// The value.
    pub value: usize,
    /// The minimum.
    pub min: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shards: 0,
            inbox_events: 1024,
            turn_work_max: 128,
            streams_max: 200_000,
            subscriptions_bytes_max: 1 << 30,
            renewals_stop_after: Duration::from_secs(30),
            control_plane: "chancery".to_owned(),
            session: chancery_protocol::Config::default(),
            secrets: SecretFinder::none(),
            access: AccessControl::default(),
            observer: ClientObserver::default(),
        }
    }
}

impl Config {
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Returns the first setting that is below its minimum.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least = |key, value, min| {
            if value < min { Err(ConfigError { key, value, min }) } else { Ok(()) }
        };
        at_least("inbox_events", self.inbox_events, 1)?;
        at_least("turn_work_max", self.turn_work_max, 1)?;
        at_least("streams_max", self.streams_max, 1)?;
        at_least("subscriptions_bytes_max", self.subscriptions_bytes_max, 1)
    }

    pub(crate) fn n_shards(&self) -> usize {
        match self.shards {
            0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            n => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_zero_bound_is_rejected() {
        assert_eq!(Config::default().validate(), Ok(()));
        let error = Config { inbox_events: 0, ..Config::default() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "inbox_events is 0, less than the minimum of 1; raise it");
    }
}
