//! The connections of the admin port, of its UNIX socket, and of the ports for MCP sources, for HTTP/1 and HTTP/2, with
//! limits.
//!
//! Invariant: an inactive connection never prevents another connection from being served. It is
//! closed after a time, and at once if the limit of connections is reached.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::ConnectInfo};
use chancery_audit::source_text;
use chancery_auth::TransportPeer;
use chancery_config::Config;
use chancery_net::{
    Activity, Eviction, FirstBytes, FrameRate, GuardedIo, Guards, Listener, OpenSocket, Port, Slot,
    SlotLimit, Slots, Timeouts, accept, refusal_of_requests,
};
use chancery_tls::{CredentialEnd, Peer, Security, Stream};
use hyper::{
    Request,
    body::Incoming,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use metrics::Gauge;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use super::body::{Answers, TimedBody};

/// The interval at which quiet HTTP/2 connections receive a PING. A connection without an answer is
/// closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 200;
const HEADER_LIST_BYTES_MAX: u32 = 32 << 10;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// The limit of HTTP/2 frames without data, the defaults of the port of the discovery services.
const FRAMES: FrameRate = FrameRate { per_second: 1000, burst: 10_000, key: None };
/// The time that a connection without a request has to close in order, before it is cut off.
const PARTING: Duration = Duration::from_secs(1);
/// The time that the requests of a connection have to end after the certificate of the client, before they are cut off.
const CREDENTIAL_GRACE: Duration = Duration::from_secs(30);
/// The maximum number of rejected connections that receive an explanation at the same time. Further
/// ones are closed without it.
const REFUSALS_MAX: usize = 64;
/// The first bytes of HTTP/2, as far as they are certain to arrive together.
const HTTP2: &[u8] = b"PRI";
pub(super) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The maximum times that a connection may spend without progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From the start of the connection to the end of its first request header.
    pub(crate) header: Duration,
    /// Without a request after that. A request whose response the client does not take counts as ended.
    pub(crate) idle: Duration,
    /// For the body of a request, in addition to the time that depends on its size. `None` if a body may last as long
    /// as its connection.
    pub(crate) body: Option<Duration>,
}

impl Limits {
    /// Returns the limits of connections to the admin port.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            header: config.admin.header_timeout.duration(),
            idle: config.admin.idle_timeout.duration(),
            body: Some(config.admin.body_timeout.duration()),
        }
    }

    fn timeouts(self) -> Timeouts {
        Timeouts { first: self.header, idle: self.idle }
    }
}

/// The kind of a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// The name of the port in the log.
    pub(crate) port: &'static str,
    /// The explanation for connections that are rejected because too many are open.
    pub(crate) too_many: &'static str,
    /// Whether each connection serves one stream over HTTP/2, and is cut off after it.
    pub(crate) is_for_streams: bool,
}

/// The start of a connection, before its first byte of HTTP.
pub(super) trait Opener: Clone + Send + Sync + 'static {
    /// A connection as it was accepted.
    type Accepted: Send + 'static;
    /// The connection as HTTP uses it.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Does the handshake, and identifies the client.
    fn open(
        &self,
        accepted: Self::Accepted,
        peer: SocketAddr,
    ) -> impl Future<Output = Result<Opened<Self::Stream>, Failed>> + Send;
}

/// A connection after its handshake.
pub(super) struct Opened<S> {
    pub(super) stream: S,
    /// The client, if the connection identifies it.
    pub(super) peer: Option<TransportPeer>,
    /// The client's certificate, which may end before the connection.
    pub(super) certificate: Option<Peer>,
}

impl Opener for Security {
    type Accepted = TcpStream;
    type Stream = Stream;

    async fn open(&self, accepted: TcpStream, peer: SocketAddr) -> Result<Opened<Stream>, Failed> {
        let stream = self.accept(accepted).await;
        let stream = stream.inspect_err(|error| self.log_refusal(peer, error))?;
        let certificate = stream.peer().cloned();
        let identity = certificate.as_ref().map(|peer| Arc::clone(peer.identity()));
        Ok(Opened { stream, peer: identity.map(TransportPeer::Certificate), certificate })
    }
}

