//! The task of a connection.
//!
//! One task runs HTTP/2 or HTTP/1.1, the streams' writers and their readers. A push wakes that task once, and the
//! task writes. With a task per stream, a push would wake the connection through another task.
//! Everything that runs on the connection is dropped with it.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use chancery_fanout::{End, EndCode};
use chancery_net::{FirstBytes, FrameRate, GuardedIo, Guards, Timeouts, Unused};
use futures::{Stream, stream::FuturesUnordered};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Config,
    connection::{Connection, Task, Tasks},
    drain::Drain,
    reason::Reason,
    service::Service,
};

/// The minimum size of the read buffer of HTTP/1.1.
const HTTP1_BUFFER_BYTES_MIN: usize = 8 << 10;

type Io<I> = TokioIo<GuardedIo<I>>;

/// The two versions of HTTP. Only polls use HTTP/1.1 (REST-23).
enum Http<I: AsyncRead + AsyncWrite + Unpin> {
    One(Pin<Box<http1::Connection<Io<I>, Service>>>),
    Two(Pin<Box<http2::Connection<Io<I>, Service, Tasks>>>),
}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Http<I> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        match self {
            Self::One(http) => http.as_mut().poll(cx),
            Self::Two(http) => http.as_mut().poll(cx),
        }
    }

    /// Asks the client to open no more streams and to send no more requests. Open ones continue.
    fn graceful_shutdown(&mut self) {
        match self {
            Self::One(http) => http.as_mut().graceful_shutdown(),
            // GOAWAY.
            Self::Two(http) => http.as_mut().graceful_shutdown(),
        }
    }
}

/// Runs HTTP and the tasks of the streams in one task.
struct Driver<I: AsyncRead + AsyncWrite + Unpin> {
    http: Http<I>,
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
            if let Poll::Ready(ended) = this.http.poll(cx) {
                return Poll::Ready(ended);
            }
            let added = this.added.take_added();
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
        drop(self.added.take_added());
    }
}

/// Serves a connection until the client or the replica closes it. Returns the reason.
pub(crate) async fn run<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut io: I,
    service: Service,
    connection: Arc<Connection>,
    config: &Config,
    drain: &Drain,
) -> Reason {
    let activity = Arc::clone(&connection.activity);
    let timeouts = Timeouts { first: config.first_stream_timeout, idle: config.idle_timeout };
    let first_bytes = tokio::select! {
        first_bytes = FirstBytes::read(&mut io) => match first_bytes {
            Ok(first_bytes) => first_bytes,
            Err(_) => return Reason::Client,
        },
        () = drain.begun() => return Reason::Drain,
        () = activity.evicted() => return Reason::Limit,
        _ = activity.unused(timeouts) => return Reason::FirstStream,
    };
    let is_http1 = first_bytes.is_http1();
    let guards = guards(config, is_http1);
    let io = TokioIo::new(GuardedIo::new(io, first_bytes, Arc::clone(&activity), guards));
    let http = if is_http1 {
        Http::One(Box::pin(http1_builder(config).serve_connection(io, service)))
    } else {
        let builder = http2_builder(config, &connection.tasks);
        Http::Two(Box::pin(builder.serve_connection(io, service)))
    };
    let added = connection.tasks.clone();
    let mut driver = Driver { http, running: FuturesUnordered::new(), added };
    let mut end = "the connection has reached its maximum age; reconnect";
    let reason = tokio::select! {
        ended = &mut driver => return Reason::of(&ended),
        () = drain.begun() => Reason::Drain,
        // Only a connection without an accepted request is evicted, so there are no streams to end gracefully.
        () = activity.evicted() => return Reason::Limit,
        () = aged(config.connection_age_max) => Reason::Age,
        ended = connection.credential_ended() => {
            end = ended.explanation();
            Reason::Credential
        }
        unused = activity.unused(timeouts) => match unused {
            Unused::First => Reason::FirstStream,
            Unused::Idle => Reason::Idle,
        },
    };
    driver.http.graceful_shutdown();
    if reason == Reason::Age {
        tokio::select! {
            _ended = &mut driver => return reason,
            () = drain.begun() => {}
            ended = connection.credential_ended() => end = ended.explanation(),
            () = tokio::time::sleep(config.connection_age_grace) => {}
        }
    }
    let is_drained = reason == Reason::Drain || drain.has_begun();
    if is_drained {
        // The delay spreads the ends of streams. A client that disconnects earlier ends the wait.
        tokio::select! {
            _ended = &mut driver => return reason,
            () = drain.turn() => {}
        }
    }
    connection.end_all(&if is_drained { drain.end() } else { End::new(EndCode::Aged, end) });
    // A client that does not read the ends of its streams is disconnected.
    tokio::select! {
        _ended = &mut driver => {}
        () = tokio::time::sleep(config.close_timeout) => {}
    }
    reason
}

/// Returns the limits of a connection below HTTP.
fn guards(config: &Config, is_http1: bool) -> Guards {
    let frames = FrameRate {
        per_second: config.control_frames_per_second_max,
        burst: config.control_frames_burst_max,
        key: Some("control_frames_per_second_max"),
    };
    Guards {
        write_timeout: Some(config.keepalive_interval.saturating_add(config.keepalive_timeout)),
        frames: (!is_http1).then_some(frames),
        delays_end: true,
    }
}

fn http1_builder(config: &Config) -> http1::Builder {
    let header_bytes = usize::try_from(config.header_list_bytes_max).unwrap_or(usize::MAX);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // [`Timeouts`] limit the time for a header.
        .header_read_timeout(None)
        .max_buf_size(header_bytes.saturating_mul(2).max(HTTP1_BUFFER_BYTES_MIN));
    builder
}

fn http2_builder(config: &Config, tasks: &Tasks) -> http2::Builder<Tasks> {
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

/// Waits until the connection has reached its maximum age.
async fn aged(age_max: Option<Duration>) {
    match age_max {
        Some(age) => tokio::time::sleep(jittered(age)).await,
        None => std::future::pending().await,
    }
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
    fn connection_ages_vary_by_ten_percent() {
        let ages: Vec<f64> =
            (0..100).map(|_| jittered(Duration::from_secs(100)).as_secs_f64()).collect();
        assert!(ages.iter().all(|age| (90.0..=110.0).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 95.0) && ages.iter().any(|age| *age > 105.0));
    }
}
