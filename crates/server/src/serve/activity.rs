//! The activity of a connection of the admin port, and how long it has been idle.

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

/// The connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The maximum times that a connection may spend without progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From the start of the connection to the end of its first request header.
    pub(crate) header: Duration,
    /// Without a request after that, and while the client does not read the response.
    pub(crate) idle: Duration,
    /// For the body of a request, in addition to the time that depends on its size.
    pub(crate) body: Duration,
}

/// The activity of one connection, shared by its task and the accept loop.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The number of requests whose responses have not ended.
    requests: AtomicUsize,
    state: Mutex<State>,
    /// Cancelled to close this connection in favor of another one.
    pub(crate) evicted: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// The time at which the connection was opened or its last request ended.
    since: Instant,
    /// The number of bytes of the preface that have been received, or its length if the connection
    /// is not HTTP/2.
    greeted: usize,
    /// Whether the client has sent a complete request header, or the preface of HTTP/2.
    is_known: bool,
    /// The time since which the client has read nothing that the server sends.
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

    /// Begins a request. The request ends when the returned guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> RequestGuard {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.state().is_known = true;
        RequestGuard(Arc::clone(self))
    }

    /// Returns the time since which there has been no request, or `None` if there is one.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        (self.requests.load(Ordering::Relaxed) == 0).then(|| self.state().since)
    }

    /// Returns the time at which the connection is closed unless something happens before.
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
            // HTTP/1 is known by its request header.
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

/// A guard for a running request.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<Activity>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.state().since = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection whose activity is recorded.
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
        assert_eq!(activity.due(&LIMITS), start + LIMITS.header, "HTTP/1 without a header");
        let busy = activity.begin();
        assert_eq!(activity.idle_since(), None);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(
            activity.due(&LIMITS) > Instant::now(),
            "a connection with a long request is not idle"
        );
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
