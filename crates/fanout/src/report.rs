//! Answers about all streams of a shard, page by page: a page is a bounded piece of its time.

use chancery_model::Revision;

use crate::{entry::Entry, shard::Shard, status::StreamStatus};

/// A part of an answer about all streams.
#[derive(Debug)]
pub(crate) struct Page<T, C = usize> {
    pub(crate) items: Vec<T>,
    /// Where the next page begins; `None` if this is the last.
    pub(crate) next: Option<C>,
    /// The revision that the shard has come to, if that is not the one in question.
    pub(crate) behind: Option<Revision>,
}

impl<T, C> Page<T, C> {
    pub(crate) fn last(items: Vec<T>) -> Self {
        Self { items, next: None, behind: None }
    }

    pub(crate) fn part(items: Vec<T>, next: C) -> Self {
        Self { next: Some(next), ..Self::last(items) }
    }
}

impl Shard {
    pub(crate) fn status_page(&self, from: usize) -> Page<StreamStatus> {
        let to = from.saturating_add(self.config.turn_work_max).min(self.sessions.capacity());
        let entries = (from..to).filter_map(|place| self.sessions.get(place));
        let next = (to < self.sessions.capacity()).then_some(to);
        Page { next, ..Page::last(entries.map(Entry::status).collect()) }
    }
}