/// Serves `router` until `stop`. Then asks the connections to end, and returns when all have ended.
pub(crate) async fn serve<O: Opener>(
    listener: impl Listener<Stream = O::Accepted>,
    kind: Kind,
    opener: O,
    router: Router,
    connections_max: usize,
    limits: Limits,
    stop: CancellationToken,
) {
    let slots = chancery_net::Limits {
        connections_max,
        per_peer_max: usize::MAX,
        eviction: Eviction::LongestIdle,
    };
    let port = HttpPort {
        kind,
        opener,
        router,
        limits,
        connections_max,
        stop,
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        tracker: TaskTracker::new(),
    };
    accept(listener, &Slots::new(slots, Gauge::noop()), &port, port.stop.cancelled()).await;
    port.tracker.close();
    port.tracker.wait().await;
}

struct HttpPort<O> {
    kind: Kind,
    opener: O,
    router: Router,
    limits: Limits,
    connections_max: usize,
    stop: CancellationToken,
    refusals: Arc<Semaphore>,
    tracker: TaskTracker,
}

impl<O: Opener> Port for HttpPort<O> {
    type Stream = O::Accepted;

    fn serve(&self, accepted: O::Accepted, slot: Slot) {
        let (router, limits, stop) = (self.router.clone(), self.limits, self.stop.clone());
        let (kind, opener) = (self.kind, self.opener.clone());
        self.tracker.spawn(async move {
            if let Err(error) =
                connection(accepted, kind, &opener, router, &slot, limits, stop).await
            {
                let peer = source_text(slot.activity().peer());
                debug!(port = kind.port, %peer, %error, "a connection has ended");
            }
        });
    }

    fn refuse(&self, accepted: O::Accepted, peer: SocketAddr, _: SlotLimit, socket: OpenSocket) {
        let (kind, connections_max, source) = (self.kind, self.connections_max, source_text(peer));
        debug!(
            port = kind.port,
            peer = source,
            connections_max,
            "a connection is rejected: all connections are busy"
        );
        if let Ok(turn) = Arc::clone(&self.refusals).try_acquire_owned() {
            let opener = self.opener.clone();
            self.tracker.spawn(async move {
                let refusal = async {
                    let opened = opener.open(accepted, peer).await?;
                    Ok::<_, Failed>(refuse(opened.stream, kind.too_many).await?)
                };
                // If the client does not read the explanation, it is dropped.
                drop(timeout(PARTING, refusal).await);
                drop((turn, socket));
            });
        }
    }

    fn on_error(&self, error: &io::Error, is_first: bool) {
        if is_first {
            warn!(port = self.kind.port, %error, "cannot accept connections; retrying");
        }
    }
}

/// Rejects a connection with an explanation, in the HTTP version of the client. The function first
/// reads what the client has sent. Otherwise the close would reset the connection, and the client's
/// kernel would discard the explanation.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) -> io::Result<()> {
    let mut request = [0; 4096];
    let n_read = stream.read(&mut request).await?;
    if request[..n_read].starts_with(HTTP2) {
        stream.write_all(&refusal_of_requests(text)).await?;
        stream.shutdown().await?;
        // The request may follow.
        while stream.read(&mut request).await? > 0 {}
        return Ok(());
    }
    explain(&mut stream, "503 Service Unavailable", text).await
}

