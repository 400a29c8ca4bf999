//! The command `chancery serve`: starts the components, runs them, and stops them in order.
//!
//! Order of the start: store, shards, admin port, catching up with the cluster (OPS-04), xDS port,
//! ready line. When the store is open, its state is loaded and the replica is a member of a cluster.
//!
//! Order of the end (OPS-15): leadership moves to another replica, the replica is no longer ready,
//! streams of clients, admin requests, shards, store. Each step of the end has a time limit.

mod audit;
mod body;
mod descriptors;
mod files;
mod listen;
mod log;
mod mcp_sources;
mod ports;
mod read_index;
mod remote_sinks;
mod signals;
mod store;
mod traces;
mod unix_socket;

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use chancery_admin::AdminDeps;
use chancery_audit::{Audit, Port};
use chancery_auth::Authenticator;
use chancery_fanout::{AccessControl, Fanout};
use chancery_load::LoadReports;
use chancery_metrics::{Metric, MetricKind};
use chancery_model::Printable;
use chancery_store::{CaughtUp, Removal, Replica};
use chancery_tls::{PortTls, TlsConfig};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, error, info, warn};

use crate::{
    cli::Failure,
    config::{Config, Loaded},
};
pub(crate) use files::open_files_needed;
pub(crate) use listen::Limits;
use mcp_sources::McpSources;
use ports::{listen_on, take_port};
use read_index::LeaderReadIndex;
use signals::Signals;
use store::Opened;

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The metrics of the binary itself.
const METRICS: &[Metric] = &[Metric::new(
    "chancery_build_info",
    MetricKind::Gauge,
    "Always 1; the label version is the version of the program",
)];
/// The interval at which histograms process their samples, whether or not anybody reads the
/// metrics.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// The threads of the admin port. Writes, queries and health checks do not wait for work on
/// streams.
const ADMIN_THREADS: usize = 2;
/// The maximum time for shards to end after their streams.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(2);
/// The minimum time for admin requests to end after the streams, even if the streams have used up
/// the common time limit.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time for another replica to take over leadership. The store gives up earlier.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(4);
/// The maximum time for threads to end at the end of the process. A request that still reads a huge
/// input must not delay the end. A store that is still in use must be closed before the process
/// ends.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);
const LOADING_TIMEOUT: Duration = Duration::from_secs(30);
const ADMIN: listen::Kind = listen::Kind {
    port: "admin",
    too_many: "all connections are busy with requests (admin.connections_max)",
    is_for_streams: false,
};
/// The upper bounds of histogram buckets for times, in seconds. They range from an fsync on a fast
/// disk to the time that a client waits.
const SECONDS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];
/// The upper bounds of histogram buckets for sizes, in bytes. One bound is the default message
/// limit of gRPC clients. Full states are larger.
const BYTES: [f64; 10] = [
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Runs a replica until a signal ends it.
///
/// # Errors
/// Fails if the replica cannot start or cannot end cleanly.
pub(crate) fn run(loaded: Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    log::start(&loaded.config.log).map_err(Failure::new)?;
    for warning in &loaded.warnings {
        warn!("{}", Printable(warning));
    }
    let metrics = start_metrics()?;
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
    let result = runtime.block_on(serve(&loaded, metrics, admin.handle(), out));
    admin.shutdown_timeout(THREADS_TIMEOUT);
    runtime.shutdown_timeout(match result {
        Ok(Closed::Yes) | Err(_) => THREADS_TIMEOUT,
        Ok(Closed::NeverOpen) => LOADING_TIMEOUT,
    });
    result.map(drop)
}

fn start_metrics() -> Result<PrometheusHandle, Failure> {
    let fail = |error| Failure::new(format_args!("cannot start metrics: {error}"));
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), &BYTES)
        })
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| fail(error.to_string()))?;
    chancery_metrics::describe(METRICS);
    chancery_tls::register_metrics();
    chancery_auth::register_metrics();
    chancery_secrets::register_metrics();
    chancery_trace::register_metrics();
    metrics::gauge!("chancery_build_info", "version" => VERSION).set(1.0);
    Ok(handle)
}

async fn serve(
    loaded: &Loaded,
    metrics: PrometheusHandle,
    admin: &Handle,
    out: &mut dyn Write,
) -> Result<Closed, Failure> {
    let audit = audit::start(&loaded.config).await?;
    let ended = serve_audited(loaded, metrics, admin, &audit, out).await;
    audit::stop(&audit, &ended).await;
    ended
}

