//! The components of a replica that use the store: their start and their end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use chancery_admin::AdminDeps;
use chancery_audit::{Audit, Port};
use chancery_auth::Authenticator;
use chancery_fanout::Fanout;
use chancery_load::LoadReports;
use chancery_store::{CaughtUp, Removal, Replica};
use chancery_tls::PortTls;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

use super::{
    audit, listen,
    mcp_sources::McpSources,
    metrics::{self, VERSION},
    ports::{listen_on, take_port},
    read_index::LeaderReadIndex,
    remote_sinks,
    security::{open_auth, open_tls, warn_of_open_ports},
    signals::Signals,
    unix_socket,
};
use crate::{cli::Failure, config::Config};

/// The maximum time for shards to end after their streams.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(2);
/// The minimum time for admin requests to end after the streams, even if the streams have used up
/// the common time limit.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time for another replica to take over leadership. The store gives up earlier.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(4);
const ADMIN: listen::Kind = listen::Kind {
    port: "admin",
    too_many: "all connections are busy with requests (admin.connections_max)",
    is_for_streams: false,
};

/// The parts that the components have in common.
pub(super) struct Shared<'a> {
    pub(super) config: &'a Config,
    pub(super) metrics: PrometheusHandle,
    /// The threads of the admin port.
    pub(super) admin: &'a Handle,
    pub(super) audit: &'a Audit,
}

/// The reason why a replica ends.
pub(super) enum Ended {
    Signal(&'static str),
    /// A component that must not end has ended.
    Part(String),
}

impl Ended {
    pub(super) fn removed(removal: Removal) -> Self {
        Self::Part(format!("this replica {removal}"))
    }
}

/// The running components of a replica.
pub(super) struct Running {
    pub(super) xds_address: SocketAddr,
    pub(super) admin_address: SocketAddr,
    fanout: Fanout,
    load_reports: Option<LoadReports>,
    /// The socket of the discovery services. It is taken when they start.
    xds_socket: Option<TcpSocket>,
    mcp: McpSources,
    /// The certificates of the port of the discovery services.
    xds_tls: Option<PortTls>,
    auth: Authenticator,
    /// `None` until the replica has caught up.
    pub(super) xds: Option<JoinHandle<io::Result<()>>>,
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
    pub(super) async fn start(shared: Shared<'_>, replica: Replica) -> Result<Self, Failure> {
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
        let state = replica.watch();
        let timeout = config.xds.catch_up_timeout.duration();
        let fresh = LeaderReadIndex { replica: replica.clone(), timeout };
        let observer = audit::observe_clients(audit);
        let settings = chancery_fanout::Config { observer, ..config.fanout() };
        let fanout = Fanout::spawn(settings, state, &shards, stop_shards.clone())
            .with_fresh(Arc::new(fresh));
        shards.spawn(metrics::run_upkeep(metrics.clone(), stop_shards.clone()));
        let load_reports = config.load_reports().map_err(Failure::new)?;
        let mcp = McpSources::start(config, &replica, mcp_tls, &shards, &drain)?;
        let (router, update_references) = chancery_admin::router(&AdminDeps {
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
            ended = &mut self.admin => Ended::Part(match ended {
                Ok(()) => "the admin API has ended".to_owned(),
                Err(error) => format!("the admin API has failed: {error}"),
            }),
        }
    }

    /// Stops all components except the store. First another replica takes over leadership, so that
    /// no write must wait for an election.
    pub(super) async fn stop(mut self, config: &Config, replica: &Replica, reason: &Ended) {
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
