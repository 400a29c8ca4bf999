//! The command `chancery serve`: starts the components, runs them, and stops them in order.
//!
//! Order of the start: admin port, store, shards, catching up with the cluster (OPS-04), xDS port,
//! ready line. Until the store is open, the admin port answers only probes. When the store is open, its
//! state is loaded and the replica is a member of a cluster.
//!
//! Order of the end (OPS-15): leadership moves to another replica, the replica is no longer ready,
//! streams of clients, admin requests, shards, store. Each step of the end has a time limit.

mod admin_port;
mod audit;
mod body;
mod critical;
mod descriptors;
mod event_loops;
mod failure;
mod files;
mod listen;
mod log;
mod log_writer;
mod mcp_sources;
mod memory;
mod metrics;
mod ports;
mod process_metrics;
mod read_index;
mod remote_sinks;
mod restart;
mod running;
mod security;
mod service_manager;
mod signals;
mod store;
mod traces;
mod unix_socket;

use std::{io::Write, net::SocketAddr, process, time::Duration};

use chancery_audit::Audit;
use chancery_config::{Config, Loaded, configured_types};
use chancery_model::Printable;
use chancery_store::Replica;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpSocket, runtime::Handle, time::Instant};
use tracing::{debug, info, warn};

use admin_port::AdminPort;
pub use failure::Failure;
use files::LowLimit;
pub use files::{
    check as check_open_files, fit as fit_open_files, highest_limit, open_files_needed,
};
pub use memory::settle as settle_memory;
use metrics::VERSION;
use ports::take_port;
use restart::Restarts;
use running::{Ended, Running, Shared};
use signals::Signals;
use store::Opened;

/// The threads of the admin port. Writes, queries and health checks do not wait for work on
/// streams.
const ADMIN_THREADS: usize = 2;
/// The maximum time for threads to end at the end of the process. A request that still reads a huge
/// input must not delay the end. A store that is still in use must be closed before the process
/// ends.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);
/// The same, if the process ends while threads load the store.
const LOADING_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time to write the last lines of the log.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// The exit code of a process that cannot print its failure.
const FAILED: i32 = 1;

/// Runs a replica until a signal ends it.
///
/// # Errors
/// Fails if the replica cannot start or cannot end cleanly.
pub fn run(mut loaded: Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    log::start(&loaded.config).map_err(Failure::new)?;
    let restarts = Restarts::new();
    let mut ended = run_logged(&mut loaded, restarts, out);
    if let Ok(Closed::ForRestart) = &ended {
        log::flush(LOG_TIMEOUT);
        let error = restarts.restart();
        ended = Err(Failure::new(format_args!("cannot restart this process: {error}")));
    }
    if let (false, Err(_)) = (log::flush(LOG_TIMEOUT), &ended) {
        // Nobody reads standard error, so printing the failure would wait forever.
        process::exit(FAILED);
    }
    ended.map(|_| ())
}

fn run_logged(
    loaded: &mut Loaded,
    restarts: Restarts,
    out: &mut dyn Write,
) -> Result<Closed, Failure> {
    for warning in &loaded.warnings {
        warn!("{}", Printable(warning));
    }
    let low_limit = files::raise_limit(&mut loaded.config)?;
    let metrics = metrics::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("chancery")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format_args!("cannot start threads: {error}")))?;
    let admin = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(ADMIN_THREADS)
        .thread_name("chancery-admin")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format_args!("cannot start threads: {error}")))?;
    chancery_metrics::register_runtime("chancery", runtime.handle());
    chancery_metrics::register_runtime("chancery-admin", admin.handle());
    let mut signals = None;
    let parts = (metrics, restarts, low_limit);
    let ended = runtime.block_on(serve(loaded, parts, admin.handle(), &mut signals, out));
    if let (Ok(Closed::NeverOpen), Some(signals)) = (&ended, signals) {
        // The threads of the other runtime still receive signals.
        admin.spawn(signals::end_at_second(signals));
        runtime.shutdown_timeout(LOADING_TIMEOUT);
        admin.shutdown_timeout(THREADS_TIMEOUT);
    } else {
        admin.shutdown_timeout(THREADS_TIMEOUT);
        runtime.shutdown_timeout(THREADS_TIMEOUT);
    }
    if let Ok(Closed::ForRestart) = ended {
        info!("restarting");
    } else if ended.is_ok() {
        info!("stopped");
    }
    ended
}

async fn serve(
    loaded: &Loaded,
    parts: (PrometheusHandle, Restarts, Option<LowLimit>),
    admin: &Handle,
    signals: &mut Option<Signals>,
    out: &mut dyn Write,
) -> Result<Closed, Failure> {
    let audit = audit::start(&loaded.config).await?;
    let signals =
        signals.insert(Signals::new().map_err(|error| {
            Failure::new(format_args!("cannot install signal handlers: {error}"))
        })?);
    let ended = serve_audited(loaded, parts, admin, &audit, signals, out).await;
    tokio::select! {
        () = audit::stop(&audit, &ended) => ended,
        () = signals.second() => signals::end_now(),
    }
}

