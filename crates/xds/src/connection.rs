//! One client connection: its streams, its life, and the one task that runs all of it.
//!
//! HTTP/2, the streams' writers and their readers run in one task. A push wakes that task once, and
//! it writes; with a task per stream it would be woken through another. What runs on the connection
//! is dropped with it.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use chancery_fanout::{End, EndCode, Ender};
use futures::{FutureExt, Stream, stream::FuturesUnordered};
use hyper::{rt::Executor, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use slab::Slab;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::{
    Config,
    drain::{Drain, random},
    reason::Reason,
    service::Service,
    watched::Watched,
};

/// What a connection's streams share.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) tasks: Tasks,
    streams: Mutex<Streams>,
    /// A client of one of its streams has had all that it asked for when it came.
    established: AtomicBool,
    /// Its client has closed it, and what it holds is to be freed.
    closing: AtomicBool,
}

#[derive(Debug)]
struct Streams {
    open: Slab<Ender>,
    /// Since when there are none; `None` while there are.
    none_since: Option<Instant>,
    /// Whether there has ever been one.
    used: bool,
    /// Set when the connection is over: how streams that still come are ended.
    over: Option<End>,
}

/// A stream's place in its connection: given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    connection: Arc<Connection>,
    at: usize,
}

/// What a connection runs besides HTTP/2 itself. Bounded by its streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<Vec<Task>>>);

type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;
struct Task(BoxedTask);

// === impl Connection ===

impl Connection {
    pub(crate) fn new(peer: SocketAddr) -> Arc<Self> {
        let streams = Streams {
            open: Slab::new(),
            none_since: Some(Instant::now()),
            used: false,
            over: None,
        };
        let (established, closing) = Default::default();
        let streams = Mutex::new(streams);
        Arc::new(Self { peer, tasks: Tasks::default(), streams, established, closing })
    }

    /// Whether it is one of those that new connections must not hold up.
    pub(crate) fn is_established(&self) -> bool {
        self.established.load(Ordering::Relaxed) && !self.closing.load(Ordering::Relaxed)
    }

    /// The client has closed the connection. Returns whether it was established until now.
    pub(crate) fn begin_closing(&self) -> bool {
        let was_established = self.is_established();
        self.closing.store(true, Ordering::Relaxed);
        was_established
    }

    /// A client of one of its streams has had all that it asked for when it came.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
    }

    pub(crate) fn n_streams(&self) -> usize {
        self.streams.lock().open.len()
    }

    /// Registers a stream.
    pub(crate) fn add(self: &Arc<Self>, stream: Ender) -> Place {
        let mut streams = self.streams.lock();
        if let Some(end) = &streams.over {
            stream.end(end.clone());
        }
        streams.none_since = None;
        streams.used = true;
        let at = streams.open.insert(stream);
        drop(streams);
        Place { connection: Arc::clone(self), at }
    }

    /// Ends all streams, and those that still come.
    fn end_all(&self, end: &End) {
        let mut streams = self.streams.lock();
        streams.over.get_or_insert_with(|| end.clone());
        for (_, stream) in &streams.open {
            stream.end(end.clone());
        }
    }

    /// When the connection will have been without streams for too long, a time in the past if it has;
    /// and what it is closed for then.
    fn unused_at(&self, config: &Config) -> Option<(Instant, Reason)> {
        let streams = self.streams.lock();
        let (patience, reason) = match streams.used {
            true => (config.idle_timeout, Reason::Idle),
            false => (config.first_stream_timeout, Reason::FirstStream),
        };
        streams.none_since.map(|since| (since + patience, reason))
    }
}

impl Place {
    /// The stream's client has had all that it asked for when it came.
    pub(crate) fn establish(&self) {
        self.connection.establish();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = self.connection.streams.lock();
        streams.open.try_remove(self.at);
        if streams.open.is_empty() {
            streams.none_since = Some(Instant::now());
        }
    }
}

// === impl Tasks ===

impl Tasks {
    /// Adds a task. It runs from the next time on that the connection does; only what runs on the
    /// connection itself may call this.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().push(Task(Box::pin(task)));
    }
}

impl<F: Future + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        // Not an async block: it would hold the future twice.
        self.spawn(future.map(drop));
    }
}

