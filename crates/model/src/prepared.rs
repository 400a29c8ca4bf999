//! The parts of applying a transaction that do not depend on the state.
//!
//! Transactions are applied one after the other, and the ones behind a large transaction wait for it. These
//! parts take most of the time, and can be done before the turn of the transaction.

use std::{ops::Range, sync::Arc};

use crate::{
    ResourceKey, ResourceName, Revision, ScopeName, Transaction, TypeUrl,
    resource::{Resource, Shared},
};

/// An operation on one resource: the index of a delete or of an upsert in the transaction.
#[derive(Debug, Clone, Copy)]
enum Op {
    Delete(usize),
    Upsert(usize),
}

impl Op {
    fn target(self, transaction: &Transaction) -> (&ScopeName, &ResourceKey) {
        match self {
            Self::Delete(at) => {
                let (scope, key) = &transaction.deletes[at];
                (scope, key)
            }
            Self::Upsert(at) => {
                let upsert = &transaction.upserts[at];
                (&upsert.scope, &upsert.draft.key)
            }
        }
    }
}

/// The last operation on each resource that a transaction names, ordered by scope, type and name.
#[derive(Debug)]
pub(crate) struct Plan {
    ops: Vec<Op>,
    groups: Vec<Group>,
}

/// The operations on one type in one scope.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    ops: Range<usize>,
    /// Whether an upsert has the name of a variant.
    pub(crate) has_variants: bool,
}

impl Group {
    /// Returns a group without operations.
    pub(crate) fn empty() -> Self {
        Self { ops: 0..0, has_variants: false }
    }

    /// Returns the number of operations.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }
}

impl Plan {
    /// Orders the operations of a transaction. Upserts apply after deletes.
    pub(crate) fn new(transaction: &Transaction) -> Self {
        let deletes = (0..transaction.deletes.len()).map(Op::Delete);
        let mut ops: Vec<Op> =
            deletes.chain((0..transaction.upserts.len()).map(Op::Upsert)).collect();
        let target = |op: &Op| op.target(transaction);
        // The sort is stable, so the last operation on a resource stays the last.
        ops.sort_by(|a, b| target(a).cmp(&target(b)));
        ops.dedup_by(|later, earlier| {
            let same = target(later) == target(earlier);
            if same {
                *earlier = *later;
            }
            same
        });
        let mut groups = Vec::new();
        let mut start = 0;
        for of_type in ops.chunk_by(|a, b| {
            let ((scope, key), (other_scope, other)) = (target(a), target(b));
            scope == other_scope && key.type_url == other.type_url
        }) {
            let is_variant =
                |op: &Op| matches!(op, Op::Upsert(_)) && target(op).1.name.is_variant();
            let has_variants = of_type.iter().any(is_variant);
            groups.push(Group { ops: start..start + of_type.len(), has_variants });
            start += of_type.len();
        }
        Self { ops, groups }
    }

    /// Iterates over the groups, in order of scope and type.
    pub(crate) fn groups<'a>(
        &'a self,
        transaction: &'a Transaction,
    ) -> impl Iterator<Item = ((&'a ScopeName, &'a TypeUrl), &'a Group)> {
        self.groups.iter().filter_map(|group| {
            let (scope, key) = self.ops.get(group.ops.start)?.target(transaction);
            Some(((scope, &key.type_url), group))
        })
    }

    /// Iterates over the names of a group, in order: each with the index of its upsert, or `None` for a removal.
    pub(crate) fn wanted<'a>(
        &'a self,
        transaction: &'a Transaction,
        group: &Group,
    ) -> impl Iterator<Item = (&'a ResourceName, Option<usize>)> + use<'a> {
        self.ops[group.ops.clone()].iter().map(|op| {
            let upsert = match op {
                Op::Delete(_) => None,
                Op::Upsert(at) => Some(*at),
            };
            (&op.target(transaction).1.name, upsert)
        })
    }
}

/// Resources that were built before the turn of their transaction, by the index of their upsert. Each is
/// taken at most once.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    resources: Vec<Option<Shared>>,
    /// The revision in their versions.
    revision: Revision,
}

impl Ready {
    /// Returns the resource of an upsert, whose version has the revision at which it was built.
    pub(crate) fn get(&self, upsert: usize) -> Option<&Resource> {
        self.resources.get(upsert)?.as_deref()
    }

    /// Takes the resource of an upsert, with the given revision. Returns `None` if it must be built.
    pub(crate) fn take(&mut self, upsert: usize, revision: Revision) -> Option<Shared> {
        let mut resource = self.resources.get_mut(upsert)?.take()?;
        let changed =
            self.revision == revision || Arc::get_mut(&mut resource)?.set_revision(revision);
        changed.then_some(resource)
    }
}

/// A transaction whose costly parts are done before its turn. See [`State::apply_prepared`](crate::State::apply_prepared).
#[derive(Debug)]
pub struct PreparedTransaction {
    pub(crate) transaction: Transaction,
    pub(crate) plan: Plan,
    pub(crate) ready: Ready,
}

impl PreparedTransaction {
    /// Prepares a transaction that will probably make the given revision. The result of applying it does not
    /// depend on that guess, but a good guess saves time.
    #[must_use]
    pub fn new(transaction: Transaction, revision: Revision) -> Self {
        let plan = Plan::new(&transaction);
        let build = |draft| Some(Arc::new(Resource::publish(draft, revision)));
        let resources = transaction.upserts.iter().map(|upsert| build(&upsert.draft)).collect();
        Self { transaction, plan, ready: Ready { resources, revision } }
    }

    /// Returns the transaction.
    #[must_use]
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }
}
