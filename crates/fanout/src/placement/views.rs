//! The newest state, and the views of it.
//!
//! A view is resolved when a session is polled, and only the last view is kept. Consecutive sessions
//! with the same list of scopes share it. A view per session would keep old states in memory for idle
//! sessions.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use chancery_model::{ScopeName, State};
use chancery_view::View;

/// The scopes that a node sees, in layers. Nodes with equal scopes share one list per shard.
pub(crate) type ScopeList = Arc<[ScopeName]>;

#[derive(Debug)]
pub(crate) struct Views {
    state: Arc<State>,
    last: Option<(ScopeList, View)>,
    /// The lists in use, each once.
    lists: HashSet<ScopeList>,
    /// The number of these lists that contain each scope.
    scopes: HashMap<ScopeName, u32>,
}

impl Views {
    pub(crate) fn new(state: Arc<State>) -> Self {
        Self { state, last: None, lists: HashSet::new(), scopes: HashMap::new() }
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Replaces the state by a newer one, and returns the previous one.
    pub(crate) fn advance(&mut self, state: Arc<State>) -> Arc<State> {
        self.last = None;
        std::mem::replace(&mut self.state, state)
    }

    /// Returns the view over a list that came from [`Views::intern`].
    pub(crate) fn of(&mut self, list: &ScopeList) -> View {
        match &self.last {
            Some((of, view)) if Arc::ptr_eq(of, list) => view.clone(),
            _ => {
                let view = View::resolve(&self.state, list);
                self.last = Some((Arc::clone(list), view.clone()));
                view
            }
        }
    }

    /// Returns the shared list that equals `scopes`.
    pub(crate) fn intern(&mut self, scopes: Vec<ScopeName>) -> ScopeList {
        if let Some(known) = self.lists.get(scopes.as_slice()) {
            return Arc::clone(known);
        }
        let list: ScopeList = scopes.into();
        self.lists.insert(Arc::clone(&list));
        for scope in &*list {
            *self.scopes.entry(scope.clone()).or_default() += 1;
        }
        list
    }

    /// Returns whether any session sees a scope.
    pub(crate) fn sees(&self, scope: &ScopeName) -> bool {
        self.scopes.contains_key(scope)
    }

    #[cfg(test)]
    pub(crate) fn n_lists(&self) -> usize {
        self.lists.len()
    }

    /// Releases a list that a node no longer sees.
    pub(crate) fn release(&mut self, list: ScopeList) {
        if self.last.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, &list)) {
            self.last = None;
        }
        // The two references are this one and the one in the set.
        if Arc::strong_count(&list) == 2 {
            self.lists.remove(&list);
            for scope in &*list {
                if let Entry::Occupied(mut count) = self.scopes.entry(scope.clone()) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
            }
        }
    }
}
