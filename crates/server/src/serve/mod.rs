//! `chancery serve`: puts the parts together, runs them, and takes them down in order.
//!
//! Order of start: store (until its state is loaded and caught up, OPS-04), shards, ports, the line
//! that says ready. Order of end (OPS-15): not ready any more, streams of clients, admin requests,
//! shards, store. Each step has a limit in time.

mod activity;
mod body;
mod files;
mod listen;
mod log;
mod signals;

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use chancery_admin::AdminDeps;
use chancery_fanout::Fanout;
use chancery_store::Replica;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, error, info, warn};

use crate::{
    cli::Failure,
    config::{Config, Loaded},
};
pub(crate) use activity::Limits;
use signals::Signals;

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Samples of histograms are folded in this often, whether or not anybody asks for metrics.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// How long shards may take to end once their streams have.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long admin requests may take to end once the streams have, if those have used up the time
/// for all.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the store may take to end.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bounds of the buckets of times, in seconds: from an fsync on fast disks to a client's
/// patience.
const SECONDS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];
/// Upper bounds of the buckets of sizes, in bytes: one is what a gRPC client takes by default, and
/// beyond it are full states.
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
/// What kept it from starting, or from ending cleanly.
pub(crate) fn run(loaded: Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    log::start(&loaded.config.log).map_err(Failure::new)?;
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    let metrics = start_metrics()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("chancery")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format_args!("cannot start threads: {error}")))?;
    let result = runtime.block_on(serve(&loaded.config, metrics, out));
    // A request that still reads a huge input must not hold the process up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
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
    metrics::describe_gauge!("chancery_build_info", "1, with the version of the program");
    metrics::gauge!("chancery_build_info", "version" => VERSION).set(1.0);
    Ok(handle)
}

async fn serve(
    config: &Config,
    metrics: PrometheusHandle,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut signals = Signals::new()
        .map_err(|error| Failure::new(format_args!("cannot take signals: {error}")))?;
    let data_dir = config.store.data_dir.display();
    info!(version = VERSION, %data_dir, replica_id = config.raft.replica_id, "starting");
    files::raise_limit(config.xds.connections_max.saturating_add(config.admin.connections_max));
    let start = Instant::now();
    let warm_up = tokio::task::spawn_blocking(chancery_admin::warm_up);
    let (replica, mut signal) = open(config, &mut signals).await?;
    // At the same time as the store, and before the line that says ready: the first write is then as
    // fast as the second. Should it fail, so will that write, and say so.
    let is_warm = warm_up.await.is_ok();
    debug!(is_warm, time = ?start.elapsed(), "descriptors are read");
    let mut ended = Ok(());
    if signal.is_none() {
        match Running::start(config, replica.clone(), metrics).await {
            Ok(mut running) => {
                announce(&running, out);
                let reason = running.until_ended(&mut signals).await;
                tokio::select! {
                    () = running.stop(config, &reason) => {}
                    _ = signals.next() => signals::end_now(),
                }
                match reason {
                    Ended::Signal(name) => signal = Some(name),
                    Ended::Part(reason) => ended = Err(Failure::new(reason)),
                }
            }
            Err(failure) => ended = Err(failure),
        }
    }
    info!(signal, "closing the store");
    let closed = tokio::select! {
        closed = timeout(STORE_TIMEOUT, replica.shutdown()) => closed,
        _ = signals.next() => signals::end_now(),
    };
    match closed {
        Ok(Ok(())) => info!("stopped"),
        Ok(Err(error)) => return ended.and(Err(Failure::new(error))),
        Err(_) => {
            let text = format!("the store has not ended within {STORE_TIMEOUT:?}");
            return ended.and(Err(Failure::new(text)));
        }
    }
    ended
}

/// Opens the store. A signal in the meantime is given back: the store has to be open to be closed
/// in order.
async fn open(
    config: &Config,
    signals: &mut Signals,
) -> Result<(Replica, Option<&'static str>), Failure> {
    let opening = Replica::open(config.store());
    tokio::pin!(opening);
    let signal = tokio::select! {
        opened = &mut opening => return Ok((opened.map_err(Failure::new)?, None)),
        signal = signals.next() => signal,
    };
    info!(signal, "ending as soon as the store is open");
    tokio::select! {
        opened = opening => Ok((opened.map_err(Failure::new)?, Some(signal))),
        _ = signals.next() => signals::end_now(),
    }
}

