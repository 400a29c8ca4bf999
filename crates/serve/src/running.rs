//! The components of a replica that use the store: their start and their end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use chancery_admin::AdminDeps;
use chancery_audit::{Audit, Port};
use chancery_auth::Authenticator;
use chancery_config::{Config, convert};
use chancery_fanout::Fanout;
use chancery_load::LoadReports;
use chancery_store::{CaughtUp, OwnPort, Removal, Replica};
use chancery_tls::PortTls;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::TcpSocket,
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    admin_port::{ADMIN_TIMEOUT, AdminPort},
    audit,
    critical::CriticalTasks,
    log,
    mcp_sources::McpSources,
    metrics::{self, VERSION},
    ports::listen_on,
    read_index::LeaderReadIndex,
    remote_sinks,
    security::{open_auth, open_tls, warn_of_open_ports},
    signals::Signals,
    traces,
};
use crate::Failure;

/// The maximum time for another replica to take over leadership. The store gives up earlier.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// The parts that the components have in common.
pub(super) struct Shared<'a> {
    pub(super) config: &'a Config,
    pub(super) metrics: PrometheusHandle,
    pub(super) audit: &'a Audit,
    pub(super) port: &'a mut AdminPort,
    /// The socket of the discovery services, which refuses connections.
    pub(super) xds: (TcpSocket, SocketAddr),
}

/// The reason why a replica ends.
pub(super) enum Ended {
    Signal(&'static str),
    /// A component that must not end has ended.
    Part(String),
    /// The store failed for this reason, and its disk works again.
    DiskWorks(String),
}

impl Ended {
    pub(super) fn removed(removal: Removal) -> Self {
        Self::Part(format!("this replica {removal}"))
    }
}

/// The running components of a replica.
pub(super) struct Running<'a> {
    pub(super) xds_address: SocketAddr,
    pub(super) port: &'a mut AdminPort,
    fanout: Fanout,
    load_reports: Option<LoadReports>,
    /// The socket of the discovery services. It is taken when they start.
    xds_socket: Option<TcpSocket>,
    mcp: McpSources,
    /// The certificates of the port of the discovery services.
    xds_tls: Option<PortTls>,
    auth: Authenticator,
    critical: CriticalTasks,
    /// `None` until the replica has caught up.
    pub(super) xds: Option<JoinHandle<io::Result<()>>>,
}

/// Starts the upkeep of the metrics. Without it, the samples of histograms use ever more memory.
fn upkeep(metrics: &PrometheusHandle, stop: &CancellationToken) -> CriticalTasks {
    let mut critical = CriticalTasks::default();
    let upkeep = metrics::run_upkeep(metrics.clone(), stop.clone());
    critical.spawn("the upkeep of the metrics", &Handle::current(), stop, upkeep);
    critical
}

/// Starts the update of references. Without checks of references, there is nothing to update.
fn start_update(
    critical: &mut CriticalTasks,
    port: &AdminPort,
    update_references: impl Future<Output = ()> + Send + 'static,
) {
    let stop = port.drain.clone();
    critical.spawn("the update of references", &port.runtime, &port.drain, async move {
        update_references.await;
        stop.cancelled().await;
    });
}

impl<'a> Running<'a> {
    /// Starts all components except the discovery services. Their port is bound, but refuses
    /// connections.
    pub(super) async fn start(shared: Shared<'a>, replica: Replica) -> Result<Self, Failure> {
        let Shared { config, metrics, audit, port, xds: (xds_socket, xds_address) } = shared;
        let (shards, stop_shards) = (&port.tasks, &port.stop_tasks);
        audit::keep_fresh(audit, shards, stop_shards);
        let open_tls = |files, port| open_tls(files, audit, port, shards, stop_shards);
        let xds_tls = open_tls(config.xds.tls(), Port::Xds)?;
        let mcp_tls = open_tls(config.mcp.tls(), Port::Mcp)?;
        let auth = open_auth(config, shards, stop_shards)?;
        warn_of_open_ports(config);
        chancery_xds::register_metrics();
        let state = replica.watch_served();
        let timeout = config.xds.catch_up_timeout.duration();
        let fresh = LeaderReadIndex { replica: replica.clone(), timeout };
        let observer = audit::observe_clients(audit);
        let settings = chancery_fanout::Config { observer, ..convert::fanout(config) };
        let fanout =
            Fanout::spawn(settings, state, shards, stop_shards.clone()).with_fresh(Arc::new(fresh));
        watch_event_loops(port, &replica, &fanout);
        let mut critical = upkeep(&metrics, stop_shards);
        let load_reports = convert::load_reports(config).map_err(Failure::new)?;
        let mcp =
            McpSources::start(config, &replica, mcp_tls, (&mut critical, shards), &port.drain)?;
        let (router, update_references) = chancery_admin::router(&AdminDeps {
            replica: replica.clone(),
            fanout: fanout.clone(),
            metrics: Arc::new(move || metrics::render(&metrics)),
            liveness: port.event_loops.liveness(),
            readiness: port.readiness.clone(),
            drain: port.drain.clone(),
            request_bytes_max: config.admin.request_bytes_max.bytes(),
            hosts: convert::admin_hosts(config),
            console: convert::console(config),
            version: VERSION,
            load_reports: load_reports.clone(),
            sources: mcp.sources.clone(),
            guards: convert::guards(config),
            validation: config.validation.modes(),
            references: convert::references(config),
            external: config.validation.external(),
            access: convert::admin_access(config, &auth),
            audit: audit.clone(),
            tracer: traces::start(config, &replica, shards, stop_shards)?,
            log: log::filter(),
            recent_nodes: convert::recent_nodes(config),
        });
        let of_port = |name, address, tls| OwnPort { name, address, tls };
        let mcp_ports = mcp.addresses().map(|address| of_port("mcp", address, mcp.tls.clone()));
        let ports = [
            of_port("xds", xds_address, xds_tls.clone()),
            of_port("admin", port.address, port.tls.clone()),
        ];
        replica.set_ports(ports.into_iter().chain(mcp_ports).collect());
        start_update(&mut critical, port, update_references);
        port.readiness.on_shards(fanout.clone());
        port.readiness.on_open(replica);
        port.routes.replace(router);
        info!(admin = %port.address, "the admin API is up");
        Ok(Self {
            xds_address,
            port,
            fanout,
            load_reports,
            xds_socket: Some(xds_socket),
            mcp,
            xds_tls,
            auth,
            critical,
            xds: None,
        })
    }

