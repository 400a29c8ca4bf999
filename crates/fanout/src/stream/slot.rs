//! The state that a stream's transport and its shard share: a one-slot outbox and its flags.
//!
//! Late binding: the shard builds a response only when the transport has nothing left to write, so
//! each response has the newest state. The transport asks for the next message when it is ready. A
//! shard that has something to send earlier leaves a mark, and the transport calls it back through
//! the ready list.
//!
//! Invariants:
//! - Only the shard puts a message into the slot, and only when the slot is empty.
//! - A stream occurs at most once in its shard's ready list, so the number of streams bounds the list.
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

use chancery_model::Identity;
use chancery_protocol::{Message, StreamKind};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    messages::{
        session::Lane,
        status::{End, EndCode},
    },
    offload::work::Returned,
    turn::turns::Turns,
};

/// The key of a stream whose session does not exist yet, or no longer exists.
const NO_KEY: u32 = u32::MAX;

/// The properties of a stream that are known when it opens.
#[derive(Debug, Clone)]
pub struct StreamInfo {
    /// The protocol, and the type of a stream that is not aggregated.
    pub kind: StreamKind,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The authenticated identity of the client; `None` for a connection that the operator has configured, such as one
    /// to a remote sink of MCP.
    pub identity: Option<Arc<Identity>>,
}

/// The next thing for the transport of a stream.
#[derive(Debug)]
pub enum Delivery {
    /// A response to write.
    Message(Message),
    /// The end of the stream.
    End(End),
}

#[derive(Debug)]
pub(crate) struct StreamSlot {
    pub(crate) info: StreamInfo,
    /// The key of the session in the shard. Only the shard reads and writes it.
    key: AtomicU32,
    /// Whether the session is away from its shard for large work. Requests wait meanwhile.
    away: AtomicBool,
    /// Notifies the stream's reader that the session is back.
    back: Notify,
    /// Whether the stream is established: the client has answered the responses to its first requests.
    /// Only the shard writes it.
    established: AtomicBool,
    /// The number of events of the stream in an inbox. All are in one inbox, so that they keep their
    /// order.
    waiting: AtomicUsize,
    /// Whether that is the bulk inbox. Only the stream's reader reads and writes it.
    waits_in_bulk: AtomicBool,
    outbox: Mutex<Outbox>,
    ready_list: Arc<ReadyList>,
}

#[derive(Debug, Default)]
struct Outbox {
    message: Option<Message>,
    end: Option<End>,
    /// The end of the stream, held until the shard has removed its session.
    ending: Option<End>,
    waker: Option<Waker>,
    /// The transport is writing a message and has not asked for another.
    busy: bool,
    /// The shard may have more to send as soon as the transport asks.
    wanted: bool,
    /// The transport is gone.
    closed: bool,
    /// The stream is in the ready list.
    listed: bool,
}

/// The channel from transports to their shard. Sending never waits.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    ready: Mutex<VecDeque<Arc<StreamSlot>>>,
    /// Sessions that return from large work.
    back: Mutex<VecDeque<Returned>>,
    pub(crate) notify: Notify,
    pub(crate) turns: Turns,
    /// The number of streams of the shard.
    pub(crate) load: AtomicUsize,
}

/// A call from a transport to its shard.
#[derive(Debug)]
pub(crate) enum Call {
    /// The transport can take another message.
    Ready,
    /// The stream is to be ended with this end, after its session has been removed.
    Ending(End),
    /// The transport is gone, so the session is to be removed. Has the code with which the replica
    /// ended the stream, if it did.
    Closed(Option<EndCode>),
}

// === impl ReadyList ===

impl ReadyList {
    /// Swaps the list of streams that called with `empty`.
    pub(crate) fn swap(&self, empty: &mut VecDeque<Arc<StreamSlot>>) {
        std::mem::swap(&mut *self.ready.lock(), empty);
    }

    pub(crate) fn send_back(&self, back: Returned) {
        self.back.lock().push_back(back);
        self.notify.notify_one();
    }

    /// Takes at most `n` of the sessions that have returned.
    pub(crate) fn take_back(&self, n: usize) -> Vec<Returned> {
        let mut back = self.back.lock();
        let n = n.min(back.len());
        back.drain(..n).collect()
    }

    pub(crate) fn has_back(&self) -> bool {
        !self.back.lock().is_empty()
    }

    pub(crate) fn push(&self, slot: Arc<StreamSlot>) {
        self.ready.lock().push_back(slot);
        self.notify.notify_one();
    }
}

