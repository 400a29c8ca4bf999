//! The scopes and rights of a shard's sessions.
//!
//! A new stream gets its scopes and rights when it opens. After a change of the assignments, the access rules, or its
//! node, the shard computes them again.
//!
//! If the rights of a client change, its session ends. The client keeps its configuration, and may open a new stream.
//! Sessions that a change of the access rules does not concern are only compared with the change, not placed again.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Node, Revision, ScopeName, State, StreamRights, TypeUrl, TypeVersion};
use chancery_protocol::ResumeState;
use chancery_view::View;

use crate::{
    Config,
    log_limit::RefusalLog,
    messages::{
        client_events::{ClientEvent, ClientEventKind},
        session::Key,
        status::{End, EndCode},
    },
    metrics::{access_refused, limit_hit},
    replica::recent_states::RecentStates,
    stream::slot::StreamSlot,
    turn::clock::Now,
};

pub(crate) mod access;
pub(crate) mod access_changes;
pub(crate) mod client_groups;
pub(crate) mod past_scopes;
pub(crate) mod placed;
pub(crate) mod resume_cache;
pub(crate) mod views;

use access::{Authorization, CHANGED, CountedStream, IdentityStreams, log_refusal, refused};
use access_changes::AccessChanges;
use client_groups::ClientGroups;
use past_scopes::PastScopes;
use placed::{Placed, ScopeMove};
use resume_cache::{Kept, ResumeCache};
use views::Views;

/// The scopes and rights of a shard's sessions.
#[derive(Debug)]
pub(crate) struct Placement {
    config: Arc<Config>,
    refusal_log: Arc<RefusalLog>,
    /// The streams of identities whose access rule limits them, of all shards.
    identity_streams: IdentityStreams,
    /// The groups of the clients of all shards.
    client_groups: ClientGroups,
    /// The resume data of ended streams of all shards.
    resume_cache: Arc<ResumeCache>,
    recent_states: Arc<RecentStates>,
    views: Views,
    /// The pass over all sessions after a change of the assignments or access rules.
    pass: Option<Pass>,
    /// The changes of the access rules that caused the pass; `None` if the assignments changed, too.
    access_changes: Option<AccessChanges>,
    /// The sessions that are not indexed under their new scopes yet, by the revision of the assignments that may have
    /// moved them.
    moving: BTreeSet<(Revision, Key)>,
}

/// A pass over all sessions.
#[derive(Debug, Clone, Copy)]
struct Pass {
    /// The next session.
    next: Key,
    /// The first revision that may contain a change that caused the pass.
    since: Revision,
}

/// The effect of a new placement on a session.
#[derive(Debug)]
#[must_use = "a session that does not follow its placement is served under old rights"]
pub(crate) enum Replacement {
    /// The session keeps its scopes.
    Kept,
    /// The session sees other scopes. Its names have to be indexed under them.
    Moved(ScopeMove),
    /// The stream ends: its client has other rights than before.
    Ended(End),
}

impl Placement {
    pub(crate) fn new(
        config: Arc<Config>,
        state: Arc<State>,
        refusal_log: Arc<RefusalLog>,
        identity_streams: IdentityStreams,
        client_groups: ClientGroups,
        resume_cache: Arc<ResumeCache>,
        recent_states: Arc<RecentStates>,
    ) -> Self {
        Self {
            config,
            refusal_log,
            identity_streams,
            client_groups,
            resume_cache,
            recent_states,
            views: Views::new(state),
            pass: None,
            access_changes: None,
            moving: BTreeSet::new(),
        }
    }

    /// Returns the newest state.
    pub(crate) fn state(&self) -> &Arc<State> {
        self.views.state()
    }

    /// Returns whether any session sees a scope.
    pub(crate) fn sees(&self, scope: &ScopeName) -> bool {
        self.views.sees(scope)
    }

    #[cfg(test)]
    pub(crate) fn n_scope_lists(&self) -> usize {
        self.views.n_lists()
    }

