//! The start of a replica (directory, threads, Raft), and its end.

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpListener, runtime::Runtime, sync::mpsc};

use crate::{
    Config, OpenError, OpenProgress, ShutdownError,
    disk::{
        database::Database,
        directory::Directory,
        flusher::Flusher,
        log::LogStore,
        machine::{Machine, Raft},
        opening::Opener,
        parts::{Opened, Parts, Start, random_failed},
        storage::{self, Storage},
    },
    failure::Failure,
    format::identity::new_instance,
    metrics::StoreMetrics,
    replication::{
        calls::Calls,
        cluster_metrics::Previous,
        core::{Core, CoreParts},
        hand_over::HandOver,
        join::{self, Joiner},
        maintenance::Maintenance,
        network::Network,
        outbox::{self, ForwardedWrite},
        peers::Peers,
        raft_settings,
        server::Service,
        tls::Tls,
    },
};

/// The number of threads of Raft's runtime. None of them waits for the disk: the log has a separate
/// thread (`crate::disk::flusher`), and entries are applied on threads for blocking work.
const RAFT_THREADS: usize = 2;
/// The time within which Raft's tasks must end after a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of bytes by which a message to another replica may exceed a transaction.
const MESSAGE_BYTES_MORE: usize = 16 << 20;

/// A running replica.
pub(crate) struct Running {
    pub(crate) core: Arc<Core>,
    pub(crate) threads: Threads,
    pub(crate) start: Start,
    /// The service on the replication port. The owner calls its `join` when other replicas may call
    /// this one.
    pub(crate) service: Service,
}

/// The parts that must end before the process does, in this order. The directory is released last.
pub(crate) struct Threads {
    runtime: Runtime,
    flusher: Flusher,
    pub(crate) database: Arc<Database>,
    pub(crate) directory: Directory,
}

type Started = (Arc<Core>, Arc<Database>, Flusher, Directory, Start);

/// Opens the directory, joins a cluster if one is configured, and starts Raft.
pub(crate) async fn open(config: Config, progress: &OpenProgress) -> Result<Running, OpenError> {
    let runtime = OwnRuntime::new()?;
    let opened = open_on(runtime.get(), config, progress).await;
    let runtime = runtime.take();
    match opened {
        Ok(((core, database, flusher, directory, start), service)) => {
            let threads = Threads { runtime, flusher, database, directory };
            Ok(Running { core, threads, start, service })
        }
        Err(error) => {
            // Tasks that still run on it may hold the directory.
            let ended = tokio::task::spawn_blocking(|| runtime.shutdown_timeout(SHUTDOWN_TIMEOUT));
            drop(ended.await);
            Err(error)
        }
    }
}

/// The runtime of the store during the start. A runtime must not be dropped inside a task, and the
/// caller may drop the future that opens a replica at any point.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn new() -> Result<Self, OpenError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RAFT_THREADS)
            .thread_name("chancery-raft")
            .enable_all()
            .build()
            .map_err(|error| OpenError::Failed(error.to_string()))?;
        chancery_metrics::register_runtime("chancery-raft", runtime.handle());
        Ok(Self(Some(runtime)))
    }

    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken only once, by value")
    }

    fn take(mut self) -> Runtime {
        self.0.take().expect("it is taken only once, by value")
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

async fn blocking_open<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| OpenError::Failed(error.to_string()))?
}

async fn open_on(
    runtime: &Runtime,
    config: Config,
    progress: &OpenProgress,
) -> Result<(Started, Service), OpenError> {
    let (blocking, reporting) = (config.clone(), progress.clone());
    let opened = blocking_open(move || Parts::open(&blocking, &reporting)).await?;
    let tls = config.tls.clone().map(Tls::new).transpose()?;
    let message_bytes_max = config.transaction_bytes_max + MESSAGE_BYTES_MORE;
    let identity = match &opened {
        Opened::Replica(parts) => Some(parts.identity),
        Opened::Fresh(_) => None,
    };
    let process = new_instance().map_err(|source| random_failed(&config.data_dir, source))?;
    let service = Service::new(config.replica_id, identity, process);
    let mut address = config.advertise.clone();
    if let Some(listen) = config.listen {
        let bound = runtime.spawn(TcpListener::bind(listen)).await;
        let failed = |source| OpenError::Listen { address: listen, source };
        let listener = bound.map_err(|error| failed(error.into()))?.map_err(failed)?;
        if address.is_empty() {
            address = listener.local_addr().map_err(failed)?.to_string();
        }
        let (service, connections_max) = (service.clone(), config.connections_max);
        runtime.spawn(service.serve(listener, message_bytes_max, connections_max, tls.clone()));
    }
    let peers = Peers::new(message_bytes_max, tls);
    let parts = match opened {
        Opened::Replica(parts) => {
            let Parts { identity, recovered, .. } = &*parts;
            let warning = join::no_effect(&config, *identity, &recovered.image.membership);
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            *parts
        }
        Opened::Fresh(directory) => {
            if !config.join.is_empty() || config.peers.len() > 1 {
                progress.on_joining();
            }
            begin(runtime, &config, directory, address.clone(), peers.clone()).await?
        }
    };
    progress.on_starting();
    let started = start(runtime, config, parts, address, peers, process).await?;
    Ok((started, service))
}

