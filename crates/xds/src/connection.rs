//! A client connection: its streams and their tasks.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use chancery_auth::TransportPeer;
use chancery_fanout::{End, EndCode, RefusalPlaces, StreamCloser};
use chancery_net::{Activity, RequestGuard};
use chancery_tls::{CredentialEnd, Peer};
use futures::FutureExt;
use hyper::rt::Executor;
use parking_lot::Mutex;
use slab::Slab;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::refusal_delays::{DELAY_MAX, Delay, RefusalDelays};

/// The state that the streams of a connection share.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) activity: Arc<Activity>,
    pub(crate) tasks: Tasks,
    streams: Mutex<Streams>,
    /// Cancelled when the connection is ending: polls no longer wait for a change.
    over: CancellationToken,
    /// The client of one of the streams has answered the responses to its first requests.
    established: AtomicBool,
    /// The client, if its certificate identifies it. Set after the TLS handshake.
    certificate: OnceLock<Peer>,
    refusals: Mutex<RefusalDelays>,
    /// The maximum number of refusals that are delayed at a time.
    delayed_max: usize,
    /// The places of streams of the replica that delayed refusals may take.
    places: RefusalPlaces,
}

/// A delayed refusal of a connection. Dropping it frees its place.
struct DelayedRefusal(Arc<Connection>);

#[derive(Debug, Default)]
struct Streams {
    open: Slab<StreamCloser>,
    /// The number of running polls.
    polls: usize,
    /// The end for streams that are opened later. Set when the connection is ending.
    over: Option<End>,
}

/// The registration of a stream in its connection. Dropping it removes the stream.
#[derive(Debug)]
pub(crate) struct StreamRegistration {
    connection: Arc<Connection>,
    at: usize,
    _request: RequestGuard,
}

/// The registration of a running poll in its connection. Dropping it removes the poll.
#[derive(Debug)]
pub(crate) struct PollRegistration {
    connection: Arc<Connection>,
    _request: RequestGuard,
}

/// The tasks of a connection other than HTTP/2 itself. The number of streams bounds them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<Vec<Task>>>);

type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;
pub(crate) struct Task(BoxedTask);

// === impl Connection ===

impl Connection {
    /// Creates a connection that may have `streams_max` streams.
    pub(crate) fn new(
        activity: Arc<Activity>,
        streams_max: u32,
        places: RefusalPlaces,
    ) -> Arc<Self> {
        let (tasks, streams, over, established, certificate) = Default::default();
        let refusals = Mutex::default();
        // The other half stays free for streams that are served.
        let delayed_max = usize::try_from(streams_max.div_ceil(2)).unwrap_or(usize::MAX);
        Arc::new(Self {
            activity,
            tasks,
            streams,
            over,
            established,
            certificate,
            refusals,
            delayed_max,
            places,
        })
    }

    /// Sets the client that the certificate identifies.
    pub(crate) fn set_certificate(&self, peer: Peer) {
        // The handshake of a connection ends once.
        drop(self.certificate.set(peer));
    }

    /// Returns the client, if its certificate identifies it.
    pub(crate) fn transport_peer(&self) -> Option<TransportPeer> {
        let peer = self.certificate.get()?;
        Some(TransportPeer::Certificate(Arc::clone(peer.identity())))
    }

    /// Waits until the certificate of the client no longer permits the connection. Waits forever without
    /// a certificate.
    pub(crate) async fn credential_ended(&self) -> CredentialEnd {
        match self.certificate.get() {
            Some(peer) => peer.ended().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.activity.peer()
    }

    /// Returns whether the connection runs on the threads for established connections. A connection
    /// that its client has closed does not: its memory is to be freed.
    pub(crate) fn is_established(&self) -> bool {
        self.established.load(Ordering::Relaxed) && !self.activity.is_closed_by_client()
    }

    /// Marks the connection as established: a client has answered the responses to its first requests.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
    }

    /// Returns the number of streams and running polls.
    pub(crate) fn n_streams(&self) -> usize {
        let streams = self.streams.lock();
        streams.open.len() + streams.polls
    }

    /// Registers a poll.
    pub(crate) fn begin_poll(self: &Arc<Self>) -> PollRegistration {
        self.streams.lock().polls += 1;
        PollRegistration { connection: Arc::clone(self), _request: self.activity.begin() }
    }

    /// Registers a stream.
    pub(crate) fn add(self: &Arc<Self>, stream: StreamCloser) -> StreamRegistration {
        let mut streams = self.streams.lock();
        if let Some(end) = &streams.over {
            stream.end(end.clone());
        }
        let at = streams.open.insert(stream);
        drop(streams);
        StreamRegistration { connection: Arc::clone(self), at, _request: self.activity.begin() }
    }

    /// Returns the delay after which the client may receive the end of a stream or poll, at most `max`; `None` without a
    /// delay, or if half of the places of streams are taken. Counts the end if it is a refusal.
    pub(crate) fn delay(self: &Arc<Self>, code: EndCode, max: Duration) -> Option<Delay> {
        if !code.is_refusal() || self.over.is_cancelled() {
            return None;
        }
        let mut refusals = self.refusals.lock();
        let delay = refusals.refuse(Instant::now())?.min(max);
        if !self.places.are_free() || !refusals.begin_delay(self.delayed_max) {
            return None;
        }
        drop(refusals);
        let place = DelayedRefusal(Arc::clone(self));
        Some(Delay::new(delay, self.over.clone()).holding(place))
    }

    /// Does the same for a refusal that does not have the place of a stream, and takes one for it. Without a free place,
    /// there is no delay.
    pub(crate) fn delay_unopened(self: &Arc<Self>, code: EndCode, max: Duration) -> Option<Delay> {
        let delay = self.delay(code, max)?;
        Some(delay.holding(self.places.take()?))
    }