    /// Starts the discovery services when the replica has caught up with its cluster, so that no
    /// client receives an older state than before. If the replica finds no leader in time, it
    /// starts with its own state.
    pub(super) async fn begin(
        &mut self,
        config: &Config,
        replica: &Replica,
    ) -> Result<(), Failure> {
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
            (self.fanout.clone(), self.port.drain.clone(), self.port.drain.child_token());
        let load_reports = self.load_reports.clone();
        let (tls, auth) = (self.xds_tls.clone(), Some(self.auth.clone()));
        let settings = chancery_xds::Config { tls, auth, load_reports, ..convert::xds(config) };
        let runtime = Handle::current();
        for remote in convert::remote_sinks(config, self.mcp.tls.as_ref()) {
            let (fanout, settings) = (fanout.clone(), settings.clone());
            let (replica, stop) = (replica.clone(), drain.clone());
            let task = remote_sinks::serve_while_leader(remote, replica, fanout, settings, stop);
            self.critical.spawn("the connection to a sink of MCP", &runtime, &drain, task);
        }
        for (name, task) in self.mcp.listen(&drain)? {
            self.critical.spawn(name, &runtime, &drain, task);
        }
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
        self.port.started.cancel();
        Ok(())
    }

    /// Waits for a signal, or for the end of a component that must not end.
    pub(super) async fn until_ended(&mut self, signals: &mut Signals) -> Ended {
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
            reason = self.critical.until_ended() => Ended::Part(reason),
            name = self.fanout.until_task_failed() => Ended::Part(format!("{name} has failed")),
            ended = &mut self.port.served => Ended::Part(match ended {
                Ok(()) => "the admin API has ended".to_owned(),
                Err(error) => format!("the admin API has failed: {error}"),
            }),
        }
    }

    /// Stops all components except the store. First another replica takes over leadership, so that
    /// no write must wait for an election.
    pub(super) async fn stop(mut self, config: &Config, replica: &Replica, reason: &Ended) {
        // A process that starts again does not stop for its service manager.
        if !matches!(reason, Ended::DiskWorks(_)) {
            self.port.stopping.cancel();
        }
        match reason {
            Ended::Signal(signal) => info!(signal, "draining"),
            Ended::Part(reason) => error!(%reason, "draining"),
            Ended::DiskWorks(failure) => {
                warn!(%failure, "the disk works again after a failure: draining, to start again");
            }
        }
        if timeout(STEP_DOWN_TIMEOUT, replica.step_down()).await.is_err() {
            warn!("no other replica has taken over leadership within {STEP_DOWN_TIMEOUT:?}");
        }
        self.port.drain.cancel();
        let patience = config.shutdown.timeout.duration();
        let start = Instant::now();
        if let Some(xds) = self.xds.as_mut().filter(|xds| !xds.is_finished())
            && timeout(patience, &mut *xds).await.is_err()
        {
            warn!("streams have not ended within {patience:?}; aborting them");
            xds.abort();
        }
        // Requests may end after the streams, even if the streams have used up the common time limit.
        let left = patience.saturating_sub(start.elapsed()).max(ADMIN_TIMEOUT);
        self.port.close(left).await;
        self.port.end_tasks().await;
    }
}

/// Watches the threads of Raft and the shards, which carry the streams.
fn watch_event_loops(port: &AdminPort, replica: &Replica, fanout: &Fanout) {
    let watch = (&port.runtime, &port.stop_tasks);
    let raft = replica.clone();
    port.event_loops.watch("the threads of Raft".to_owned(), watch.0, watch.1, move || {
        let raft = raft.clone();
        async move { raft.turn().await }
    });
    for shard in 0..fanout.n_shards() {
        let fanout = fanout.clone();
        port.event_loops.watch(format!("shard {shard}"), watch.0, watch.1, move || {
            let fanout = fanout.clone();
            async move { fanout.turn(shard).await }
        });
    }
}
