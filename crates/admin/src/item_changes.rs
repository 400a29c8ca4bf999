//! The differences of assignments, access rules and quotas, which have names.

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::{AssignmentOp, Assignments};

/// An item before and after.
pub(crate) type Sides<'a, T> = (Option<&'a T>, Option<&'a T>);

/// Returns the items that differ, by name.
pub(crate) fn named<'a, T: PartialEq>(
    before: &'a [T],
    after: &'a [T],
    name: impl Fn(&T) -> &Arc<str>,
) -> BTreeMap<Arc<str>, Sides<'a, T>> {
    let mut items: BTreeMap<Arc<str>, Sides<'a, T>> = BTreeMap::new();
    for old in before {
        items.entry(name(old).clone()).or_default().0 = Some(old);
    }
    for new in after {
        items.entry(name(new).clone()).or_default().1 = Some(new);
    }
    items.retain(|_, (old, new)| old != new);
    items
}

/// Returns the operations that change `before` into `after`.
pub(crate) fn assignment_changes(before: &Assignments, after: &Assignments) -> Vec<AssignmentOp> {
    let differing = named(&before.rules, &after.rules, |rule| &rule.name);
    let change = |(name, (_, new)): (_, Sides<'_, _>)| match new {
        Some(new) => AssignmentOp::Put(Clone::clone(new)),
        None => AssignmentOp::Delete(name),
    };
    differing.into_iter().map(change).collect()
}
