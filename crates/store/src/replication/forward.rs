//! Forwards writes to the leader, and retries them so that they take effect once.
//!
//! Each write has a request ID. If the outcome of an attempt is unknown, the next attempt is marked as
//! repeated. The state machine of every replica knows the requests that took effect
//! ([`crate::disk::image::Image`]).

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_model::ScopeName;
use chancery_raft_proto::v1 as pb;
use openraft::{
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, RaftError},
};
use tokio::sync::Semaphore;

use crate::{
    Config, HISTORY_MAX, TransactError,
    disk::{
        preparer::Preparer,
        published::Published,
        space::{Full, Space},
        storage::Storage,
    },
    failure::Failure,
    format::{
        codec::ref_from_proto,
        content::Retention,
        packed::pack,
        prepared::{PREPARED_BYTES_MIN, Preparation},
        raft::{EncodedCommand, Response},
    },
    metrics::StoreMetrics,
    replication::{
        codec, command,
        outbox::{Answered, AwaitedAnswer, ForwardedWrite, InFlight, Outbox},
        raft_node::{Leader, RaftNode},
    },
};

/// The time before the next attempt, unless the leader changes earlier.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The time before the next attempt at a leader that lacks disk space, unless the leader changes earlier.
const FULL_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of committed entries that a replica may lack when it accepts a write.
///
/// It is a small part of the revisions in the history, so that most of them remain for retries.
const BEHIND_MAX: u64 = HISTORY_MAX as u64 / 10;

/// Bytes in flight are counted in units of this many bytes.
const UNIT_BYTES: usize = 1024;

/// The outcome of an attempt.
enum Attempt {
    /// The attempt was answered.
    Done(Result<Response, TransactError>),
    /// The write never reached a log.
    NotProposed,
    /// The write never reached a log, because the leader lacks disk space. It may transfer leadership soon.
    Full(TransactError),
    /// The write may have reached a log, and may still take effect.
    Unknown,
}

/// Proposes writes at the leader, wherever it is.
pub(crate) struct Forwarder {
    node: Arc<RaftNode>,
    published: Published,
    preparer: Preparer,
    space: Arc<Space>,
    failure: Failure,
    metrics: StoreMetrics,
    data_dir: PathBuf,
    transact_timeout: Duration,
    /// How much the history keeps while this replica leads.
    retention: Retention,
    /// The bytes of writes in flight, in units of [`UNIT_BYTES`].
    in_flight: Arc<Semaphore>,
    /// Writes for a leader on another replica.
    outbox: Outbox,
    /// Whether this replica has refused a write because of a full disk since
    /// [`Self::take_refused`] was last called.
    has_refused: AtomicBool,
}

