//! The activity of a connection: its requests, and the time that it spends without one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The maximum times that a connection may spend without a request.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the start of the connection to [`Activity::on_preface`] or the first request.
    pub first: Duration,
    /// Without a request after that. The connection is closed before twice that time.
    pub idle: Duration,
}

/// The time after which a response that waits no longer protects its connection from eviction.
pub(crate) const WAITING_MIN: Duration = Duration::from_secs(5);

/// The reason why a connection counts as unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unused {
    /// It never had a request.
    First,
    /// It has had no request for too long.
    Idle,
}

/// The progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    New,
    /// It has sent the HTTP/2 preface.
    PrefaceReceived,
    /// It has made a request.
    Requested,
}

/// The activity of one connection, shared by its task and the slots of its port.
#[derive(Debug)]
pub struct Activity {
    peer: SocketAddr,
    pub(crate) state: Mutex<State>,
    /// Whether the client has closed the connection.
    client_closed: AtomicBool,
    /// Whether the connection is to be closed.
    evicted: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) progress: Progress,
    /// The number of requests whose responses have not ended.
    requests: usize,
    /// The number of them whose responses wait for something to happen, and when the last one began to wait.
    waiting: (usize, Instant),
    /// The time at which the connection was opened or its last request ended.
    idle_since: Instant,
    /// The time of the last received bytes.
    pub(crate) last_received_at: Instant,
}

impl Activity {
    /// Creates the activity of a new connection.
    #[must_use]
    pub fn new(peer: SocketAddr) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            progress: Progress::New,
            requests: 0,
            waiting: (0, now),
            idle_since: now,
            last_received_at: now,
        };
        Arc::new(Self {
            peer,
            state: Mutex::new(state),
            client_closed: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        })
    }

    /// Returns the address of the client.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Records that the client has sent the HTTP/2 preface.
    pub fn on_preface(&self) {
        let mut state = self.state.lock();
        state.progress = state.progress.max(Progress::PrefaceReceived);
        state.last_received_at = Instant::now();
    }

    /// Records that bytes have arrived.
    pub(crate) fn on_read(&self) {
        self.state.lock().last_received_at = Instant::now();
    }

    /// Begins a request. The request ends when the returned guard is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> RequestGuard {
        let mut state = self.state.lock();
        state.requests += 1;
        state.progress = Progress::Requested;
        drop(state);
        RequestGuard { activity: Arc::clone(self), waits: false }
    }

    /// Returns the time since which the connection has had no request whose response is in progress, and whether it has
    /// other requests. Their responses wait for at least [`WAITING_MIN`].
    pub(crate) fn evictable_since(&self) -> Option<(bool, Instant)> {
        let state = self.state.lock();
        let (n_waiting, since) = state.waiting;
        match state.requests {
            0 => Some((false, state.idle_since)),
            n if n == n_waiting && since.elapsed() >= WAITING_MIN => Some((true, since)),
            _ => None,
        }
    }

    /// Returns the time since which there has been no request, or `None` if there is one.
    #[must_use]
    pub fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.requests == 0).then_some(state.idle_since)
    }

    /// Waits until the connection has been without a request for too long.
    pub async fn unused(&self, timeouts: Timeouts) -> Unused {
        loop {
            let now = Instant::now();
            // The wait is bounded, because a request may begin and end in the meantime.
            let mut look = now + timeouts.idle;
            if let Some((due, reason)) = self.due(timeouts) {
                if due <= now {
                    return reason;
                }
                look = look.min(due);
            }
            sleep_until(look).await;
        }
    }

    /// Returns when the connection will have been without a request for too long. `None` if it has a
    /// request.
    fn due(&self, timeouts: Timeouts) -> Option<(Instant, Unused)> {
        let since = self.idle_since()?;
        Some(match self.state.lock().progress {
            Progress::New => (since + timeouts.first, Unused::First),
            Progress::PrefaceReceived | Progress::Requested => {
                (since + timeouts.idle, Unused::Idle)
            }
        })
    }

    /// Returns whether the client has closed the connection.
    #[must_use]
    pub fn is_closed_by_client(&self) -> bool {
        self.client_closed.load(Ordering::Relaxed)
    }

    /// Records that the client has closed the connection. Returns whether this is new.
    pub(crate) fn on_client_close(&self) -> bool {
        !self.client_closed.swap(true, Ordering::Relaxed)
    }

    /// Waits until [`Self::evict`]. Only the task of the connection may wait.
    pub async fn evicted(&self) {
        std::future::poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.is_evicted() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted.load(Ordering::Acquire)
    }

    /// Returns whether the connection has had a request.
    pub(crate) fn has_had_request(&self) -> bool {
        self.state.lock().progress == Progress::Requested
    }

    /// Evicts the connection, unless it has had a request. Returns whether it is evicted.
    pub(crate) fn evict_without_request(&self) -> bool {
        let state = self.state.lock();
        if state.progress == Progress::Requested {
            return false;
        }
        self.evicted.store(true, Ordering::Release);
        drop(state);
        self.waker.wake();
        true
    }

    /// Asks the task of the connection to close it, for example because another connection takes its slot.
    pub fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// A running request. Dropping it ends the request.
#[derive(Debug)]
pub struct RequestGuard {
    activity: Arc<Activity>,
    waits: bool,
}

impl RequestGuard {
    /// Records that the response waits for something to happen. If the port is full, the connection may then lose its slot.
    pub fn wait(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            let mut state = self.activity.state.lock();
            state.waiting = (state.waiting.0 + 1, Instant::now());
        }
    }

    /// Records that the response is in progress.
    pub fn serve(&mut self) {
        if std::mem::take(&mut self.waits) {
            let mut state = self.activity.state.lock();
            state.waiting.0 = state.waiting.0.saturating_sub(1);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.serve();
        let mut state = self.activity.state.lock();
        state.requests = state.requests.saturating_sub(1);
        state.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts =
        Timeouts { first: Duration::from_secs(10), idle: Duration::from_secs(60) };

    #[tokio::test(start_paused = true)]
    async fn connection_timeout_depends_on_its_activity() {
        let peer = ([127, 0, 0, 1], 1).into();
        let start = Instant::now();
        let activity = Activity::new(peer);
        assert_eq!(activity.unused(TIMEOUTS).await, Unused::First);
        assert_eq!(Instant::now(), start + TIMEOUTS.first);
        let busy = activity.begin();
        assert_eq!(activity.idle_since(), None);
        let hour = Duration::from_secs(3600);
        let unused = tokio::time::timeout(hour, activity.unused(TIMEOUTS)).await;
        assert!(unused.is_err(), "a connection with a long request is not idle");
        drop(busy);
        let ended = Instant::now();
        assert_eq!(activity.unused(TIMEOUTS).await, Unused::Idle);
        assert_eq!(Instant::now(), ended + TIMEOUTS.idle);

        let (start, activity) = (Instant::now(), Activity::new(peer));
        let late = Timeouts { first: hour, ..TIMEOUTS };
        let ((), unused) = tokio::join!(async { drop(activity.begin()) }, activity.unused(late));
        assert_eq!(unused, Unused::Idle);
        assert_eq!(Instant::now(), start + TIMEOUTS.idle, "the first request shortens the wait");

        let (start, activity) = (Instant::now(), Activity::new(peer));
        activity.on_preface();
        assert_eq!(activity.unused(TIMEOUTS).await, Unused::Idle);
        assert_eq!(Instant::now(), start + TIMEOUTS.idle);
    }
}
