//! The sessions that a change concerns.
//!
//! A change concerns a session under two conditions. The session subscribes to a changed name, or to
//! all resources of the type. The session's view shows the changed resource, or showed it before.
//!
//! The index finds these sessions, so a query costs O(changed names + sessions that subscribe to them).
//! For a session on which a rejection stands, it also costs O(changed names of the type).
//!
//! A change of the assignments concerns the sessions whose scopes it changed, and those that it leaves
//! without an assignment. That query visits each session once, like the reassignment itself. For a
//! session that opened after the change, the shard does not know whether the change affects its scopes.
//! The change concerns such a session only if the session subscribes to a changed name.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, TypeUrl};

use crate::{
    messages::{
        change::{Change, Concerned, Cursor, Touched},
        page::Page,
    },
    sessions::entry::Entry,
    sessions::index::place,
    shard::Shard,
    turn::budget::{Budget, cost_of},
};

impl Entry {
    /// Returns the progress of the session with `revision`, for the changed names of one type or for all
    /// types. `None` if its stream has ended.
    fn concerned(
        &self,
        revision: Revision,
        changed: Option<(&TypeUrl, &[ResourceName])>,
    ) -> Option<Concerned> {
        if self.away.as_ref().is_some_and(|away| away.is_over()) {
            return None;
        }
        let unsettled = self.unsettled(revision, changed);
        Some(Concerned { id: self.id, node: Arc::clone(&self.node), unsettled })
    }
}

impl Shard {
    /// Returns one page of the sessions that `change` concerns. A session may occur more than once.
    pub(crate) fn concerned_page(
        &self,
        change: &Change,
        mut at: Cursor,
    ) -> Page<Concerned, Cursor> {
        let Change { revision, touched, moved_since } = change;
        let reached = self.reached_revision();
        if reached < *revision {
            return Page { behind: Some(reached), ..Page::last(Vec::new()) };
        }
        let mut items = Vec::new();
        let mut budget = Budget::new(self.config.turn_work_max);
        while let Some(since) = *moved_since
            && at.place < self.sessions.capacity()
        {
            if budget.is_spent() {
                return Page::part(items, at);
            }
            budget.spend(1);
            // A session that is away is reassigned when it is back: it may have to move.
            let changed = self.views.state().placement_changed();
            let has_moved = |entry: &Entry| entry.moved_at >= since || entry.assigned_at != changed;
            let has_view = |entry: &Entry| entry.assigned.is_some() || since > Revision(0);
            let moved = |entry: &&Entry| has_moved(entry) && has_view(entry);
            let entry = self.sessions.get(at.place).filter(moved);
            items.extend(entry.and_then(|entry| entry.concerned(*revision, None)));
            at.place += 1;
        }
        let Self { index, sessions, views, .. } = self;
        while let Some(here) = touched.get(at.touched) {
            if budget.is_spent() {
                return Page::part(items, at);
            }
            let Touched { scope, type_url, names } = here;
            let (names, keys) = match at.step.checked_sub(1) {
                None => (names.as_slice(), index.wildcards(scope, type_url)),
                Some(n) if n < names.len() && index.has_names(scope, type_url) => {
                    (&names[n..=n], index.named(scope, type_url, &names[n]))
                }
                Some(_) => {
                    at = Cursor { touched: at.touched + 1, step: 0, below: None, ..at };
                    continue;
                }
            };
            budget.spend(1);
            let mut below = at.below.unwrap_or(usize::MAX).min(keys.len());
            while below > 0 {
                below -= 1;
                budget.spend(1);
                let sees = |entry: &&Entry| here.is_visible(views.state(), entry.scopes(), names);
                let entry = sessions.get(place(keys[below])).filter(sees);
                if entry.is_some_and(|entry| entry.rejecting) {
                    budget.spend(cost_of(names.len()));
                }
                let changed = Some((type_url, names));
                items.extend(entry.and_then(|entry| entry.concerned(*revision, changed)));
                // Checked last, so that each page has at least one session.
                if budget.is_spent() {
                    break;
                }
            }
            at = match below {
                0 => Cursor { step: at.step + 1, below: None, ..at },
                _ => Cursor { below: Some(below), ..at },
            };
        }
        Page::last(items)
    }
}