impl Forwarder {
    /// Creates the forwarder of a replica. Writes for another leader go to `outbox`.
    pub(crate) fn new(
        config: &Config,
        node: Arc<RaftNode>,
        storage: &Storage,
        outbox: Outbox,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> Self {
        Self {
            node,
            published: storage.published.clone(),
            preparer: storage.preparer.clone(),
            space: Arc::clone(&storage.space),
            failure,
            metrics,
            data_dir: config.data_dir.clone(),
            transact_timeout: config.transact_timeout,
            retention: config.retention,
            in_flight: Arc::new(Semaphore::new(units(config.in_flight_bytes_max) as usize)),
            outbox,
            has_refused: AtomicBool::new(false),
        }
    }

    /// Reserves `len` bytes among the writes in flight. Waits while too many are in flight; returns `None`
    /// if none are free at the deadline.
    pub(crate) async fn reserve(&self, len: usize, deadline: Instant) -> Option<InFlight> {
        let permit = Arc::clone(&self.in_flight).acquire_many_owned(units(len));
        let permit = tokio::time::timeout_at(deadline.into(), permit).await;
        permit.ok()?.ok().map(Arc::new)
    }

    /// Returns whether this replica has refused a write because of a full disk since the last call.
    pub(crate) fn take_refused(&self) -> bool {
        self.has_refused.swap(false, Ordering::Relaxed)
    }

    /// Proposes a command to the leader and returns its outcome after this replica has applied it. `permit` is
    /// held while the command is in memory.
    pub(crate) async fn propose(
        &self,
        mut command: pb::Command,
        permit: Option<InFlight>,
        deadline: Instant,
    ) -> Result<Response, TransactError> {
        let mut proposed = false;
        let mut full_since = None;
        loop {
            let leader = self.node.leader();
            let mut interval = RETRY_INTERVAL;
            let attempt = match &leader {
                Some(Leader::Here) => {
                    command.retention = Some(self.retention.to_proto());
                    let replaced = self.replaced_len(&command);
                    let encoded;
                    let done = command::encode(command).await;
                    (encoded, command) = done.map_err(|error| outcome_of(error, proposed))?;
                    self.propose_local(encoded, replaced, deadline).await
                }
                Some(there @ Leader::There { id, .. }) => {
                    let (to, command, permit) = (there.clone(), command.clone(), permit.clone());
                    let (write, awaited) = ForwardedWrite::new(to, command, permit);
                    self.propose_remote(*id, write, awaited, deadline).await
                }
                None => Attempt::NotProposed,
            };
            match attempt {
                Attempt::Done(result) => return result,
                Attempt::NotProposed => {}
                Attempt::Full(error) => {
                    let since = *full_since.get_or_insert_with(Instant::now);
                    // An earlier attempt may still take effect, so that the refusal of this one decides nothing.
                    if !proposed && !self.may_yield(since, deadline) {
                        self.metrics.refused_disk_full.increment(1);
                        return Err(error);
                    }
                    interval = FULL_RETRY_INTERVAL;
                }
                Attempt::Unknown => {
                    proposed = true;
                    if let Some(request) = &mut command.request {
                        request.repeated = true;
                    }
                }
            }
            if Instant::now() + RETRY_INTERVAL >= deadline {
                if proposed {
                    return Err(TransactError::Timeout(self.transact_timeout));
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
                Some(_) => interval,
            };
            drop(tokio::time::timeout(wait, self.node.leader_changes(leader.as_ref())).await);
            self.check_alive().map_err(|error| outcome_of(error, proposed))?;
        }
    }

    /// Returns whether a leader that has lacked disk space since `since` may still transfer leadership to a voter with
    /// space, so that the write waits. It waits for at most half of the timeout, because all voters may lack space.
    fn may_yield(&self, since: Instant, deadline: Instant) -> bool {
        let has_others = self.node.membership().voter_ids().nth(1).is_some();
        let is_early = since.elapsed() < self.transact_timeout / 2;
        has_others && is_early && Instant::now() + FULL_RETRY_INTERVAL < deadline
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
                return Err(TransactError::Behind(self.transact_timeout));
            }
            tokio::time::sleep(left.min(RETRY_INTERVAL)).await;
            self.check_alive()?;
        }
        Ok(())
    }

