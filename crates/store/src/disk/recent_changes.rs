//! The changes of the newest revisions by scope and type, for those who watch the cluster.
//!
//! They are kept in memory only: a replica that has restarted knows the changes of later revisions.

use std::{collections::VecDeque, sync::Arc};

use chancery_model::{Change, ChangeKind, Revision, ScopeName, TypeUrl};
use parking_lot::Mutex;

/// The number of newest revisions whose changes are kept.
const REVISIONS_MAX: usize = 1024;
/// The maximum number of scopes and types of a revision that are kept.
const CHANGES_MAX: usize = 256;

/// The changes of one type in one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeChange {
    /// The scope.
    pub scope: ScopeName,
    /// The type.
    pub type_url: TypeUrl,
    /// The number of new and changed resources.
    pub changed: u64,
    /// The number of removed resources.
    pub removed: u64,
}

/// The changes of the newest revisions.
#[derive(Debug, Default)]
pub(crate) struct RecentChanges(Mutex<VecDeque<(Revision, Arc<[ScopeChange]>)>>);

impl RecentChanges {
    /// Keeps the changes of a revision, sorted by scope and type. The first [`CHANGES_MAX`] scopes and types are kept.
    pub(crate) fn record(&self, revision: Revision, changes: &[Change]) {
        let same = |a: &Change, b: &Change| a.scope == b.scope && a.key.type_url == b.key.type_url;
        let counted = changes.chunk_by(same).take(CHANGES_MAX).map(|of_type| {
            let removed = of_type.iter().filter(|one| one.kind == ChangeKind::Removed).count();
            ScopeChange {
                scope: of_type[0].scope.clone(),
                type_url: of_type[0].key.type_url.clone(),
                changed: (of_type.len() - removed) as u64,
                removed: removed as u64,
            }
        });
        let counted = counted.collect();
        let mut newest = self.0.lock();
        if newest.len() == REVISIONS_MAX {
            newest.pop_front();
        }
        newest.push_back((revision, counted));
    }

    /// Returns the changes of a revision, if they are kept.
    pub(crate) fn of(&self, revision: Revision) -> Option<Arc<[ScopeChange]>> {
        let newest = self.0.lock();
        let at = newest.binary_search_by_key(&revision, |(known, _)| *known).ok()?;
        newest.get(at).map(|(_, changes)| Arc::clone(changes))
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::{ResourceKey, ResourceName, types};

    use super::*;

    #[test]
    fn changes_are_counted_by_scope_and_type_for_the_newest_revisions() {
        let change = |scope: &str, kind| Change {
            scope: ScopeName::new(scope).unwrap(),
            key: ResourceKey {
                type_url: TypeUrl::from_static(types::CLUSTER),
                name: ResourceName::new("web").unwrap(),
            },
            kind,
            resource: None,
        };
        let recent = RecentChanges::default();
        let changes = [
            change("a", ChangeKind::Added),
            change("a", ChangeKind::Removed),
            change("b", ChangeKind::Updated),
        ];
        recent.record(Revision(7), &changes);
        let kept = recent.of(Revision(7)).unwrap();
        let counts: Vec<(&str, u64, u64)> =
            kept.iter().map(|one| (one.scope.as_str(), one.changed, one.removed)).collect();
        assert_eq!(counts, [("a", 1, 1), ("b", 1, 0)]);
        (8..8 + REVISIONS_MAX as u64).for_each(|n| recent.record(Revision(n), &[]));
        assert_eq!(recent.of(Revision(7)), None);
        assert!(recent.of(Revision(8)).is_some());
    }
}