impl Future for Task {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

// === the task ===

type Http<I> = http2::Connection<TokioIo<Watched<I>>, Service, Tasks>;

/// Runs HTTP/2 and the tasks of the streams, in one.
struct Driver<I: AsyncRead + AsyncWrite + Unpin> {
    http: Pin<Box<Http<I>>>,
    running: FuturesUnordered<Task>,
    added: Tasks,
}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Future for Driver<I> {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let this = &mut *self;
        loop {
            // The streams go first, so that what they have to say is written in the same pass.
            while let Poll::Ready(Some(())) = Pin::new(&mut this.running).poll_next(cx) {}
            if let Poll::Ready(ended) = this.http.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            let added = std::mem::take(&mut *this.added.0.lock());
            if added.is_empty() {
                return Poll::Pending;
            }
            this.running.extend(added);
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Drop for Driver<I> {
    /// Streams that came in the very moment in which the connection broke have not begun to run. They
    /// hold the connection, which holds them.
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.added.0.lock());
        drop(left);
    }
}

/// Serves a connection until it is closed, by the client or by the replica, and says why.
pub(crate) async fn run<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: I,
    service: Service,
    connection: Arc<Connection>,
    config: &Config,
    drain: &Drain,
) -> Reason {
    let io = TokioIo::new(Watched::new(io, Arc::clone(&connection), config));
    let http = builder(config, &connection.tasks).serve_connection(io, service);
    let added = connection.tasks.clone();
    let mut driver = Driver { http: Box::pin(http), running: FuturesUnordered::new(), added };
    let age = config.connection_age_max.map(|age| Instant::now() + jittered(age));
    let reason = loop {
        // It is looked at now and then, so that it is not forgotten when its last stream has gone.
        let look = Instant::now() + config.idle_timeout;
        let due = connection.unused_at(config).map_or(look, |(at, _)| look.min(at));
        let due = age.map_or(due, |age| age.min(due));
        tokio::select! {
            ended = &mut driver => return Reason::of(&ended),
            () = drain.begun() => break Reason::Drain,
            () = tokio::time::sleep_until(due) => {
                let now = Instant::now();
                if age.is_some_and(|age| age <= now) {
                    break Reason::Age;
                }
                if let Some((at, reason)) = connection.unused_at(config)
                    && at <= now
                {
                    break reason;
                }
            }
        }
    };
    // GOAWAY: no new streams; those that are open go on.
    driver.http.as_mut().graceful_shutdown();
    if reason == Reason::Age {
        tokio::select! {
            _ended = &mut driver => return reason,
            () = drain.begun() => {}
            () = tokio::time::sleep(config.connection_age_grace) => {}
        }
    }
    if drain.has_begun() {
        // Not all clients at once; whoever goes by itself has gone.
        tokio::select! {
            _ended = &mut driver => return reason,
            () = tokio::time::sleep(drain.turn()) => {}
        }
    }
    connection.end_all(&match drain.has_begun() {
        true => End::new(EndCode::Unavailable, "draining: this replica is shutting down"),
        false => End::new(EndCode::Aged, "the connection has reached its maximum age; reconnect"),
    });
    // A client that does not read its streams' ends is cut off.
    tokio::select! {
        _ended = &mut driver => {}
        () = tokio::time::sleep(config.close_timeout) => {}
    }
    reason
}

fn builder(config: &Config, tasks: &Tasks) -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(tasks.clone());
    builder
        .timer(TokioTimer::new())
        // A few more than are served: those get a status that says why, and not a silent wait.
        .max_concurrent_streams(config.streams_per_connection_max.saturating_add(64))
        // Twice of what is served: so a request that has too much is told so.
        .max_header_list_size(config.header_list_bytes_max.saturating_mul(2))
        .max_pending_accept_reset_streams(config.pending_resets_max)
        .max_local_error_reset_streams(config.error_resets_max)
        .initial_stream_window_size(config.stream_window_bytes)
        .initial_connection_window_size(config.connection_window_bytes)
        .max_send_buf_size(config.send_buffer_bytes_max)
        .keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout);
    builder
}

/// Up to a tenth more or less, so that connections made together do not end together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * random())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-13: ages differ, and stay near what is set.
    #[test]
    fn ages_are_spread_by_a_tenth() {
        let ages: Vec<f64> =
            (0..100).map(|_| jittered(Duration::from_secs(100)).as_secs_f64()).collect();
        assert!(ages.iter().all(|age| (90.0..=110.0).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 95.0) && ages.iter().any(|age| *age > 105.0));
    }
}