/// Answers in HTTP/1.1, and closes the connection.
async fn explain(
    stream: &mut (impl AsyncWrite + Unpin),
    status: &str,
    text: &str,
) -> io::Result<()> {
    let len = text.len() + 1;
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{text}\n"
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

async fn connection<O: Opener>(
    accepted: O::Accepted,
    kind: Kind,
    opener: &O,
    router: Router,
    slot: &Slot,
    limits: Limits,
    stop: CancellationToken,
) -> Result<(), Failed> {
    let activity = slot.activity();
    let timeouts = limits.timeouts();
    let opened = async {
        let mut opened = opener.open(accepted, activity.peer()).await?;
        let first_bytes = FirstBytes::read(&mut opened.stream).await?;
        Ok::<_, Failed>((opened, first_bytes))
    };
    let (Opened { mut stream, peer, certificate }, first_bytes) = tokio::select! {
        // Polled first: bytes that arrived before a time limit count, even if this task runs after the limit.
        biased;
        opened = opened => opened?,
        () = stop.cancelled() => return Ok(()),
        () = activity.evicted() => return Ok(()),
        _ = activity.unused(timeouts) => return Ok(()),
    };
    if first_bytes.is_http2() {
        activity.on_preface();
    } else if kind.is_for_streams {
        let refusal =
            explain(&mut stream, "505 HTTP Version Not Supported", "this port requires HTTP/2");
        drop(timeout(PARTING, refusal).await);
        return Ok(());
    }
    let expired = credential_end(certificate);
    run((stream, first_bytes), kind, router, (slot, peer), limits, stop, expired).await
}

/// Waits until the certificate of a client no longer permits its connection. Waits forever without a certificate.
async fn credential_end(certificate: Option<Peer>) -> CredentialEnd {
    match certificate {
        Some(peer) => peer.ended().await,
        None => std::future::pending().await,
    }
}

/// Serves an open connection until the client, a limit, `stop` or `expired` ends it.
async fn run<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    (stream, first_bytes): (I, FirstBytes),
    kind: Kind,
    router: Router,
    (slot, peer): (&Slot, Option<TransportPeer>),
    limits: Limits,
    stop: CancellationToken,
    expired: impl Future<Output = CredentialEnd>,
) -> Result<(), Failed> {
    let (activity, timeouts) = (slot.activity(), limits.timeouts());
    let builder = builder();
    let router = TowerToHyperService::new(router);
    let answers = Answers::new(Arc::clone(activity));
    let service = service_fn(|request: Request<Incoming>| {
        let busy = activity.begin();
        let request = with_client(request, activity, peer.as_ref(), limits);
        let (response, answers) = (router.call(request), Arc::clone(&answers));
        async move {
            let Ok(response) = response.await;
            Ok::<_, Infallible>(response.map(|inner| Body::new(answers.answer(inner, busy))))
        }
    });
    let frames = first_bytes.is_http2().then_some(FRAMES);
    let guards = Guards { write_timeout: Some(limits.idle), frames, ..Guards::default() };
    let io = GuardedIo::new(stream, first_bytes, Arc::clone(activity), guards);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let mut is_evicted = false;
    let grace = tokio::select! {
        // The connection comes before the time limits, for the same reason as in `connection`.
        biased;
        // Without a request, there is nothing to wait for.
        () = stop.cancelled() => activity.idle_since().map(|_| PARTING),
        end = expired => {
            debug!(port = kind.port, peer = source_text(activity.peer()), "a connection ends: {}", end.explanation());
            // A stream has no end of its own that could be waited for.
            Some(if kind.is_for_streams { PARTING } else { CREDENTIAL_GRACE })
        }
        () = activity.evicted() => {
            is_evicted = true;
            Some(PARTING)
        }
        ended = connection.as_mut() => return ended,
        // Without a budget of its own, a busy connection could keep the time limit from ending it.
        _ = tokio::task::unconstrained(activity.unused(timeouts)) => Some(PARTING),
        never = answers.release_untaken() => match never {},
    };
    connection.as_mut().graceful_shutdown();
    let Some(grace) = grace else { return connection.await };
    let ending = async {
        let ended = timeout(grace, connection.as_mut()).await;
        match ended {
            Ok(ended) => ended,
            // A request has begun in the meantime and is served.
            Err(_)
                if grace == PARTING && activity.idle_since().is_none() && !kind.is_for_streams =>
            {
                let served = async {
                    tokio::select! {
                        ended = connection => ended,
                        _ = activity.unused(timeouts) => Ok(()),
                        never = answers.release_untaken() => match never {},
                    }
                };
                if is_evicted {
                    // Another connection has its slot.
                    timeout(CREDENTIAL_GRACE, served).await.unwrap_or(Ok(()))
                } else {
                    served.await
                }
            }
            Err(_) => Ok(()),
        }
    };
    tokio::select! {
        ended = ending => ended,
        // Connections with a slot need its file descriptor.
        () = slot.pressed(), if is_evicted => Ok(()),
    }
}

/// Adds the client to a request, and the time limit to its body.
fn with_client(
    request: Request<Incoming>,
    activity: &Arc<Activity>,
    peer: Option<&TransportPeer>,
    limits: Limits,
) -> Request<Body> {
    let mut request = request.map(|body| match limits.body {
        Some(grace) => Body::new(TimedBody::new(body, grace)),
        None => Body::new(body),
    });
    request.extensions_mut().insert(Arc::clone(activity));
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer.clone());
    }
    request.extensions_mut().insert(ConnectInfo(activity.peer()));
    // The services for MCP sources compare only the names.
    if let Some(TransportPeer::Certificate(identity)) = peer {
        request.extensions_mut().insert(Arc::clone(identity));
    }
    request
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // [`Timeouts`] limit the time for the header, from the first byte on.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder
}
