//! The query for the status of all streams of a shard.

use crate::{entry::Entry, page::Page, shard::Shard, status::StreamStatus};

impl Shard {
    pub(crate) fn status_page(&self, from: usize) -> Page<StreamStatus> {
        let to = from.saturating_add(self.config.turn_work_max).min(self.sessions.capacity());
        let entries = (from..to).filter_map(|place| self.sessions.get(place));
        let next = (to < self.sessions.capacity()).then_some(to);
        Page { next, ..Page::last(entries.map(Entry::status).collect()) }
    }
}