/// Makes a replica in an empty directory. Waits until a cluster has admitted it, unless it forms one.
async fn begin(
    runtime: &Runtime,
    config: &Config,
    directory: Directory,
    address: String,
    peers: Peers,
) -> Result<Parts, OpenError> {
    let (config, id) = (config.clone(), config.replica_id);
    let instance = new_instance().map_err(|source| random_failed(directory.path(), source))?;
    let joining = runtime.spawn(async move {
        let joiner = Joiner { config: &config, address: &address, instance, peers: &peers };
        joiner.begin().await
    });
    let abort = AbortOnDrop(joining.abort_handle());
    let bootstrap = joining.await.map_err(|error| OpenError::Failed(error.to_string()))??;
    drop(abort);
    blocking_open(move || Parts::begin(directory, bootstrap, id)).await
}

/// Aborts a task on drop, when no caller waits for it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn start(
    runtime: &Runtime,
    config: Config,
    parts: Parts,
    address: String,
    peers: Peers,
    process: u64,
) -> Result<Started, OpenError> {
    let Parts { directory, identity, high_water, database, recovered, start } = parts;
    let known_term = recovered.ends.vote.as_ref().map_or(0, |vote| vote.leader_id().term);
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    let database = Arc::new(database);
    let storage::Started { storage, log, machine, flusher, opener } =
        Storage::start(&config, &database, high_water, recovered, &failure, &metrics)
            .map_err(|error| OpenError::Failed(error.to_string()))?;
    let elections = metrics.cluster.elections.clone();
    elections.begin_after(known_term);
    let network = Network { identity, peers: peers.clone(), elections };
    let raft = match start_raft(runtime, &config, network, log, machine).await {
        Ok(raft) => raft,
        Err(error) => {
            // No other handle of the log exists, so the flusher ends.
            drop(flusher.join());
            return Err(error);
        }
    };
    let calls = Calls { identity, peers, runtime: runtime.handle().clone() };
    let (outbox, writes) = outbox::channel();
    let parts =
        CoreParts { config, process, address, storage, raft, calls, outbox, failure, metrics };
    let core = {
        let _on_runtime = runtime.enter();
        Arc::new(Core::new(parts))
    };
    spawn_tasks(runtime, &core, &database, writes, opener);
    Ok((core, database, flusher, directory, start))
}

/// Starts Raft. If that fails, drops the log.
async fn start_raft(
    runtime: &Runtime,
    config: &Config,
    network: Network,
    log: LogStore,
    machine: Machine,
) -> Result<Raft, OpenError> {
    let id = config.replica_id;
    let settings = Arc::new(raft_settings::raft_config(config, network.identity)?);
    let failed = |error: &dyn std::fmt::Display| OpenError::Failed(error.to_string());
    let raft =
        runtime.spawn(async move { Raft::new(id, settings, network, log, machine).await }).await;
    raft.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

/// Runs a task without which the replica would look healthy and lack a part. If it panics, the replica fails. `name` is
/// its name in the log, with an article.
async fn critical(
    name: &'static str,
    failure: Failure,
    task: impl Future<Output = ()> + Send + 'static,
) {
    if let Err(error) = tokio::spawn(task).await
        && error.is_panic()
    {
        failure.set(format!("{name} has ended because of a defect: {error}; restart the replica"));
    }
}

/// Spawns the tasks of a replica, which run until the runtime ends.
fn spawn_tasks(
    runtime: &Runtime,
    core: &Arc<Core>,
    database: &Arc<Database>,
    writes: mpsc::Receiver<ForwardedWrite>,
    opener: Opener,
) {
    let maintenance = Maintenance {
        core: Arc::clone(core),
        database: Arc::clone(database),
        table_bytes_least: 0,
        previous: Previous::new(core.id()),
    };
    let sender = outbox::Sender {
        node: Arc::clone(&core.node),
        calls: core.calls.clone(),
        forwarded_writes: core.metrics.forwarded_writes.clone(),
        transact_timeout: core.config.transact_timeout,
    };
    let failure = || core.failure.clone();
    let hand_over = HandOver { core: Arc::clone(core) };
    runtime.spawn(critical("the maintenance of the log", failure(), maintenance.run()));
    runtime.spawn(critical("the watch of the disk space", failure(), hand_over.run()));
    runtime.spawn(critical("the sender of forwarded writes", failure(), sender.run(writes)));
    runtime.spawn(critical("the watch of the membership", failure(), core.reconciler().run()));
    let comparison = Arc::clone(&core.comparison).run();
    runtime.spawn(critical("the comparison with other replicas", failure(), comparison));
    runtime.spawn(critical("the task that opens secrets", failure(), opener.run()));
    if let Some(tls) = core.calls.peers.tls() {
        let keep_fresh = tls.certificates().clone().keep_fresh();
        runtime.spawn(critical("the watch of the certificates", failure(), keep_fresh));
    }
}

// === impl Threads ===

impl Threads {
    /// Waits for all threads that hold the database, then closes the database, then releases the
    /// directory.
    pub(crate) async fn end(self) -> Result<(), ShutdownError> {
        let ended = tokio::task::spawn_blocking(move || self.end_blocking()).await;
        ended.map_err(|error| ShutdownError(error.to_string()))?
    }

    pub(crate) fn end_blocking(self) -> Result<(), ShutdownError> {
        let Self { runtime, flusher, database, directory } = self;
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        let joined = flusher.join().map_err(ShutdownError);
        drop(database);
        drop(directory);
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_critical_task_fails_the_replica() {
        let failure = Failure::default();
        critical("the short task", failure.clone(), async {}).await;
        assert_eq!(failure.get(), None);
        critical("the broken task", failure.clone(), async { panic!("on purpose") }).await;
        let reason = failure.get().unwrap();
        assert!(reason.starts_with("the broken task has ended because of a defect: "), "{reason}");
    }
}
