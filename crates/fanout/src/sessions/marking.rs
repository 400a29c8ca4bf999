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

use std::{ops::Range, sync::Arc};

use chancery_model::{Revision, ScopeName};
use chancery_protocol::Session;
use chancery_view::LayerDelta;
use tokio::time::Instant;

use crate::{
    messages::session::{Key, Mark},
    metrics::type_index,
    sessions::{convergence::ConvergenceTimes, index::Index},
    turn::budget::{Budget, cost_of},
};

/// The number of sessions that are marked for the cost of one poll.
pub(crate) const MARKS_PER_STEP: usize = 8;

/// The marking of the sessions after one change from a state to a newer one.
#[derive(Debug)]
pub(crate) struct Marking {
    what: What,
    /// The current position in the changes of collections.
    position: Position,
    /// The number of the state change in its shard.
    step: u64,
    /// The previous state: all sessions have the changes up to it.
    from: Revision,
    /// The time at which the first of the changes arrived at the replica.
    arrived_at: Instant,
}

#[derive(Debug)]
enum What {
    /// The changes of collections, sorted by scope.
    Changes(Vec<CollectionChange>),
    /// Unknown changes: the state is of another history. Has the sessions that remain to be marked.
    Anything(Range<Key>),
}

/// A position in the iteration over the changes, their names, and the sessions that subscribe to each.
/// Sessions are visited from the last to the first.
#[derive(Debug)]
struct Position {
    change: usize,
    /// 0 for the wildcards, then one for each step of the change's names.
    step: usize,
    /// The index of the name within the step.
    name: usize,
    /// The sessions from this index on are done.
    below: usize,
}

#[derive(Debug)]
struct CollectionChange {
    delta: Arc<LayerDelta>,
    type_index: usize,
}

impl Marking {
    /// Creates the marking for known changes.
    pub(crate) fn of(
        mut deltas: Vec<Arc<LayerDelta>>,
        step: u64,
        from: Revision,
        arrived_at: Instant,
    ) -> Self {
        deltas.sort_by(|a, b| a.scope().cmp(b.scope()));
        let change = |delta: Arc<LayerDelta>| {
            let type_index = type_index(delta.type_url());
            CollectionChange { delta, type_index }
        };
        let changes = deltas.into_iter().map(change).collect();
        let what = What::Changes(changes);
        Self { what, position: Position::start(), step, from, arrived_at }
    }

    /// Creates the marking for a change to another history. All sessions with keys below `end` must
    /// compare everything.
    pub(crate) fn of_anything(end: Key, step: u64, from: Revision, arrived_at: Instant) -> Self {
        Self { what: What::Anything(0..end), position: Position::start(), step, from, arrived_at }
    }

    /// Returns the number of the state change in its shard.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Returns the previous state: all sessions have the changes up to it.
    pub(crate) fn from(&self) -> Revision {
        self.from
    }

    /// Returns the time at which the first of the changes arrived at the replica.
    pub(crate) fn arrived_at(&self) -> Instant {
        self.arrived_at
    }

    /// Continues until the budget is spent. Returns whether all sessions have been marked.
    pub(crate) fn advance(
        &mut self,
        index: &Index,
        budget: &mut Budget,
        mut apply: impl FnMut(Key, Option<Mark<'_>>),
    ) -> bool {
        let Self { what, position, .. } = self;
        let changes = match what {
            What::Changes(changes) => changes,
            What::Anything(keys) => {
                while !budget.is_spent()
                    && let Some(key) = keys.next_back()
                {
                    budget.spend(1);
                    apply(key, None);
                }
                return Range::is_empty(keys);
            }
        };
        while let Some(CollectionChange { delta, type_index }) = changes.get(position.change) {
            if budget.is_spent() {
                return false;
            }
            let (scope, type_url) = (delta.scope(), delta.type_url());
            let (name, keys) = match position.step.checked_sub(1) {
                None => (None, index.wildcards(scope, type_url)),
                Some(step) if step < delta.n_steps() && index.has_names(scope, type_url) => {
                    let Some((key, name)) = delta.subscribed_at(step).nth(position.name) else {
                        position.next_step();
                        continue;
                    };
                    (Some(name), index.named(scope, type_url, key))
                }
                Some(_) => {
                    position.next_change();
                    continue;
                }
            };
            let n_names = if name.is_none() { delta.n_steps() } else { 1 };
            let is_bulk = cost_of(n_names) > 1;
            let mark = Mark { type_url, type_index: *type_index, name, is_bulk };
            budget.spend(1);
            position.below = position.below.min(keys.len());
            while position.below > 0 && !budget.is_spent() {
                position.below -= 1;
                budget.spend(1);
                apply(keys[position.below], Some(mark));
            }
            if position.below == 0 {
                position.next_name();
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
            return session.handle_new_view();
        };
        for scope in scopes {
            let first = changes.partition_point(|change| change.delta.scope() < scope);
            let of_scope = changes[first..].iter().take_while(|c| c.delta.scope() == scope);
            for CollectionChange { delta, type_index } in of_scope {
                if session.handle_changes(delta) {
                    owed.owe(*type_index, self.arrived_at);
                }
            }
        }
    }
}

impl Position {
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