// === impl StreamSlot ===

impl StreamSlot {
    pub(crate) fn new(info: StreamInfo, ready_list: Arc<ReadyList>) -> Arc<Self> {
        Arc::new(Self {
            info,
            key: AtomicU32::new(NO_KEY),
            away: AtomicBool::new(false),
            back: Notify::new(),
            established: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            waits_in_bulk: AtomicBool::new(false),
            outbox: Mutex::new(Outbox::default()),
            ready_list,
        })
    }

    pub(crate) fn key(&self) -> Option<u32> {
        Some(self.key.load(Ordering::Relaxed)).filter(|key| *key != NO_KEY)
    }

    pub(crate) fn set_key(&self, key: Option<u32>) {
        self.key.store(key.unwrap_or(NO_KEY), Ordering::Relaxed);
    }

    pub(crate) fn ready_list(&self) -> &Arc<ReadyList> {
        &self.ready_list
    }

    /// Records that the session is away from its shard, or back.
    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Release);
        if !away {
            self.back.notify_waiters();
        }
    }

    /// Waits while the session is away.
    pub(crate) async fn until_back(&self) {
        loop {
            // Created before the check, so that no wake-up is lost.
            let back = self.back.notified();
            if !self.away.load(Ordering::Acquire) {
                return;
            }
            back.await;
        }
    }

    pub(crate) fn is_established(&self) -> bool {
        self.established.load(Ordering::Relaxed)
    }

    /// Marks the stream as established: the client has answered the responses to its first requests.
    /// Wakes the transport, which then moves to the threads for established streams.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
        let waker = self.outbox.lock().waker.take();
        wake(waker);
    }

    /// Counts the stream's next event, of `cost` steps, as waiting, and returns its inbox. Large requests, and all
    /// requests until the stream is established, go to the bulk inbox. While earlier events wait, the event joins them.
    pub(crate) fn add_waiting(&self, cost: usize) -> Lane {
        if self.waiting.fetch_add(1, Ordering::Acquire) == 0 {
            let is_bulk = !self.is_established() || cost > 1;
            self.waits_in_bulk.store(is_bulk, Ordering::Relaxed);
        }
        if self.waits_in_bulk.load(Ordering::Relaxed) { Lane::Bulk } else { Lane::Updates }
    }

    /// Records that an event for which [`StreamSlot::add_waiting`] counted was handled.
    pub(crate) fn remove_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        let outbox = self.outbox.lock();
        outbox.closed || outbox.end.is_some() || outbox.ending.is_some()
    }

    /// Returns whether a message may be put now. If not, the transport calls the shard when it may.
    pub(crate) fn can_take(&self) -> bool {
        let mut outbox = self.outbox.lock();
        let over = outbox.closed || outbox.end.is_some();
        let free = !outbox.busy && outbox.message.is_none() && !over;
        outbox.wanted |= !free;
        free
    }

    /// Passes a message to the transport. The slot must be empty, see [`StreamSlot::can_take`].
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

    /// Ends the stream. Only the first end has an effect. A regular end follows the message in the slot, if any. With
    /// any other end, the client does not get the message: its rights may end while the message waits.
    pub(crate) fn end(&self, end: End) {
        let waker = {
            let mut outbox = self.outbox.lock();
            if !matches!(end.code, EndCode::Ok | EndCode::Aged | EndCode::Unavailable) {
                outbox.message = None;
            }
            outbox.end.get_or_insert(end);
            outbox.waker.take()
        };
        wake(waker);
    }

    /// Ends the stream after the shard has removed its session. A client that reconnects at once then
    /// finds its resume data.
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
            self.ready_list.push(Arc::clone(self));
        }
    }

    /// Takes the stream's call, after the shard took the stream from the ready list.
    pub(crate) fn answer(&self) -> Call {
        let mut outbox = self.outbox.lock();
        outbox.listed = false;
        let ending = outbox.ending.take();
        match ending {
            _ if outbox.closed => {
                Call::Closed(outbox.end.as_ref().or(ending.as_ref()).map(|end| end.code))
            }
            Some(end) => Call::Ending(end),
            None => Call::Ready,
        }
    }

    pub(crate) fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Delivery> {
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
            self.ready_list.push(Arc::clone(self));
        }
        Poll::Pending
    }

    pub(crate) fn close(self: &Arc<Self>) {
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
            self.ready_list.push(Arc::clone(self));
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Whether the transport calls the shard after it has written a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The session may have more to send.
    CallBack,
    /// Only an event can give the session more to send.
    Rest,
}
