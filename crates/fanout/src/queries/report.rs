//! The queries for the status of streams, and for their clients.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::Node;

use crate::{
    messages::{
        page::Page,
        stream_status::{ClientGroup, StreamRef, StreamStatus},
    },
    sessions::{Sessions, entry::Entry, index::Key},
};

/// The number of streams that [`clients_page`] groups for the cost of one step. Grouping a stream takes much
/// less time than building its status.
const STREAMS_PER_STEP: usize = 8;

/// Returns one page of the groups of clients, for `steps` steps. The same group may be in several pages, so
/// callers merge the pages.
pub(crate) fn clients_page(sessions: &Sessions, from: Key, steps: usize) -> Page<ClientGroup, Key> {
    let (keys, next) = page(sessions, from, steps.saturating_mul(STREAMS_PER_STEP));
    let placed = keys.filter_map(|key| sessions.get(key)).map(Entry::placed);
    let groups: BTreeSet<_> =
        placed.map(|placed| (placed.scopes(), placed.node().user_agent.as_str())).collect();
    let group = |(scopes, user_agent): (&[_], &str)| ClientGroup {
        scopes: scopes.to_vec(),
        user_agent: user_agent.to_owned(),
    };
    Page { next, ..Page::last(groups.into_iter().map(group).collect()) }
}

/// Returns one page of the status of streams of selected nodes, for `steps` steps. `now` is the time of the protocol's
/// clock.
pub(crate) fn status_page(
    sessions: &Sessions,
    select: &dyn Fn(&Node) -> bool,
    from: Key,
    steps: usize,
    now: u64,
) -> Page<StreamStatus, Key> {
    let (keys, next) = page(sessions, from, steps);
    let entries = keys.filter_map(|key| sessions.get(key));
    let selected = entries.filter(|entry| select(entry.placed().node()));
    Page { next, ..Page::last(selected.map(|entry| status(entry, now)).collect()) }
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

/// Returns the keys of a page of at most `n` sessions, and the first key of the next page.
fn page(sessions: &Sessions, from: Key, n: usize) -> (std::ops::Range<Key>, Option<Key>) {
    let n = Key::try_from(n).unwrap_or(Key::MAX);
    let to = from.saturating_add(n).min(sessions.end_key());
    (from..to, (to < sessions.end_key()).then_some(to))
}
