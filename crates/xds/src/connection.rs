//! A client connection: its streams, its lifetime, and the task that runs it.
//!
//! One task runs HTTP/2, the streams' writers and their readers. A push wakes that task once, and the
//! task writes. With a task per stream, a push would wake the connection through another task.
//! Everything that runs on the connection is dropped with it.

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

use chancery_fanout::{End, EndCode, StreamCloser};
use futures::{FutureExt, Stream, stream::FuturesUnordered};
use hyper::{rt::Executor, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use slab::Slab;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::{Config, drain::Drain, guarded_io::GuardedIo, reason::Reason, service::Service};

/// The state that the streams of a connection share.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) tasks: Tasks,
    streams: Mutex<Streams>,
    /// The client of one of the streams has answered the responses to its first requests.
    established: AtomicBool,
    /// The client has closed the connection, and its memory is to be freed.
    closing: AtomicBool,
}

#[derive(Debug)]
struct Streams {
    open: Slab<StreamCloser>,
    /// The time since which no stream is open; `None` while there are open streams.
    none_since: Option<Instant>,
    /// Whether a stream was ever opened.
    used: bool,
    /// The end for streams that are opened later. Set when the connection is ending.
    over: Option<End>,
}

/// The registration of a stream in its connection. Dropping it removes the stream.
#[derive(Debug)]
pub(crate) struct StreamRegistration {
    connection: Arc<Connection>,
    at: usize,
}

/// The tasks of a connection other than HTTP/2 itself. The number of streams bounds them.
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

    /// Returns whether the connection runs on the threads for established connections.
    pub(crate) fn is_established(&self) -> bool {
        self.established.load(Ordering::Relaxed) && !self.closing.load(Ordering::Relaxed)
    }

    /// Records that the client has closed the connection. Returns whether it was established until now.
    pub(crate) fn begin_closing(&self) -> bool {
        let was_established = self.is_established();
        self.closing.store(true, Ordering::Relaxed);
        was_established
    }

    /// Marks the connection as established: a client has answered the responses to its first requests.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
    }

    pub(crate) fn n_streams(&self) -> usize {
        self.streams.lock().open.len()
    }

    /// Registers a stream.
    pub(crate) fn add(self: &Arc<Self>, stream: StreamCloser) -> StreamRegistration {
        let mut streams = self.streams.lock();
        if let Some(end) = &streams.over {
            stream.end(end.clone());
        }
        streams.none_since = None;
        streams.used = true;
        let at = streams.open.insert(stream);
        drop(streams);
        StreamRegistration { connection: Arc::clone(self), at }
    }

    /// Ends all streams, and all streams that are opened later.
    fn end_all(&self, end: &End) {
        let mut streams = self.streams.lock();
        streams.over.get_or_insert_with(|| end.clone());
        for (_, stream) in &streams.open {
            stream.end(end.clone());
        }
    }

    /// Returns the time at which the connection will have been unused for too long, and the reason for
    /// closing it then. The time may be in the past. `None` if there are open streams.
    fn unused_at(&self, config: &Config) -> Option<(Instant, Reason)> {
        let streams = self.streams.lock();
        let (patience, reason) = match streams.used {
            true => (config.idle_timeout, Reason::Idle),
            false => (config.first_stream_timeout, Reason::FirstStream),
        };
        streams.none_since.map(|since| (since + patience, reason))
    }
}

impl StreamRegistration {
    /// Marks the connection as established: the client has answered the responses to its first
    /// requests.
    pub(crate) fn establish(&self) {
        self.connection.establish();
    }
}

impl Drop for StreamRegistration {
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
    /// Adds a task. The task runs when the connection is polled next. Only code that runs on the
    /// connection itself may call this.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().push(Task(Box::pin(task)));
    }
}

impl<F: Future + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        // An async block would store the future twice.
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

type Http<I> = http2::Connection<TokioIo<GuardedIo<I>>, Service, Tasks>;

/// Runs HTTP/2 and the tasks of the streams in one task.
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
            // The streams run first, so that their output is written in the same pass.
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
    /// Drops streams that were opened as the connection broke and have not run yet. They refer to the
    /// connection, which refers to them.
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.added.0.lock());
        drop(left);
    }
}

/// Serves a connection until the client or the replica closes it. Returns the reason.
pub(crate) async fn run<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: I,
    service: Service,
    connection: Arc<Connection>,
    config: &Config,
    drain: &Drain,
) -> Reason {
    let io = TokioIo::new(GuardedIo::new(io, Arc::clone(&connection), config));
    let http = builder(config, &connection.tasks).serve_connection(io, service);
    let added = connection.tasks.clone();
    let mut driver = Driver { http: Box::pin(http), running: FuturesUnordered::new(), added };
    let age = config.connection_age_max.map(|age| Instant::now() + jittered(age));
    let reason = loop {
        // The wait is bounded, because the time of the last stream's end is not known in advance.
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
    // GOAWAY: no new streams are accepted, and open streams continue.
    driver.http.as_mut().graceful_shutdown();
    if reason == Reason::Age {
        tokio::select! {
            _ended = &mut driver => return reason,
            () = drain.begun() => {}
            () = tokio::time::sleep(config.connection_age_grace) => {}
        }
    }
    if drain.has_begun() {
        // The delay spreads the ends of streams. A client that disconnects earlier ends the wait.
        tokio::select! {
            _ended = &mut driver => return reason,
            () = tokio::time::sleep(drain.turn()) => {}
        }
    }
    connection.end_all(&match drain.has_begun() {
        true => End::new(EndCode::Unavailable, "draining: this replica is shutting down"),
        false => End::new(EndCode::Aged, "the connection has reached its maximum age; reconnect"),
    });
    // A client that does not read the ends of its streams is disconnected.
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
        // Streams slightly beyond the limit receive a status with the reason instead of waiting.
        .max_concurrent_streams(config.streams_per_connection_max.saturating_add(64))
        // Header lists up to twice the limit receive a status with the reason.
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

/// Varies the age by up to a tenth, so that connections of the same age do not end together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-13: the ages of connections vary around the configured age.
    #[test]
    fn ages_are_spread_by_a_tenth() {
        let ages: Vec<f64> =
            (0..100).map(|_| jittered(Duration::from_secs(100)).as_secs_f64()).collect();
        assert!(ages.iter().all(|age| (90.0..=110.0).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 95.0) && ages.iter().any(|age| *age > 105.0));
    }
}
