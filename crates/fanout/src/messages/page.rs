//! Answers to queries about all streams of a shard, in pages. Each page takes a bounded part of a turn.

use chancery_model::Revision;

/// One page of an answer.
#[derive(Debug)]
pub(crate) struct Page<T, C> {
    pub(crate) items: Vec<T>,
    /// The position of the next page; `None` if this is the last.
    pub(crate) next: Option<C>,
    /// The revision of the shard, if it has not reached the queried revision.
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
