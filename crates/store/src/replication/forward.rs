//! Forwards writes to the leader, and retries them so that they take effect once.
//!
//! Each write has a request ID. If the outcome of an attempt is unknown, the next attempt is marked as
//! repeated. The state machine of every replica knows the requests that took effect
//! ([`crate::disk::image::Image`]).

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_proto::raft::v1 as pb;
use openraft::{
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, RaftError},
};
use prost::Message;
use tokio::sync::oneshot;

use super::{
    codec,
    outbox::{ForwardedWrite, Place},
};
use crate::{
    HISTORY_MAX, TransactError,
    disk::space::Full,
    format::{
        codec::{Ask, ask_from_proto},
        raft::{Command, Response},
    },
    replication::core::{Core, Leader},
};

/// The time before the next attempt, unless the leader changes earlier.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum number of committed entries that a replica may lack when it accepts a write.
///
/// It is a small part of the revisions in the history, so that most of them remain for retries.
const BEHIND_MAX: u64 = HISTORY_MAX as u64 / 10;

/// The maximum length in bytes of a forwarded command that is checked on the runtime's own threads. Larger
/// commands are checked on a thread for blocking work.
const INLINE_BYTES: usize = 64 << 10;

/// The outcome of an attempt.
enum Attempt {
    /// The attempt was answered.
    Done(Result<Response, TransactError>),
    /// The write never reached a log.
    NotProposed,
    /// The write may have reached a log, and may still take effect.
    Unknown,
}

