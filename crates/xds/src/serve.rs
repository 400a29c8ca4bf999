//! The port of the discovery services: its connections, their limits, and the drain.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use chancery_fanout::{Fanout, limit_hit};
use chancery_net::{Activity, Eviction, Limits, OpenSocket, Port, Slot, SlotLimit, Slots, accept};
use chancery_tls::{HandshakeResult, Security, Stream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info, warn};

use crate::{
    Config,
    connection::Connection,
    drain::Drain,
    driver,
    framing::Bounds,
    lrs::{REPORT_BYTES_MAX, REPORTS_BYTES_MAX},
    memory_budget::MemoryBudget,
    methods::Methods,
    metrics::{METRICS, Metrics},
    opening::NewConnections,
    reason::Reason,
    refuse::Refusals,
    rest::polls::Polls,
    service::Service,
    shared::Shared,
};

/// The number of connections that the kernel queues before they are accepted, after a drain.
const BACKLOG: u32 = 4096;
/// The pause after a failed attempt to listen again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// Describes the metrics, and shows those with a fixed set of labels as zero before [`serve`] starts.
pub fn register_metrics() {
    chancery_metrics::describe(METRICS);
    drop(Metrics::new());
}

/// Serves the discovery services on a listener until `drain`. After that it accepts no connections.
/// Each client receives GOAWAY, and its streams end with `UNAVAILABLE`, one connection after the other.
/// The function returns when all connections are closed (OPS-15).
///
/// # Errors
/// Returns an error if the configuration is invalid ([`Config::validate`]), the listener has no
/// address, or the threads for new connections cannot be started.
pub async fn serve(
    listener: TcpListener,
    fanout: Fanout,
    config: Config,
    drain: CancellationToken,
) -> io::Result<()> {
    config.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    register_metrics();
    let metrics = Arc::new(Metrics::new());
    let address = listener.local_addr()?;
    let bounds = Bounds {
        message_bytes_max: config.request_bytes_max,
        budget: MemoryBudget::new(config.large_requests_bytes_max, config.request_bytes_max),
        timeout: config.large_request_timeout,
    };
    let report_bytes_max = REPORT_BYTES_MAX.min(config.request_bytes_max);
    let report_bounds = Bounds {
        message_bytes_max: report_bytes_max,
        budget: MemoryBudget::new(REPORTS_BYTES_MAX, report_bytes_max),
        timeout: config.large_request_timeout,
    };
    let methods = Methods::new(config.v2_services);
    let shared = Arc::new(Shared {
        polls: Polls::new(&config, fanout.control_plane()),
        config,
        bounds,
        report_bounds,
        fanout,
        methods,
        request_bytes: metrics.request_bytes.clone(),
    });
    let limits = Limits {
        connections_max: shared.config.connections_max,
        per_peer_max: shared.config.connections_per_peer_max,
        // A request counts once its client is authenticated.
        eviction: Eviction::OldestWithoutRequest,
    };
    let slots = Slots::new(limits, metrics.connections.clone());
    let tracker = TaskTracker::new();
    let port = XdsPort {
        address,
        refusals: Refusals::new(tracker.clone()),
        security: shared.config.tls.clone().into(),
        drain: Drain::new(
            drain,
            shared.fanout.drain_orders().clone(),
            Arc::clone(&slots),
            &shared.config,
        ),
        opening: NewConnections::start()?,
        shared,
        metrics,
        tracker,
    };
    accept_while_open(listener, &slots, &port).await;
    info!(%address, connections = slots.n_taken(), "draining");
    port.tracker.close();
    port.tracker.wait().await;
    Ok(())
}

/// Accepts connections until the end of the process. While an operator drains the replica, the port refuses connections,
/// so that clients connect to another replica.
async fn accept_while_open(mut listener: TcpListener, slots: &Arc<Slots>, port: &XdsPort) {
    let drain = &port.drain;
    loop {
        accept(listener, slots, port, drain.begun()).await;
        if drain.is_final() {
            return;
        }
        let address = port.address;
        info!(%address, connections = slots.n_taken(), "drained: connections are refused");
        listener = tokio::select! {
            () = drain.ended() => return,
            opened = reopened(address, drain) => opened,
        };
        info!(%address, "connections are accepted again");
    }
}

