//! The newest state as sessions see it.
//!
//! A view is resolved when a session is looked at, and the last one is kept: sessions with the same
//! list of scopes that are looked at in a row share it. Keeping one per session would hold old states
//! alive for sessions to which nothing happens.

use std::{collections::HashSet, sync::Arc};

use chancery_model::{ScopeName, State};
use chancery_view::View;

use crate::entry::ScopeList;

#[derive(Debug)]
pub(crate) struct Views {
    state: Arc<State>,
    last: Option<(ScopeList, View)>,
    /// Lists in use, each once.
    lists: HashSet<ScopeList>,
}

impl Views {
    pub(crate) fn new(state: Arc<State>) -> Self {
        Self { state, last: None, lists: HashSet::new() }
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Takes a newer state, and gives back the one before.
    pub(crate) fn advance(&mut self, state: Arc<State>) -> Arc<State> {
        self.last = None;
        std::mem::replace(&mut self.state, state)
    }

    /// The view over a list that came from [`Views::intern`].
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

    /// The one list that is equal to `scopes`.
    pub(crate) fn intern(&mut self, scopes: Vec<ScopeName>) -> ScopeList {
        if let Some(known) = self.lists.get(scopes.as_slice()) {
            return Arc::clone(known);
        }
        let list: ScopeList = scopes.into();
        self.lists.insert(Arc::clone(&list));
        list
    }

    #[cfg(test)]
    pub(crate) fn n_lists(&self) -> usize {
        self.lists.len()
    }

    /// Says that a node no longer sees the list.
    pub(crate) fn release(&mut self, list: ScopeList) {
        if self.last.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, &list)) {
            self.last = None;
        }
        // This one and the one in the set.
        if Arc::strong_count(&list) == 2 {
            self.lists.remove(&list);
        }
    }
}
