//! How a write gets to the leader, and is retried without taking effect twice.
//!
//! Each write has a [`RequestId`]. An attempt of which it is not known what came of it is followed by
//! one that says so; the state machine of every replica knows the requests that took effect
//! ([`crate::image::Image`]).

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
    outbox::{Parcel, Place},
};
use crate::{
    HISTORY_MAX, TransactError,
    codec::{Ask, ask_from_proto},
    core::{Core, Leader},
    raft::{Command, Response},
    space::Full,
};

/// After an attempt that has changed nothing the next one waits so long, unless another leads by then.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A replica that lacks more committed entries than this catches up before it takes writes: a small part of the
/// revisions that the history keeps, so that most of them are left for retries.
const BEHIND_MAX: u64 = HISTORY_MAX as u64 / 10;

/// A larger command of another replica is checked on a thread for blocking work.
const INLINE_BYTES: usize = 64 << 10;

/// What came of an attempt.
enum Attempt {
    /// It was answered.
    Done(Result<Response, TransactError>),
    /// It never reached a log.
    NotProposed,
    /// It may have reached a log, and may still take effect.
    Unknown,
}

impl Core {
    /// Gets a command into the log, wherever the leader is, and gives what applying it came to. This
    /// replica has applied it too by then. `place` is kept for as long as the command is in memory.
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
                    self.propose_here(command.encode_to_vec().into(), deadline).await
                }
                Some(there @ Leader::There { id, .. }) => {
                    let (answer, answered) = oneshot::channel();
                    let (to, command, place) = (there.clone(), command.clone(), place.clone());
                    let parcel = Parcel { to, command, answer, place };
                    self.propose_there(*id, parcel, answered, deadline).await
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
                // Nobody to ask: until there is.
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    left.saturating_sub(RETRY_INTERVAL)
                }
                Some(_) => RETRY_INTERVAL,
            };
            drop(tokio::time::timeout(wait, self.leader_changes(leader.as_ref())).await);
            self.check_alive()?;
        }
    }

    /// Waits while this replica is far behind the leader. A retry of a write says since when the first attempt may
    /// have taken effect, which is the revision of this replica then. If that is older than the history of the
    /// leader, the retry is refused ([`TransactError::Forgotten`]), however soon it comes.
    ///
    /// The answer to a write waits until this replica has applied it. So waiting here costs little, and if it takes
    /// too long, the outcome is known: nothing was written.
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

    /// Whether this replica lacks more entries than [`BEHIND_MAX`] that it knows to be committed, or has no state yet.
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

    /// Fails if this replica takes no writes any more.
    pub(crate) fn check_alive(&self) -> Result<(), TransactError> {
        if let Some(reason) = self.failure.get() {
            self.metrics.refused_failed.increment(1);
            return Err(TransactError::Failed(reason.to_owned()));
        }
        Ok(())
    }

    /// As the leader.
    async fn propose_here(&self, command: Bytes, deadline: Instant) -> Attempt {
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
                if let Err(failed) = self.check_alive() {
                    return Attempt::Done(Err(failed));
                }
                self.failure.set(format!("Raft has stopped: {error}"));
                Attempt::Done(Err(TransactError::Failed(error.to_string())))
            }
        }
    }

    /// At the leader.
    async fn propose_there(
        &self,
        leader: u64,
        parcel: Parcel,
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
            // Whatever has befallen the leader, another one may still find the entry in its log.
            Result::Error(error) => {
                tracing::debug!(leader, error = error.message, "a forwarded write");
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

    /// Takes a write that another replica has sent.
    pub(crate) async fn take_write(&self, command: pb::Command) -> pb::WriteResult {
        use pb::write_result::Result;
        let checked = match command.encoded_len() > INLINE_BYTES {
            true => tokio::task::spawn_blocking(move || checked(command)).await.ok().flatten(),
            false => checked(command),
        };
        let Some(command) = checked else {
            let message = "the command is no transaction that can be applied".to_owned();
            let error = pb::WriteError { kind: pb::write_error::Kind::Failed.into(), message };
            return pb::WriteResult { result: Some(Result::Error(error)) };
        };
        let deadline = Instant::now() + self.config.transact_timeout;
        let result = match self.propose_here(command, deadline).await {
            Attempt::Done(Ok(response)) => Result::Written(pb::Written {
                // What it changed is in everything from here on.
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

/// The bytes of a command that can be applied. Any other one must never get into the log: it would stop every replica.
fn checked(command: pb::Command) -> Option<Bytes> {
    let bytes = command.encode_to_vec().into();
    matches!(ask_from_proto(command), Ok(Ask::Transact { .. })).then_some(bytes)
}

/// Ends a task that nobody waits for any more.
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
