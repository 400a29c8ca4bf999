//! The accept loop. It survives all errors of `accept`, and ends with the drain.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chancery_fanout::{Fanout, limit_hit};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info, warn};

use crate::{
    Config,
    connection::{self, Connection},
    drain::Drain,
    framing::Bounds,
    guarded_io::refusal,
    memory_budget::MemoryBudget,
    methods::Methods,
    metrics::{METRICS, Metrics},
    opening::NewConnections,
    peers::Peers,
    service::{Service, Shared},
};

/// The pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
        room: MemoryBudget::new(config.large_requests_bytes_max, config.request_bytes_max),
        timeout: config.large_request_timeout,
    };
    let shared = Arc::new(Shared {
        config,
        bounds,
        fanout,
        methods: Methods::new(),
        request_bytes: metrics.request_bytes.clone(),
    });
    let open = Arc::default();
    let front = Acceptor {
        drain: Drain::new(drain, Arc::clone(&open), &shared.config),
        peers: Peers::new(shared.config.connections_per_peer_max),
        opening: NewConnections::start()?,
        shared,
        metrics,
        open,
        tracker: TaskTracker::new(),
    };
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = front.drain.begun() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                front.on_connection(stream, peer);
            }
            // The client was gone before accept returned.
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                front.metrics.accept_errors.increment(1);
                if !std::mem::replace(&mut failing, true) {
                    warn!(%error, %address, "cannot accept connections; retrying");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    info!(%address, connections = front.open.load(Ordering::Relaxed), "draining");
    front.tracker.close();
    front.tracker.wait().await;
    Ok(())
}

struct Acceptor {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    open: Arc<AtomicUsize>,
    tracker: TaskTracker,
    opening: NewConnections,
    peers: Peers,
    drain: Drain,
}

impl Acceptor {
    fn on_connection(&self, stream: TcpStream, peer: SocketAddr) {
        let max = self.shared.config.connections_max;
        if self.open.load(Ordering::Relaxed) >= max {
            limit_hit("connections");
            return refuse(stream, &format!("{max} connections are open (connections_max)"));
        }
        let Some(place) = self.peers.admit(peer.ip()) else {
            limit_hit("connections_per_peer");
            let max = self.shared.config.connections_per_peer_max;
            let text =
                format!("{max} connections from your address are open (connections_per_peer_max)");
            return refuse(stream, &text);
        };
        // A failure costs latency only.
        drop(stream.set_nodelay(true));
        let count = Count::new(&self.open, &self.metrics);
        let shared = Arc::clone(&self.shared);
        let metrics = Arc::clone(&self.metrics);
        let drain = self.drain.clone();
        let connection = Connection::new(peer);
        self.opening.spawn(&self.tracker, Arc::clone(&connection), async move {
            let service = Service::new(Arc::clone(&shared), Arc::clone(&connection));
            let reason = connection::run(stream, service, connection, &shared.config, &drain).await;
            metrics.on_end(reason);
            debug!(%peer, reason = reason.label(), "connection ended");
            drop((count, place));
        });
    }
}

/// Sends a client the reason why its connection is rejected, if that is possible without waiting.
fn refuse(stream: TcpStream, text: &str) {
    debug!(text, "connection rejected");
    // The runtime does not know yet that the new socket is writable, so this bypasses it.
    let Ok(mut stream) = stream.into_std() else { return };
    // If the write fails, the client only sees the connection close.
    drop(stream.write_all(&refusal(text)));
}

/// Counts a connection while it is open.
struct Count {
    open: Arc<AtomicUsize>,
    gauge: metrics::Gauge,
}

impl Count {
    fn new(open: &Arc<AtomicUsize>, metrics: &Metrics) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        metrics.connections.increment(1.0);
        metrics.connections_total.increment(1);
        Self { open: Arc::clone(open), gauge: metrics.connections.clone() }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.gauge.decrement(1.0);
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
