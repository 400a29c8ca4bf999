//! Marking: passes the changes of a commit to the affected sessions, in bounded steps.
//!
//! A commit that affects 100,000 sessions is not processed at once. The shard marks some sessions,
//! serves those with something to send, and continues. Two rules make that safe:
//!
//! - A session is polled only after it has received all changes up to the state of that poll
//!   ([`Marking::apply_all`]). Otherwise it could send half a commit: a route before its cluster, or a
//!   resource that exists only in the new state.
//! - The shard takes the next state only after all sessions have the changes of this one. All states
//!   that arrive meanwhile form one state change.
//!
//! A subscription that is added meanwhile is answered from the new state, so it needs no mark.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, ScopeName, TypeUrl};
use chancery_protocol::Session;
use chancery_view::LayerDelta;
use tokio::time::Instant;

use crate::{
    metrics::type_place,
    sessions::convergence::ConvergenceTimes,
    sessions::index::{Index, Key, key},
    turn::budget::Budget,
};

/// The number of sessions that are marked for the cost of one poll.
pub(crate) const MARKS_PER_STEP: usize = 8;

/// The marking of the sessions after one change from a state to a newer one.
#[derive(Debug)]
pub(crate) struct Marking {
    what: What,
    /// The current position.
    cursor: Cursor,
    /// The previous state: all sessions have the changes up to it.
    pub(crate) from: Revision,
    /// The time at which the first of the changes arrived at the replica.
    pub(crate) arrived: Instant,
}

#[derive(Debug)]
enum What {
    /// The changes of collections, sorted by scope.
    Changes(Vec<Change>),
    /// Unknown changes: the state is of another history.
    Anything,
}

/// A position in the iteration over the changes, their names, and the sessions that subscribe to each.
/// Sessions are visited from the last to the first.
#[derive(Debug)]
struct Cursor {
    change: usize,
    /// 0 for the wildcards, then one for each step of the change's names.
    step: usize,
    /// The index of the name within the step.
    name: usize,
    /// The sessions from this index on are done.
    below: usize,
}

/// The change that a session receives in one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark<'a> {
    pub(crate) type_url: &'a TypeUrl,
    /// The place of the type in the metrics.
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
    /// Creates the marking for known changes.
    pub(crate) fn of(mut deltas: Vec<Arc<LayerDelta>>, from: Revision, arrived: Instant) -> Self {
        deltas.sort_by(|a, b| a.scope().cmp(b.scope()));
        let change = |delta: Arc<LayerDelta>| {
            let type_place = type_place(delta.type_url());
            Change { delta, type_place }
        };
        let changes = deltas.into_iter().map(change).collect();
        Self { what: What::Changes(changes), cursor: Cursor::start(), from, arrived }
    }

    /// Creates the marking for a change to another history. All sessions in places below `places` must
    /// compare everything.
    pub(crate) fn of_anything(places: usize, from: Revision, arrived: Instant) -> Self {
        let cursor = Cursor { below: places, ..Cursor::start() };
        Self { what: What::Anything, cursor, from, arrived }
    }

    /// Continues until the budget is spent. Returns whether all sessions have been marked.
    pub(crate) fn advance(
        &mut self,
        index: &Index,
        budget: &mut Budget,
        mut apply: impl FnMut(Key, Option<Mark<'_>>),
    ) -> bool {
        let Self { what, cursor, .. } = self;
        let What::Changes(changes) = what else {
            while cursor.below > 0 && !budget.is_spent() {
                cursor.below -= 1;
                budget.spend(1);
                apply(key(cursor.below), None);
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
                    let Some((key, name)) = delta.subscribed_at(step).nth(cursor.name) else {
                        cursor.next_step();
                        continue;
                    };
                    (Some(name), index.named(scope, type_url, key))
                }
                Some(_) => {
                    cursor.next_change();
                    continue;
                }
            };
            let mark = Mark { type_url, type_place: *type_place, name };
            budget.spend(1);
            cursor.below = cursor.below.min(keys.len());
            while cursor.below > 0 && !budget.is_spent() {
                cursor.below -= 1;
                budget.spend(1);
                apply(keys[cursor.below], Some(mark));
            }
            if cursor.below == 0 {
                cursor.next_name();
            }
        }
        true
    }

    /// Passes all changes to one session, so that it can be polled. Costs O(changes), or O(types) if
    /// the session subscribes to fewer names.
    pub(crate) fn apply_all(
        &self,
        session: &mut Session,
        scopes: &[ScopeName],
        owed: &mut ConvergenceTimes,
    ) {
        let What::Changes(changes) = &self.what else {
            return session.on_new_view();
        };
        for scope in scopes {
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
