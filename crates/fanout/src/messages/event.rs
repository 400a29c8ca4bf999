//! The events in the inboxes of a shard.

use std::{collections::VecDeque, sync::Arc};

use chancery_model::{Node, ResourceName, TypeUrl};
use chancery_protocol::{DeltaRequest, Request, SotwRequest};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use crate::{
    messages::change::{Change, Concerned, Cursor},
    messages::page::Page,
    messages::stream_status::{ClientGroup, StreamContents, StreamStatus},
    rejection,
    stream::slot::StreamSlot,
    turn::budget::{INLINE_NAMES_MAX, cost_of},
};

/// An event with the time at which it was sent. The measured wait includes the time for which the sender waited for
/// space in the inbox.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) event: Event,
}

/// An event for a shard.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client's message. The first one of a stream opens its session.
    Request {
        /// The stream.
        slot: Arc<StreamSlot>,
        /// The request.
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
    /// A query for the status of all streams.
    Status {
        /// The index of the first session of the page.
        from: usize,
        /// Receives one page.
        reply: oneshot::Sender<Page<StreamStatus>>,
    },
    /// A query for the clients of all streams.
    Clients {
        /// The index of the first session of the page.
        from: usize,
        /// Receives one page.
        reply: oneshot::Sender<Page<ClientGroup>>,
    },
    /// A query for the resources of one type of a stream.
    Contents {
        /// The stream.
        slot: Arc<StreamSlot>,
        /// The type.
        type_url: TypeUrl,
        /// The name after which the page begins; `None` for the first page.
        after: Option<ResourceName>,
        /// Receives one page, unless the stream has ended or has no such type.
        reply: oneshot::Sender<StreamContents>,
    },
    /// A query for the sessions that a change concerns, and their progress.
    Concerned {
        /// The change.
        change: Arc<Change>,
        /// The position of the page.
        from: Cursor,
        /// Receives one page.
        reply: oneshot::Sender<Page<Concerned, Cursor>>,
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
        Self { at: Instant::now(), event }
    }
}

impl Event {
    /// Returns the stream that sent the event, or `None` for a query of the admin API.
    pub(crate) fn slot(&self) -> Option<&Arc<StreamSlot>> {
        match self {
            Self::Request { slot, .. } | Self::HalfClose { slot } => Some(slot),
            Self::Status { .. }
            | Self::Clients { .. }
            | Self::Contents { .. }
            | Self::Concerned { .. } => None,
        }
    }

    /// Returns the cost of handling the event, in steps. `page` is the page size of status queries.
    pub(crate) fn cost(&self, page: usize) -> usize {
        match self {
            Self::Request {
                request: Request::Sotw(SotwRequest { resource_names, .. }), ..
            } => cost_of(resource_names.len()),
            Self::Request { request: Request::Mcp(request), .. } => {
                cost_of(request.initial_resource_versions.len())
            }
            Self::Request { request: Request::Delta(request), .. } => {
                let DeltaRequest { subscribe, unsubscribe, initial_resource_versions, .. } =
                    request;
                cost_of(subscribe.len() + unsubscribe.len() + initial_resource_versions.len())
            }
            Self::HalfClose { .. } => 1,
            Self::Status { .. }
            | Self::Clients { .. }
            | Self::Contents { .. }
            | Self::Concerned { .. } => page,
        }
    }

    /// Returns the cost of cleaning the text of a rejection, in steps. Long texts are large work.
    pub(crate) fn cost_of_text(&self) -> usize {
        match self {
            Self::Request { request, .. } => {
                cost_of(rejection::cost_of_text(request).min(INLINE_NAMES_MAX)) - 1
            }
            _ => 0,
        }
    }
}
