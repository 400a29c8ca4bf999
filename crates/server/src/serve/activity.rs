//! What a connection of the admin port is doing, and how long it has been doing nothing.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a connection may be without progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From the connection to the whole header of its first request.
    pub(crate) header: Duration,
    /// Without a request, after that; and while it does not take the answer.
    pub(crate) idle: Duration,
    /// For the body of a request, besides what it may take by its size.
    pub(crate) body: Duration,
}

/// One connection, as its task and the accept loop see it.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Requests whose answers have not ended.
    requests: AtomicUsize,
    state: Mutex<State>,
    /// Cancelled to make room for another connection.
    pub(crate) evicted: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// The last time at which something was begun or ended.
    since: Instant,
    /// Its first bytes, as long as they are those of HTTP/2.
    greeted: usize,
    /// It has sent a whole header, or the greeting of HTTP/2.
    is_known: bool,
    /// Since when it takes nothing of what is sent.
    blocked: Option<Instant>,
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(0),
            state: Mutex::new(State {
                since: Instant::now(),
                greeted: 0,
                is_known: false,
                blocked: None,
            }),
            evicted: CancellationToken::new(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request, which ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.state().is_known = true;
        Busy(Arc::clone(self))
    }

    /// Since when it has had no request; `None` while it has one.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        (self.requests.load(Ordering::Relaxed) == 0).then(|| self.state().since)
    }

    /// When it is to be closed if nothing happens by then.
    pub(crate) fn due(&self, limits: &Limits) -> Instant {
        let idle_since = self.idle_since();
        let state = self.state();
        match (idle_since, state.blocked) {
            (Some(since), _) if !state.is_known => since + limits.header,
            (Some(since), _) => since + limits.idle,
            (None, Some(blocked)) => blocked + limits.idle,
            (None, None) => Instant::now() + limits.idle,
        }
    }

    fn on_read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.is_known || state.greeted >= PREFACE.len() {
            return;
        }
        let rest = &PREFACE[state.greeted..];
        let n = rest.len().min(bytes.len());
        if rest[..n] == bytes[..n] {
            state.greeted += n;
            state.is_known = state.greeted == PREFACE.len();
        } else {
            // HTTP/1: its header counts.
            state.greeted = PREFACE.len();
        }
    }

    fn on_write<T>(&self, written: &Poll<T>) {
        let mut state = self.state();
        match written {
            Poll::Pending => {
                state.blocked.get_or_insert_with(Instant::now);
            }
            Poll::Ready(_) => state.blocked = None,
        }
    }
}

/// A request at work.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.state().since = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) stream: TcpStream,
    pub(crate) activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.activity.on_read(&buf.filled()[before..]);
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.activity.on_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.activity.on_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        body: Duration::from_secs(30),
    };

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_due_by_what_it_has_done() {
        let start = Instant::now();
        let activity = Activity::new();
        assert_eq!(activity.due(&LIMITS), start + LIMITS.header);
        activity.on_read(b"P");
        assert_eq!(activity.due(&LIMITS), start + LIMITS.header);
        activity.on_read(b"OST /");
        activity.on_read(&PREFACE[1..]);
        assert_eq!(activity.due(&LIMITS), start + LIMITS.header, "HTTP/1 without its header");
        let busy = activity.begin();
        assert_eq!(activity.idle_since(), None);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(activity.due(&LIMITS) > Instant::now(), "a long wait is no idle connection");
        activity.on_write(&Poll::<()>::Pending);
        let blocked = Instant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        activity.on_write(&Poll::<()>::Pending);
        assert_eq!(activity.due(&LIMITS), blocked + LIMITS.idle);
        drop(busy);
        assert_eq!(activity.due(&LIMITS), Instant::now() + LIMITS.idle);

        let activity = Activity::new();
        for byte in PREFACE.chunks(5) {
            activity.on_read(byte);
        }
        assert_eq!(activity.due(&LIMITS), Instant::now() + LIMITS.idle);
    }
}