async fn serve_audited(
    loaded: &Loaded,
    metrics: PrometheusHandle,
    admin: &Handle,
    audit: &Audit,
    out: &mut dyn Write,
) -> Result<Closed, Failure> {
    let config = &loaded.config;
    let mut signals = Signals::new()
        .map_err(|error| Failure::new(format_args!("cannot install signal handlers: {error}")))?;
    let data_dir = config.store.data_dir.display();
    info!(version = VERSION, %data_dir, replica_id = config.raft.replica_id, "starting");
    files::raise_limit(config);
    descriptors::load(&config.xds.descriptor_sets)?;
    let start = Instant::now();
    let warm_up = tokio::task::spawn_blocking(chancery_admin::warm_up);
    let opened = store::open(loaded, &mut signals).await?;
    // The warm-up runs parallel to the start of the store and ends before the ready line. The first
    // write is then as fast as the second. If the warm-up fails, the first write reports the error.
    let is_warm = warm_up.await.is_ok();
    debug!(is_warm, time = ?start.elapsed(), "descriptors are read");
    let (replica, ended) = match opened {
        Opened::Ended(signal, None) => {
            info!(signal, "stopped");
            return Ok(Closed::NeverOpen);
        }
        Opened::Ended(_, Some(replica)) => (replica, Ok(())),
        Opened::Replica(replica) => {
            let shared = Shared { config, metrics, admin, audit };
            let ended = run_parts(shared, &replica, out, &mut signals).await;
            (replica, ended)
        }
    };
    info!("closing the store");
    let closed = store::close(&replica, &mut signals).await;
    if closed.is_ok() {
        info!("stopped");
    }
    // The first error explains more.
    ended.and(closed).map(|()| Closed::Yes)
}

/// Runs all components except the store, until a signal or a failure ends them.
async fn run_parts(
    shared: Shared<'_>,
    replica: &Replica,
    out: &mut dyn Write,
    signals: &mut Signals,
) -> Result<(), Failure> {
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
            }
        }
        Err(failure) => Ended::Part(failure.lines.join("; ")),
    };
    tokio::select! {
        () = running.stop(config, replica, &ended) => {}
        _ = signals.next() => signals::end_now(),
    }
    match ended {
        Ended::Signal(_) => Ok(()),
        Ended::Part(reason) => Err(Failure::new(reason)),
    }
}

/// Prints the ready line on standard output. The replica continues if nobody reads it.
fn announce(running: &Running, replica: &Replica, out: &mut dyn Write) {
    if running.xds.is_none() {
        return;
    }
    let raft = match replica.raft_address() {
        "" => "none",
        address => address,
    };
    let (xds, admin) = (running.xds_address, running.admin_address);
    info!(%xds, %admin, raft, "ready");
    let line = format!("chancery ready xds={xds} admin={admin} raft={raft}");
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        warn!(%error, "cannot write the ready line");
    }
}

/// The parts that the components have in common.
struct Shared<'a> {
    config: &'a Config,
    metrics: PrometheusHandle,
    /// The threads of the admin port.
    admin: &'a Handle,
    audit: &'a Audit,
}

/// How the use of the store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    Yes,
    /// The process ends before the store was open. Threads may still read it.
    NeverOpen,
}

