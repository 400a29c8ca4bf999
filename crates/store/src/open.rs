//! The start of a replica (directory, threads, Raft), and its end.

use std::{
    sync::{Arc, Weak, atomic::AtomicBool},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{Semaphore, watch},
};

use crate::{
    Config, OpenError, ShutdownError,
    disk::{
        database::Database,
        directory::Directory,
        flusher::Flusher,
        log::LogStore,
        machine::Machine,
        parts::{Opened, Parts, Start, random_failed},
        recovery::Recovered,
        space::Space,
    },
    failure::Failure,
    format::{identity::new_instance, raft::Raft},
    metrics::StoreMetrics,
    replication::{
        client::{Network, Peers},
        cluster_metrics::Watch,
        core::{Core, Leader},
        digests,
        forward::AbortOnDrop,
        join::{self, Joiner},
        maintenance::Maintenance,
        outbox, raft_settings,
        server::Service,
        tls::Tls,
    },
};

/// The number of threads of Raft's runtime. None of them waits for the disk: the log has a separate
/// thread (`crate::disk::flusher`), and entries are applied on threads for blocking work.
const RAFT_THREADS: usize = 2;
/// The time within which Raft's tasks must end after a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Transactions in flight are counted in units of this many bytes.
const PERMIT_BYTES: usize = 1024;
/// The number of bytes by which a message to another replica may exceed a transaction.
const MESSAGE_BYTES_MORE: usize = 16 << 20;
/// The interval between checks of the certificate files.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);
/// The interval between checks of the membership.
const TEND_INTERVAL: Duration = Duration::from_millis(500);

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
pub(crate) async fn open(config: Config) -> Result<Running, OpenError> {
    let runtime = OwnRuntime::new()?;
    let opened = open_on(runtime.get(), config).await;
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
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RAFT_THREADS)
            .thread_name("chancery-raft")
            .enable_all()
            .build()
            .map(|runtime| Self(Some(runtime)))
            .map_err(|error| OpenError::Failed(error.to_string()))
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

async fn open_on(runtime: &Runtime, config: Config) -> Result<(Started, Service), OpenError> {
    let blocking = config.clone();
    let opened = blocking_open(move || Parts::open(&blocking)).await?;
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
            let told = join::no_effect(&config, *identity, &recovered.image.membership);
            if let Some(told) = told {
                tracing::warn!("{told}");
            }
            *parts
        }
        Opened::Fresh(directory) => {
            let (config, address, peers) = (config.clone(), address.clone(), peers.clone());
            let instance =
                new_instance().map_err(|source| random_failed(directory.path(), source))?;
            let beginning = runtime.spawn(async move {
                let joiner = Joiner { config: &config, address: &address, instance, peers: &peers };
                (joiner.begin().await, config.replica_id)
            });
            let abort = AbortOnDrop(beginning.abort_handle());
            let (beginning, id) =
                beginning.await.map_err(|error| OpenError::Failed(error.to_string()))?;
            drop(abort);
            let beginning = beginning?;
            blocking_open(move || Parts::begin(directory, beginning, id)).await?
        }
    };
    let started = start(runtime, config, parts, address, peers, process).await?;
    Ok((started, service))
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
    let failed = |error: &dyn std::fmt::Display| OpenError::Failed(error.to_string());
    let Recovered { ends, size, image, generation } = recovered;
    let known_term = ends.vote.as_ref().map_or(0, |vote| vote.leader_id().term);
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
    let machine =
        Machine::new(Arc::clone(&database), image, generation, failure.clone(), metrics.clone());
    let raft_config = raft_settings::raft_config(&config, identity)?;
    let (id, published, digests) = (config.replica_id, machine.published(), machine.digests());
    let weak_log = log.downgrade();
    let snapshot_progress = machine.progress();
    let elections = metrics.cluster.elections.clone();
    elections.begin_after(known_term);
    let network = Network { identity, peers: peers.clone(), elections };
    let raft = runtime
        .spawn(async move { Raft::new(id, Arc::new(raft_config), network, log, machine).await })
        .await
        .map_err(|error| failed(&error))?;
    let raft = match raft {
        Ok(raft) => raft,
        Err(error) => {
            // No other handle of the log exists, so the flusher ends.
            drop(flusher.join());
            return Err(failed(&error));
        }
    };
    let leader = {
        let _on_runtime = runtime.enter();
        Leader::watch(&raft, id, &peers)
    };
    let (outbox, parcels) = outbox::channel();
    let core = Arc::new(Core {
        leader,
        in_flight: Arc::new(Semaphore::new(permits(config.in_flight_bytes_max) as usize)),
        outbox,
        refused_full: AtomicBool::new(false),
        space: Arc::new(Space::new(&config.data_dir, config.free_bytes_min)),
        heard_at: Mutex::new(Instant::now()),
        snapshot_progress,
        removed: watch::Sender::new(None),
        leads_since: Mutex::default(),
        runtime: runtime.handle().clone(),
        config,
        identity,
        process,
        address,
        raft,
        published,
        digests,
        differences: Mutex::default(),
        diverged: watch::Sender::new(None),
        log: weak_log,
        peers,
        size,
        failure,
        raft_ended: AtomicBool::new(false),
        metrics,
    });
    let maintenance = Maintenance {
        core: Arc::clone(&core),
        database: Arc::clone(&database),
        table_bytes_least: 0,
        handed_over: None,
        watch: Watch::new(id),
    };
    runtime.spawn(maintenance.run());
    runtime.spawn(outbox::run(Arc::downgrade(&core), parcels));
    runtime.spawn(reconcile_cluster(Arc::downgrade(&core)));
    runtime.spawn(digests::run(Arc::downgrade(&core)));
    runtime.spawn(reconcile_certificates(Arc::downgrade(&core)));
    Ok((core, database, flusher, directory, start))
}

pub(crate) fn permits(len: usize) -> u32 {
    u32::try_from(len.div_ceil(PERMIT_BYTES).max(1)).unwrap_or(u32::MAX)
}

/// Reconciles the membership until the replica is gone.
async fn reconcile_cluster(core: Weak<Core>) {
    let mut ticks = tokio::time::interval(TEND_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else { return };
        core.reconcile_members().await;
    }
}

/// Checks for new certificates until the replica is gone. New connections check too, but may be
/// rare.
async fn reconcile_certificates(core: Weak<Core>) {
    let mut ticks = tokio::time::interval(CERTIFICATES_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else { return };
        let Some(tls) = core.peers.tls().cloned() else { return };
        // The files may be on a disk that does not answer.
        if tokio::task::spawn_blocking(move || tls.refresh()).await.is_err() {
            return;
        }
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
