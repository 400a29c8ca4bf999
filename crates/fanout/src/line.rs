//! What a stream's transport and its shard share: a one-slot outbox, and the flags around it.
//!
//! Late binding (design 4.6): a response is built when the transport has nothing left to write, never
//! earlier, so that it always tells the newest state. The transport says so by asking for the next
//! message; a shard that wanted to send before that leaves a mark, and is called back through its
//! ready list.
//!
//! Invariants:
//! - The shard puts a message only into an empty slot, and only the shard does.
//! - A line is at most once in its shard's ready list, so the list is bounded by the streams.
//! - Nothing here waits: both sides hold the lock for a few instructions.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use chancery_model::Node;
use chancery_protocol::{Message, Request, StreamKind};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use crate::{
    away::Back,
    event::{Event, Sent},
    fresh::Currency,
    queue::Lane,
    status::{End, EndCode},
};

/// No session has been made for the line yet, or it is gone.
const NO_KEY: u32 = u32::MAX;

/// What is known of a stream when it opens.
#[derive(Debug, Clone)]
pub struct StreamInfo {
    /// Protocol, and the type of a stream that is not aggregated.
    pub kind: StreamKind,
    /// Where the client connects from.
    pub peer: SocketAddr,
}

/// What the transport of a stream is given next.
#[derive(Debug)]
pub enum Delivery {
    /// A response to write.
    Message(Message),
    /// The stream is over.
    End(End),
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) info: StreamInfo,
    /// The session's place in the shard. Read and written by the shard only.
    key: AtomicU32,
    /// The session is away from its shard, for large work: requests wait.
    away: AtomicBool,
    /// Tells the stream's reader that the session is back.
    back: Notify,
    /// The client has had, and has answered, all that it asked for when it came. Written by the shard.
    arrived: AtomicBool,
    /// Events of the stream that wait in an inbox: all of them in one, so that they keep their order.
    waiting: AtomicUsize,
    /// Whether that is the inbox for bulk. Read and written by the stream's reader only.
    waits_in_bulk: AtomicBool,
    outbox: Mutex<Outbox>,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
struct Outbox {
    message: Option<Message>,
    end: Option<End>,
    /// How the stream is to be ended as soon as the shard has let go of its session.
    ending: Option<End>,
    waker: Option<Waker>,
    /// The transport is busy with the message it took, and has not asked for another.
    busy: bool,
    /// The shard may have more to send as soon as the transport asks.
    wanted: bool,
    /// The transport is gone.
    closed: bool,
    /// The line is in the ready list.
    listed: bool,
}

/// How the transports of a shard's streams call it, without ever waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    ready: Mutex<VecDeque<Arc<Line>>>,
    /// Sessions that come back from large work.
    back: Mutex<VecDeque<Back>>,
    pub(crate) notify: Notify,
    /// Streams of the shard.
    pub(crate) load: AtomicUsize,
}

/// What a line asks of its shard.
#[derive(Debug)]
pub(crate) enum Call {
    /// It can take another message.
    Hungry,
    /// It is to be ended like this once its session has been forgotten.
    Ending(End),
    /// Its transport is gone: forget the session. With how the replica had ended it, if it had.
    Closed(Option<EndCode>),
}

// === impl Mailbox ===

impl Mailbox {
    /// Takes the lines that called, in exchange for an empty list.
    pub(crate) fn swap(&self, empty: &mut VecDeque<Arc<Line>>) {
        std::mem::swap(&mut *self.ready.lock(), empty);
    }

    pub(crate) fn send_back(&self, back: Back) {
        self.back.lock().push_back(back);
        self.notify.notify_one();
    }

    /// Takes at most `n` of the sessions that have come back.
    pub(crate) fn take_back(&self, n: usize) -> Vec<Back> {
        let mut back = self.back.lock();
        let n = n.min(back.len());
        back.drain(..n).collect()
    }

    pub(crate) fn has_back(&self) -> bool {
        !self.back.lock().is_empty()
    }

    pub(crate) fn push(&self, line: Arc<Line>) {
        self.ready.lock().push_back(line);
        self.notify.notify_one();
    }
}

// === impl Line ===

impl Line {
    pub(crate) fn new(info: StreamInfo, mailbox: Arc<Mailbox>) -> Arc<Self> {
        Arc::new(Self {
            info,
            key: AtomicU32::new(NO_KEY),
            away: AtomicBool::new(false),
            back: Notify::new(),
            arrived: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            waits_in_bulk: AtomicBool::new(false),
            outbox: Mutex::new(Outbox::default()),
            mailbox,
        })
    }

