//! The handle to a replica. `cluster` has its cluster operations, and `fleet` the questions to other
//! replicas.

pub(crate) mod cluster;
pub(crate) mod fleet;
mod sealing;

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use chancery_model::{Outcome, Revision, State, Transaction};
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;

use crate::{
    ApplyTime, Backup, BackupError, BackupSource, Config, HistoryEntry, OpenError, OpenProgress,
    ReadError, RequestId, ShutdownError, Status, TransactError,
    disk::{
        directory::{Directory, DirectoryPurpose},
        image::Image,
        parts::Start,
        probe::{read_all, write_probe},
    },
    format::{
        codec::{Command, command_to_proto, digest_of_content},
        identity::Identity,
        raft::{Peer, Response},
    },
    open::{self, Running, Threads},
    replication::{command::command_of, core::Core, read_index::ReadQueue},
    status::ClusterId,
};

/// The number of state digests that [`Status`] shows: of the newest positions, and of positions
/// that are kept for longer.
const SHOWN_NEWEST: usize = 4;
const SHOWN_STEPS: usize = 28;
/// The interval between checks for the first state.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The interval between checks of the disk after a failure.
const DISK_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A replica of the store. Cheap to clone. Dropping the last clone shuts the replica down, unless
/// [`Replica::shutdown`] has done so.
#[derive(Clone)]
pub struct Replica(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
    reads: ReadQueue,
    /// `None` once the replica has been shut down.
    threads: Mutex<Option<Threads>>,
}

/// How current a replica is when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaughtUp {
    /// The replica has applied everything that was committed when it started.
    Yes,
    /// The replica has only its own data: no leader reported what was committed since.
    Alone,
}

// === impl Replica ===

