//! The accept loop of the admin port: HTTP/1 and HTTP/2, with limits, until it is told to stop.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

/// How long a new connection may say nothing, and the headers of an HTTP/1 request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
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

/// Serves `router` until `stop`; then connections are asked to end, and it returns when all have.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    stop: CancellationToken,
) {
    let tracker = TaskTracker::new();
    // When it is full, new connections wait in the kernel's queue until an open one ends.
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, stop) = (router.clone(), stop.clone());
                tracker.spawn(async move {
                    let _place = place;
                    if let Err(error) = connection(stream, router, stop).await {
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

async fn connection(
    stream: TcpStream,
    router: Router,
    stop: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        spoken = timeout(HEADER_TIMEOUT, stream.readable()) => spoken??,
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
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
