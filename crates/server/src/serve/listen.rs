//! The accept loop of the admin port: HTTP/1 and HTTP/2, with limits, until it is told to stop.
//!
//! Invariant: a connection that does nothing never keeps another one from its answer. It is closed after
//! a time, and at once when its place is needed.

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
    body::{Answer, Timely},
};

/// Quiet HTTP/2 connections are probed at this interval, and closed if the probe stays unanswered.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests at a time on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 200;
const HEADER_LIST_BYTES_MAX: u32 = 32 << 10;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Pause after an accept that failed for a reason of ours: too many open files, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection without a request has to end in order, before it is cut.
const PARTING: Duration = Duration::from_secs(1);
/// Connections that are told at the same time that there is no place; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// What they are told.
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

    /// A place for one more, at the cost of the one that has been idle longest if there are `max`.
    /// `None` if all are busy.
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

/// A place among the open connections, free again when it is dropped.
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

/// Serves `router` until `stop`; then connections are asked to end, and it returns when all have.
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
                    debug!(%peer, connections_max, "admin connection refused: all are busy");
                    if let Ok(turn) = Arc::clone(&refusals).try_acquire_owned() {
                        tracker.spawn(async move {
                            // Whoever does not take it has gone.
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
                warn!(%error, "can not accept admin connections; trying on");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    tracker.wait().await;
}

/// Says that there is no place. What the client has sent is read first: closing over it would make
/// its kernel throw the answer away.
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
        let request = request.map(|body| Body::new(Timely::new(body, limits.body)));
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
        // A request has begun in the meantime, and may end.
        Err(_) if activity.idle_since().is_none() && activity.due(&limits) > Instant::now() => {
            connection.await
        }
        Err(_) => Ok(()),
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Its times are watched here, from the first byte on.
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

/// The client went away while it was being accepted: nothing of ours is wrong.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
