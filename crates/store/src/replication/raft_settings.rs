//! The settings of Raft. `docs/adr/0006-raft-settings.md` explains them.

use std::time::Duration;

use openraft::SnapshotPolicy;

use crate::{Config, OpenError, format::identity::Identity};

/// The interval of a leader's heartbeats, in milliseconds.
const HEARTBEAT_INTERVAL: u64 = 150;
/// A replica that hears no leader for a random time between these two, in milliseconds, stands for
/// election.
const ELECTION_TIMEOUT_MIN: u64 = 500;
pub(crate) const ELECTION_TIMEOUT_MAX: u64 = 1000;
/// The time without any answer after which a replica counts as dead.
pub(crate) const SILENCE: Duration = Duration::from_millis(2 * ELECTION_TIMEOUT_MAX);
/// The maximum number of commands that wait for the state machine. Each advance of the commit index is one command of
/// a few hundred bytes.
///
/// While the queue is full, Raft itself waits: the replica answers no heartbeat, acknowledges no entry, and does not
/// learn how far it is behind. openraft's default of 1024 commands is full within a second or two of small writes.
const STATE_MACHINE_QUEUE_MAX: u64 = 1 << 16;

/// Returns the settings of Raft for this replica.
pub(crate) fn raft_config(
    config: &Config,
    identity: Identity,
) -> Result<openraft::Config, OpenError> {
    let raft = openraft::Config {
        cluster_name: hex::encode(identity.cluster_id),
        heartbeat_interval: HEARTBEAT_INTERVAL,
        election_timeout_min: ELECTION_TIMEOUT_MIN,
        election_timeout_max: ELECTION_TIMEOUT_MAX,
        // Not the time for a whole snapshot, but the maximum time without progress
        // (`replication::transfer`).
        install_snapshot_timeout: millis(config.snapshot_stall_timeout),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_log_entries),
        max_in_snapshot_log_to_keep: config.log_entries_keep,
        purge_batch_size: (config.snapshot_log_entries / 4).clamp(1, 1000),
        // A restarted leader may have lost an unsynced tail that followers hold. If it continued to
        // lead in the same term, it would reuse log IDs for other entries
        // (`docs/adr/0006-raft-settings.md`).
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(false),
        broadcast_submitted_on_append: Some(false),
        state_machine_channel_size: Some(STATE_MACHINE_QUEUE_MAX),
        enable_pre_vote: Some(true),
        // The lease is one election timeout. Without this setting, a leader that reaches only a
        // minority could keep a connected majority from electing another leader.
        quorum_loss_probe_interval: Some(3 * ELECTION_TIMEOUT_MAX),
        ..openraft::Config::default()
    };
    raft.validate().map_err(|error| OpenError::Failed(error.to_string()))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
