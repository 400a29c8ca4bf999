//! The scopes and rights of a session after a change of the assignments, the access rules, or its node.
//!
//! If the rights of a client change, its session ends. The client keeps its configuration, and may open a new stream.
//! Sessions that a change of the access rules does not concern are only compared with the change, not placed again.

use std::sync::Arc;

use chancery_model::{Node, Revision, ScopeName, State};
use chancery_protocol::ResumeState;

use crate::{
    messages::status::{End, EndCode},
    offload::work::Work,
    placement::access::{CHANGED, Placement, log_refusal, refused},
    placement::access_changes::AccessChanges,
    placement::past_scopes::PastScopes,
    placement::resume_cache::Kept,
    sessions::entry::{NEW_NODE, scopes_of},
    sessions::index::key,
    shard::Shard,
    stream::slot::StreamSlot,
    turn::budget::{Budget, INLINE_NAMES_MAX, cost_of},
    turn::clock::Now,
};

/// The number of sessions that are compared with a change of the access rules for the cost of one placement.
const COMPARISONS_PER_STEP: usize = 8;

impl Shard {
    /// Starts to place the sessions again after a change of the assignments or the access rules.
    pub(crate) fn on_placement_change(&mut self, old: &State, newest: &State) {
        let later = AccessChanges::between(old, newest);
        let earlier = self.access_changes.take();
        self.access_changes = match (self.reassign_from, earlier, later) {
            (None, _, later) => later,
            // Some sessions may not have been compared with the earlier changes yet.
            (Some(_), Some(mut earlier), Some(later)) => {
                earlier.extend(&later);
                Some(earlier)
            }
            (Some(_), _, _) => None,
        };
        let first = if newest.follows(old) {
            Revision(old.revision.0.saturating_add(1))
        } else {
            Revision(0)
        };
        self.reassign_since = match self.reassign_from {
            Some(_) => self.reassign_since.min(first),
            None => first,
        };
        self.reassign_from = Some(0);
    }

    /// Returns whether a session has the scopes and rights of the newest state, because it was placed with them, or
    /// because no later change concerns it.
    pub(crate) fn is_placed(&mut self, at: usize) -> bool {
        let changed = self.views.state().placement_changed();
        let Self { sessions, access_changes, config, .. } = self;
        let Some(entry) = sessions.get_mut(at) else { return true };
        // A session that is away may have to move. Its return places it again.
        if entry.away.is_some() {
            return false;
        }
        let keep_rights = |changes: &AccessChanges| {
            changes.keep_rights(entry.assigned_at, &entry.slot, config.access)
        };
        if entry.assigned_at != changed && !access_changes.as_ref().is_some_and(keep_rights) {
            return false;
        }
        entry.assigned_at = changed;
        if entry.moving_since.is_some() {
            self.set_moving(at, None);
        }
        true
    }

    /// Computes the scopes of some sessions again. A session that is polled earlier is reassigned at
    /// that time, so no session is served under old assignments.
    pub(crate) fn reassign_some(&mut self, now: Now) {
        let Some(mut at) = self.reassign_from else { return };
        let most = self.config.turn_work_max.saturating_mul(COMPARISONS_PER_STEP);
        let mut budget = Budget::new(most);
        while at < self.sessions.capacity() && !budget.is_spent() {
            budget.spend(if self.is_placed(at) {
                1
            } else {
                cost_of(self.reassign(at, now)).saturating_mul(COMPARISONS_PER_STEP)
            });
            at += 1;
        }
        self.reassign_from = (at < self.sessions.capacity()).then_some(at);
    }

    /// Computes the session's scopes and rights again if the assignments or the access rules have changed, and
    /// updates the index. Ends the stream if the client has other rights. Returns the number of updated
    /// subscriptions.
    pub(crate) fn reassign(&mut self, at: usize, now: Now) -> usize {
        if self.is_placed(at) {
            return 0;
        }
        let changed = self.views.state().placement_changed();
        let Some(entry) = self.sessions.get_mut(at) else { return 0 };
        if entry.away.is_some() {
            return self.reassign_away(at, now);
        }
        let is_new_node = entry.assigned_at == NEW_NODE;
        entry.assigned_at = changed;
        let (node, slot) = (Arc::clone(&entry.node), Arc::clone(&entry.slot));
        let placement = match self.place(&slot, &node) {
            Ok(placement) => placement,
            // The client keeps its configuration. Its next stream is refused.
            Err(_) if !is_new_node => return self.end_access(at, now),
            Err(end) => {
                slot.end(end);
                return self.forget(key(at), now);
            }
        };
        let Some(past) = self.past_after(at, &placement) else { return self.end_access(at, now) };
        let new = placement.assigned.map(|(name, scopes)| (name, self.views.intern(scopes)));
        let Some(entry) = self.sessions.get_mut(at) else { return 0 };
        entry.past = past;
        let old = std::mem::replace(&mut entry.assigned, new);
        let mut registered = 0;
        if old.is_some() != entry.assigned.is_some() || scopes_of(&old) != entry.scopes() {
            entry.moved_at = changed;
            let missing = |from: &[ScopeName], other: &[ScopeName]| -> Vec<ScopeName> {
                from.iter().filter(|scope| !other.contains(scope)).cloned().collect()
            };
            let gone = missing(scopes_of(&old), entry.scopes());
            let come = missing(entry.scopes(), scopes_of(&old));
            let names = entry.session.n_names();
            if names > INLINE_NAMES_MAX {
                self.set_moving(at, Some(changed));
                self.offload(at, Work::Move { gone, come }, names, now);
            } else {
                for interest in entry.session.interest() {
                    self.index.forget(key(at), &gone, &interest);
                    self.index.note(key(at), &come, &interest);
                    registered += 1;
                }
                entry.session.on_new_view();
                self.set_moving(at, None);
                self.enqueue(at, now);
            }
        } else {
            self.set_moving(at, None);
        }
        if let Some((_, scopes)) = old {
            self.views.release(scopes);
        }
        registered
    }

