//! Telling the sessions that care of what has changed, in bounded steps.
//!
//! A commit that concerns 100,000 sessions is not told in one go: a shard marks some, serves who has
//! something to be served with, and goes on. Two rules make that safe:
//!
//! - A session is polled only when it has been told all that has changed up to the state that it is
//!   polled with ([`Marking::tell_all`]). Otherwise it could be sent the half of a commit: a route
//!   before its cluster, and that for a resource that is there only in the new state.
//! - The next state is looked at when all have been told of this one. What has come meanwhile is one
//!   step then.
//!
//! Whoever comes to care about something in the meantime is answered from the new state, and so has
//! nothing to be told.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, TypeUrl};
use chancery_view::LayerDelta;
use tokio::time::Instant;

use crate::{
    budget::Budget,
    entry::Entry,
    index::{Index, Key},
    metrics::type_place,
};

/// Sessions that are told for the price of one that is polled.
pub(crate) const MARKS_PER_STEP: usize = 8;

/// The sessions are being told of one step from a state to a newer one.
#[derive(Debug)]
pub(crate) struct Marking {
    what: What,
    /// Where it has come to.
    cursor: Cursor,
    /// The state up to which all have been told.
    pub(crate) from: Revision,
    /// When the first of what has changed came to the replica.
    pub(crate) arrived: Instant,
}

#[derive(Debug)]
enum What {
    /// These, by scope.
    Changes(Vec<Change>),
    /// Not known: the state is of another history.
    Anything,
}

/// A place in the walk over the changes, their names, and the sessions that care about each; the
/// sessions from the last to the first.
#[derive(Debug)]
struct Cursor {
    change: usize,
    /// 0 for the wildcards, then one for each step of the change's names.
    step: usize,
    /// Which of the names of the step.
    name: usize,
    /// The sessions from here on have been told.
    below: usize,
}

/// What a session is told in one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told<'a> {
    pub(crate) type_url: &'a TypeUrl,
    /// The type's place in the metrics.
    pub(crate) type_place: usize,
    /// `None` for a wildcard.
    pub(crate) name: Option<&'a ResourceName>,
}

#[derive(Debug)]
struct Change {
    delta: Arc<LayerDelta>,
    type_place: usize,
}

impl Marking {
    /// For a step whose changes are known.
    pub(crate) fn of(mut deltas: Vec<Arc<LayerDelta>>, from: Revision, arrived: Instant) -> Self {
        deltas.sort_by(|a, b| a.scope().cmp(b.scope()));
        let change = |delta: Arc<LayerDelta>| {
            let type_place = type_place(delta.type_url());
            Change { delta, type_place }
        };
        let changes = deltas.into_iter().map(change).collect();
        Self { what: What::Changes(changes), cursor: Cursor::start(), from, arrived }
    }

    /// For a step to another history: all sessions in places below `places` are told to look at
    /// everything.
    pub(crate) fn of_anything(places: usize, from: Revision, arrived: Instant) -> Self {
        let cursor = Cursor { below: places, ..Cursor::start() };
        Self { what: What::Anything, cursor, from, arrived }
    }

    /// Goes on until the budget is spent. Says whether all have been told.
    pub(crate) fn advance(
        &mut self,
        index: &Index,
        budget: &mut Budget,
        mut tell: impl FnMut(Key, Option<Told<'_>>),
    ) -> bool {
        let Self { what, cursor, .. } = self;
        let What::Changes(changes) = what else {
            while cursor.below > 0 && !budget.is_spent() {
                cursor.below -= 1;
                budget.spend(1);
                tell(crate::shard::key(cursor.below), None);
            }
            return cursor.below == 0;
        };
        while let Some(Change { delta, type_place }) = changes.get(cursor.change) {
            if budget.is_spent() {
                return false;
            }
            let (scope, type_url) = (delta.scope(), delta.type_url());
            let (name, keys) = match cursor.step.checked_sub(1) {
                None => (None, index.wildcards(scope, type_url)),
                Some(step) if step < delta.n_steps() && index.has_names(scope, type_url) => {
                    let Some(name) = delta.names_at(step).nth(cursor.name) else {
                        cursor.next_step();
                        continue;
                    };
                    (Some(name), index.named(scope, type_url, name))
                }
                Some(_) => {
                    cursor.next_change();
                    continue;
                }
            };
            let told = Told { type_url, type_place: *type_place, name };
            budget.spend(1);
            cursor.below = cursor.below.min(keys.len());
            while cursor.below > 0 && !budget.is_spent() {
                cursor.below -= 1;
                budget.spend(1);
                tell(keys[cursor.below], Some(told));
            }
            if cursor.below == 0 {
                cursor.next_name();
            }
        }
        true
    }

    /// Tells one session all that there is to be told, so that it can be polled. O(what has changed),
    /// or O(types) if it names less than that.
    pub(crate) fn tell_all(&self, entry: &mut Entry) {
        let What::Changes(changes) = &self.what else { return entry.session.on_new_view() };
        let Entry { session, assigned, changes: owed, .. } = entry;
        for scope in assigned.iter().flat_map(|(_, scopes)| scopes.iter()) {
            let first = changes.partition_point(|change| change.delta.scope() < scope);
            let of_scope = changes[first..].iter().take_while(|c| c.delta.scope() == scope);
            for Change { delta, type_place } in of_scope {
                if session.on_changes(delta) {
                    owed.owe(*type_place, self.arrived);
                }
            }
        }
    }
}

impl Cursor {
    fn start() -> Self {
        Self { change: 0, step: 0, name: 0, below: usize::MAX }
    }

    fn next_name(&mut self) {
        match self.step {
            0 => self.next_step(),
            _ => (self.name, self.below) = (self.name + 1, usize::MAX),
        }
    }

    fn next_step(&mut self) {
        (self.step, self.name, self.below) = (self.step + 1, 0, usize::MAX);
    }

    fn next_change(&mut self) {
        *self = Self { change: self.change + 1, ..Self::start() };
    }
}
