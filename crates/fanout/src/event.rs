//! What a shard is told through its inbox.

use std::{collections::VecDeque, sync::Arc};

use chancery_model::Node;
use chancery_protocol::{DeltaRequest, Request, SotwRequest};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use crate::{
    budget::cost_of,
    concern::{Change, Concerned, Cursor},
    line::Line,
    report::Page,
    status::StreamStatus,
};

/// An event on its way, with the time at which it was sent: waiting for a full inbox counts.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) event: Event,
}

/// What happens to a shard.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client's message. The first one of a line makes its session.
    Request {
        /// Of which stream.
        line: Arc<Line>,
        /// What it says.
        request: Request,
        /// Who the client is; there in the first request, and when it has changed.
        node: Option<Arc<Node>>,
        /// What it takes of a bound of the transport's, until it has been handled.
        room: Option<OwnedSemaphorePermit>,
    },
    /// The client will send no more.
    HalfClose {
        /// On which stream.
        line: Arc<Line>,
    },
    /// Somebody wants to know how the streams stand.
    Status {
        /// The streams from this place on.
        from: usize,
        /// Gets a page of them.
        reply: oneshot::Sender<Page<StreamStatus>>,
    },
    /// Somebody wants to know which sessions a change concerns, and how far they are.
    Concerned {
        /// The change.
        change: Arc<Change>,
        /// The sessions from this place on.
        from: Cursor,
        /// Gets a page of them.
        reply: oneshot::Sender<Page<Concerned, Cursor>>,
    },
}

/// Events that a shard has taken from its inboxes and not handled, by lane.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Small requests of established streams, and questions of the admin API.
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
    /// The stream that sent it; `None` for a question of admin.
    pub(crate) fn line(&self) -> Option<&Arc<Line>> {
        match self {
            Self::Request { line, .. } | Self::HalfClose { line } => Some(line),
            Self::Status { .. } | Self::Concerned { .. } => None,
        }
    }

    /// What it costs to handle it, in steps of a shard that answers about `page` streams at a time.
    pub(crate) fn cost(&self, page: usize) -> usize {
        match self {
            Self::Request {
                request: Request::Sotw(SotwRequest { resource_names, .. }), ..
            } => cost_of(resource_names.len()),
            Self::Request { request: Request::Delta(request), .. } => {
                let DeltaRequest { subscribe, unsubscribe, initial_resource_versions, .. } =
                    request;
                cost_of(subscribe.len() + unsubscribe.len() + initial_resource_versions.len())
            }
            Self::HalfClose { .. } => 1,
            Self::Status { .. } | Self::Concerned { .. } => page,
        }
    }
}