    /// Returns whether this replica has no state yet, or lacks more than [`BEHIND_MAX`] entries that it
    /// knows to be committed.
    fn is_far_behind(&self) -> bool {
        if self.node.leads() {
            return false;
        }
        let committed = {
            let metrics = self.node.raft.metrics();
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

    /// Returns the size of the bodies that a command deletes and the history keeps, in bytes. A short command may delete
    /// much. Bodies that it replaces are about as large as the command.
    fn replaced_len(&self, command: &pb::Command) -> u64 {
        let Some(pb::command::Command::Transaction(transaction)) = &command.command else {
            return 0;
        };
        if transaction.deletes.is_empty() && transaction.prune.is_empty() {
            return 0;
        }
        let state = self.published.state();
        let scopes = transaction.prune.iter().filter_map(|scope| {
            let scope = state.scopes.get(&ScopeName::new(scope).ok()?)?;
            Some(scope.types.values().map(|collection| collection.body_bytes).sum::<u64>())
        });
        let deleted = transaction.deletes.iter().filter_map(|one| {
            let (scope, key) = ref_from_proto(one.clone()).ok()?;
            Some(state.get(&scope, &key)?.body_len() as u64)
        });
        scopes.sum::<u64>() + deleted.sum::<u64>()
    }

    /// Proposes a command as the leader. `replaced` is the size of the bodies that it deletes, in bytes.
    async fn propose_local(&self, command: Bytes, replaced: u64, deadline: Instant) -> Attempt {
        let len = command.len() as u64;
        if let Err(Full { free, needed }) = self.space.take(len, replaced) {
            self.has_refused.store(true, Ordering::Relaxed);
            let path = self.data_dir.clone();
            return Attempt::Full(TransactError::DiskFull { path, free, needed });
        }
        let command = self.prepared(command).await;
        let write = self.node.raft.client_write(command);
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

    /// Prepares and compresses a large command before it is proposed, so that later commands do not wait for this work.
    async fn prepared(&self, command: Bytes) -> EncodedCommand {
        if command.len() < PREPARED_BYTES_MIN {
            return EncodedCommand::new(command);
        }
        let (preparer, [plain, bytes]) =
            (self.preparer.clone(), [command.clone(), command.clone()]);
        let prepare = tokio::task::spawn_blocking(move || preparer.prepare(&plain));
        let pack = tokio::task::spawn_blocking(move || pack(&bytes));
        match tokio::try_join!(prepare, pack) {
            Ok((Some(prepared), packed)) => {
                let preparation = Arc::new(Preparation::done(prepared));
                EncodedCommand::with(command, preparation).packed_as(packed)
            }
            // Applying the command reports the reason.
            Ok((None, _)) | Err(_) => EncodedCommand::new(command),
        }
    }

    /// Sends a command to the leader.
    async fn propose_remote(
        &self,
        leader: u64,
        write: ForwardedWrite,
        awaited: AwaitedAnswer,
        deadline: Instant,
    ) -> Attempt {
        use pb::write_result::Result;
        match tokio::time::timeout_at(deadline.into(), self.outbox.send(write)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Attempt::NotProposed,
        }
        let result = match awaited.until(deadline).await {
            Answered::Result(result) => result,
            Answered::NotSent => return Attempt::NotProposed,
            Answered::Unknown => return Attempt::Unknown,
        };
        match result {
            Result::NotLeader(_) => Attempt::NotProposed,
            Result::Error(error) if error.kind() == pb::write_error::Kind::DiskFull => {
                Attempt::Full(TransactError::LeaderDiskFull { leader, reason: error.message })
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
                if !self.published.applied_within(index, left).await {
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
    pub(crate) async fn answer(&self, mut command: pb::Command) -> pb::WriteResult {
        use pb::write_result::Result;
        command.retention = Some(self.retention.to_proto());
        let replaced = self.replaced_len(&command);
        let refused = |error| pb::WriteResult { result: Some(Result::Error(error)) };
        let command = match command::encode_checked(command).await {
            Ok(Some(command)) => command,
            Ok(None) => {
                let message = "the command is not a transaction that can be applied".to_owned();
                let kind = pb::write_error::Kind::Failed.into();
                return refused(pb::WriteError { kind, message });
            }
            Err(error) => return refused(write_error_to_proto(&error)),
        };
        let deadline = Instant::now() + self.transact_timeout;
        let result = match self.propose_local(command, replaced, deadline).await {
            Attempt::Done(Ok(response)) => Result::Written(pb::Written {
                // The state at this index includes the write.
                index: self.published.applied(),
                outcome: Some(codec::outcome_to_proto(&response)),
            }),
            // The replica that has forwarded the write waits for the next leader.
            Attempt::Done(Err(error)) | Attempt::Full(error) => {
                Result::Error(write_error_to_proto(&error))
            }
            Attempt::NotProposed => Result::NotLeader(pb::NotLeader {
                leader: match self.node.leader() {
                    Some(Leader::There { id, .. }) => id,
                    Some(Leader::Here) | None => 0,
                },
            }),
            Attempt::Unknown => {
                let error = TransactError::Timeout(self.transact_timeout);
                Result::Error(write_error_to_proto(&error))
            }
        };
        pb::WriteResult { result: Some(result) }
    }
}

/// Returns the error for a write of which an earlier attempt may still take effect if it was `proposed`.
fn outcome_of(error: TransactError, proposed: bool) -> TransactError {
    match error {
        TransactError::NotSent(reason) if proposed => TransactError::Failed(reason),
        error => error,
    }
}

/// Returns the number of units for `len` bytes.
fn units(len: usize) -> u32 {
    u32::try_from(len.div_ceil(UNIT_BYTES).max(1)).unwrap_or(u32::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_that_was_not_sent_leaves_an_earlier_one_unknown() {
        let not_sent = || TransactError::NotSent("a reason".to_owned());
        assert_eq!(outcome_of(not_sent(), false), not_sent());
        assert_eq!(outcome_of(not_sent(), true), TransactError::Failed("a reason".to_owned()));
    }
}