/// The reason why a replica ends.
enum Ended {
    Signal(&'static str),
    /// A component that must not end has ended.
    Part(String),
}

impl Ended {
    fn removed(removal: Removal) -> Self {
        Self::Part(format!("this replica {removal}"))
    }
}

/// The running components of a replica.
struct Running {
    xds_address: SocketAddr,
    admin_address: SocketAddr,
    fanout: Fanout,
    load_reports: Option<LoadReports>,
    /// The socket of the discovery services. It is taken when they start.
    xds_socket: Option<TcpSocket>,
    mcp: McpSources,
    /// The certificates of the port of the discovery services.
    xds_tls: Option<PortTls>,
    auth: Authenticator,
    /// `None` until the replica has caught up.
    xds: Option<JoinHandle<io::Result<()>>>,
    admin: JoinHandle<()>,
    /// Cancelled when the discovery services start: the replica is ready.
    started: CancellationToken,
    /// Cancelled at the start of the shutdown: the replica is no longer ready, and ends the streams
    /// of its clients.
    drain: CancellationToken,
    /// Cancelled after the streams have ended.
    stop_admin: CancellationToken,
    /// Cancelled when nothing can reach the shards.
    stop_shards: CancellationToken,
    shards: TaskTracker,
}

impl Running {
    /// Starts all components except the discovery services. Their port is bound, but refuses
    /// connections.
    async fn start(shared: Shared<'_>, replica: Replica) -> Result<Self, Failure> {
        let Shared { config, metrics, admin: admin_runtime, audit } = shared;
        let (xds_socket, xds_address) = take_port("xds.address", config.xds.address)?;
        let (admin_socket, admin_address) = take_port("admin.address", config.admin.address)?;
        let admin_listener = {
            let _admin = admin_runtime.enter();
            listen_on("admin.address", admin_socket, admin_address)?
        };
        let (drain, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let (shards, stop_shards) = (TaskTracker::new(), CancellationToken::new());
        audit::keep_fresh(audit, &shards, &stop_shards);
        let open_tls = |files, port| open_tls(files, audit, port, &shards, &stop_shards);
        let admin_tls = open_tls(config.admin.tls(), Port::Admin)?;
        let xds_tls = open_tls(config.xds.tls(), Port::Xds)?;
        let mcp_tls = open_tls(config.mcp.tls(), Port::Mcp)?;
        let auth = open_auth(config, &shards, &stop_shards)?;
        warn_of_open_ports(config);
        let started = CancellationToken::new();
        chancery_xds::register_metrics();
        let timeout = config.xds.catch_up_timeout.duration();
        let fresh = LeaderReadIndex { replica: replica.clone(), timeout };
        let observer = audit::observe_clients(audit);
        let settings = chancery_fanout::Config { observer, ..config.fanout() };
        let fanout = Fanout::spawn(settings, replica.watch(), &shards, stop_shards.clone())
            .with_fresh(Arc::new(fresh));
        shards.spawn(run_metrics_upkeep(metrics.clone(), stop_shards.clone()));
        let load_reports = config.load_reports().map_err(Failure::new)?;
        let mcp = McpSources::start(config, &replica, mcp_tls, &shards, &drain)?;
        let (router, update_references) = chancery_admin::router(&AdminDeps {
            tracer: traces::start(config, &replica, &shards, &stop_shards)?,
            replica,
            fanout: fanout.clone(),
            metrics: Arc::new(move || metrics.render()),
            started: started.clone(),
            drain: drain.clone(),
            request_bytes_max: config.admin.request_bytes_max.bytes(),
            hosts: config.admin_hosts(),
            version: VERSION,
            load_reports: load_reports.clone(),
            sources: mcp.sources.clone(),
            guards: config.guards(),
            validation: config.validation.modes(),
            references: config.references(),
            external: config.validation.external(),
            access: config.admin_access(&auth),
            audit: audit.clone(),
            log: log::filter(),
        });
        admin_runtime.spawn(update_references);
        let stop = stop_admin.clone();
        let admin = serve_admin(config, admin_listener, admin_tls, router, admin_runtime, stop)?;
        info!(admin = %admin_address, "the admin API is up");
        Ok(Self {
            xds_address,
            admin_address,
            fanout,
            load_reports,
            xds_socket: Some(xds_socket),
            mcp,
            xds_tls,
            auth,
            xds: None,
            admin,
            started,
            drain,
            stop_admin,
            stop_shards,
            shards,
        })
    }

    /// Starts the discovery services when the replica has caught up with its cluster, so that no
    /// client receives an older state than before. If the replica finds no leader in time, it
    /// starts with its own state.
    async fn begin(&mut self, config: &Config, replica: &Replica) -> Result<(), Failure> {
        let patience = config.raft.catch_up_timeout.duration();
        let caught_up = replica.catch_up(patience).await.map_err(Failure::new)?;
        if replica.diverged().is_some() {
            // The replica is not ready and reports that. Connections of clients are refused.
            return Ok(());
        }
        if caught_up == CaughtUp::Alone {
            let revision = replica.state().revision.0;
            warn!(
                revision,
                "no leader was found within {patience:?}; serving the state of this replica, which may be \
                 older than that of other replicas; writes wait for a majority of the voters"
            );
        }
        replica.open_secrets().await;
        let Some(socket) = self.xds_socket.take() else { return Ok(()) };
        let listener = listen_on("xds.address", socket, self.xds_address)?;
        let (fanout, stop, drain) =
            (self.fanout.clone(), self.drain.clone(), self.drain.child_token());
        let load_reports = self.load_reports.clone();
        let (tls, auth) = (self.xds_tls.clone(), Some(self.auth.clone()));
        let settings = chancery_xds::Config { tls, auth, load_reports, ..config.xds() };
        for remote in config.remote_sinks(self.mcp.tls.as_ref()) {
            let (fanout, settings) = (fanout.clone(), settings.clone());
            let (replica, drain) = (replica.clone(), drain.clone());
            tokio::spawn(remote_sinks::serve_while_leader(
                remote, replica, fanout, settings, drain,
            ));
        }
        self.mcp.listen(&drain)?;
        let xds = chancery_xds::serve(listener, fanout, settings, drain.clone());
        let replica = replica.clone();
        self.xds = Some(tokio::spawn(async move {
            let mut xds = std::pin::pin!(xds);
            tokio::select! {
                ended = &mut xds => ended,
                // Streams end and no new ones are accepted. The admin API reports the reason.
                _ = replica.until_diverged() => {
                    drain.cancel();
                    xds.await?;
                    stop.cancelled().await;
                    Ok(())
                }
            }
        }));
        self.started.cancel();
        Ok(())
    }

    /// Waits for a signal, or for the end of a component that must not end.
    async fn until_ended(&mut self, signals: &mut Signals) -> Ended {
        let xds = async {
            match &mut self.xds {
                Some(xds) => xds.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = signals.next() => Ended::Signal(signal),
            ended = xds => Ended::Part(match ended {
                Ok(Ok(())) => "the discovery services have ended".to_owned(),
                Ok(Err(error)) => format!("the discovery services have failed: {error}"),
                Err(error) => format!("the discovery services have failed: {error}"),
            }),
            ended = &mut self.admin => Ended::Part(match ended {
                Ok(()) => "the admin API has ended".to_owned(),
                Err(error) => format!("the admin API has failed: {error}"),
            }),
        }
    }

    /// Stops all components except the store. First another replica takes over leadership, so that
    /// no write must wait for an election.
    async fn stop(mut self, config: &Config, replica: &Replica, reason: &Ended) {
        match reason {
            Ended::Signal(signal) => info!(signal, "draining"),
            Ended::Part(reason) => error!(%reason, "draining"),
        }
        if timeout(STEP_DOWN_TIMEOUT, replica.step_down()).await.is_err() {
            warn!("no other replica has taken over leadership within {STEP_DOWN_TIMEOUT:?}");
        }
        self.drain.cancel();
        let patience = config.shutdown.timeout.duration();
        let start = Instant::now();
        if let Some(xds) = self.xds.as_mut().filter(|xds| !xds.is_finished())
            && timeout(patience, &mut *xds).await.is_err()
        {
            warn!("streams have not ended within {patience:?}; aborting them");
            xds.abort();
        }
        self.stop_admin.cancel();
        let left = patience.saturating_sub(start.elapsed()).max(ADMIN_TIMEOUT);
        if !self.admin.is_finished() && timeout(left, &mut self.admin).await.is_err() {
            warn!("admin requests have not ended within {left:?}; aborting them");
            self.admin.abort();
        }
        self.stop_shards.cancel();
        self.shards.close();
        if timeout(SHARDS_TIMEOUT, self.shards.wait()).await.is_err() {
            warn!("shards have not ended within {SHARDS_TIMEOUT:?}");
        }
    }
}

/// Reads the certificates of a port, if it uses TLS. A task reads them again when their files change.
fn open_tls(
    files: Option<TlsConfig>,
    audit: &Audit,
    port: Port,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Option<PortTls>, Failure> {
    let tls = files.map(PortTls::new).transpose().map_err(Failure::new)?;
    if let Some(tls) = tls.clone() {
        audit::observe_handshakes(audit, &tls, port);
        let stop = stop.clone();
        tasks.spawn(async move { stop.run_until_cancelled(tls.keep_fresh()).await });
    }
    Ok(tls)
}

/// Serves the admin API on its port, and on its UNIX socket if it has one.
fn serve_admin(
    config: &Config,
    listener: TcpListener,
    tls: Option<PortTls>,
    router: Router,
    runtime: &Handle,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, Failure> {
    let connections_max = config.admin.connections_max;
    let limits = config.admin_limits();
    let socket = {
        let _runtime = runtime.enter();
        config.admin.socket().map(unix_socket::bind).transpose()?
    };
    let (by_socket, stop_socket) = (router.clone(), stop.clone());
    let socket = async move {
        if let Some(socket) = socket {
            unix_socket::serve(socket, ADMIN, by_socket, connections_max, limits, stop_socket)
                .await;
        }
    };
    let port = listen::serve(listener, ADMIN, tls.into(), router, connections_max, limits, stop);
    Ok(runtime.spawn(async move {
        tokio::join!(port, socket);
    }))
}

/// Warns about ports on other addresses than loopback at which every caller may do everything.
fn warn_of_open_ports(config: &Config) {
    if config.access.control() == AccessControl::Enforced {
        return;
    }
    for (section, address) in [("xds", config.xds.address), ("admin", config.admin.address)] {
        if !address.ip().is_loopback() {
            warn!(
                %address,
                "every caller that can connect to {section}.address may do everything; to apply access rules, set \
                 access.admins"
            );
        }
    }
}

/// Reads the keys of the issuers of tokens. A task reads them again when they are due.
fn open_auth(
    config: &Config,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Authenticator, Failure> {
    let authenticator = Authenticator::new(&config.auth.settings()).map_err(Failure::new)?;
    let (fresh, stop) = (authenticator.clone(), stop.clone());
    tasks.spawn(async move { stop.run_until_cancelled(fresh.keep_fresh()).await });
    Ok(authenticator)
}

async fn run_metrics_upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(METRICS_UPKEEP);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => metrics.run_upkeep(),
        }
    }
}
