//! The queries for the status of streams, for their clients, and for their resources.

use std::collections::BTreeSet;

use crate::{
    messages::event::Event,
    messages::page::Page,
    messages::stream_status::{ClientGroup, StreamContents, StreamStatus},
    sessions::entry::Entry,
    sessions::index::place,
    shard::Shard,
    turn::clock::Now,
};

/// The number of streams that [`Shard::clients_page`] groups for the cost of one step. Grouping a stream takes much
/// less time than building its status.
const STREAMS_PER_STEP: usize = 8;

impl Shard {
    /// Returns one page of the groups of clients. The same group may be in several pages, so
    /// callers merge the pages.
    pub(crate) fn clients_page(&self, from: usize) -> Page<ClientGroup> {
        let streams = self.config.turn_work_max.saturating_mul(STREAMS_PER_STEP);
        let to = from.saturating_add(streams).min(self.sessions.capacity());
        let entries = (from..to).filter_map(|place| self.sessions.get(place));
        let groups: BTreeSet<_> =
            entries.map(|entry| (entry.scopes(), entry.node.user_agent.as_str())).collect();
        let group = |(scopes, user_agent): (&[_], &str)| ClientGroup {
            scopes: scopes.to_vec(),
            user_agent: user_agent.to_owned(),
        };
        let next = (to < self.sessions.capacity()).then_some(to);
        Page { next, ..Page::last(groups.into_iter().map(group).collect()) }
    }

    pub(crate) fn status_page(&self, from: usize) -> Page<StreamStatus> {
        let to = from.saturating_add(self.config.turn_work_max).min(self.sessions.capacity());
        let entries = (from..to).filter_map(|place| self.sessions.get(place));
        let next = (to < self.sessions.capacity()).then_some(to);
        Page { next, ..Page::last(entries.map(Entry::status).collect()) }
    }

    /// Answers [`Event::Contents`]. A query for an offloaded session waits until the session is back. A
    /// dropped `reply` means that the stream has ended, or has no such type.
    pub(crate) fn on_contents(&mut self, event: Event, now: Now) {
        let Event::Contents { slot, type_url, after, .. } = &event else { return };
        let Some(at) = slot.key().map(place) else { return };
        let view = self.view_of(at);
        let Some(entry) = self.sessions.get_mut(at) else { return };
        if let Some(away) = &mut entry.away {
            away.wait(event);
            return;
        }
        let max = self.config.turn_work_max;
        let page = entry.session.contents(type_url, view.as_ref(), after.as_ref(), max, now.ms);
        let (Event::Contents { reply, .. }, Some(page)) = (event, page) else { return };
        drop(reply.send(StreamContents { page, scopes: entry.all_scopes() }));
    }
}