/// The one line on the standard output. A replica serves on if nobody reads it.
fn announce(running: &Running, out: &mut dyn Write) {
    let line =
        format!("chancery ready xds={} admin={}", running.xds_address, running.admin_address);
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        warn!(%error, "cannot write the ready line");
    }
}

/// Why a replica ends.
enum Ended {
    Signal(&'static str),
    /// A part that runs for ever has ended.
    Part(String),
}

/// The parts of a replica at work.
struct Running {
    xds_address: SocketAddr,
    admin_address: SocketAddr,
    xds: JoinHandle<io::Result<()>>,
    admin: JoinHandle<()>,
    /// Cancelled first: the replica is not ready any more, and ends its clients' streams.
    drain: CancellationToken,
    /// Cancelled when the streams have ended.
    stop_admin: CancellationToken,
    /// Cancelled when nobody can reach the shards any more.
    stop_shards: CancellationToken,
    shards: TaskTracker,
}

impl Running {
    async fn start(
        config: &Config,
        replica: Replica,
        metrics: PrometheusHandle,
    ) -> Result<Self, Failure> {
        let (xds_listener, xds_address) = bind("xds", config.xds.address).await?;
        let (admin_listener, admin_address) = bind("admin", config.admin.address).await?;
        let (drain, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let (shards, stop_shards) = (TaskTracker::new(), CancellationToken::new());
        let state = replica.watch();
        let fanout = Fanout::spawn(config.fanout(), state, &shards, stop_shards.clone());
        let xds = chancery_xds::serve(xds_listener, fanout.clone(), config.xds(), drain.clone());
        let xds = tokio::spawn(xds);
        shards.spawn(keep_up(metrics.clone(), stop_shards.clone()));
        let router = chancery_admin::router(&AdminDeps {
            replica,
            fanout,
            metrics: Arc::new(move || metrics.render()),
            drain: drain.clone(),
            request_bytes_max: config.admin.request_bytes_max.bytes(),
            version: VERSION,
        });
        let connections_max = config.admin.connections_max;
        let limits = config.admin_limits();
        let admin =
            listen::serve(admin_listener, router, connections_max, limits, stop_admin.clone());
        let admin = tokio::spawn(admin);
        info!(xds = %xds_address, admin = %admin_address, "ready");
        info!(raft = %config.raft.address, "a cluster of one: the address for other replicas is not listened on");
        Ok(Self { xds_address, admin_address, xds, admin, drain, stop_admin, stop_shards, shards })
    }

    /// Waits for a signal, or for a part to end that must not.
    async fn until_ended(&mut self, signals: &mut Signals) -> Ended {
        tokio::select! {
            signal = signals.next() => Ended::Signal(signal),
            ended = &mut self.xds => Ended::Part(match ended {
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

    /// Takes all down but the store.
    async fn stop(mut self, config: &Config, reason: &Ended) {
        match reason {
            Ended::Signal(signal) => info!(signal, "draining"),
            Ended::Part(reason) => error!(%reason, "draining"),
        }
        self.drain.cancel();
        let patience = config.shutdown.timeout.duration();
        let start = Instant::now();
        if !self.xds.is_finished() && timeout(patience, &mut self.xds).await.is_err() {
            warn!("streams have not ended within {patience:?}: cutting them");
            self.xds.abort();
        }
        self.stop_admin.cancel();
        let left = patience.saturating_sub(start.elapsed()).max(ADMIN_TIMEOUT);
        if !self.admin.is_finished() && timeout(left, &mut self.admin).await.is_err() {
            warn!("admin requests have not ended within {left:?}: cutting them");
            self.admin.abort();
        }
        self.stop_shards.cancel();
        self.shards.close();
        if timeout(SHARDS_TIMEOUT, self.shards.wait()).await.is_err() {
            warn!("shards have not ended within {SHARDS_TIMEOUT:?}");
        }
    }
}

async fn bind(what: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let fail = |error: io::Error| {
        Failure::new(format_args!("cannot listen on {address} ({what}.address): {error}"))
    };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((listener, bound))
}

async fn keep_up(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(METRICS_UPKEEP);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => metrics.run_upkeep(),
        }
    }
}