impl Replica {
    /// Opens the replica in the directory of `config`. An empty directory becomes a cluster of one,
    /// or joins the cluster that `config` names. In the latter case this function waits until the
    /// cluster has admitted the replica.
    ///
    /// In a cluster of one, everything committed is applied when this function returns. In a larger
    /// cluster, [`Replica::catch_up`] waits for that.
    ///
    /// # Errors
    /// Fails if the settings are invalid, or if the directory cannot be used or is damaged. The
    /// directory is then unchanged.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        Self::open_reporting(config, &OpenProgress::default()).await
    }

    /// Opens the replica as [`Replica::open`] does, and reports its progress.
    ///
    /// # Errors
    /// As [`Replica::open`].
    pub async fn open_reporting(
        config: Config,
        progress: &OpenProgress,
    ) -> Result<Self, OpenError> {
        Self::open_with(config, true, progress).await
    }

    /// Opens the replica without asking the members what it has acknowledged.
    #[cfg(test)]
    pub(crate) async fn open_unasked(config: Config) -> Result<Self, OpenError> {
        Self::open_with(config, false, &OpenProgress::default()).await
    }

    async fn open_with(
        config: Config,
        asks: bool,
        progress: &OpenProgress,
    ) -> Result<Self, OpenError> {
        config.validate()?;
        let Running { core, threads, start, service } = open::open(config, progress).await?;
        // While the replica forms a cluster, it admits nobody: until the cluster is durable, an
        // interrupted start would form another cluster.
        let forms = matches!(start, Start::Form);
        if asks && matches!(start, Start::Existing) {
            let asking = Arc::clone(&core);
            // The calls run on the runtime of the store.
            let asked = async move { asking.lost_entries.ask_members().await };
            drop(core.calls.runtime.spawn(asked).await);
        }
        if !forms {
            service.join(Arc::clone(&core));
        }
        let reads = Arc::clone(&core.read_index).spawn();
        let threads = Mutex::new(Some(threads));
        let replica = Self(Arc::new(Inner { core, reads, threads }));
        match replica.begin(start).await {
            // The divergence has shut down Raft. The replica opens, so that it can say why it serves nothing.
            Err(_) if replica.core().divergence.has_diverged() => {}
            Err(error) => {
                // The first error says more than an error of the shutdown.
                drop(replica.shutdown().await);
                return Err(error);
            }
            Ok(()) => {}
        }
        if forms {
            service.join(Arc::clone(&replica.0.core));
        }
        Ok(replica)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Returns when a thread of Raft's runtime has taken a new task. Waits forever after a shutdown.
    pub async fn turn(&self) {
        if self.0.core.calls.runtime.spawn(async {}).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the database, for tests that block it.
    #[cfg(test)]
    pub(crate) fn database(&self) -> Arc<crate::disk::database::Database> {
        let threads = self.0.threads.lock();
        Arc::clone(&threads.as_ref().expect("the replica runs").database)
    }

    /// Forms the cluster on a first start. A sole voter waits until everything committed is
    /// applied.
    async fn begin(&self, start: Start) -> Result<(), OpenError> {
        let core = &*self.0.core;
        let raft = &core.node.raft;
        let failed = |error: &dyn std::fmt::Display| core.failed(error);
        match start {
            Start::Form => {
                let Identity { cluster_id, incarnation, instance, .. } = core.identity;
                let peer = Peer { address: core.address.clone(), learner: false, instance };
                let members = BTreeMap::from([(core.id(), peer)]);
                raft.initialize(members).await.map_err(|error| failed(&error))?;
                let form = command_to_proto(&Command::Form { cluster_id, incarnation });
                let deadline = Instant::now() + core.config.open_timeout;
                let formed = core.forwarder.propose(form, None, deadline).await;
                formed.map_err(|error| match error {
                    // Only another start repeats the attempt.
                    TransactError::DiskFull { path, free, needed } => {
                        OpenError::DiskFull { path, free, needed }
                    }
                    error => failed(&error),
                })?;
                self.finish_forming()
            }
            Start::Existing if core.divergence.reason().is_none() && self.votes_alone().await? => {
                // No other replica can lead, so there is no reason to wait for an election timeout.
                raft.trigger().elect(false).await.map_err(|error| failed(&error))?;
                let timeout = core.config.open_timeout;
                raft.wait_for_recovery(Some(timeout)).await.map(drop).map_err(|error| match error {
                    openraft::metrics::WaitError::Timeout(..) => OpenError::Timeout(timeout),
                    error => failed(&error),
                })
            }
            Start::Existing | Start::Joined => Ok(()),
        }
    }

    /// Returns whether this replica is the only voter. Asks Raft's task, because the metrics may be
    /// older.
    async fn votes_alone(&self) -> Result<bool, OpenError> {
        let core = &*self.0.core;
        let id = core.id();
        let alone = core.node.raft.with_raft_state(move |state| {
            let mut voters = state.membership_state.effective().voter_ids();
            voters.next() == Some(id) && voters.next().is_none()
        });
        alone.await.map_err(|error| core.failed(&error))
    }

    /// Waits until this replica has applied everything that was committed when it was opened.
    /// [`Replica::state`] may be served afterwards.
    ///
    /// A replica that never had any state waits without a time limit. A replica with a state waits
    /// for `timeout`, and then returns with that state. The wait ends when [`Replica::diverged`]
    /// gives a reason: nothing may be served then.
    ///
    /// # Errors
    /// Fails if Raft has stopped.
    pub async fn catch_up(&self, timeout: Duration) -> Result<CaughtUp, OpenError> {
        let core = &*self.0.core;
        loop {
            let recovered = core.node.raft.wait_for_recovery(Some(timeout)).await;
            let formed = core.storage.published.is_formed();
            match recovered {
                Ok(_) if formed => {
                    // Before anything is served: a comparison may show that this state is wrong.
                    let shared = Arc::clone(&self.0.core);
                    let compared =
                        core.calls.runtime.spawn(async move { shared.comparison.compare().await });
                    drop(compared.await);
                    return Ok(CaughtUp::Yes);
                }
                Err(openraft::metrics::WaitError::Timeout(..)) if formed => {
                    return Ok(CaughtUp::Alone);
                }
                Err(openraft::metrics::WaitError::Timeout(..)) => {
                    tracing::info!("waiting for the state of the cluster");
                }
                Ok(_) => tokio::time::sleep(POLL_INTERVAL).await,
                // The divergence has shut down Raft.
                Err(_) if core.divergence.reason().is_some() => return Ok(CaughtUp::Alone),
                Err(error) => return Err(core.failed(&error)),
            }
        }
    }

    /// Completes the directory. Later starts never treat it as an interrupted start.
    fn finish_forming(&self) -> Result<(), OpenError> {
        let threads = self.0.threads.lock();
        let Some(Threads { database, directory, .. }) = &*threads else {
            return Err(OpenError::Failed(
                "the replica was shut down while it formed the cluster".to_owned(),
            ));
        };
        database.sync().map_err(|source| OpenError::Io {
            what: "sync the database in",
            path: directory.path().to_owned(),
            source,
        })?;
        directory.finish(DirectoryPurpose::Replica)
    }

    /// Commits a transaction, wherever the leader is. When this returns, the transaction is durable
    /// and in [`Replica::state`]. If a precondition refused the transaction, it has changed
    /// nothing.
    ///
    /// Waits while more than `in_flight_bytes_max` bytes are in flight.
    ///
    /// # Errors
    /// See [`TransactError`]. After `Timeout` and `Failed`, the transaction may still take effect.
    /// After all other errors, it does not.
    pub async fn transact(&self, transaction: Transaction) -> Result<Outcome, TransactError> {
        let id = RequestId::random().map_err(|error| TransactError::Failed(error.to_string()))?;
        self.transact_as(id, None, transaction).await
    }

    /// Commits a transaction under a request ID. If that request has taken effect before, returns
    /// its outcome. Covers the requests of the newest [`crate::HISTORY_MAX`] revisions.
    ///
    /// `content` identifies the request if its transaction depends on the state. Otherwise, the
    /// transaction identifies the request.
    ///
    /// # Errors
    /// As [`Replica::transact`], and `Reused` if another request had this request ID.
    pub async fn transact_as(
        &self,
        id: RequestId,
        content: Option<&[u8]>,
        transaction: Transaction,
    ) -> Result<Outcome, TransactError> {
        let core = &*self.0.core;
        let deadline = Instant::now() + core.config.transact_timeout;
        core.forwarder.check_alive()?;
        if self.0.threads.lock().is_none() {
            return Err(TransactError::ShutDown);
        }
        core.forwarder.catch_up_for_write(deadline).await?;
        let transaction = self.seal(transaction).await?;
        let since = core.storage.published.state().revision;
        let digest = content.map(digest_of_content);
        let command = command_of(id, since, digest, transaction).await?;
        let (len, max) = (command.encoded_len(), core.config.transaction_bytes_max);
        if len > max {
            core.metrics.refused_too_large.increment(1);
            return Err(TransactError::TooLarge { len, max });
        }
        let Some(permit) = core.forwarder.reserve(len, deadline).await else {
            core.metrics.refused_busy.increment(1);
            return Err(TransactError::Busy(core.config.transact_timeout));
        };
        match core.forwarder.propose(command, Some(permit), deadline).await? {
            Response::Outcome(outcome) => Ok(outcome),
            Response::Forgotten => Err(TransactError::Forgotten),
            Response::Reused(revision) => Err(TransactError::Reused { id, revision }),
            Response::Done => {
                Err(TransactError::Failed("a transaction was applied as something else".into()))
            }
        }
    }

    /// Returns when this replica has applied everything that was committed at the time of the call.
    /// A subsequent read of [`Replica::state`] is linearizable.
    ///
    /// # Errors
    /// Fails if the leader cannot be asked, or if this replica does not catch up in time.
    pub async fn read_barrier(&self, timeout: Duration) -> Result<(), ReadError> {
        self.check_diverged()?;
        self.0.reads.wait(timeout).await
    }

    /// Fails if the state of this replica differs from that of the cluster. Not even a stale read
    /// may show such a state.
    ///
    /// # Errors
    /// [`ReadError::Diverged`].
    pub fn check_diverged(&self) -> Result<(), ReadError> {
        match self.diverged() {
            Some(reason) => Err(ReadError::Diverged(reason.to_string())),
            None => Ok(()),
        }
    }

    /// Returns a backup of everything that is committed now. Waits at most `timeout` until this
    /// replica has applied it.
    ///
    /// # Errors
    /// Fails if this replica cannot determine what is committed, or has no state yet.
    pub async fn backup(&self, timeout: Duration) -> Result<Backup, BackupError> {
        let deadline = Instant::now() + timeout;
        self.read_barrier(timeout).await?;
        let published = &self.0.core.storage.published;
        let stored = published.stored_at(published.applied());
        let image = tokio::time::timeout_at(deadline.into(), stored).await;
        self.backup_of(image.map_err(|_| ReadError::Behind(timeout))?, BackupSource::Current)
    }

    /// Returns a backup of the state that this replica has stored. It may lack the newest applied entries.
    ///
    /// # Errors
    /// Fails if the replica has no state yet.
    pub fn backup_stale(&self) -> Result<Backup, BackupError> {
        self.check_diverged()?;
        self.backup_of(self.0.core.storage.published.stored(), BackupSource::Stale)
    }

    fn backup_of(&self, image: Image, source: BackupSource) -> Result<Backup, BackupError> {
        Backup::of(image, self.0.core.id(), source)
    }

    /// Returns the newest applied state.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        self.0.core.storage.published.state()
    }

    /// Returns a receiver of the newest applied state. It may skip states, but never returns an
    /// older state after a newer one. It is closed when the replica is gone.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.0.core.storage.published.watch()
    }

    /// Remembers when each revision is applied, for [`Replica::apply_time`].
    pub fn remember_apply_times(&self) {
        self.0.core.storage.published.times().turn_on();
    }

    /// Returns when this replica applied one of the newest revisions, if the times are remembered.
    #[must_use]
    pub fn apply_time(&self, revision: Revision) -> Option<ApplyTime> {
        self.0.core.storage.published.times().of(revision)
    }

    /// Returns the newest `limit` revisions, newest first. The history keeps [`crate::HISTORY_MAX`]
    /// revisions.
    #[must_use]
    pub fn history(&self, limit: usize) -> Vec<Arc<HistoryEntry>> {
        self.0.core.storage.published.newest().history.iter().rev().take(limit).cloned().collect()
    }

    /// Returns the reason why the replica no longer accepts writes, or `None` if it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let core = &*self.0.core;
        let stopped = || {
            let raft = core.node.raft.metrics();
            let raft = raft.borrow_watched();
            raft.running_state.as_ref().err().map(ToString::to_string)
        };
        core.failure.get().map(str::to_owned).or_else(stopped)
    }

    /// Waits until the replica has failed because of an error of its disk, and the disk has then worked for `steady`.
    /// Returns the reason of the failure. The open database may lack data that it believes to be written, so only
    /// another start brings the replica back.
    pub async fn disk_works_again(&self, steady: Duration) -> String {
        let core = &*self.0.core;
        let mut since = None;
        loop {
            tokio::time::sleep(DISK_CHECK_INTERVAL).await;
            if !core.failure.is_of_disk() || self.diverged().is_some() {
                continue;
            }
            let data_dir = core.config.data_dir.clone();
            let is_last = since.is_some_and(|since: Instant| since.elapsed() >= steady);
            let checked = tokio::task::spawn_blocking(move || {
                write_probe(&data_dir)?;
                // Reads much, so only once.
                if is_last { read_all(&data_dir) } else { Ok(()) }
            });
            let works = matches!(checked.await, Ok(Ok(()))) && core.storage.space.full().is_none();
            if works && is_last {
                return core.failure.get().unwrap_or_default().to_owned();
            }
            since = since.filter(|_| works).or_else(|| works.then(Instant::now));
        }
    }

    /// Returns the status of the replica.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &*self.0.core;
        let image = inner.storage.published.newest();
        let raft = inner.node.raft.metrics().borrow_watched().clone();
        let membership = &raft.membership_config;
        Status {
            replica_id: inner.config.replica_id,
            cluster_id: ClusterId(inner.identity.cluster_id),
            incarnation: inner.identity.incarnation,
            revision: image.state.revision,
            n_resources: image.n_resources,
            term: raft.current_term,
            leader: inner.node.present_leader(),
            last_log_index: raft.last_log_index,
            committed: raft.local_committed.map(|id| id.index),
            applied: image.applied.map(|id| id.index),
            snapshot: raft.snapshot.map(|id| id.index),
            purged: raft.purged.map(|id| id.index),
            voters: membership.voter_ids().collect(),
            learners: membership.membership().learner_ids().collect(),
            log_bytes: inner.storage.log_size.lock().bytes(),
            disk_bytes: Directory::disk_bytes(&inner.config.data_dir),
            free_bytes: inner.storage.space.free(),
            full: inner.storage.space.full().map(|full| full.to_string()),
            digests: inner.storage.digests.recent(SHOWN_NEWEST, SHOWN_STEPS),
            fsyncs: inner.metrics.fsyncs(),
            failure: self.failure(),
        }
    }

    /// Stops the replica and releases its directory. Writes in flight may or may not be committed.
    /// A second call does nothing.
    ///
    /// # Errors
    /// Fails if a part could not end cleanly. Acknowledged writes are durable anyway.
    pub async fn shutdown(&self) -> Result<(), ShutdownError> {
        let raft = self.0.core.node.shutdown().await;
        let raft = raft.map_err(|error| ShutdownError(error.to_string()));
        let threads = self.0.threads.lock().take();
        let ended = match threads {
            Some(threads) => threads.end().await,
            None => Ok(()),
        };
        raft.and(ended)
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica")
            .field("id", &self.0.core.config.replica_id)
            .field("data_dir", &self.0.core.config.data_dir)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A runtime cannot be dropped on a thread of another one. RocksDB must not be closed by a
        // thread that outlives `main`. So a separate thread does both, and is joined here.
        if let Some(threads) = self.threads.get_mut().take() {
            let ended = thread::Builder::new()
                .name("chancery-end".to_owned())
                .spawn(move || threads.end_blocking());
            match ended.map(thread::JoinHandle::join) {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => {
                    tracing::warn!(%error, "a dropped replica did not shut down cleanly")
                }
                Ok(Err(_)) => {
                    tracing::warn!("the thread that shuts down a dropped replica has panicked")
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread to shut down a dropped replica")
                }
            }
        }
    }
}
