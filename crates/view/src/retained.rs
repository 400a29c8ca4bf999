//! The size of the parts of an old state that a newer state does not share.

use std::sync::Arc;

use chancery_model::{Scope, State};
use imbl::ordmap::DiffItem;

use crate::differ::old_sizes;

/// The parts of an old state that a newer state does not share. An old state keeps them in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// The number of changed resources, assignments, access rules and tokens.
    pub items: usize,
    /// The length of the old bodies of the resources.
    pub bytes: usize,
}

impl Retained {
    /// Computes the parts of `old` that `new` does not share, in O(changes · log M). Both states must be of one history.
    ///
    /// The count stops when it exceeds one of the maxima.
    #[must_use]
    pub fn between(old: &State, new: &State, max: Self) -> Self {
        let mut sum = Self::default();
        if !Arc::ptr_eq(&old.assignments, &new.assignments) {
            sum.items += old.assignments.rules.len();
        }
        if !Arc::ptr_eq(&old.access, &new.access) {
            sum.items += old.access.rules.len() + old.access.tokens.len();
        }
        for item in old.scopes.diff(&new.scopes) {
            match item {
                // A new scope shares nothing with the old state. A scope is never removed.
                DiffItem::Add(..) | DiffItem::Remove(..) => {}
                DiffItem::Update { old: (_, old), new: (_, new) } => sum.add_scope(old, new, max),
            }
            if sum.exceeds(max) {
                break;
            }
        }
        sum
    }

    fn add_scope(&mut self, old: &Scope, new: &Scope, max: Self) {
        for (type_url, old) in &old.types {
            let Some(new) = new.types.get(type_url).filter(|new| !Arc::ptr_eq(old, new)) else {
                continue;
            };
            for bytes in old_sizes(&old.resources, &new.resources) {
                self.items += 1;
                self.bytes += bytes;
                if self.exceeds(max) {
                    return;
                }
            }
        }
    }

    /// Adds the sizes of another step between states.
    pub fn add(&mut self, other: Self) {
        self.items += other.items;
        self.bytes += other.bytes;
    }

    /// Removes sizes that [`Retained::add`] added.
    pub fn remove(&mut self, other: Self) {
        self.items -= other.items;
        self.bytes -= other.bytes;
    }

    /// Returns whether one of the sizes exceeds its maximum.
    #[must_use]
    pub fn exceeds(&self, max: Self) -> bool {
        self.items > max.items || self.bytes > max.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{
        Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, Transaction, TypeUrl,
        Upsert,
    };

    use super::*;

    const ALL: Retained = Retained { items: usize::MAX, bytes: usize::MAX };

    fn key(name: &str) -> ResourceKey {
        let type_url = TypeUrl::from_static("type.googleapis.com/t.T");
        ResourceKey { type_url, name: ResourceName::new(name).unwrap() }
    }

    fn put(state: &State, scope: &str, resources: &[(&str, &str)]) -> State {
        let upserts = resources.iter().map(|(name, body)| Upsert {
            scope: ScopeName::new(scope).unwrap(),
            draft: ResourceDraft::new(key(name), Bytes::copy_from_slice(body.as_bytes())),
        });
        state.apply(&Transaction { upserts: upserts.collect(), ..Transaction::default() }).state
    }

    #[test]
    fn retained_size_counts_changed_and_removed_resources() {
        let first = put(&State::new(Incarnation(1)), "s", &[("a", "12"), ("b", "345"), ("c", "6")]);
        let first = put(&first, "other", &[("a", "1")]);
        let between = |old: &State, new: &State| Retained::between(old, new, ALL);
        assert_eq!(between(&first, &first), Retained::default());
        let second = put(&first, "s", &[("a", "changed"), ("new", "x")]);
        assert_eq!(between(&first, &second), Retained { items: 2, bytes: 2 });
        let deletes = vec![(ScopeName::new("s").unwrap(), key("b"))];
        let third = second.apply(&Transaction { deletes, ..Transaction::default() }).state;
        assert_eq!(between(&second, &third), Retained { items: 1, bytes: 3 });
        assert_eq!(between(&first, &third), Retained { items: 3, bytes: 5 });
        let max = Retained { items: 1, bytes: usize::MAX };
        assert_eq!(Retained::between(&first, &third, max).items, 2, "the count stops");
        assert!(Retained::between(&first, &third, max).exceeds(max));
    }
}
