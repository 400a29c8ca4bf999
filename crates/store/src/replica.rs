//! The handle to a replica, and how one starts and ends.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use chancery_model::{Outcome, State, Transaction};
use openraft::{
    SnapshotPolicy,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, RaftError},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, watch},
};

use crate::{
    Config, HistoryEntry, OpenError, ShutdownError, Status, TransactError,
    codec::{Ask, ask_to_proto},
    database::Database,
    directory::Directory,
    failure::Failure,
    flusher::Flusher,
    high_water::hex,
    identity::Identity,
    log::LogStore,
    log_size::LogSize,
    machine::{Machine, Published},
    maintenance::Maintenance,
    metrics::StoreMetrics,
    network::NoNetwork,
    parts::Parts,
    raft::{Command, Peer, Raft, Response},
    recovery::Recovered,
    space::{Full, Space},
    status::ClusterId,
};

/// Threads of the runtime on which Raft runs: one may be in RocksDB while the other keeps time.
const RAFT_THREADS: usize = 2;
/// A leader that is not known yet is asked for again after this time.
const LEADER_POLL: Duration = Duration::from_millis(5);
/// Tasks of Raft get so long to end when it has been shut down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Transactions in flight are counted in units of so many bytes.
const PERMIT_BYTES: usize = 1024;

/// A replica of the store. Cheap to clone; the last clone that is dropped shuts it down, if
/// [`Replica::shutdown`] has not.
#[derive(Clone)]
pub struct Replica(Arc<Inner>);

struct Inner {
    config: Config,
    identity: Identity,
    raft: Raft,
    published: Published,
    size: Arc<Mutex<LogSize>>,
    space: Arc<Space>,
    in_flight: Arc<Semaphore>,
    failure: Failure,
    metrics: StoreMetrics,
    /// `None` once the replica has been shut down.
    threads: Mutex<Option<Threads>>,
}

/// What has to end before the process does, in this order; then the directory is released.
struct Threads {
    runtime: Runtime,
    flusher: Flusher,
    database: Arc<Database>,
    directory: Directory,
}

// === impl Replica ===

