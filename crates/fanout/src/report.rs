//! The queries for the status of streams and for their resources.

use crate::{
    clock::Now, entry::Entry, event::Event, index::place, page::Page, shard::Shard,
    stream_status::StreamStatus,
};

impl Shard {
    pub(crate) fn status_page(&self, from: usize) -> Page<StreamStatus> {
        let to = from.saturating_add(self.config.turn_work_max).min(self.sessions.capacity());
        let entries = (from..to).filter_map(|place| self.sessions.get(place));
        let next = (to < self.sessions.capacity()).then_some(to);
        Page { next, ..Page::last(entries.map(Entry::status).collect()) }
    }

    /// Answers [`Event::Contents`]. A query for a session that is away waits until the session is
    /// back. Without an answer, the stream has ended.
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
        drop(reply.send(page));
    }
}
