//! The analyzed state: the part that the caller may read, and the whole one.

use std::sync::Arc;

use chancery_model::{Assignment, Collection, ResourceKey, ScopeName, State};

/// The analyzed state.
pub(super) struct World {
    whole: Arc<State>,
    /// The part that the caller may read.
    visible: Arc<State>,
    /// The only scope to analyze, if there is one.
    only: Option<ScopeName>,
}

impl World {
    pub(super) fn new(whole: Arc<State>, visible: Arc<State>, only: Option<ScopeName>) -> Self {
        Self { whole, visible, only }
    }

    /// Returns the whole state.
    pub(super) fn whole(&self) -> &Arc<State> {
        &self.whole
    }

    /// Returns the only scope to analyze, if there is one.
    pub(super) fn only(&self) -> Option<&ScopeName> {
        self.only.as_ref()
    }

    /// Returns the requested scope if the caller can read no resource in it.
    pub(super) fn missing_scope(&self) -> Option<&ScopeName> {
        let is_empty = self.collections().all(|one| one.resources.is_empty());
        self.only.as_ref().filter(|_| is_empty)
    }

    /// Iterates over the analyzed collections.
    pub(super) fn collections(&self) -> impl Iterator<Item = &Collection> {
        let is_analyzed = |scope: &ScopeName| self.only.as_ref().is_none_or(|only| only == scope);
        let scopes = self.visible.scopes.iter().filter(move |(name, _)| is_analyzed(name));
        scopes.flat_map(|(_, scope)| scope.types.values()).map(Arc::as_ref)
    }

    /// Returns whether the caller may read a resource.
    pub(super) fn may_name(&self, scope: &ScopeName, key: &ResourceKey) -> bool {
        self.visible.get(scope, key).is_some()
    }

    /// Returns whether the caller may read something in a scope.
    pub(super) fn may_name_scope(&self, scope: &ScopeName) -> bool {
        self.visible.scopes.contains_key(scope)
    }

    /// Returns the assignments that some node may have: those up to the first one that matches every node.
    pub(super) fn reachable(&self) -> &[Assignment] {
        let rules = &self.whole.assignments.rules;
        let first = rules.iter().position(|rule| rule.matcher.matches_every_node());
        first.map_or(rules, |first| &rules[..=first])
    }

    /// Returns whether some node may have a scope.
    pub(super) fn may_have(&self, scope: &ScopeName) -> bool {
        let mut templates = self.reachable().iter().flat_map(|rule| &rule.scopes);
        templates.any(|template| template.may_resolve_to(scope))
    }

    /// Returns whether some node may have both scopes. Nodes have at most one scope of each template.
    pub(super) fn may_share_view(&self, a: &ScopeName, b: &ScopeName) -> bool {
        a == b
            || self.reachable().iter().any(|rule| {
                let may_be = |scope| {
                    let templates = rule.scopes.iter().enumerate();
                    templates.filter(move |(_, one)| one.may_resolve_to(scope)).map(|(at, _)| at)
                };
                may_be(a).any(|of_a| may_be(b).any(|of_b| of_a != of_b))
            })
    }
}
