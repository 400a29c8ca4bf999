//! The query for the status of streams.

use std::sync::Arc;

use chancery_model::Revision;

use crate::{
    messages::{
        page::Page,
        session::Key,
        stream_status::{LiveStream, StreamRef, StreamStatus},
    },
    sessions::{Sessions, entry::Entry},
};

/// The number of streams that a query visits for the cost of one step. A visit takes much less time than building the
/// status of a stream.
const STREAMS_PER_STEP: usize = 8;

/// The time of a query in the protocol's clock, and the revision that the shard has reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) clock_ms: u64,
    pub(crate) reached: Revision,
}

/// Returns one page of the status of selected streams, for `steps` steps.
pub(crate) fn status_page(
    sessions: &Sessions,
    select: &dyn Fn(&LiveStream<'_>) -> bool,
    from: Key,
    steps: usize,
    at: At,
) -> Page<StreamStatus, Key> {
    let (end, mut key) = (sessions.end_key(), from);
    let (mut items, mut n_visits) = (Vec::new(), 0);
    let n_max = steps.saturating_mul(STREAMS_PER_STEP);
    while key < end && n_visits < n_max {
        n_visits += 1;
        if let Some(entry) = sessions.get(key)
            && select(&live(entry, at))
        {
            n_visits += STREAMS_PER_STEP - 1;
            items.push(status(entry, at.clock_ms));
        }
        key += 1;
    }
    Page { next: (key < end).then_some(key), ..Page::last(items) }
}

fn live(entry: &Entry, At { clock_ms, reached }: At) -> LiveStream<'_> {
    let info = &entry.slot().info;
    LiveStream {
        node: entry.placed().node(),
        peer: info.peer,
        type_url: info.kind.type_url.as_ref(),
        assignment: entry.placed().assignment(),
        since: entry.since(),
        clock_ms,
        reached,
        session: entry.presence().session_or_status(),
    }
}

/// Returns the status of a stream.
fn status(entry: &Entry, clock_ms: u64) -> StreamStatus {
    let info = &entry.slot().info;
    StreamStatus {
        stream: StreamRef(Arc::clone(entry.slot())),
        id: entry.id(),
        node: Arc::clone(entry.placed().node()),
        peer: info.peer,
        identity: info.identity.clone(),
        protocol: info.kind.protocol,
        type_url: info.kind.type_url.clone(),
        assignment: entry.placed().assignment().cloned(),
        scopes: entry.placed().scopes().to_vec(),
        since: entry.since(),
        clock_ms,
        subscriptions: entry.presence().status(),
        nacks: entry.standing().nacks().to_vec(),
    }
}