impl Replica {
    /// Opens the replica in the directory of `config`; a fresh directory becomes a cluster of one.
    ///
    /// Returns when the state has been loaded and has caught up with what was committed: what
    /// [`Replica::state`] gives from then on may be served (design 4.10).
    ///
    /// # Errors
    /// If the settings make no sense, or the directory can not be used, or is damaged. Nothing in
    /// it is changed then.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        config.validate()?;
        let blocking = config.clone();
        let parts = tokio::task::spawn_blocking(move || Parts::open(&blocking))
            .await
            .map_err(|error| OpenError::Failed(error.to_string()))??;
        let fresh = parts.fresh;
        let replica = Self::start(config, parts).await?;
        let opened = replica.catch_up(fresh).await;
        match opened {
            Ok(()) => Ok(replica),
            Err(error) => {
                // The first error says more than any of ending.
                drop(replica.shutdown().await);
                Err(error)
            }
        }
    }

    async fn start(config: Config, parts: Parts) -> Result<Self, OpenError> {
        let Parts { directory, identity, high_water, database, recovered, .. } = parts;
        let failed = |error: &dyn std::fmt::Display| OpenError::Failed(error.to_string());
        let Recovered { ends, size, image, generation } = recovered;
        let (failure, metrics) = (Failure::default(), StoreMetrics::new());
        let database = Arc::new(database);
        let size = Arc::new(Mutex::new(size));
        let (flusher, jobs) =
            Flusher::spawn(Arc::clone(&database), high_water, failure.clone(), metrics.clone())
                .map_err(|error| failed(&error))?;
        let log = LogStore::new(
            Arc::clone(&database),
            jobs,
            ends,
            Arc::clone(&size),
            failure.clone(),
            metrics.clone(),
        );
        let machine = Machine::new(
            Arc::clone(&database),
            image,
            generation,
            failure.clone(),
            metrics.clone(),
        );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RAFT_THREADS)
            .thread_name("chancery-raft")
            .enable_all()
            .build()
            .map_err(|error| failed(&error))?;
        let raft_config = raft_config(&config, identity)?;
        let (id, published) = (config.replica_id, machine.published());
        let raft = runtime
            .spawn(
                async move { Raft::new(id, Arc::new(raft_config), NoNetwork, log, machine).await },
            )
            .await
            .map_err(|error| failed(&error))?;
        let threads = Threads { runtime, flusher, database, directory };
        let raft = match raft {
            Ok(raft) => raft,
            Err(error) => {
                let error = failed(&error);
                threads.end().await.ok();
                return Err(error);
            }
        };
        let space = Arc::new(Space::new(&config.data_dir, config.free_bytes_min));
        let maintenance = Maintenance {
            raft: raft.clone(),
            published: published.clone(),
            database: Arc::clone(&threads.database),
            size: Arc::clone(&size),
            config: config.clone(),
            space: Arc::clone(&space),
            failure: failure.clone(),
            metrics: metrics.clone(),
            table_bytes_least: 0,
        };
        threads.runtime.spawn(maintenance.run());
        let in_flight = Arc::new(Semaphore::new(permits(config.in_flight_bytes_max) as usize));
        let threads = Mutex::new(Some(threads));
        Ok(Self(Arc::new(Inner {
            config,
            identity,
            raft,
            published,
            size,
            space,
            in_flight,
            failure,
            metrics,
            threads,
        })))
    }

    /// Waits until all that was committed before is applied; forms the cluster if there is none.
    async fn catch_up(&self, fresh: bool) -> Result<(), OpenError> {
        let raft = &self.0.raft;
        let failed = |error: &dyn std::fmt::Display| match self.0.failure.get() {
            Some(reason) => OpenError::Failed(reason.to_owned()),
            None => OpenError::Failed(error.to_string()),
        };
        if fresh {
            let members = BTreeMap::from([(self.0.config.replica_id, Peer::default())]);
            raft.initialize(members).await.map_err(|error| failed(&error))?;
            let Identity { cluster_id, incarnation, .. } = self.0.identity;
            let form = Ask::Form { cluster_id, incarnation };
            let form = ask_to_proto(&form).encode_to_vec();
            let deadline = Instant::now() + self.0.config.open_timeout;
            self.propose(form, deadline).await.map_err(|error| failed(&error))?;
            return self.finish_forming();
        }
        if self.is_sole_voter() {
            // Nobody else can lead: no reason to wait for an election timeout.
            raft.trigger().elect(false).await.map_err(|error| failed(&error))?;
        }
        let timeout = self.0.config.open_timeout;
        raft.wait_for_recovery(Some(timeout)).await.map(drop).map_err(|error| match error {
            openraft::metrics::WaitError::Timeout(..) => OpenError::Timeout(timeout),
            error => failed(&error),
        })
    }

    /// From here on the directory is never taken for an interrupted start.
    fn finish_forming(&self) -> Result<(), OpenError> {
        let threads = self.0.threads.lock();
        let Some(Threads { database, directory, .. }) = &*threads else {
            return Err(OpenError::Failed("it was shut down".to_owned()));
        };
        database.sync().map_err(|source| OpenError::Io {
            what: "sync the database in",
            path: directory.path().to_owned(),
            source,
        })?;
        directory.finish()
    }

    fn is_sole_voter(&self) -> bool {
        let membership = self.0.published.image().membership;
        let mut voters = membership.voter_ids();
        voters.next() == Some(self.0.config.replica_id) && voters.next().is_none()
    }

    /// Commits a transaction. When it returns, the transaction is durable and in [`Replica::state`],
    /// or was refused by a precondition and has changed nothing.
    ///
    /// Waits while more than `in_flight_bytes_max` are on their way.
    ///
    /// # Errors
    /// See [`TransactError`]; only after `Timeout` and `Failed` can the transaction still take
    /// effect.
    pub async fn transact(&self, transaction: Transaction) -> Result<Outcome, TransactError> {
        let inner = &*self.0;
        let deadline = Instant::now() + inner.config.transact_timeout;
        self.check_alive()?;
        let command = ask_to_proto(&Ask::Transact(transaction));
        let (len, max) = (command.encoded_len(), inner.config.transaction_bytes_max);
        if len > max {
            inner.metrics.refused_too_large.increment(1);
            return Err(TransactError::TooLarge { len, max });
        }
        let timed_out = TransactError::Timeout(inner.config.transact_timeout);
        let permit = inner.in_flight.acquire_many(permits(len));
        let permit = tokio::time::timeout_at(deadline.into(), permit).await;
        let Ok(Ok(_permit)) = permit else { return Err(timed_out) };
        if let Err(Full { free, needed }) = inner.space.take(len as u64) {
            inner.metrics.refused_disk_full.increment(1);
            return Err(TransactError::DiskFull {
                path: inner.config.data_dir.clone(),
                free,
                needed,
            });
        }
        let encoded = command.encode_to_vec();
        // Everything is in memory twice now, and will be some more times.
        drop(command);
        match self.propose(encoded, deadline).await? {
            Response::Outcome(outcome) => Ok(outcome),
            Response::Done => {
                Err(TransactError::Failed("a transaction was applied as something else".into()))
            }
        }
    }

    fn check_alive(&self) -> Result<(), TransactError> {
        if let Some(reason) = self.0.failure.get() {
            self.0.metrics.refused_failed.increment(1);
            return Err(TransactError::Failed(reason.to_owned()));
        }
        if self.0.threads.lock().is_none() {
            return Err(TransactError::ShutDown);
        }
        Ok(())
    }

    /// Proposes a command; waits for a leader if there is none yet, as at the start.
    async fn propose(
        &self,
        command: Vec<u8>,
        deadline: Instant,
    ) -> Result<Response, TransactError> {
        let inner = &*self.0;
        let command = Command(command.into());
        loop {
            let write = inner.raft.client_write(command.clone());
            let Ok(result) = tokio::time::timeout_at(deadline.into(), write).await else {
                return Err(TransactError::Timeout(inner.config.transact_timeout));
            };
            let error = match result {
                Ok(written) => return Ok(written.data),
                Err(error) => error,
            };
            match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
                    match forward.leader_id {
                        Some(leader) if leader != inner.config.replica_id => {
                            return Err(TransactError::NotLeader { leader });
                        }
                        // Refused before it reached the log: the only voter never loses an entry
                        // that did to another leader.
                        _ if self.is_alone() && Instant::now() + LEADER_POLL < deadline => {
                            tokio::time::sleep(LEADER_POLL).await;
                        }
                        _ => {
                            inner.metrics.refused_no_leader.increment(1);
                            return Err(TransactError::NoLeader);
                        }
                    }
                }
                RaftError::APIError(error) => {
                    return Err(TransactError::Failed(error.to_string()));
                }
                RaftError::Fatal(error) => {
                    self.check_alive()?;
                    inner.failure.set(format!("Raft has stopped: {error}"));
                    return Err(TransactError::Failed(error.to_string()));
                }
            }
        }
    }

    fn is_alone(&self) -> bool {
        let metrics = self.0.raft.metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.voter_ids().all(|id| id == self.0.config.replica_id)
    }

    /// The newest applied state.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        self.0.published.state()
    }

    /// The newest applied state, and word when there is a newer one; states in between may be left
    /// out, but none is older than the one before it. Closed when the replica is gone.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.0.published.watch()
    }

    /// The newest `limit` revisions, newest first; [`crate::HISTORY_MAX`] are kept.
    #[must_use]
    pub fn history(&self, limit: usize) -> Vec<Arc<HistoryEntry>> {
        self.0.published.image().history.iter().rev().take(limit).cloned().collect()
    }

    /// How the replica is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &*self.0;
        let image = inner.published.image();
        let raft = inner.raft.metrics().borrow_watched().clone();
        let stopped = raft.running_state.as_ref().err().map(ToString::to_string);
        let membership = &raft.membership_config;
        Status {
            replica_id: inner.config.replica_id,
            cluster_id: ClusterId(inner.identity.cluster_id),
            incarnation: inner.identity.incarnation,
            revision: image.state.revision,
            n_resources: image.n_resources,
            term: raft.current_term,
            leader: raft.current_leader,
            last_log_index: raft.last_log_index,
            committed: raft.local_committed.map(|id| id.index),
            applied: image.applied.map(|id| id.index),
            snapshot: raft.snapshot.map(|id| id.index),
            purged: raft.purged.map(|id| id.index),
            voters: membership.voter_ids().collect(),
            learners: membership.membership().learner_ids().collect(),
            log_bytes: inner.size.lock().bytes(),
            disk_bytes: Directory::disk_bytes(&inner.config.data_dir),
            free_bytes: inner.space.free(),
            fsyncs: inner.metrics.fsyncs(),
            failure: inner.failure.get().map(str::to_owned).or(stopped),
        }
    }

    /// Ends the replica and releases its directory. What is on its way may or may not be committed.
    /// Calling it again does nothing.
    ///
    /// # Errors
    /// If something could not end cleanly; what was acknowledged is durable all the same.
    pub async fn shutdown(&self) -> Result<(), ShutdownError> {
        let raft = self.0.raft.shutdown().await.map_err(|error| ShutdownError(error.to_string()));
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
            .field("id", &self.0.config.replica_id)
            .field("data_dir", &self.0.config.data_dir)
            .finish_non_exhaustive()
    }
}

