//! The admin port, which opens before the store does and closes after everything that uses it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use chancery_admin::{EarlyDeps, Readiness, RouteSwitch};
use chancery_audit::{Audit, Port};
use chancery_config::{Config, convert};
use chancery_store::OpenProgress;
use chancery_tls::{PortTls, Security};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, runtime::Handle, task::JoinHandle, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use super::{
    event_loops::EventLoops,
    listen,
    ports::{listen_on, take_port},
    security::open_tls,
    unix_socket,
};
use crate::Failure;

/// The minimum time for admin requests to end.
pub(super) const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time for shards and other tasks to end after the streams.
const TASKS_TIMEOUT: Duration = Duration::from_secs(2);
const ADMIN: listen::Kind = listen::Kind {
    port: "admin",
    too_many: "all connections are busy with requests (admin.connections_max)",
    is_for_streams: false,
};

/// The open admin port, and the state of the replica that its probes show.
pub(super) struct AdminPort {
    pub(super) address: SocketAddr,
    pub(super) tls: Option<PortTls>,
    /// The threads of the port.
    pub(super) runtime: Handle,
    pub(super) progress: OpenProgress,
    pub(super) readiness: Readiness,
    pub(super) event_loops: EventLoops,
    /// Cancelled when the discovery services start: the replica is ready.
    pub(super) started: CancellationToken,
    /// Cancelled when the process begins to end, before leadership moves to another replica.
    pub(super) stopping: CancellationToken,
    /// Cancelled at the start of the shutdown. The replica then ends all streams of clients, and is not
    /// ready.
    pub(super) drain: CancellationToken,
    /// Ends when the port is closed.
    pub(super) served: JoinHandle<()>,
    /// Cancelled after the streams have ended.
    stop: CancellationToken,
    /// The routes of an open replica replace the early ones.
    pub(super) routes: RouteSwitch,
    /// The tasks that end last, such as shards, and their end.
    pub(super) tasks: TaskTracker,
    pub(super) stop_tasks: CancellationToken,
}

impl AdminPort {
    /// Opens the port. Its probes report that the replica is loading its data.
    pub(super) fn open(
        config: &Config,
        audit: &Audit,
        metrics: &PrometheusHandle,
        runtime: &Handle,
    ) -> Result<Self, Failure> {
        let (socket, address) = take_port("admin.address", config.admin.address)?;
        let listener = {
            let _admin = runtime.enter();
            listen_on("admin.address", socket, address)?
        };
        let (tasks, stop_tasks) = (TaskTracker::new(), CancellationToken::new());
        let tls = open_tls(config.admin.tls(), audit, Port::Admin, &tasks, &stop_tasks)?;
        let progress = OpenProgress::default();
        let (started, drain) = (CancellationToken::new(), CancellationToken::new());
        let readiness = Readiness::new(progress.clone(), started.clone(), drain.clone());
        let event_loops = EventLoops::default();
        let main = Handle::current();
        event_loops.watch("the main threads".to_owned(), runtime, &stop_tasks, move || {
            let turned = main.spawn(async {});
            async move { drop(turned.await) }
        });
        let metrics = metrics.clone();
        let (router, routes) = chancery_admin::early_router(EarlyDeps {
            liveness: event_loops.liveness(),
            readiness: readiness.clone(),
            metrics: Arc::new(move || super::metrics::render(&metrics)),
            hosts: convert::admin_hosts(config),
            control: config.access.control(),
            audit: audit.clone(),
        });
        let stop = CancellationToken::new();
        let served = serve(config, listener, tls.clone(), router, runtime, stop.clone())?;
        info!(admin = %address, "the admin port is open");
        let runtime = runtime.clone();
        Ok(Self {
            address,
            tls,
            runtime,
            progress,
            readiness,
            event_loops,
            started,
            stopping: CancellationToken::new(),
            drain,
            served,
            stop,
            routes,
            tasks,
            stop_tasks,
        })
    }

    /// Ends the port and the tasks of all components, if they have not ended yet.
    pub(super) async fn end(&mut self) {
        self.stopping.cancel();
        self.drain.cancel();
        self.close(ADMIN_TIMEOUT).await;
        self.end_tasks().await;
    }

    /// Ends the shards and other tasks, when nothing can reach them. A second call has no effect.
    pub(super) async fn end_tasks(&mut self) {
        if self.stop_tasks.is_cancelled() {
            return;
        }
        self.stop_tasks.cancel();
        self.tasks.close();
        if timeout(TASKS_TIMEOUT, self.tasks.wait()).await.is_err() {
            let tasks = self.tasks.len();
            warn!(tasks, "shards or other tasks have not ended within {TASKS_TIMEOUT:?}");
        }
    }

    /// Closes the port. Aborts requests that have not ended after `patience`. A second call has no effect.
    pub(super) async fn close(&mut self, patience: Duration) {
        self.stop.cancel();
        if !self.served.is_finished() && timeout(patience, &mut self.served).await.is_err() {
            warn!("admin requests have not ended within {patience:?}; aborting them");
            self.served.abort();
        }
    }
}

/// Serves the admin API on its port, and on its UNIX socket if it has one.
fn serve(
    config: &Config,
    listener: TcpListener,
    tls: Option<PortTls>,
    router: Router,
    runtime: &Handle,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, Failure> {
    let connections_max = config.admin.connections_max;
    let limits = listen::Limits::of(config);
    let socket = {
        let _runtime = runtime.enter();
        config.admin.socket().map(unix_socket::bind).transpose()?
    };
    let (by_socket, stop_socket) = (router.clone(), stop.clone());
    let socket = async move {
        if let Some(socket) = socket {
            let kind = listen::Kind { port: "admin.socket", ..ADMIN };
            let users = unix_socket::UnixUsers;
            listen::serve(socket, kind, users, by_socket, connections_max, limits, stop_socket)
                .await;
        }
    };
    let port =
        listen::serve(listener, ADMIN, Security::from(tls), router, connections_max, limits, stop);
    Ok(runtime.spawn(async move {
        tokio::join!(port, socket);
    }))
}
