//! The events in the inboxes of a shard.

use std::{collections::VecDeque, fmt, sync::Arc};

use chancery_model::{Node, ResourceName, TypeUrl};
use chancery_protocol::Request;
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use crate::{
    messages::{
        change::{Change, Concerned, QueryPosition},
        page::Page,
        session::Key,
        stream_status::{SelectStream, StreamContents, StreamStatus},
    },
    stream::slot::StreamSlot,
};

/// An event with the time at which it was sent. The measured wait includes the time for which the sender waited for
/// space in the inbox.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) sent_at: Instant,
    pub(crate) event: Event,
}

/// The streams of a query.
#[derive(Clone)]
pub(crate) struct SelectStreams(pub(crate) SelectStream);

impl SelectStreams {
    /// Selects all streams.
    pub(crate) fn all() -> Self {
        Self(Arc::new(|_| true))
    }
}

impl fmt::Debug for SelectStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SelectStreams")
    }
}

/// An event for a shard.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client's message. The first one of a stream opens its session.
    Request {
        /// The stream.
        slot: Arc<StreamSlot>,
        request: Request,
        /// The client's node: `Some` in the first request, and whenever the node has changed.
        node: Option<Arc<Node>>,
        /// The request's part of the transport's memory budget, held until the request is handled.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// The client has closed its half of the stream and sends no more requests.
    HalfClose {
        /// The stream.
        slot: Arc<StreamSlot>,
    },
    /// A query for the status of some streams.
    Status {
        /// The streams.
        select: SelectStreams,
        /// The key of the first session of the page.
        from: Key,
        /// Receives one page.
        reply: oneshot::Sender<Page<StreamStatus, Key>>,
    },
    /// A query for the resources of one type of a stream.
    Contents {
        /// The stream.
        slot: Arc<StreamSlot>,
        type_url: TypeUrl,
        /// The name after which the page begins; `None` for the first page.
        after: Option<ResourceName>,
        /// Receives one page, unless the stream has ended or has no such type.
        reply: oneshot::Sender<StreamContents>,
    },
    /// A query for the sessions that a change concerns, and their progress.
    Concerned {
        change: Arc<Change>,
        /// The position of the page.
        from: QueryPosition,
        /// Receives one page.
        reply: oneshot::Sender<Page<Concerned, QueryPosition>>,
    },
}

/// Events that a shard has taken from its inboxes but not handled yet, by lane.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Small requests of established streams, and queries of the admin API.
    pub(crate) updates: VecDeque<Sent>,
    /// Requests of new streams, and large requests.
    pub(crate) bulk: VecDeque<Sent>,
}

impl Events {
    pub(crate) fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.bulk.is_empty()
    }
}

impl Sent {
    pub(crate) fn now(event: Event) -> Self {
        Self { sent_at: Instant::now(), event }
    }
}

impl Event {
    /// Returns the stream that sent the event, or `None` for a query of the admin API.
    pub(crate) fn slot(&self) -> Option<&Arc<StreamSlot>> {
        match self {
            Self::Request { slot, .. } | Self::HalfClose { slot } => Some(slot),
            Self::Status { .. } | Self::Contents { .. } | Self::Concerned { .. } => None,
        }
    }
}