fn permits(len: usize) -> u32 {
    u32::try_from(len.div_ceil(PERMIT_BYTES).max(1)).unwrap_or(u32::MAX)
}

fn raft_config(config: &Config, identity: Identity) -> Result<openraft::Config, OpenError> {
    let (heartbeat, election_min, election_max) = (250, 1000, 2000);
    let raft = openraft::Config {
        cluster_name: hex(&identity.cluster_id),
        heartbeat_interval: heartbeat,
        election_timeout_min: election_min,
        election_timeout_max: election_max,
        install_snapshot_timeout: 30_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_log_entries),
        max_in_snapshot_log_to_keep: config.log_entries_keep,
        purge_batch_size: (config.snapshot_log_entries / 4).clamp(1, 1000),
        enable_pre_vote: Some(true),
        // The lease is an election timeout; without this a leader that reaches only a minority could
        // keep a connected majority from electing another.
        quorum_loss_probe_interval: Some(2 * election_max + election_max),
        ..openraft::Config::default()
    };
    raft.validate().map_err(|error| OpenError::Failed(error.to_string()))
}

// === impl Threads ===

impl Threads {
    /// Waits for all threads that hold the database, then closes it, then releases the directory.
    async fn end(self) -> Result<(), ShutdownError> {
        let ended = tokio::task::spawn_blocking(move || self.end_blocking()).await;
        ended.map_err(|error| ShutdownError(error.to_string()))?
    }

    fn end_blocking(self) -> Result<(), ShutdownError> {
        let Self { runtime, flusher, database, directory } = self;
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        let joined = flusher.join().map_err(ShutdownError);
        drop(database);
        drop(directory);
        joined
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A runtime can not be dropped on a thread of another one, and RocksDB must not be closed by
        // a thread that outlives `main`: so on a thread of its own, which is waited for.
        if let Some(threads) = self.threads.get_mut().take() {
            let ended = thread::Builder::new()
                .name("chancery-end".to_owned())
                .spawn(move || threads.end_blocking());
            match ended.map(thread::JoinHandle::join) {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => tracing::warn!(%error, "a replica that was dropped"),
                Ok(Err(_)) => tracing::warn!("the thread that ends a replica has panicked"),
                Err(error) => tracing::warn!(%error, "no thread to end a replica"),
            }
        }
    }
}