    /// Ends all streams, all streams that are opened later, and the waits of all polls.
    pub(crate) fn end_all(&self, end: &End) {
        self.over.cancel();
        let mut streams = self.streams.lock();
        streams.over.get_or_insert_with(|| end.clone());
        for (_, stream) in &streams.open {
            stream.end(end.clone());
        }
    }
}

impl StreamRegistration {
    /// Returns the delay of the stream's end, as [`Connection::delay`] does.
    pub(crate) fn delay(&self, end: &End) -> Option<Delay> {
        self.connection.delay(end.code, DELAY_MAX)
    }

    /// Marks the connection as established: the client has answered the responses to its first
    /// requests.
    pub(crate) fn establish(&self) {
        self.connection.establish();
    }
}

impl Drop for StreamRegistration {
    fn drop(&mut self) {
        self.connection.streams.lock().open.try_remove(self.at);
    }
}

impl Drop for DelayedRefusal {
    fn drop(&mut self) {
        self.0.refusals.lock().end_delay();
    }
}

impl PollRegistration {
    /// Returns the delay of the end of a stream that is registered as a poll, as [`Connection::delay`] does.
    pub(crate) fn delay(&self, end: &End) -> Option<Delay> {
        self.connection.delay(end.code, DELAY_MAX)
    }

    /// Marks the connection as established: the client has accepted a response.
    pub(crate) fn establish(&self) {
        self.connection.establish();
    }

    /// Returns whether the connection is ending.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.over.is_cancelled()
    }

    /// Waits until the connection is ending.
    pub(crate) async fn over(&self) {
        self.connection.over.cancelled().await;
    }

    /// Returns the end of a connection that is ending.
    pub(crate) fn end(&self) -> End {
        let end = self.connection.streams.lock().over.clone();
        end.unwrap_or_else(|| End::new(EndCode::Unavailable, "the connection is ending"))
    }
}

impl Drop for PollRegistration {
    fn drop(&mut self) {
        let mut streams = self.connection.streams.lock();
        streams.polls = streams.polls.saturating_sub(1);
    }
}

// === impl Tasks ===

impl Tasks {
    /// Adds a task. The task runs when the connection is polled next. Only code that runs on the
    /// connection itself may call this.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().push(Task(Box::pin(task)));
    }

    /// Returns the tasks that were added since the last call.
    pub(crate) fn take_added(&self) -> Vec<Task> {
        std::mem::take(&mut *self.0.lock())
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

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    fn connection(streams_max: u32) -> Arc<Connection> {
        connection_of(streams_max, &RefusalPlaces::without_streams(usize::MAX))
    }

    fn connection_of(streams_max: u32, places: &RefusalPlaces) -> Arc<Connection> {
        let activity = Activity::new(([127, 0, 0, 1], 1).into());
        Connection::new(activity, streams_max, places.clone())
    }

    fn refuse(connection: &Arc<Connection>) -> Option<Delay> {
        connection.delay(EndCode::ResourceExhausted, DELAY_MAX)
    }

    /// Only refusals are delayed and counted. Other ends tell the client to come back.
    #[tokio::test(start_paused = true)]
    async fn only_refusals_are_delayed() {
        let connection = connection(8);
        let others = [EndCode::Ok, EndCode::Aged, EndCode::AccessChanged, EndCode::Unavailable];
        for code in others.into_iter().cycle().take(40) {
            assert!(connection.delay(code, DELAY_MAX).is_none());
        }
        for _ in 0..5 {
            assert!(refuse(&connection).is_none());
        }
        assert!(connection.delay(EndCode::AccessChanged, DELAY_MAX).is_none());
        let start = Instant::now();
        refuse(&connection).unwrap().await;
        assert!((0.8..=1.01).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    }

    /// OPS-20: delayed refusals take at most half of a connection's streams. A refusal beyond that is immediate.
    #[tokio::test(start_paused = true)]
    async fn delayed_refusals_leave_half_of_the_streams_of_a_connection() {
        let connection = connection(7);
        let mut delayed: Vec<Delay> = (0..50).filter_map(|_| refuse(&connection)).collect();
        assert_eq!(delayed.len(), 4);
        // A client that gives up frees the place.
        delayed.pop();
        assert!(refuse(&connection).is_some());
        join_all(delayed).await;
        assert_eq!(connection.refusals.lock().n_delayed(), 0);
    }

    /// OPS-15: the end of a connection ends all delays, and prevents further ones.
    #[tokio::test(start_paused = true)]
    async fn end_of_connection_ends_delays_at_once() {
        let connection = connection(2000);
        let delayed: Vec<Delay> = (0..20).filter_map(|_| refuse(&connection)).collect();
        assert_eq!(delayed.len(), 15);
        let start = Instant::now();
        connection.end_all(&End::new(EndCode::Unavailable, "draining"));
        join_all(delayed).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(refuse(&connection).is_none());
    }

    /// OPS-20: refusals of many connections leave half of the places of streams to others.
    #[tokio::test(start_paused = true)]
    async fn delayed_refusals_leave_half_of_the_streams_of_a_replica() {
        let places = RefusalPlaces::without_streams(4);
        let connection = connection_of(100, &places);
        let unopened = || connection.delay_unopened(EndCode::ResourceExhausted, DELAY_MAX);
        let immediate = (0..5).filter(|_| refuse(&connection).is_none()).count();
        assert_eq!(immediate, 5);
        let delayed = [unopened(), unopened()];
        assert!(delayed.iter().all(Option::is_some));
        assert!(unopened().is_none() && refuse(&connection).is_none());
        drop(delayed);
        assert!(refuse(&connection).is_some(), "the places are free again");
    }
}
