//! The handle to a replica.

pub(crate) mod cluster;
mod fleet;
mod health;
mod sealing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use chancery_model::{Outcome, Revision, State, Transaction};
use chancery_secrets::Secrets;
use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;

use crate::{
    ApplyTime, Backup, BackupError, BackupSource, ChangeError, Config, HistoryEntry, OpenError,
    OpenProgress, OwnPort, ReadError, RequestId, ScopeChange, ShutdownError, Status, TransactError,
    disk::{directory::DirectoryPurpose, image::Image, parts::Start, past::Past},
    format::{
        codec::{Command, command_to_proto, digest_of_content},
        identity::Identity,
        raft::{Peer, Response},
    },
    open::{self, Running, Threads},
    replication::{
        command::command_of,
        core::Core,
        instance::Removal,
        question::{Answerer, Answers, AskLimits, Question},
        read_index::ReadQueue,
    },
};

use cluster::{Member, MemberChange};

/// The interval between checks for the first state.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

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
        let transaction = sealing::seal(core, transaction, || self.create_keys()).await?;
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
        Backup::of(image, self.0.core.storage.content.clone(), self.0.core.id(), source)
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

    /// Returns a receiver of the served state: the newest applied state with the frozen content of frozen scopes. Once
    /// [`Replica::watch`] has a revision, this receiver has it, too.
    #[must_use]
    pub fn watch_served(&self) -> watch::Receiver<Arc<State>> {
        self.0.core.storage.published.watch_served()
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
        self.history_before(Revision(u64::MAX), limit)
    }

    /// Returns the newest `limit` revisions before `revision`, newest first.
    #[must_use]
    pub fn history_before(&self, revision: Revision, limit: usize) -> Vec<Arc<HistoryEntry>> {
        let image = self.0.core.storage.published.newest();
        let end = image.history.binary_search_by(|entry| entry.revision.cmp(&revision));
        let end = end.unwrap_or_else(|at| at);
        let start = end.saturating_sub(limit);
        image.history.iter().skip(start).take(end - start).rev().cloned().collect()
    }

    /// Returns the revisions of the history after `revision`, oldest first, at most `limit`. Returns the oldest revision
    /// from which the history is complete, if it no longer has the next one.
    ///
    /// # Errors
    /// Fails with that revision.
    pub fn history_after(
        &self,
        revision: Revision,
        limit: usize,
    ) -> Result<Vec<Arc<HistoryEntry>>, Revision> {
        let image = self.0.core.storage.published.newest();
        let first = image.history.front().map_or(image.state.revision, |oldest| oldest.previous());
        if revision < first {
            return Err(first);
        }
        let at = image.history.binary_search_by(|entry| entry.revision.cmp(&revision));
        let at = at.map_or_else(|at| at, |at| at + 1);
        Ok(image.history.iter().skip(at).take(limit).cloned().collect())
    }

    /// Returns the oldest revision that can be read.
    #[must_use]
    pub fn content_from(&self) -> Revision {
        self.0.core.storage.content.oldest()
    }

    /// Returns a reader of the stored content and of that of earlier revisions. Waits until everything that this replica
    /// has applied is stored. Waits forever if it cannot be stored.
    pub async fn past(&self) -> Past {
        let storage = &self.0.core.storage;
        let image = storage.published.stored_at(storage.published.applied()).await;
        Past::new(image, storage.content.clone(), self.secrets().clone())
    }

    /// Returns the changes of a revision by scope and type, if this replica has applied it since its start and it is one
    /// of the newest 1024. The replica keeps at most 256 scopes and types of each revision.
    #[must_use]
    pub fn changes_of(&self, revision: Revision) -> Option<Arc<[ScopeChange]>> {
        self.0.core.storage.published.changes().of(revision)
    }

    /// Returns the reason why the replica no longer accepts writes, or `None` if it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        health::failure(self.core())
    }

    /// Waits until the replica has failed because of an error of its disk, and the disk has then worked for `steady`.
    /// Returns the reason of the failure. The open database may lack data that it believes to be written, so only
    /// another start brings the replica back.
    pub async fn disk_works_again(&self, steady: Duration) -> String {
        health::disk_works_again(self.core(), steady).await
    }

    /// Returns the status of the replica.
    #[must_use]
    pub fn status(&self) -> Status {
        health::status(self.core())
    }

    /// Returns the address at which other replicas reach this one; empty if they cannot.
    #[must_use]
    pub fn raft_address(&self) -> &str {
        &self.core().address
    }

    /// Sets the other ports of this replica, which its report shows. The second call has no effect.
    pub fn set_ports(&self, ports: Vec<OwnPort>) {
        drop(self.core().ports.set(ports));
    }

    /// Sets whether an operator drains this replica, which its report shows.
    pub fn set_drained(&self, is_drained: bool) {
        self.core().is_drained.store(is_drained, Ordering::Relaxed);
    }

    /// Returns the members by ID, each with whether it is a voter, as this replica knows them.
    #[must_use]
    pub fn roles(&self) -> BTreeMap<u64, bool> {
        let membership = self.core().node.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        membership.nodes().map(|(id, _)| (*id, voters.contains(id))).collect()
    }

    /// Returns the ID of this replica.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.core().config.replica_id
    }

    /// Returns the number of members, including this replica.
    #[must_use]
    pub fn n_members(&self) -> usize {
        self.core().node.membership().nodes().count()
    }

    /// Returns the ID of the leader if this replica hears it. A leader returns its own ID if most voters
    /// answer it.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        self.core().node.present_leader()
    }

    /// Waits until this replica finds that it is no longer a member of its cluster. Such a replica
    /// receives no updates, so its state becomes outdated.
    pub async fn removed(&self) -> Removal {
        self.core().removal.until_removed().await
    }

    /// Returns the reason why the state or the log of this replica differs from that of the cluster;
    /// `None` if no difference is known. A replica with a reason must serve nothing.
    #[must_use]
    pub fn diverged(&self) -> Option<Arc<str>> {
        self.core().divergence.reason()
    }

    /// Waits until [`Replica::diverged`] has a reason, and returns it.
    pub async fn until_diverged(&self) -> Arc<str> {
        self.core().divergence.wait_until_diverged().await
    }

    /// Transfers leadership to another voter if this replica leads and there is one. Before a shutdown, this
    /// saves writes the wait for an election.
    pub async fn step_down(&self) {
        self.core().members.step_down().await;
    }

    /// Makes a membership change at the leader. Returns the outcome as a text for people.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<String, ChangeError> {
        let core = self.core();
        core.members.change(change.into_request(), core.config.change_timeout).await
    }

    /// Returns all members with their current reports.
    pub async fn members(&self) -> Vec<Member> {
        cluster::members(self.core()).await
    }

    /// Takes a snapshot and returns its last log index. The log up to that index can then be purged.
    ///
    /// # Errors
    /// If Raft has stopped, or the snapshot takes longer than `timeout`.
    pub async fn snapshot(&self, timeout: Duration) -> Result<u64, ChangeError> {
        cluster::snapshot(self.core(), timeout).await
    }

    /// Asks all other members at the same time. Returns after the timeout at the latest. In a cluster of one, returns
    /// at once.
    pub async fn ask_all(&self, question: Question, limits: AskLimits) -> Answers {
        fleet::ask_all(self.core(), question, limits).await
    }

    /// Lets `answerer` answer the questions of other replicas, on the runtime of the caller. Until then, and after
    /// `answerer` is dropped, others learn that this replica is starting.
    ///
    /// # Panics
    /// If the caller is on no runtime.
    pub fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        self.core().answering.register(answerer, tokio::runtime::Handle::current());
    }

    /// Returns the keys of this replica.
    #[must_use]
    pub fn secrets(&self) -> &Secrets {
        &self.core().config.secrets
    }

    /// Waits until the replica has tried to unwrap its keys and to open its secrets, for a bounded time.
    pub async fn open_secrets(&self) {
        sealing::keys_tried(self.core()).await;
    }

    /// Returns why this replica would refuse to seal a transaction.
    #[must_use]
    pub fn sealing_refusal(&self, transaction: &Transaction) -> Option<TransactError> {
        sealing::refusal(self.core(), transaction)
    }

    /// Creates the keys of the cluster, unless another replica does.
    fn create_keys(&self) -> BoxFuture<'_, Result<(), TransactError>> {
        let create = async {
            let transaction = sealing::keys_creation(self.secrets()).await?;
            self.transact(transaction).await.map(drop)
        };
        create.boxed()
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
