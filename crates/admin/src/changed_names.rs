//! The resources that a write changed, for a wait.

use std::sync::Arc;

use chancery_fanout::{Change, TouchedNames};
use chancery_model::{
    AccessOp, Applied, ChangeKind, Outcome, Resource, ResourceKey, ResourceName, ScopeName, State,
    StructuredName, Summary, Transaction, is_structured,
};

/// The resources that a transaction names.
pub(crate) struct NamedResources {
    places: Vec<(ScopeName, ResourceKey)>,
    /// Whether clients receive them although their scopes are frozen.
    override_freezes: bool,
}

impl NamedResources {
    pub(crate) fn of(transaction: &Transaction) -> Self {
        let upserts = transaction.upserts.iter();
        let upserts = upserts.map(|upsert| (upsert.scope.clone(), upsert.draft.key.clone()));
        let places = upserts.chain(transaction.deletes.iter().cloned()).collect();
        Self { places, override_freezes: transaction.access.contains(&AccessOp::OverrideFreezes) }
    }

    /// Iterates over the scopes and keys.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&ScopeName, &ResourceKey)> {
        self.places.iter().map(|(scope, key)| (scope, key))
    }
}

/// Returns the change that `summary` describes.
///
/// If the write was tried on the state to which it was committed, the trial knows the changed
/// resources. Otherwise another write came in between, or an earlier request had already written
/// this one. In that case all resources that the write names count, except those that `now` shows
/// to be unchanged. If the write changed nothing, all resources that it names count as well,
/// because its author waits until they are live.
///
/// A write to clients of frozen scopes may change what they have although it changes no resource. Such a write counts as
/// a change of everything.
pub(crate) fn change(
    summary: Summary,
    named: &NamedResources,
    before: &State,
    tried: &Applied,
    now: &State,
) -> Change {
    if named.override_freezes && !now.freezes.is_empty() {
        return Change::everything(summary.revision);
    }
    let mut touched = ChangedNames::default();
    for change in tried.changes.iter().filter(|change| change.kind != ChangeKind::Relabeled) {
        let (scope, key) = (&change.scope, &change.key);
        touched.add(scope, key, [before.get(scope, key), change.resource.as_ref()]);
    }
    let is_tried = tried.state.revision == summary.revision
        && tried.outcome == Outcome::Committed(summary)
        && before.revision < summary.revision;
    if !is_tried {
        let changed_some = summary.changed + summary.removed + summary.assignments > 0;
        let is_older = |resource: &Arc<Resource>| resource.version().revision < summary.revision;
        for (scope, key) in &named.places {
            let resource = now.get(scope, key);
            let knows = changed_some && now.revision >= summary.revision;
            if !(knows && resource.is_some_and(is_older)) {
                touched.add(scope, key, [resource, None]);
            }
        }
    }
    Change::new(summary.revision, touched.0, summary.assignments > 0)
}

#[derive(Default)]
struct ChangedNames(TouchedNames);

impl ChangedNames {
    /// Adds a name, and the aliases of the resources that have or had the name.
    fn add(
        &mut self,
        scope: &ScopeName,
        key: &ResourceKey,
        resources: [Option<&Arc<Resource>>; 2],
    ) {
        let names = self.0.entry((scope.clone(), key.type_url.clone())).or_default();
        names.extend([key.name.clone(), key.name.to_base()]);
        if is_structured(key.name.as_str())
            && let Ok(name) = StructuredName::parse(key.name.base())
        {
            names.extend(ResourceName::new(&name.collection()));
        }
        let aliases = resources.into_iter().flatten().flat_map(|resource| resource.aliases());
        names.extend(aliases.cloned());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use chancery_model::{Incarnation, ResourceDraft, Revision, TypeUrl, Upsert, types::CLUSTER};

    use super::*;

    fn scope() -> ScopeName {
        ScopeName::new("default").unwrap()
    }

    fn key(name: &str) -> ResourceKey {
        let name = ResourceName::new(name).unwrap();
        ResourceKey { type_url: TypeUrl::from_static(CLUSTER), name }
    }

    fn put(resources: &[(&str, &'static str)]) -> Transaction {
        let upsert = |(name, body): &(&str, &'static str)| {
            let body = bytes::Bytes::from_static(body.as_bytes());
            Upsert { scope: scope(), draft: ResourceDraft::new(key(name), body) }
        };
        Transaction { upserts: resources.iter().map(upsert).collect(), ..Transaction::default() }
    }

    fn summary(applied: &Applied) -> Summary {
        match applied.outcome {
            Outcome::Committed(summary) => summary,
            Outcome::Refused(_) => panic!("it was refused: {:?}", applied.outcome),
        }
    }

    /// Returns the names in the change that a wait is for.
    fn names(
        transaction: &Transaction,
        before: &State,
        committed: &Applied,
        now: &State,
    ) -> BTreeSet<String> {
        let tried = before.apply(transaction);
        let found =
            change(summary(committed), &NamedResources::of(transaction), before, &tried, now);
        found.names().map(ToString::to_string).collect()
    }

    #[test]
    fn wait_covers_resources_changed_by_the_write() {
        let empty = State::new(Incarnation(1));
        let first = empty.apply(&put(&[("a", "1"), ("b", "1"), ("c", "1")])).state;
        let mut transaction = put(&[("a", "1"), ("b", "2")]);
        transaction.deletes.push((scope(), key("c")));
        let committed = first.apply(&transaction);
        let now = &committed.state;
        let b_and_c = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
        assert_eq!(names(&transaction, &first, &committed, now), b_and_c, "as it was tried");
        assert_eq!(names(&transaction, now, &committed, now), b_and_c, "already written");
        let between = first.apply(&put(&[("x", "1")])).state;
        let committed = between.apply(&transaction);
        assert_eq!(names(&transaction, &first, &committed, &committed.state), b_and_c);
        let all = BTreeSet::from(["a", "b", "c"].map(str::to_owned));
        assert_eq!(names(&transaction, &first, &committed, &first), all, "not here yet");
        // Another write has changed `a` in between, and this write changes it back.
        let between = first.apply(&put(&[("a", "2")])).state;
        let committed = between.apply(&transaction);
        assert_eq!(names(&transaction, &first, &committed, &committed.state), all);
    }

    #[test]
    fn wait_for_unchanged_write_covers_resources_named_in_it() {
        let state = State::new(Incarnation(1)).apply(&put(&[("a", "1"), ("b", "1")])).state;
        let again = put(&[("a", "1")]);
        let committed = state.apply(&again);
        assert_eq!(summary(&committed).revision, Revision(1));
        assert_eq!(names(&again, &state, &committed, &state), BTreeSet::from(["a".to_owned()]));
    }
}
