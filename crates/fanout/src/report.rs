//! Answers about all streams of a shard, page by page: a page is a bounded piece of its time.

use chancery_model::Revision;

use crate::{
    entry::Entry,
    shard::{Now, Shard},
    status::{StreamStatus, Unsettled},
};

/// A part of an answer about all streams.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// Where the next page begins; `None` if this is the last.
    pub(crate) next: Option<usize>,
    /// Sessions that the answer is about, and those of them that have acknowledged.
    pub(crate) n_asked: usize,
    pub(crate) n_acknowledged: usize,
}

impl Shard {
    pub(crate) fn status_page(&self, from: usize) -> Page<StreamStatus> {
        self.page(from, |entry, items| items.push(entry.status()))
    }

    pub(crate) fn unsettled_page(
        &mut self,
        revision: Revision,
        from: usize,
        now: Now,
    ) -> Page<Unsettled> {
        // A session that does not know its new scopes yet would look settled.
        for place in from..self.page_end(from) {
            self.reassign(place, now);
        }
        let reached = self.told_revision();
        if reached < revision {
            let items = vec![Unsettled::behind(reached)];
            return Page { items, next: None, n_asked: 0, n_acknowledged: 0 };
        }
        let (mut n_asked, mut n_acknowledged) = (0, 0);
        let page = self.page(from, |entry, items| {
            let known = items.len();
            entry.unsettled(revision, items);
            n_asked += usize::from(entry.assigned.is_some());
            n_acknowledged += usize::from(entry.assigned.is_some() && items.len() == known);
        });
        Page { n_asked, n_acknowledged, ..page }
    }

    fn page_end(&self, from: usize) -> usize {
        from.saturating_add(self.config.turn_work_max).min(self.sessions.capacity())
    }

    fn page<T>(&self, from: usize, mut add: impl FnMut(&Entry, &mut Vec<T>)) -> Page<T> {
        let to = self.page_end(from);
        let mut items = Vec::new();
        for place in from..to {
            if let Some(entry) = self.sessions.get(place) {
                add(entry, &mut items);
            }
        }
        let next = (to < self.sessions.capacity()).then_some(to);
        Page { items, next, n_asked: 0, n_acknowledged: 0 }
    }
}
