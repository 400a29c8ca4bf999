//! The node of a stream, and the scopes and rights that it has.

use std::sync::Arc;

use chancery_model::{Node, Revision, ScopeName, StreamRights};

use super::{
    access::CountedStream,
    client_groups::{ClientGroups, Membership},
    past_scopes::PastScopes,
    views::ScopeList,
};

/// The revision of a placement whose node has changed since. It differs from every revision, so the shard computes the
/// scopes again.
pub(crate) const NEW_NODE: Revision = Revision(u64::MAX);

/// The name of an assignment with its scopes. `None` if no assignment matches the node: such a node has no view, which
/// differs from an empty view (OPS-05).
pub(crate) type Assigned = Option<(Arc<str>, ScopeList)>;

/// The scopes that a node leaves and joins with another assignment.
#[derive(Debug)]
pub(crate) struct ScopeMove {
    pub(crate) left: Vec<ScopeName>,
    pub(crate) joined: Vec<ScopeName>,
}

/// The node of a stream, and the scopes and rights that it has.
#[derive(Debug)]
pub(crate) struct Placed {
    node: Arc<Node>,
    assigned: Assigned,
    /// The scopes that the stream had before.
    past: PastScopes,
    /// The rights of the client; `None` if access rules do not apply. They never change: a client with other rights
    /// gets another stream.
    rights: Option<Arc<StreamRights>>,
    /// The stream among those of its identity, if an access rule limits them.
    _counted: Option<CountedStream>,
    /// The group of the client; `None` until it joins one.
    group: Option<Membership>,
    /// The revision of the assignments and access rules when `assigned` was computed.
    placed_at: Revision,
    /// The revision of the assignments or access rules that last changed the scopes; 0 if none did.
    moved_at: Revision,
    /// The revision that moved the session, while it is not indexed under its new scopes.
    moving_since: Option<Revision>,
}

impl Placed {
    pub(crate) fn new(
        node: Arc<Node>,
        assigned: Assigned,
        rights: Option<StreamRights>,
        counted: Option<CountedStream>,
        placed_at: Revision,
    ) -> Self {
        Self {
            node,
            assigned,
            past: PastScopes::default(),
            rights: rights.map(Arc::new),
            _counted: counted,
            group: None,
            placed_at,
            moved_at: Revision(0),
            moving_since: None,
        }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Replaces the node (SOTW-03). The scopes have to be computed again.
    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        self.node = node;
        self.placed_at = NEW_NODE;
    }

    /// Returns whether the node has changed since the scopes were computed.
    pub(crate) fn has_new_node(&self) -> bool {
        self.placed_at == NEW_NODE
    }

    /// Returns the name of the assignment; `None` if no assignment matches.
    pub(crate) fn assignment(&self) -> Option<&Arc<str>> {
        self.assigned.as_ref().map(|(name, _)| name)
    }

    /// Returns the shared list of the scopes; `None` if no assignment matches.
    pub(crate) fn scope_list(&self) -> Option<&ScopeList> {
        self.assigned.as_ref().map(|(_, scopes)| scopes)
    }

    /// Returns the scopes, in layers.
    pub(crate) fn scopes(&self) -> &[ScopeName] {
        self.scope_list().map_or(&[], |scopes| scopes)
    }

    /// Returns all scopes from which the client may have resources; `None` if not all of them are known.
    pub(crate) fn all_scopes(&self) -> Option<Vec<ScopeName>> {
        let past = self.past.known()?;
        Some(self.scopes().iter().chain(past).cloned().collect())
    }

    pub(crate) fn past(&self) -> &PastScopes {
        &self.past
    }

    /// Adds scopes of earlier streams of the client, whose resources it may still have.
    pub(crate) fn add_past<'a>(&mut self, scopes: impl Iterator<Item = &'a ScopeName>) {
        let present = self.assigned.as_ref().map_or(&[][..], |(_, scopes)| scopes);
        self.past.add(scopes, present);
    }

    pub(crate) fn rights(&self) -> Option<&Arc<StreamRights>> {
        self.rights.as_ref()
    }

    /// Returns the revision of the assignments and access rules with which the scopes agree.
    pub(crate) fn placed_at(&self) -> Revision {
        self.placed_at
    }

    /// Records that the scopes agree with a later revision.
    pub(crate) fn set_placed_at(&mut self, revision: Revision) {
        self.placed_at = revision;
    }

    /// Returns whether a change at `since` or later changed the scopes, or may still change them. `newest` is the
    /// newest revision of the assignments and access rules.
    pub(crate) fn has_moved(&self, since: Revision, newest: Revision) -> bool {
        self.moved_at >= since || self.placed_at != newest
    }

    /// Replaces the scopes, and returns the previous ones. Returns a move unless the scopes are the same.
    pub(crate) fn replace(
        &mut self,
        assigned: Assigned,
        past: PastScopes,
    ) -> (Assigned, Option<ScopeMove>) {
        let old = std::mem::replace(&mut self.assigned, assigned);
        self.past = past;
        let before = old.as_ref().map_or(&[][..], |(_, scopes)| scopes);
        if old.is_some() == self.assigned.is_some() && before == self.scopes() {
            return (old, None);
        }
        self.moved_at = self.placed_at;
        let missing = |from: &[ScopeName], other: &[ScopeName]| -> Vec<ScopeName> {
            from.iter().filter(|scope| !other.contains(scope)).cloned().collect()
        };
        let left = missing(before, self.scopes());
        let joined = missing(self.scopes(), before);
        (old, Some(ScopeMove { left, joined }))
    }

    /// Records whether the session is not indexed under its new scopes yet, and since which revision. Of several moves,
    /// the earliest counts. Returns the previous and the new revision.
    pub(crate) fn set_moving(
        &mut self,
        since: Option<Revision>,
    ) -> (Option<Revision>, Option<Revision>) {
        let since = since.map(|since| self.moving_since.map_or(since, |known| known.min(since)));
        (std::mem::replace(&mut self.moving_since, since), since)
    }

    /// Adds the session to the group of its scopes and user agent. The session leaves its previous group.
    pub(crate) fn join(&mut self, groups: &ClientGroups) {
        self.group = Some(groups.join(self.scopes(), &self.node.user_agent));
    }

    /// Takes the list of scopes when the stream has ended.
    pub(crate) fn into_scope_list(self) -> Option<ScopeList> {
        self.assigned.map(|(_, scopes)| scopes)
    }

    /// Takes the rights away, as no change of rules does.
    #[cfg(test)]
    pub(crate) fn clear_rights(&mut self) {
        self.rights = None;
    }
}
