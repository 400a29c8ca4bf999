//! The accept loop of the admin port, for HTTP/1 and HTTP/2, with limits.
//!
//! Invariant: an inactive connection never prevents another connection from being served. It is
//! closed after a time, and at once if the limit of connections is reached.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, body::Body};
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
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use super::{
    activity::{Activity, Limits, Watched},
    body::{Answer, TimedBody},
};

/// The interval at which quiet HTTP/2 connections receive a PING. A connection without an answer is
/// closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 200;
const HEADER_LIST_BYTES_MAX: u32 = 32 << 10;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// The pause after a failed accept. The usual cause is too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time that a connection without a request has to close in order, before it is cut off.
const PARTING: Duration = Duration::from_secs(1);
/// The maximum number of rejected connections that receive an explanation at the same time. Further
/// ones are closed without it.
const REFUSALS_MAX: usize = 64;
/// The explanation for rejected connections.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
    connection: close\r\ncontent-length: 63\r\n\r\n\
    all connections are busy with requests (admin.connections_max)\n";

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The open connections.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<BTreeMap<u64, Arc<Activity>>>>);

impl Open {
    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Activity>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. If there are `max` connections, it replaces the one that has been idle
    /// longest. Returns `None` if all are busy.
    fn admit(&self, id: u64, max: usize) -> Option<Place> {
        let mut all = self.all();
        if all.len() >= max {
            let idle = all.iter().filter_map(|(id, activity)| Some((activity.idle_since()?, *id)));
            let (_, longest) = idle.min()?;
            if let Some(activity) = all.remove(&longest) {
                activity.evicted.cancel();
            }
        }
        let activity = Activity::new();
        all.insert(id, Arc::clone(&activity));
        Some(Place { open: self.clone(), id, activity })
    }
}

/// A slot among the open connections. It is free again when it is dropped.
struct Place {
    open: Open,
    id: u64,
    activity: Arc<Activity>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.all().remove(&self.id);
    }
}

/// Serves `router` until `stop`. Then asks the connections to end, and returns when all have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    limits: Limits,
    stop: CancellationToken,
) {
    let tracker = TaskTracker::new();
    let open = Open::default();
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    for id in 0.. {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = open.admit(id, connections_max) else {
                    debug!(%peer, connections_max, "admin connection rejected: all connections are busy");
                    if let Ok(turn) = Arc::clone(&refusals).try_acquire_owned() {
                        tracker.spawn(async move {
                            // If the client does not read the explanation, it is dropped.
                            drop(timeout(PARTING, refuse(stream)).await);
                            drop(turn);
                        });
                    }
                    continue;
                };
                let (router, stop) = (router.clone(), stop.clone());
                tracker.spawn(async move {
                    if let Err(error) = connection(stream, router, &place, limits, stop).await {
                        debug!(%peer, %error, "admin connection ended");
                    }
                });
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                warn!(%error, "cannot accept admin connections; retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    tracker.wait().await;
}

/// Rejects a connection with an explanation. The function first reads what the client has sent.
/// Otherwise the close would reset the connection, and the client's kernel would discard the
/// explanation.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; 4096];
    let _read: usize = stream.read(&mut request).await?;
    stream.write_all(REFUSAL).await?;
    stream.shutdown().await
}

async fn connection(
    stream: TcpStream,
    router: Router,
    place: &Place,
    limits: Limits,
    stop: CancellationToken,
) -> Result<(), Failed> {
    stream.set_nodelay(true)?;
    let activity = &place.activity;
    let builder = builder();
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let busy = activity.begin();
        let request = request.map(|body| Body::new(TimedBody::new(body, limits.body)));
        let response = router.call(request);
        async move {
            let Ok(response) = response.await;
            Ok::<_, Infallible>(response.map(|inner| Body::new(Answer { inner, _busy: busy })))
        }
    });
    let stream = Watched { stream, activity: Arc::clone(activity) };
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                return connection.await;
            }
            () = activity.evicted.cancelled() => break,
            () = sleep_until(activity.due(&limits)) => {
                if activity.due(&limits) <= Instant::now() {
                    break;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    match timeout(PARTING, connection.as_mut()).await {
        Ok(ended) => ended,
        // A request has begun in the meantime and is served.
        Err(_) if activity.idle_since().is_none() && activity.due(&limits) > Instant::now() => {
            connection.await
        }
        Err(_) => Ok(()),
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // [`Activity::due`] limits the time for the header, from the first byte on.
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

/// Returns whether the client closed the connection before it was accepted. The server has no
/// problem then.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