impl Core {
    /// Proposes a command to the leader and returns its outcome after this replica has applied it. `place` is
    /// held while the command is in memory.
    pub(crate) async fn propose(
        &self,
        mut command: pb::Command,
        place: Option<Place>,
        deadline: Instant,
    ) -> Result<Response, TransactError> {
        let mut proposed = false;
        loop {
            let leader = self.leader();
            let attempt = match &leader {
                Some(Leader::Here) => {
                    self.propose_local(command.encode_to_vec().into(), deadline).await
                }
                Some(there @ Leader::There { id, .. }) => {
                    let (answer, answered) = oneshot::channel();
                    let (to, command, place) = (there.clone(), command.clone(), place.clone());
                    let parcel = ForwardedWrite { to, command, answer, place };
                    self.propose_remote(*id, parcel, answered, deadline).await
                }
                None => Attempt::NotProposed,
            };
            match attempt {
                Attempt::Done(result) => return result,
                Attempt::NotProposed => {}
                Attempt::Unknown => {
                    proposed = true;
                    if let Some(request) = &mut command.request {
                        request.repeated = true;
                    }
                }
            }
            if Instant::now() + RETRY_INTERVAL >= deadline {
                if proposed {
                    return Err(TransactError::Timeout(self.config.transact_timeout));
                }
                self.metrics.refused_no_leader.increment(1);
                return Err(TransactError::NoLeader);
            }
            let wait = match &leader {
                // Without a leader, wait until there is one.
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    left.saturating_sub(RETRY_INTERVAL)
                }
                Some(_) => RETRY_INTERVAL,
            };
            drop(tokio::time::timeout(wait, self.leader_changes(leader.as_ref())).await);
            self.check_alive().map_err(|error| match error {
                TransactError::NotSent(reason) if proposed => TransactError::Failed(reason),
                error => error,
            })?;
        }
    }

    /// Waits while this replica is far behind the leader.
    ///
    /// A retry of a write carries the revision of this replica before the first attempt. If the history
    /// of the leader no longer has that revision, the leader refuses the retry
    /// ([`TransactError::Forgotten`]), even if it follows immediately.
    ///
    /// The answer to a write waits until this replica has applied it, so waiting here costs little. If
    /// the wait takes too long, the outcome is known: nothing was written.
    pub(crate) async fn catch_up_for_write(&self, deadline: Instant) -> Result<(), TransactError> {
        while self.is_far_behind() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.metrics.refused_behind.increment(1);
                return Err(TransactError::Behind(self.config.transact_timeout));
            }
            tokio::time::sleep(left.min(RETRY_INTERVAL)).await;
            self.check_alive()?;
        }
        Ok(())
    }

    /// Returns whether this replica has no state yet, or lacks more than [`BEHIND_MAX`] entries that it
    /// knows to be committed.
    fn is_far_behind(&self) -> bool {
        if self.leader() == Some(Leader::Here) {
            return false;
        }
        let committed = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.cluster_committed.map_or(0, |id| id.index)
        };
        let behind = committed.saturating_sub(self.published.applied());
        behind > BEHIND_MAX || !self.published.is_formed()
    }

    /// Fails with `NotSent` if this replica no longer accepts writes.
    pub(crate) fn check_alive(&self) -> Result<(), TransactError> {
        if let Some(reason) = self.failure.get() {
            self.metrics.refused_failed.increment(1);
            return Err(TransactError::NotSent(reason.to_owned()));
        }
        Ok(())
    }

    /// Proposes a command as the leader.
    async fn propose_local(&self, command: Bytes, deadline: Instant) -> Attempt {
        let len = command.len() as u64;
        if let Err(Full { free, needed }) = self.space.take(len) {
            self.metrics.refused_disk_full.increment(1);
            self.refused_full.store(true, Ordering::Relaxed);
            let path = self.config.data_dir.clone();
            return Attempt::Done(Err(TransactError::DiskFull { path, free, needed }));
        }
        let write = self.raft.client_write(Command(command));
        let Ok(result) = tokio::time::timeout_at(deadline.into(), write).await else {
            return Attempt::Unknown;
        };
        match result {
            Ok(written) => Attempt::Done(Ok(written.data)),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Attempt::NotProposed,
            Err(RaftError::APIError(ClientWriteError::LogEntryDiscarded(_))) => Attempt::Unknown,
            Err(RaftError::APIError(error)) => {
                Attempt::Done(Err(TransactError::Failed(error.to_string())))
            }
            Err(RaftError::Fatal(error)) => {
                self.failure.set(format!("Raft has stopped: {error}"));
                let reason = self.failure.get().unwrap_or_default().to_owned();
                Attempt::Done(Err(TransactError::Failed(reason)))
            }
        }
    }

    /// Sends a command to the leader.
    async fn propose_remote(
        &self,
        leader: u64,
        parcel: ForwardedWrite,
        answered: oneshot::Receiver<pb::write_result::Result>,
        deadline: Instant,
    ) -> Attempt {
        use pb::write_result::Result;
        match tokio::time::timeout_at(deadline.into(), self.outbox.send(parcel)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Attempt::NotProposed,
        }
        let Ok(Ok(result)) = tokio::time::timeout_at(deadline.into(), answered).await else {
            return Attempt::Unknown;
        };
        match result {
            Result::NotLeader(_) => Attempt::NotProposed,
            Result::Error(error) if error.kind() == pb::write_error::Kind::DiskFull => {
                Attempt::Done(Err(TransactError::LeaderDiskFull { leader, reason: error.message }))
            }
            // Whatever happened to this leader, the next one may still have the entry in its log.
            Result::Error(error) => {
                tracing::debug!(
                    leader,
                    error = error.message,
                    "the leader reported an error for a write"
                );
                Attempt::Unknown
            }
            Result::Written(pb::Written { index, outcome }) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if !self.applied(index, left).await {
                    return Attempt::Unknown;
                }
                match codec::outcome_from_proto(outcome.unwrap_or_default()) {
                    Ok(response) => Attempt::Done(Ok(response)),
                    Err(error) => Attempt::Done(Err(TransactError::Failed(error.to_string()))),
                }
            }
        }
    }

    /// Handles a write that another replica forwarded.
    pub(crate) async fn take_write(&self, command: pb::Command) -> pb::WriteResult {
        use pb::write_result::Result;
        let checked = match command.encoded_len() > INLINE_BYTES {
            true => tokio::task::spawn_blocking(move || checked(command)).await.ok().flatten(),
            false => checked(command),
        };
        let Some(command) = checked else {
            let message = "the command is not a transaction that can be applied".to_owned();
            let error = pb::WriteError { kind: pb::write_error::Kind::Failed.into(), message };
            return pb::WriteResult { result: Some(Result::Error(error)) };
        };
        let deadline = Instant::now() + self.config.transact_timeout;
        let result = match self.propose_local(command, deadline).await {
            Attempt::Done(Ok(response)) => Result::Written(pb::Written {
                // The state at this index includes the write.
                index: self.published.applied(),
                outcome: Some(codec::outcome_to_proto(&response)),
            }),
            Attempt::Done(Err(error)) => Result::Error(write_error_to_proto(&error)),
            Attempt::NotProposed => Result::NotLeader(pb::NotLeader {
                leader: match self.leader() {
                    Some(Leader::There { id, .. }) => id,
                    Some(Leader::Here) | None => 0,
                },
            }),
            Attempt::Unknown => {
                let error = TransactError::Timeout(self.config.transact_timeout);
                Result::Error(write_error_to_proto(&error))
            }
        };
        pb::WriteResult { result: Some(result) }
    }
}

/// Returns the bytes of a command that can be applied, and `None` for any other. Such a command must never
/// enter the log, because it would stop every replica.
fn checked(command: pb::Command) -> Option<Bytes> {
    let bytes = command.encode_to_vec().into();
    matches!(ask_from_proto(command), Ok(Ask::Transact { .. })).then_some(bytes)
}

/// Aborts a task on drop, when no caller waits for it.
pub(crate) struct AbortOnDrop(pub(crate) tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn write_error_to_proto(error: &TransactError) -> pb::WriteError {
    use pb::write_error::Kind;
    let kind = match error {
        TransactError::DiskFull { .. } => Kind::DiskFull,
        TransactError::Timeout(_) => Kind::Timeout,
        _ => Kind::Failed,
    };
    pb::WriteError { kind: kind.into(), message: error.to_string() }
}