    /// Switches to the newest state, and returns the previous one. Starts to place the sessions again if the
    /// assignments or the access rules have changed.
    pub(crate) fn advance(&mut self, newest: &Arc<State>, now: Now) -> Arc<State> {
        let old = self.views.advance(Arc::clone(newest));
        self.resume_cache.forget_old(now.instant);
        if old.placement_changed() != newest.placement_changed() {
            self.start_pass(&old, newest);
        }
        old
    }

    fn start_pass(&mut self, old: &State, newest: &State) {
        let later = AccessChanges::between(old, newest);
        let earlier = self.access_changes.take();
        self.access_changes = match (self.pass, earlier, later) {
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
        let since = self.pass.map_or(first, |pass| pass.since.min(first));
        self.pass = Some(Pass { next: 0, since });
    }

    /// Returns the next session of the pass over all sessions; `None` if there is no pass.
    pub(crate) fn next_of_pass(&self) -> Option<Key> {
        self.pass.map(|pass| pass.next)
    }

    /// Continues the pass with the session `next`. `None` ends the pass.
    pub(crate) fn continue_pass(&mut self, next: Option<Key>) {
        let since = self.pass.map(|pass| pass.since);
        self.pass = next.zip(since).map(|(next, since)| Pass { next, since });
    }

    /// Returns the revision up to which all sessions are indexed under their scopes. All sessions have received the
    /// changes up to `marked`.
    pub(crate) fn reached_revision(&self, marked: Revision) -> Revision {
        let pass = self.pass.map(|pass| pass.since);
        let moving = self.moving.first().map(|(since, _)| *since);
        match pass.into_iter().chain(moving).min() {
            Some(since) => marked.min(Revision(since.0.saturating_sub(1))),
            None => marked,
        }
    }

    /// Records that the session is not indexed under its new scopes yet; `since` is the revision of the assignments that
    /// moved it. `None` means that the session is indexed, or that its stream has ended.
    pub(crate) fn set_moving(&mut self, key: Key, placed: &mut Placed, since: Option<Revision>) {
        let (before, since) = placed.set_moving(since);
        if before != since {
            if let Some(before) = before {
                self.moving.remove(&(before, key));
            }
            self.moving.extend(since.map(|since| (since, key)));
        }
    }

    /// Records that a session is indexed under the scopes of a move. A later change may have moved it again.
    pub(crate) fn on_indexed(&mut self, key: Key, placed: &mut Placed) {
        if placed.placed_at() == self.state().placement_changed() {
            self.set_moving(key, placed, None);
        }
    }

    /// Returns the placement of a new stream, or the end of the stream.
    pub(crate) fn admit(&mut self, slot: &StreamSlot, node: Arc<Node>) -> Result<Placed, End> {
        let Authorization { assigned, rights } = self.authorize(slot, &node)?;
        let counted = self.count(slot, &node, rights.as_ref())?;
        let assigned = assigned.map(|(name, scopes)| (name, self.views.intern(scopes)));
        let placed_at = self.state().placement_changed();
        let mut placed = Placed::new(node, assigned, rights, counted, placed_at);
        placed.join(&self.client_groups);
        Ok(placed)
    }

    /// Returns what the node of a stream receives, or the end of the stream.
    fn authorize(&self, slot: &StreamSlot, node: &Node) -> Result<Authorization, End> {
        let identity = slot.info.identity.as_deref();
        let decided = self.config.access.authorize(self.state(), identity, node);
        decided.map_err(|refusal| {
            let peer = slot.info.peer;
            let left_out = self.refusal_log.take(&node.id, peer);
            log_refusal(left_out, identity, node, peer, &refusal);
            refused(&self.config.observer, identity, node, peer, &refusal)
        })
    }

    /// Counts a stream of an identity whose access rule limits the number of streams.
    fn count(
        &self,
        slot: &StreamSlot,
        node: &Node,
        rights: Option<&StreamRights>,
    ) -> Result<Option<CountedStream>, End> {
        let limit =
            rights.and_then(|rights| rights.quota.streams).zip(slot.info.identity.as_deref());
        let Some((max, identity)) = limit else { return Ok(None) };
        let counted = self.identity_streams.take(&identity.principal, max);
        counted.map(Some).ok_or_else(|| {
            limit_hit("streams_per_identity");
            access_refused("streams");
            self.config.observer.observe(ClientEvent {
                kind: ClientEventKind::Refused("streams"),
                principal: Some(&identity.principal),
                peer: slot.info.peer,
                node: &node.id,
            });
            let text = format!(
                "the identity {} already has {max} streams on this replica (quota.streams of its access rule)",
                identity.principal
            );
            self.refusal_log.log(&node.id, slot.info.peer, &text);
            End::new(EndCode::ResourceExhausted, text)
        })
    }

    /// Returns the view of a session. The only place where a stream gets a view.
    pub(crate) fn view(&mut self, placed: &Placed) -> Option<View> {
        let view = self.views.of(placed.scope_list()?);
        Some(view_for(view, placed))
    }

    /// Returns whether a session has the scopes and rights of the newest state. Either it was placed with them, or no
    /// later change concerns it.
    pub(crate) fn is_current(&mut self, key: Key, slot: &StreamSlot, placed: &mut Placed) -> bool {
        let changed = self.state().placement_changed();
        let keep_rights = |changes: &AccessChanges| {
            changes.keep_rights(placed.placed_at(), slot, self.config.access)
        };
        if placed.placed_at() != changed && !self.access_changes.as_ref().is_some_and(keep_rights) {
            return false;
        }
        placed.set_placed_at(changed);
        self.set_moving(key, placed, None);
        true
    }

    /// Computes the scopes and rights of a session again.
    pub(crate) fn place_again(&mut self, slot: &StreamSlot, placed: &mut Placed) -> Replacement {
        let is_new_node = placed.has_new_node();
        placed.set_placed_at(self.state().placement_changed());
        let authorization = match self.authorize(slot, placed.node()) {
            Ok(authorization) => authorization,
            // The client keeps its configuration. Its next stream is refused.
            Err(_) if !is_new_node => return Replacement::Ended(access_changed()),
            Err(end) => return Replacement::Ended(end),
        };
        let Some(past) = self.past_after(slot, placed, &authorization) else {
            return Replacement::Ended(access_changed());
        };
        let new = authorization.assigned.map(|(name, scopes)| (name, self.views.intern(scopes)));
        let (old, moved) = placed.replace(new, past);
        if let Some((_, scopes)) = old {
            self.views.release(scopes);
        }
        if is_new_node || moved.is_some() {
            placed.join(&self.client_groups);
        }
        moved.map_or(Replacement::Kept, Replacement::Moved)
    }

    /// Checks the rights of a session that is away. A session may be away for long. If its rights were checked only when
    /// it returns, it would first send a response that its old rights permitted. Returns the end of the stream if its
    /// client has other rights. The session is placed again when it is back.
    pub(crate) fn check_away(
        &mut self,
        key: Key,
        slot: &StreamSlot,
        placed: &mut Placed,
    ) -> Result<(), End> {
        let authorization = self.authorize(slot, placed.node()).map_err(|_| access_changed())?;
        self.past_after(slot, placed, &authorization).ok_or_else(access_changed)?;
        let changed = self.state().placement_changed();
        self.set_moving(key, placed, Some(changed));
        Ok(())
    }

    /// Returns the earlier scopes of a session after a placement, or `None` if its client has other rights than before.
    /// The session may still have to send resources of earlier scopes, so these must be readable, too.
    fn past_after(
        &self,
        slot: &StreamSlot,
        placed: &Placed,
        authorization: &Authorization,
    ) -> Option<PastScopes> {
        let past = placed.past().after_move(placed.scopes(), authorization.scopes());
        let (access, identity) = (self.config.access, slot.info.identity.as_deref());
        let may_read =
            |scopes: &[ScopeName]| access.may_read(self.state(), identity, placed.node(), scopes);
        let keeps_rights = authorization.rights.as_ref() == placed.rights().map(|one| &**one)
            && (placed.rights().is_none() || past.known().is_some_and(may_read));
        keeps_rights.then_some(past)
    }

    /// Returns the resume data of the earlier streams of a session's client, as far as the client may have it now.
    /// Scopes that the assignment no longer gives count only if the access rules permit them to a proven identity.
    pub(crate) fn resume_states(
        &mut self,
        key: Key,
        slot: &StreamSlot,
        placed: &mut Placed,
        now: Now,
    ) -> Vec<Arc<ResumeState>> {
        if !self.is_current(key, slot, placed) {
            return Vec::new();
        }
        let identity = slot.info.identity.as_deref();
        let principal = identity.map(|identity| &identity.principal);
        let mut kept = self.resume_cache.of(principal, placed.node(), now.instant);
        kept.retain(|kept| self.may_resume(slot, placed, &kept.scopes));
        placed.add_past(kept.iter().flat_map(|kept| &*kept.scopes));
        match placed.past().known() {
            Some(_) => kept.into_iter().map(|kept| kept.state).collect(),
            None => Vec::new(),
        }
    }

    /// Returns whether the client of a session may have resources of earlier scopes now.
    fn may_resume(&self, slot: &StreamSlot, placed: &Placed, earlier: &[ScopeName]) -> bool {
        let (access, identity) = (self.config.access, slot.info.identity.as_deref());
        earlier.iter().all(|scope| placed.scopes().contains(scope))
            || access.proves(identity)
                && access.may_read(self.state(), identity, placed.node(), earlier)
    }

    /// Returns the view in which a type has the version that a session's client reports, as far as the client may have
    /// its resources now: the view of the session, or the one that the same client had in a recent state. Another
    /// replica may have sent it.
    pub(crate) fn view_of_version(
        &mut self,
        key: Key,
        slot: &StreamSlot,
        placed: &mut Placed,
        (type_url, version): (&TypeUrl, &str),
        now: Now,
    ) -> Option<View> {
        if !self.is_current(key, slot, placed) {
            return None;
        }
        let present = self.view(placed)?;
        let shown = present.of_type(type_url).version();
        if shown.to_string() == version {
            return Some(present);
        }
        // The removed resources are not known. The session keeps them without (`resumes_held`).
        if shown.is_held_in_part(version) {
            return None;
        }
        let revision = TypeVersion::revision_of(version, self.state().incarnation)?;
        let state = self.recent_states.at(revision, now.instant)?;
        // A client that had no access then cannot have the resources, whatever version it reports.
        let identity = slot.info.identity.as_deref();
        let earlier = self.config.access.authorize(&state, identity, placed.node()).ok()?;
        let (_, scopes) = earlier.assigned?;
        let view = View::resolve(&state, &scopes);
        // This replica does not know the removed resources that a held version had in earlier states.
        let shown = view.of_type(type_url).version();
        let has_version = shown.to_string() == version || shown.is_held_in_part(version);
        if !has_version || !self.may_resume(slot, placed, &scopes) {
            return None;
        }
        placed.add_past(scopes.iter());
        placed.past().known()?;
        Some(view_for(view, placed))
    }

    /// Releases the scopes of a stream that has ended, and keeps its resume data.
    pub(crate) fn release(
        &mut self,
        slot: &StreamSlot,
        placed: Placed,
        resume_state: Option<ResumeState>,
        now: Now,
    ) {
        if let Some((state, scopes)) = resume_state.zip(placed.all_scopes()) {
            let identity = slot.info.identity.as_deref();
            let principal = identity.map(|identity| &identity.principal);
            let kept = Kept { state: Arc::new(state), scopes: scopes.into() };
            self.resume_cache.put(principal, placed.node(), kept, now.instant);
        }
        if let Some(scopes) = placed.into_scope_list() {
            self.views.release(scopes);
        }
    }
}

/// Returns a view with the node and the rights of a session.
fn view_for(view: View, placed: &Placed) -> View {
    let view = view.with_node(Arc::clone(placed.node()));
    match placed.rights() {
        Some(rights) => view.with_secrets(Some(Arc::clone(&rights.secrets))),
        None => view,
    }
}

/// Returns the end of a stream whose client has other rights than before. The client receives OK and nothing more, so it
/// keeps its configuration.
fn access_changed() -> End {
    End::new(EndCode::AccessChanged, CHANGED)
}