async fn serve_audited(
    loaded: &Loaded,
    (metrics, restarts, low_limit): (PrometheusHandle, Restarts, Option<LowLimit>),
    admin: &Handle,
    audit: &Audit,
    signals: &mut Signals,
    out: &mut dyn Write,
) -> Result<Closed, Failure> {
    let config = &loaded.config;
    let data_dir = config.store.data_dir.display();
    info!(version = VERSION, %data_dir, replica_id = config.raft.replica_id, "starting");
    if let Some(low) = low_limit {
        low.log(config);
    }
    let xds = take_port("xds.address", config.xds.address)?;
    let mut port = AdminPort::open(config, audit, &metrics, admin)?;
    service_manager::start(&port, config);
    let ended =
        serve_store(loaded, (metrics, restarts), audit, (&mut port, xds), signals, out).await;
    tokio::select! {
        () = port.end() => ended,
        () = signals.second() => signals::end_now(),
    }
}

/// Configures the types of `xds.types`, before the store and the streams use them.
fn configure_types(config: &Config) -> Result<(), Failure> {
    let types = configured_types(&config.xds.types);
    let configured = types.and_then(|types| chancery_model::types::configure(&types));
    configured.map_err(|error| Failure::new(format_args!("xds.types: {error}")))
}

/// Opens the store, runs the other components, and closes the store.
async fn serve_store(
    loaded: &Loaded,
    (metrics, restarts): (PrometheusHandle, Restarts),
    audit: &Audit,
    (port, xds): (&mut AdminPort, (TcpSocket, SocketAddr)),
    signals: &mut Signals,
    out: &mut dyn Write,
) -> Result<Closed, Failure> {
    let config = &loaded.config;
    descriptors::load(&config.xds.descriptor_sets)?;
    configure_types(config)?;
    let start = Instant::now();
    let warm_up = tokio::task::spawn_blocking(chancery_admin::warm_up);
    let opened = store::open(loaded, &port.progress, signals).await?;
    // The warm-up runs parallel to the start of the store and ends before the ready line. The first
    // write is then as fast as the second. If the warm-up fails, the first write reports the error.
    let is_warm = warm_up.await.is_ok();
    debug!(is_warm, time = ?start.elapsed(), "descriptors are read");
    let (replica, ended) = match opened {
        Opened::Ended(None) => return Ok(Closed::NeverOpen),
        Opened::Ended(Some(replica)) => (replica, Ok(Closed::Yes)),
        Opened::Replica(replica) => {
            let shared = Shared { config, metrics, audit, port, xds };
            let ended = run_parts(shared, &replica, restarts, out, signals).await;
            (replica, ended)
        }
    };
    info!("closing the store");
    let closed = store::close(&replica, signals).await;
    match (ended, closed) {
        // Nothing of the failed store is needed, and service managers send a signal to a process that is ending.
        (Ok(Closed::ForRestart), closed) if !signals.have_arrived() => {
            if let Err(failure) = closed {
                warn!("the failed store did not close in order: {failure}");
            }
            Ok(Closed::ForRestart)
        }
        // The first error explains more.
        (ended, closed) => ended.and(closed).map(|()| Closed::Yes),
    }
}

/// Runs all components except the store, until a signal or a failure ends them.
async fn run_parts(
    shared: Shared<'_>,
    replica: &Replica,
    restarts: Restarts,
    out: &mut dyn Write,
    signals: &mut Signals,
) -> Result<Closed, Failure> {
    let config = shared.config;
    let mut running = Running::start(shared, replica.clone()).await?;
    let began = tokio::select! {
        began = running.begin(config, replica) => began.map(|()| None),
        ended = signals.next() => Ok(Some(Ended::Signal(ended))),
        removal = replica.removed() => Ok(Some(Ended::removed(removal))),
    };
    let ended = match began {
        Ok(Some(ended)) => ended,
        Ok(None) => {
            announce(&running, replica, out);
            tokio::select! {
                ended = running.until_ended(signals) => ended,
                // The state of a removed replica becomes outdated unnoticed (L5). Its clients must
                // connect to other replicas.
                removal = replica.removed() => Ended::removed(removal),
                reason = replica.disk_works_again(restarts.steady()) => Ended::DiskWorks(reason),
            }
        }
        Err(failure) => Ended::Part(failure.to_string()),
    };
    tokio::select! {
        () = running.stop(config, replica, &ended) => {}
        () = signals.second() => signals::end_now(),
    }
    match ended {
        Ended::Signal(_) => Ok(Closed::Yes),
        Ended::DiskWorks(_) => Ok(Closed::ForRestart),
        Ended::Part(reason) => Err(Failure::new(reason)),
    }
}

/// Prints the ready line on standard output. The replica continues if nobody reads it.
fn announce(running: &Running<'_>, replica: &Replica, out: &mut dyn Write) {
    if running.xds.is_none() {
        return;
    }
    let raft = match replica.raft_address() {
        "" => "none",
        address => address,
    };
    let (xds, admin) = (running.xds_address, running.port.address);
    info!(%xds, %admin, raft, "ready");
    let line = format!("chancery ready xds={xds} admin={admin} raft={raft}");
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        warn!(%error, "cannot write the ready line");
    }
}

/// How the use of the store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    Yes,
    /// The process starts again.
    ForRestart,
    /// The process ends before the store was open. Threads may still read it.
    NeverOpen,
}