/// Listens again when the drain is undone. Until then, a socket holds the port without listening on it.
async fn reopened(address: SocketAddr, drain: &Drain) -> TcpListener {
    let mut held = hold(address);
    drain.undone().await;
    loop {
        match held.and_then(|socket| socket.listen(BACKLOG)) {
            Ok(listener) => return listener,
            Err(error) => warn!(%error, %address, "cannot accept connections again; retrying"),
        }
        tokio::time::sleep(REOPEN_PAUSE).await;
        held = hold(address);
    }
}

/// Binds a socket to the address of a listener that was closed.
fn hold(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Connections of the listener may still be open.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// The port of the discovery services.
struct XdsPort {
    address: SocketAddr,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    tracker: TaskTracker,
    refusals: Refusals,
    security: Security,
    opening: NewConnections,
    drain: Drain,
}

impl Port for XdsPort {
    type Stream = TcpStream;

    fn serve(&self, stream: TcpStream, slot: Slot) {
        self.metrics.connections_total.increment(1);
        if slot.has_evicted() {
            limit_hit("connections");
        }
        let shared = Arc::clone(&self.shared);
        let metrics = Arc::clone(&self.metrics);
        let (drain, security) = (self.drain.clone(), self.security.clone());
        let (activity, places) = (Arc::clone(slot.activity()), shared.fanout.refusal_places());
        let connection =
            Connection::new(activity, shared.config.streams_per_connection_max, places);
        self.opening.spawn(&self.tracker, Arc::clone(&connection), async move {
            let peer = connection.peer();
            let reason = match open(&security, stream, &connection, &shared.config, &drain).await {
                Ok(stream) => {
                    let service = Service::new(Arc::clone(&shared), Arc::clone(&connection));
                    driver::run(stream, service, connection, &shared.config, &drain).await
                }
                Err(reason) => reason,
            };
            metrics.on_end(reason);
            debug!(%peer, reason = reason.label(), "connection ended");
            drop(slot);
        });
    }

    /// Sends a client the reason why its connection is rejected.
    fn refuse(&self, stream: TcpStream, peer: SocketAddr, reached: SlotLimit, socket: OpenSocket) {
        let config = &self.shared.config;
        let (limit, text) = match reached {
            SlotLimit::Connections => {
                let max = config.connections_max;
                ("connections", format!("{max} connections are open (connections_max)"))
            }
            SlotLimit::Peer => {
                let max = config.connections_per_peer_max;
                let text = format!(
                    "{max} connections from your address are open (connections_per_peer_max)"
                );
                ("connections_per_peer", text)
            }
        };
        limit_hit(limit);
        debug!(%peer, text, "connection rejected");
        match &self.security {
            Security::Plain => self.refusals.refuse(stream, text, socket),
            // The explanation costs a handshake, which must not delay established connections.
            Security::Tls(tls) => {
                if let Some(explain) = self.refusals.over_tls(tls.clone(), stream, text, socket) {
                    let connection = Connection::new(
                        Activity::new(peer),
                        1,
                        self.shared.fanout.refusal_places(),
                    );
                    self.opening.spawn(&self.tracker, connection, explain);
                }
            }
        }
    }

    fn on_error(&self, error: &io::Error, is_first: bool) {
        self.metrics.accept_errors.increment(1);
        if is_first {
            let address = self.address;
            warn!(%error, %address, "cannot accept connections; retrying");
        }
    }
}

/// Does the TLS handshake of a connection, if the port uses TLS. Returns the reason if the connection ends
/// before that.
async fn open(
    security: &Security,
    stream: TcpStream,
    connection: &Connection,
    config: &Config,
    drain: &Drain,
) -> Result<Stream, Reason> {
    let accepted = tokio::select! {
        accepted = security.accept(stream) => accepted,
        () = drain.begun() => return Err(Reason::Drain),
        () = connection.activity.evicted() => return Err(Reason::Limit),
        () = tokio::time::sleep(config.first_stream_timeout) => return Err(Reason::FirstStream),
    };
    let stream = accepted.map_err(|error| {
        security.log_refusal(connection.peer(), &error);
        match error.result {
            HandshakeResult::Closed => Reason::Client,
            _ => Reason::Tls,
        }
    })?;
    if let Some(peer) = stream.peer() {
        connection.set_certificate(peer.clone());
    }
    Ok(stream)
}
