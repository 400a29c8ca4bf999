//! The connections to the replication port.
//!
//! Anyone who reaches the port can open connections, but a cluster has few replicas. The number of
//! connections is therefore limited. An excess connection displaces the one that is least likely to belong
//! to a replica.
//!
//! Invariants:
//! - The accept loop never waits for a client. Each connection has a task for the TLS handshake and the
//!   HTTP/2 connection preface, with timeouts.
//! - The number of connections never exceeds the limit. A connection beyond it displaces another one: first
//!   one without a preface, then one without a call, then the one that was silent longest. A replica makes
//!   calls, and sends something every second.
//! - When no file descriptor is free, the loop pauses and then continues.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use chancery_net::{
    Activity, Eviction, FirstBytes, FrameRate, GuardedIo, Guards, Limits, OpenSocket, Port, Slot,
    SlotLimit, Slots,
};
use chancery_raft_proto::v1::replication_server::{Replication, ReplicationServer};
use chancery_tls::{Security, Stream};
use hyper::{Request, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tower::Service;

use super::tls::Tls;
use crate::metrics::{PortMetrics, Refused};

/// The maximum time to the end of the preface, measured after the TLS handshake if there is one.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of concurrent streams on one connection.
const STREAMS_MAX: u32 = 16_384;
/// The time without traffic after which the server sends a keepalive ping.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum time for the answer to a keepalive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// The limit of HTTP/2 frames without data. Each call has one such frame, and its answer allows another one.
const FRAMES: FrameRate = FrameRate { per_second: 5_000, burst: 20_000, key: None };
/// The minimum time between two log messages about the same kind of problem.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The reason why a connection was rejected.
#[derive(Debug)]
struct Refusal {
    kind: Refused,
    reason: String,
}

impl Refusal {
    fn new(kind: Refused, reason: impl ToString) -> Self {
        Self { kind, reason: reason.to_string() }
    }
}

struct ReplicationPort<S> {
    connections_max: usize,
    shared: Arc<Shared<S>>,
}

/// The state that the accept loop shares with the tasks of its connections.
struct Shared<S> {
    service: ReplicationServer<S>,
    security: Security,
    metrics: PortMetrics,
    /// The time of the last log message about each kind of problem, and the number of suppressed ones since.
    logged: Mutex<[(Option<Instant>, u64); Refused::ALL.len()]>,
}

/// Serves the replication port.
pub(crate) async fn serve<S: Replication>(
    listener: TcpListener,
    service: ReplicationServer<S>,
    tls: Option<Tls>,
    connections_max: usize,
) {
    let metrics = PortMetrics::new();
    let eviction = Eviction::LeastProgress;
    let limits = Limits { connections_max, per_peer_max: usize::MAX, eviction };
    let slots = Slots::new(limits, metrics.connections.clone());
    let security = tls.map_or(Security::Plain, |tls| tls.security());
    let shared = Arc::new(Shared { service, security, metrics, logged: Mutex::default() });
    let port = ReplicationPort { connections_max, shared };
    chancery_net::accept(listener, &slots, &port, std::future::pending()).await;
}

impl<S: Replication> Port for ReplicationPort<S> {
    type Stream = TcpStream;

    fn serve(&self, stream: TcpStream, slot: Slot) {
        if slot.has_evicted() {
            let (from, connections_max) = (slot.activity().peer(), self.connections_max);
            self.shared.refused(Refused::Limit, || {
                format!(
                    "the replication port has {connections_max} open connections, the limit \
                     (`raft.connections_max`): {from} displaces another connection"
                )
            });
        }
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            tokio::select! {
                () = shared.serve(stream, slot.activity()) => {}
                () = slot.activity().evicted() => {}
            }
        });
    }

    /// A new connection always displaces another one, so none is rejected here.
    fn refuse(&self, _: TcpStream, _: SocketAddr, _: SlotLimit, _: OpenSocket) {}

    fn on_error(&self, error: &io::Error, _: bool) {
        self.shared.refused(Refused::Accept, || {
            format!("cannot accept a connection to the replication port: {error}")
        });
    }
}

impl<S: Replication> Shared<S> {
    async fn serve(&self, stream: TcpStream, activity: &Arc<Activity>) {
        let (stream, first_bytes) = match self.read_first_bytes(stream).await {
            Ok(read) => read,
            Err(Refusal { kind, reason }) => {
                let from = activity.peer();
                return self.refused(kind, || {
                    format!("{from} was rejected on the replication port: {reason}")
                });
            }
        };
        activity.on_preface();
        let service = service_fn(|request: Request<Incoming>| {
            // Records that the connection made a call, which makes its displacement less likely.
            drop(activity.begin());
            self.service.clone().call(request)
        });
        let guards = Guards { frames: Some(FRAMES), ..Guards::default() };
        let io = GuardedIo::new(stream, first_bytes, Arc::clone(activity), guards);
        let ended = builder().serve_connection(TokioIo::new(io), service).await;
        tracing::trace!(peer = %activity.peer(), ?ended, "a connection between replicas ended");
    }

    async fn read_first_bytes(&self, stream: TcpStream) -> Result<(Stream, FirstBytes), Refusal> {
        let accepted = self.security.accept(stream).await;
        let mut stream = accepted.map_err(|error| Refusal::new(Refused::Tls, error))?;
        let read = tokio::time::timeout(PREFACE_TIMEOUT, FirstBytes::read(&mut stream)).await;
        let first_bytes = read
            .map_err(|_| format!("it sent no HTTP/2 preface within {PREFACE_TIMEOUT:?}"))
            .and_then(|first_bytes| first_bytes.map_err(|error| error.to_string()))
            .map_err(|reason| Refusal::new(Refused::Silent, reason))?;
        if first_bytes.is_http2() {
            return Ok((stream, first_bytes));
        }
        let reason = if first_bytes.is_tls() {
            "it uses TLS, but `raft.tls_cert` is not set on this replica"
        } else {
            "it does not use HTTP/2"
        };
        Err(Refusal::new(Refused::Protocol, reason))
    }

    /// Counts a problem, and logs it unless a problem of the same kind was logged within [`LOG_INTERVAL`].
    fn refused(&self, kind: Refused, text: impl FnOnce() -> String) {
        self.metrics.refused(kind).increment(1);
        let mut logged = self.logged.lock();
        let (last, left_out) = &mut logged[kind as usize];
        if last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            *left_out += 1;
            return;
        }
        tracing::warn!(left_out, "{}", text());
        (*last, *left_out) = (Some(Instant::now()), 0);
    }
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder
}
