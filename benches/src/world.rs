//! A state with M resources and V views, and the transactions that change it.
//!
//! The layers are those of real fleets: each view puts a private scope over one shared scope of M
//! resources.

use std::time::Duration;

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert,
};
use chancery_view::View;

/// The size of a resource's body in bytes.
pub(crate) const BODY_BYTES: usize = 1000;
/// The number of names of a session without a wildcard.
pub(crate) const NAMES: usize = 100;
/// The minimum number of session operations in one sample.
pub(crate) const OPS_MIN: usize = 400;
/// The minimum number of sessions of a kind. With fewer views, several sessions share a view.
///
/// One measurement covers the sessions together, because reading the clock twice takes as long as the
/// operation of one session.
pub(crate) const SESSIONS_MIN: usize = 100;
/// The number of resources in a view's private scope.
const PRIVATE: usize = 2;
/// The number of resources in each transaction that fills a state.
const BATCH: usize = 10_000;

/// A state and its views. Each change creates a new state.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) type_url: TypeUrl,
    /// The scopes of each view, the most specific first.
    pub(crate) lists: Vec<Vec<ScopeName>>,
    /// The number of resources in the shared scope.
    pub(crate) resources: usize,
    shared: ScopeName,
    changes: u64,
}

/// Returns a state with the given number of resources in the shared scope, and no other resources.
pub(crate) fn filled(type_url: &TypeUrl, resources: usize) -> State {
    let mut state = State::new(Incarnation(7));
    for from in (0..resources).step_by(BATCH) {
        let to = (from + BATCH).min(resources);
        let upserts = (from..to).map(|n| upsert(&shared(), type_url, &name(n), 0)).collect();
        state = state.apply(&Transaction { upserts, ..Transaction::default() }).state;
    }
    state
}

/// Returns the name of resource `n` of the shared scope.
pub(crate) fn name(n: usize) -> String {
    format!("cluster-{n:07}")
}

fn shared() -> ScopeName {
    ScopeName::new("mesh").expect("a valid name")
}

fn upsert(scope: &ScopeName, type_url: &TypeUrl, name: &str, change: u64) -> Upsert {
    let name = ResourceName::new(name).expect("a valid name");
    let mut body = vec![0x5a; BODY_BYTES];
    body[..8].copy_from_slice(&change.to_le_bytes());
    let key = ResourceKey { type_url: type_url.clone(), name };
    Upsert { scope: scope.clone(), draft: ResourceDraft::new(key, Bytes::from(body)) }
}

impl World {
    /// Adds views to a state that [`filled`] created.
    pub(crate) fn new(state: &State, type_url: &TypeUrl, resources: usize, views: usize) -> Self {
        let shared = shared();
        let private = |view: usize| ScopeName::new(&format!("node/n{view}")).expect("a valid name");
        let lists: Vec<_> = (0..views).map(|view| vec![private(view), shared.clone()]).collect();
        let own = |(view, list): (usize, &Vec<ScopeName>)| {
            let scope = list[0].clone();
            let upserts =
                (0..PRIVATE).map(move |n| upsert(&scope, type_url, &format!("own-{view}-{n}"), 0));
            upserts.collect::<Vec<_>>()
        };
        let upserts = lists.iter().enumerate().flat_map(own).collect();
        let state = state.apply(&Transaction { upserts, ..Transaction::default() }).state;
        Self { state, type_url: type_url.clone(), lists, resources, shared, changes: 0 }
    }

    /// Returns the number of a pseudo-random resource of the shared scope.
    pub(crate) fn any(&mut self) -> usize {
        self.changes += 1;
        let mixed = self.changes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        usize::try_from(mixed).unwrap_or(usize::MAX) % self.resources
    }

    /// Returns a transaction that changes the given resources of the shared scope.
    pub(crate) fn change(&mut self, resources: &[usize]) -> Transaction {
        self.changes += 1;
        let upserts = resources
            .iter()
            .map(|n| upsert(&self.shared, &self.type_url, &name(*n), self.changes))
            .collect();
        Transaction { upserts, ..Transaction::default() }
    }

    /// Returns a transaction that adds a resource with a lifetime to the shared scope.
    pub(crate) fn change_lifetime(&mut self, lifetime: Duration) -> Transaction {
        self.changes += 1;
        let mut upsert = upsert(&self.shared, &self.type_url, "with-lifetime", self.changes);
        upsert.draft.ttl = Some(lifetime);
        Transaction { upserts: vec![upsert], ..Transaction::default() }
    }

    /// Returns a transaction that changes a resource in the private scope of one view.
    pub(crate) fn change_private(&mut self) -> Transaction {
        let view = self.any() % self.lists.len();
        let name = format!("own-{view}-0");
        let upserts = vec![upsert(&self.lists[view][0], &self.type_url, &name, self.changes)];
        Transaction { upserts, ..Transaction::default() }
    }

    /// Resolves view `n` modulo the number of views, in the current state.
    pub(crate) fn view(&self, n: usize) -> View {
        View::resolve(&self.state, &self.lists[n % self.lists.len()])
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::{Outcome, types::CLUSTER};

    use super::*;

    #[test]
    fn view_contains_shared_and_private_resources() {
        let type_url = TypeUrl::from_static(CLUSTER);
        let base = filled(&type_url, 25);
        let mut world = World::new(&base, &type_url, 25, 3);
        for n in 0..3 {
            let view = world.view(n).of_type(&type_url);
            assert_eq!(view.iter().count(), 25 + PRIVATE);
            assert!(view.get(&format!("own-{n}-1")).is_some() && view.get(&name(24)).is_some());
        }
        for transaction in [world.change(&[3, 4]), world.change_private()] {
            let applied = world.state.apply(&transaction);
            let Outcome::Committed(summary) = applied.outcome else { panic!("refused") };
            assert_eq!(summary.changed, transaction.upserts.len() as u64);
        }
    }
}