    /// Checks the rights of a session that is away. A session may be away for long. If its rights were checked only when
    /// it returns, it would first send a response that its old rights permitted.
    pub(crate) fn reassign_away(&mut self, at: usize, now: Now) -> usize {
        let changed = self.views.state().placement_changed();
        let Some(entry) = self.sessions.get_mut(at) else { return 0 };
        if entry.assigned_at == changed || entry.away.as_ref().is_none_or(|away| away.is_over()) {
            return 0;
        }
        let (node, slot) = (Arc::clone(&entry.node), Arc::clone(&entry.slot));
        let placed = self.place(&slot, &node);
        if placed.is_ok_and(|placement| self.past_after(at, &placement).is_some()) {
            if let Some(away) = self.sessions.get_mut(at).and_then(|entry| entry.away.as_mut()) {
                // This poll reassigns the session.
                away.poll_when_back();
            }
            self.set_moving(at, Some(changed));
            return 0;
        }
        self.end_access(at, now)
    }

    /// Returns the earlier scopes of a session after a placement, or `None` if its client has other rights than before.
    /// The session may still have to send resources of earlier scopes, so these must be readable, too.
    fn past_after(&self, at: usize, placement: &Placement) -> Option<PastScopes> {
        let entry = self.sessions.get(at)?;
        let past = entry.past.after_move(entry.scopes(), placement.scopes());
        let (access, identity) = (self.config.access, entry.slot.info.identity.as_deref());
        let may_read = |scopes: &[ScopeName]| {
            access.may_read(self.views.state(), identity, &entry.node, scopes)
        };
        let keeps_rights = placement.rights.as_ref() == entry.rights.as_deref()
            && (entry.rights.is_none() || past.known().is_some_and(may_read));
        keeps_rights.then_some(past)
    }

    /// Returns the resume data of the earlier streams of a session's client, as far as the client may have it now.
    /// Scopes that the assignment no longer gives count only if the access rules permit them to a proven identity.
    pub(crate) fn resume_states(&mut self, at: usize, now: Now) -> Vec<Arc<ResumeState>> {
        if !self.is_placed(at) {
            return Vec::new();
        }
        let Self { sessions, resume_cache, config, views, .. } = self;
        let Some(entry) = sessions.get_mut(at) else { return Vec::new() };
        let identity = entry.slot.info.identity.as_deref();
        let principal = identity.map(|identity| &identity.principal);
        let mut kept = resume_cache.of(principal, &entry.node, now.instant);
        let scopes = scopes_of(&entry.assigned);
        let may_resume = |kept: &Kept| {
            kept.scopes.iter().all(|scope| scopes.contains(scope))
                || config.access.proves(identity)
                    && config.access.may_read(views.state(), identity, &entry.node, &kept.scopes)
        };
        kept.retain(may_resume);
        entry.past.add(kept.iter().flat_map(|kept| &*kept.scopes), scopes);
        match entry.past.known() {
            Some(_) => kept.into_iter().map(|kept| kept.state).collect(),
            None => Vec::new(),
        }
    }

    /// Ends a stream whose client has other rights than before. The client receives OK and nothing more, so it keeps its
    /// configuration. Returns the number of freed subscriptions.
    fn end_access(&mut self, at: usize, now: Now) -> usize {
        let Some(entry) = self.sessions.get_mut(at) else { return 0 };
        entry.slot.end(End::new(EndCode::AccessChanged, CHANGED));
        self.forget(key(at), now)
    }

    /// Returns what the node of a stream receives, or the end of the stream.
    pub(crate) fn place(&self, slot: &StreamSlot, node: &Node) -> Result<Placement, End> {
        let identity = slot.info.identity.as_deref();
        let placed = self.config.access.place(self.views.state(), identity, node);
        placed.map_err(|refusal| {
            let peer = slot.info.peer;
            let left_out = self.refusal_log.take(&node.id, peer);
            log_refusal(left_out, identity, node, peer, &refusal);
            refused(&self.config.observer, identity, node, peer, &refusal)
        })
    }
}
