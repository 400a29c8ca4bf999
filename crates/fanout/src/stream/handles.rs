//! The handles of a stream's transport: one for requests, one for responses, and one that ends the
//! stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use chancery_model::Node;
use chancery_protocol::Request;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::{
    log_limit::RefusalLog,
    messages::{
        event::{Event, Sent},
        session::Lane,
        status::{End, EndCode},
    },
    replica::freshness::ReadFreshness,
    stream::slot::{Delivery, StreamSlot},
    turn::cost::cost_of_event,
};

/// The entrance for a stream's requests. The task that reads the client's messages owns it.
#[derive(Debug, Clone)]
pub struct RequestSink {
    slot: Arc<StreamSlot>,
    inboxes: Inboxes,
    freshness: ReadFreshness,
    log: Arc<RefusalLog>,
}

/// The inboxes of a shard, by lane. Waiting events of one lane do not delay the other lane.
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

impl RequestSink {
    pub(crate) fn new(
        slot: Arc<StreamSlot>,
        inboxes: Inboxes,
        freshness: ReadFreshness,
        log: Arc<RefusalLog>,
    ) -> Self {
        Self { slot, inboxes, freshness, log }
    }

    /// Passes a request to the shard, in the order in which the client sent them. Waits until the state
    /// is current before the first request, and while the shard's inbox is full.
    ///
    /// `node` is the client's identity, required in the first request and whenever it has changed.
    /// `permit` is the request's part of the transport's memory budget. The shard releases it when it has
    /// handled the request.
    ///
    /// # Errors
    /// Returns [`Stopped`] if the shard has stopped, or if the stream was ended because the replica is
    /// behind.
    pub async fn request(
        &mut self,
        request: Request,
        node: Option<Arc<Node>>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Stopped> {
        if let Err(behind) = self.freshness.check(&request).await {
            self.end(End::new(EndCode::Unavailable, behind.to_string()));
            return Err(Stopped);
        }
        self.slot.until_back().await;
        self.send(Event::Request { slot: Arc::clone(&self.slot), request, node, permit }).await
    }

    /// Reports that the client has closed its half of the stream (SOTW-111). The stream ends with OK
    /// after everything that can be sent now.
    ///
    /// # Errors
    /// Returns [`Stopped`] if the shard has stopped.
    pub async fn half_close(&self) -> Result<(), Stopped> {
        self.send(Event::HalfClose { slot: Arc::clone(&self.slot) }).await
    }

    /// Ends the stream from the transport's side. Only the first end of a stream has an effect.
    pub fn end(&self, end: End) {
        self.slot.end(end);
    }

    /// Ends the stream because of the client's requests, and logs that. `node` is empty if it is unknown.
    pub fn reject(&self, node: &str, end: End) {
        self.log.log(node, self.slot.info.peer, &end.message);
        self.end(end);
    }

    /// Returns a handle that can only end the stream.
    #[must_use]
    pub fn ender(&self) -> StreamCloser {
        StreamCloser(Arc::clone(&self.slot))
    }

    async fn send(&self, event: Event) -> Result<(), Stopped> {
        let inbox = self.inboxes.of(self.slot.add_waiting(cost_of_event(&event, 1)));
        inbox.send(Sent::now(event)).await.map_err(|_| {
            self.end(End::new(EndCode::Unavailable, Stopped.to_string()));
            Stopped
        })
    }
}

/// Ends one stream for reasons outside the stream: a drain, or a connection at its maximum age.
#[derive(Debug, Clone)]
pub struct StreamCloser(Arc<StreamSlot>);

impl StreamCloser {
    /// Ends the stream after its shard has removed the session. Only the first end of a stream has an
    /// effect.
    pub fn end(&self, end: End) {
        self.0.end_in_order(end);
    }
}

// === impl ResponseSource ===

/// The exit for a stream's responses. The task that writes to the client owns it. Dropping it frees
/// everything that the replica holds for the stream (SOTW-111).
#[derive(Debug)]
pub struct ResponseSource {
    slot: Arc<StreamSlot>,
    streams: Arc<AtomicUsize>,
}

impl ResponseSource {
    /// Creates the source and adds the stream to its shard's load. `streams` is the number of all open
    /// streams.
    pub(crate) fn new(slot: Arc<StreamSlot>, streams: Arc<AtomicUsize>) -> Self {
        slot.ready_list().load.fetch_add(1, Ordering::Relaxed);
        Self { slot, streams }
    }

    /// Returns the next message or the end of the stream. A call means that the transport has accepted
    /// everything before it; no response is built earlier.
    ///
    /// The caller is also woken when [`ResponseSource::is_established`] changes.
    ///
    /// After [`Delivery::End`], further calls return the same end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Delivery> {
        self.slot.poll_next(cx)
    }

    /// Returns whether the stream is established: the client has answered the responses to its first
    /// requests. Until then the stream must not delay established ones.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.slot.is_established()
    }
}

impl Drop for ResponseSource {
    fn drop(&mut self) {
        self.slot.ready_list().load.fetch_sub(1, Ordering::Relaxed);
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.slot.close();
    }
}
