//! The sessions that a change concerns.
//!
//! A change concerns a session under two conditions. The session subscribes to a changed name, or to
//! all resources of the type. The session's view shows the changed resource, or showed it before.
//!
//! The index finds these sessions, so a query costs O(changed names + sessions that subscribe to them).
//! For a session on which a rejection stands, it also costs O(changed names of the type).
//!
//! A change of the assignments concerns the sessions whose scopes it changed, and those that it leaves
//! without an assignment. That query visits each session once, like the pass that places the sessions again. For a
//! session that opened after the change, the shard does not know whether the change affects its scopes.
//! The change concerns such a session only if the session subscribes to a changed name.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, State, TypeUrl};

use chancery_protocol::Acceptance;

use crate::{
    messages::{
        change::{Change, Concerned, QueryPosition, Touched},
        page::Page,
        status::{Unacknowledged, UnacknowledgedState},
    },
    offload::away::Away,
    sessions::{Sessions, entry::Entry},
    turn::budget::{Budget, cost_of},
};

/// The part of a change that a session has to acknowledge.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// Everything up to the revision.
    UpToRevision,
    /// What the revision changed, of all types.
    OfRevision,
    /// The changed names of one type.
    Names(&'a TypeUrl, &'a [ResourceName]),
}

/// Returns one page of the sessions that `change` concerns. A session may occur more than once. The shard has reached
/// the revision `reached`, and `max` is the number of steps for the page.
pub(crate) fn concerned_page(
    sessions: &Sessions,
    state: &State,
    reached: Revision,
    max: usize,
    change: &Change,
    mut position: QueryPosition,
) -> Page<Concerned, QueryPosition> {
    let Change { revision, touched, moved_since, scope } = change;
    if reached < *revision {
        return Page { behind: Some(reached), ..Page::last(Vec::new()) };
    }
    let whole = if change.is_anything() { Part::UpToRevision } else { Part::OfRevision };
    let mut items = Vec::new();
    let mut budget = Budget::new(max);
    while let Some(since) = *moved_since
        && position.key < sessions.end_key()
    {
        if budget.is_spent() {
            return Page::part(items, position);
        }
        budget.spend(1);
        // A session that is away is placed again when it is back: it may have to move.
        let changed = state.placement_changed();
        let has_moved = |entry: &Entry| entry.placed().has_moved(since, changed);
        let has_view = |entry: &Entry| entry.placed().assignment().is_some() || since > Revision(0);
        let receives = |entry: &Entry| {
            scope.as_ref().is_none_or(|scope| entry.placed().scopes().contains(scope))
        };
        let moved = |entry: &&Entry| has_moved(entry) && has_view(entry) && receives(entry);
        let entry = sessions.get(position.key).filter(moved);
        items.extend(entry.and_then(|entry| concerned(entry, *revision, whole)));
        position.key += 1;
    }
    let index = sessions.index();
    while let Some(here) = touched.get(position.touched) {
        if budget.is_spent() {
            return Page::part(items, position);
        }
        let Touched { scope, type_url, names } = here;
        let (names, keys) = match position.step.checked_sub(1) {
            None => (names.as_slice(), index.wildcards(scope, type_url)),
            Some(n) if n < names.len() && index.has_names(scope, type_url) => {
                (&names[n..=n], index.named(scope, type_url, &names[n]))
            }
            Some(_) => {
                position = QueryPosition {
                    touched: position.touched + 1,
                    step: 0,
                    below: None,
                    ..position
                };
                continue;
            }
        };
        budget.spend(1);
        let mut below = position.below.unwrap_or(usize::MAX).min(keys.len());
        while below > 0 {
            below -= 1;
            budget.spend(1);
            let sees = |entry: &&Entry| here.is_visible(state, entry.placed().scopes(), names);
            let entry = sessions.get(keys[below]).filter(sees);
            if entry.is_some_and(|entry| entry.standing().is_rejecting()) {
                budget.spend(cost_of(names.len()));
            }
            let part = Part::Names(type_url, names);
            items.extend(entry.and_then(|entry| concerned(entry, *revision, part)));
            // Checked last, so that each page has at least one session.
            if budget.is_spent() {
                break;
            }
        }
        position = match below {
            0 => QueryPosition { step: position.step + 1, below: None, ..position },
            _ => QueryPosition { below: Some(below), ..position },
        };
    }
    Page::last(items)
}

/// Returns the progress of a session with a part of `revision`. `None` if its stream has ended.
fn concerned(entry: &Entry, revision: Revision, part: Part<'_>) -> Option<Concerned> {
    let unsettled = unsettled(entry, revision, part)?;
    Some(Concerned { id: entry.id(), node: Arc::clone(entry.placed().node()), unsettled })
}

/// Returns the types for which the client is not known to have acknowledged a part of `revision`. `None` if the stream has
/// ended. The shard must have reached that revision.
///
/// A node without a view receives nothing, so it cannot acknowledge anything. A session that is away
/// has not acknowledged, because its answers wait until it is back.
fn unsettled(entry: &Entry, revision: Revision, part: Part<'_>) -> Option<Vec<Unacknowledged>> {
    if entry.presence().away().is_some_and(Away::has_ended) {
        return None;
    }
    let unacknowledged = |type_url: Option<&TypeUrl>, state| Unacknowledged {
        node: entry.placed().node().id.clone(),
        type_url: type_url.cloned(),
        state,
    };
    if entry.placed().assignment().is_none() {
        return Some(vec![unacknowledged(None, UnacknowledgedState::Unassigned)]);
    }
    let Some(session) = entry.presence().session() else {
        let type_url = match part {
            Part::Names(type_url, _) => Some(type_url),
            Part::UpToRevision | Part::OfRevision => None,
        };
        return Some(vec![unacknowledged(type_url, UnacknowledgedState::Pending)]);
    };
    let open = |(type_url, acceptance)| {
        let state = match acceptance {
            Acceptance::Accepted => return None,
            Acceptance::Unknown => UnacknowledgedState::Pending,
            Acceptance::Rejected(message) => UnacknowledgedState::Nacked(message.to_owned()),
        };
        Some(unacknowledged(Some(type_url), state))
    };
    Some(match part {
        Part::Names(type_url, names) => {
            let acceptance = session.acceptance_of(revision, type_url, names);
            open((type_url, acceptance)).into_iter().collect()
        }
        Part::OfRevision => session.acceptance(revision).filter_map(open).collect(),
        Part::UpToRevision => session.acceptance_up_to(revision).filter_map(open).collect(),
    })
}