    pub(crate) fn key(&self) -> Option<u32> {
        Some(self.key.load(Ordering::Relaxed)).filter(|key| *key != NO_KEY)
    }

    pub(crate) fn set_key(&self, key: Option<u32>) {
        self.key.store(key.unwrap_or(NO_KEY), Ordering::Relaxed);
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Says that the session is away from its shard, or is back.
    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Release);
        if !away {
            self.back.notify_waiters();
        }
    }

    /// Waits while the session is away.
    async fn until_back(&self) {
        loop {
            // Before the look, so that no wake-up is lost.
            let back = self.back.notified();
            if !self.away.load(Ordering::Acquire) {
                return;
            }
            back.await;
        }
    }

    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Marks the stream as established: the client has received and answered all that it first asked for. Wakes
    /// the transport, which then belongs to the established ones.
    pub(crate) fn arrive(&self) {
        self.arrived.store(true, Ordering::Relaxed);
        let waker = self.outbox.lock().waker.take();
        wake(waker);
    }

    /// Chooses the inbox for the next event of this stream: bulk for large requests, and for all until the
    /// stream has arrived. While earlier events wait, the event waits where they do.
    pub(crate) fn lane_of(&self, event: &Event) -> Lane {
        if self.waiting.fetch_add(1, Ordering::Acquire) == 0 {
            let is_bulk = !self.has_arrived() || event.cost(1) > 1;
            self.waits_in_bulk.store(is_bulk, Ordering::Relaxed);
        }
        match self.waits_in_bulk.load(Ordering::Relaxed) {
            true => Lane::Bulk,
            false => Lane::Updates,
        }
    }

    /// Says that an event was handled for which [`Line::lane_of`] had chosen the inbox.
    pub(crate) fn on_handled(&self) {
        self.waiting.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        let outbox = self.outbox.lock();
        outbox.closed || outbox.end.is_some() || outbox.ending.is_some()
    }

    /// Whether a message may be put now. If not, the shard is called when it may.
    pub(crate) fn can_take(&self) -> bool {
        let mut outbox = self.outbox.lock();
        let over = outbox.closed || outbox.end.is_some();
        let free = !outbox.busy && outbox.message.is_none() && !over;
        outbox.wanted |= !free;
        free
    }

    /// Hands a message to the transport. The slot has to be empty, see [`Line::can_take`].
    pub(crate) fn put(&self, message: Message, then: Then) {
        let waker = {
            let mut outbox = self.outbox.lock();
            debug_assert!(outbox.message.is_none(), "a message was put into a full slot");
            outbox.message = Some(message);
            outbox.wanted |= then == Then::CallBack;
            outbox.waker.take()
        };
        wake(waker);
    }

    /// Ends the stream after the message that waits in the slot, if any. The first end counts.
    pub(crate) fn end(&self, end: End) {
        let waker = {
            let mut outbox = self.outbox.lock();
            outbox.end.get_or_insert(end);
            outbox.waker.take()
        };
        wake(waker);
    }

    /// Ends the stream once the shard has forgotten its session. A client that comes back at once then
    /// finds there what it was left with.
    pub(crate) fn end_in_order(self: &Arc<Self>, end: End) {
        let call = {
            let mut outbox = self.outbox.lock();
            if outbox.closed || outbox.end.is_some() || outbox.ending.is_some() {
                return;
            }
            outbox.ending = Some(end);
            !std::mem::replace(&mut outbox.listed, true)
        };
        if call {
            self.mailbox.push(Arc::clone(self));
        }
    }

    /// Takes the line's call, after it was taken from the ready list.
    pub(crate) fn answer(&self) -> Call {
        let mut outbox = self.outbox.lock();
        outbox.listed = false;
        let ending = outbox.ending.take();
        match ending {
            _ if outbox.closed => {
                Call::Closed(outbox.end.as_ref().or(ending.as_ref()).map(|end| end.code))
            }
            Some(end) => Call::Ending(end),
            None => Call::Hungry,
        }
    }

    fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Delivery> {
        let call = {
            let mut outbox = self.outbox.lock();
            if let Some(message) = outbox.message.take() {
                outbox.busy = true;
                return Poll::Ready(Delivery::Message(message));
            }
            if let Some(end) = outbox.end.clone() {
                return Poll::Ready(Delivery::End(end));
            }
            outbox.busy = false;
            match &mut outbox.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            let call = outbox.wanted && !outbox.listed;
            outbox.wanted = false;
            outbox.listed |= call;
            call
        };
        if call {
            self.mailbox.push(Arc::clone(self));
        }
        Poll::Pending
    }

    fn close(self: &Arc<Self>) {
        let call = {
            let mut outbox = self.outbox.lock();
            outbox.closed = true;
            outbox.message = None;
            outbox.waker = None;
            let call = !outbox.listed;
            outbox.listed = true;
            call
        };
        if call {
            self.mailbox.push(Arc::clone(self));
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Whether the shard wants to hear when a message has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It may have more to send.
    CallBack,
    /// Only an event can give it more to send.
    Rest,
}

// === impl Intake ===

/// The requests' way in. One per stream, held by what reads the client's messages.
#[derive(Debug, Clone)]
pub struct Intake {
    line: Arc<Line>,
    inboxes: Inboxes,
    currency: Currency,
}

/// The ways into a shard, by lane: what waits in one does not hold up the other.
#[derive(Debug, Clone)]
pub(crate) struct Inboxes {
    pub(crate) updates: mpsc::Sender<Sent>,
    pub(crate) bulk: mpsc::Sender<Sent>,
}

impl Inboxes {
    fn of(&self, lane: Lane) -> &mpsc::Sender<Sent> {
        match lane {
            Lane::Updates => &self.updates,
            Lane::Bulk => &self.bulk,
        }
    }
}

/// The shard has stopped: the replica shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the replica is shutting down")]
pub struct Stopped;

impl Intake {
    pub(crate) fn new(line: Arc<Line>, inboxes: Inboxes, currency: Currency) -> Self {
        Self { line, inboxes, currency }
    }

    /// Hands over a request, in the order in which the client sent them. Waits, before the first one,
    /// until the state is current, and while the shard's inbox is full.
    ///
    /// `node` is the client's identity, in the first request and in any where it has changed. `room` is
    /// what the request takes of a bound that the transport keeps; it is given back when the request
    /// has been handled.
    ///
    /// # Errors
    /// [`Stopped`] if the shard is gone, or the stream was ended because the replica is behind.
    pub async fn request(
        &mut self,
        request: Request,
        node: Option<Arc<Node>>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Stopped> {
        if let Err(behind) = self.currency.check(&request).await {
            self.end(End::new(EndCode::Unavailable, behind.to_string()));
            return Err(Stopped);
        }
        self.line.until_back().await;
        self.send(Event::Request { line: Arc::clone(&self.line), request, node, room }).await
    }

    /// Says that the client will send no more (SOTW-111): the stream ends with OK when it has been sent
    /// what can be sent now.
    ///
    /// # Errors
    /// [`Stopped`] if the shard is gone.
    pub async fn half_close(&self) -> Result<(), Stopped> {
        self.send(Event::HalfClose { line: Arc::clone(&self.line) }).await
    }

    /// Ends the stream from the transport's side. The first end of a stream counts.
    pub fn end(&self, end: End) {
        self.line.end(end);
    }

    /// A handle that can do nothing but end the stream.
    #[must_use]
    pub fn ender(&self) -> Ender {
        Ender(Arc::clone(&self.line))
    }

    async fn send(&self, event: Event) -> Result<(), Stopped> {
        let inbox = self.inboxes.of(self.line.lane_of(&event));
        inbox.send(Sent::now(event)).await.map_err(|_| {
            self.end(End::new(EndCode::Unavailable, Stopped.to_string()));
            Stopped
        })
    }
}

/// Ends one stream, from outside of it: a drain, a connection that has reached its age.
#[derive(Debug, Clone)]
pub struct Ender(Arc<Line>);

impl Ender {
    /// Ends the stream, once its shard knows of it. The first end of a stream counts.
    pub fn end(&self, end: End) {
        self.0.end_in_order(end);
    }
}

// === impl Outlet ===

/// The responses' way out. One per stream, held by what writes to the client. Dropping it frees all
/// that the replica holds for the stream (SOTW-111).
#[derive(Debug)]
pub struct Outlet {
    line: Arc<Line>,
    streams: Arc<AtomicUsize>,
}

impl Outlet {
    /// Counts the stream in; `streams` is the number of all open ones.
    pub(crate) fn new(line: Arc<Line>, streams: Arc<AtomicUsize>) -> Self {
        line.mailbox.load.fetch_add(1, Ordering::Relaxed);
        Self { line, streams }
    }

    /// The next thing to write. Asking means that all before it has been handed to the transport: a
    /// response is not built earlier than that.
    ///
    /// Wakes the caller, too, when [`Outlet::has_arrived`] changes.
    ///
    /// After [`Delivery::End`] it is that same end for ever.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Delivery> {
        self.line.poll_next(cx)
    }

    /// Whether the client has had, and has answered, all that it asked for when it came. Until then its
    /// stream is one of those that must not hold up the others.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        self.line.has_arrived()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.line.mailbox.load.fetch_sub(1, Ordering::Relaxed);
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.line.close();
    }
}
