//! The trial of a transaction on a local state: its result, and what the checks need to decide about it.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admission::Validation;
use chancery_model::{AccessOp, Applied, Change, ChangeKind, State, Transaction};
use chancery_secrets::Secrets;

use crate::{
    references::{self, Finding, ReferenceIndex, ReferenceSettings, SharedAddresses, SharedIndex},
    revisions::kind_of,
    write_guards::{
        Suspects,
        settings::{Guard, GuardSettings},
    },
    write_input::Published,
};

/// A transaction with its result on a local state.
pub(crate) struct Trial {
    pub(crate) transaction: Transaction,
    /// The state on which the transaction was tried. It has the previous versions of the resources.
    pub(crate) before: Arc<State>,
    /// The result. It is valid only if no other write comes in between.
    pub(crate) applied: Applied,
    /// The content of clients, if the transaction ends or overrides a freeze. The guards then compare this content.
    pub(crate) clients: Option<Clients>,
    pub(crate) suspects: Suspects,
    /// The references that the transaction may leave dangling.
    pub(crate) dangling: references::Suspects,
    /// The references of the state after the transaction, if it removes resources or publishes listeners.
    pub(crate) references: Option<ReferenceIndex>,
    /// The listeners that may have the address of another one.
    pub(crate) addresses: Arc<SharedAddresses>,
    /// The warnings about versions that replace others.
    pub(crate) replaced: Vec<Finding>,
    /// The published resources that a finding may concern.
    pub(crate) published: Published,
}

/// The content that clients have before and after a transaction.
pub(crate) struct Clients {
    pub(crate) had: Arc<State>,
    pub(crate) has: Applied,
    /// The references of what clients have afterwards, if they lose a resource.
    references: Option<ReferenceIndex>,
}

/// The settings by which a transaction is checked on a local state.
#[derive(Clone)]
pub(crate) struct Checks {
    pub(crate) guards: Arc<GuardSettings>,
    pub(crate) settings: Arc<ReferenceSettings>,
    pub(crate) references: Arc<SharedIndex>,
    pub(crate) validation: Validation,
    pub(crate) secrets: Secrets,
}

impl Checks {
    /// Returns whether some check of removed resources needs the index of references.
    pub(crate) fn need_references(&self) -> bool {
        let guards = [Guard::ClusterInUse, Guard::EmptyEndpoints];
        self.settings.is_used() || guards.into_iter().any(|guard| self.guards.applies(guard))
    }

    /// Returns the references after a transaction that removes a resource or an alias, publishes a listener, or
    /// changes the kind of a secret.
    /// `committed` is the newest state.
    fn references(
        &self,
        committed: &State,
        before: &State,
        applied: &Applied,
    ) -> Option<ReferenceIndex> {
        let removes = |change: &Change| match change.kind {
            ChangeKind::Added | ChangeKind::Relabeled | ChangeKind::Resealed => false,
            ChangeKind::Removed => true,
            ChangeKind::Updated => {
                let old = before.get(&change.scope, &change.key);
                old.is_some_and(|old| !old.aliases().is_empty())
            }
        };
        let is_used = self.need_references();
        let needed = |change: &Change| {
            is_used && removes(change)
                || references::is_checked(change, &self.validation)
                || references::changes_secret(before, change, &self.validation)
        };
        let needed = applied.changes.iter().any(needed);
        needed.then(|| self.references.at(committed).advanced(&applied.state))
    }
}

/// A transaction that was read from the input.
pub(crate) enum Attempt {
    Untried(Box<Transaction>),
    Tried(Box<Trial>),
}

impl Trial {
    /// Returns the states that the guards compare, and the references of the second one.
    pub(crate) fn guarded(&self) -> (Arc<State>, State, Option<ReferenceIndex>) {
        let Self { before, applied, references, clients, .. } = self;
        match clients {
            Some(Clients { had, has, references }) => {
                (Arc::clone(had), has.state.clone(), references.clone())
            }
            None => (Arc::clone(before), applied.state.clone(), references.clone()),
        }
    }

    pub(crate) fn new(mut transaction: Transaction, before: Arc<State>, checks: &Checks) -> Self {
        // Sealed and plain bodies are never equal. The commit reports what prevents sealing.
        drop(checks.secrets.seal_all(&before.keys, &mut transaction.upserts));
        let applied = before.apply(&transaction);
        let references = checks.references(&before, &before, &applied);
        let clients = of_clients(&transaction, &before, &applied, checks);
        let suspects = match &clients {
            Some(Clients { had, has, references }) => {
                Suspects::of(had, has, references.as_ref(), &checks.guards)
            }
            None => Suspects::of(&before, &applied, references.as_ref(), &checks.guards),
        };
        let dangling =
            references::Suspects::of(&before, &applied, references.as_ref(), &checks.settings);
        let addresses = references.as_ref().map(|index| {
            SharedAddresses::of(&before, &transaction, &applied, index, &checks.validation)
        });
        let addresses = Arc::new(addresses.unwrap_or_default());
        let replaced =
            references::replaced(&before, &applied, references.as_ref(), &checks.validation);
        let subjects = replaced.iter().filter_map(|finding| finding.subject.as_ref());
        let subjects = subjects.map(|(scope, key)| (scope, key));
        let concerned = dangling.published().chain(addresses.listeners()).chain(subjects);
        let published = Published::of(&transaction, concerned);
        Self {
            transaction,
            before,
            applied,
            clients,
            suspects,
            dangling,
            references,
            addresses,
            replaced,
            published,
        }
    }
}

/// Returns what clients have before and after a transaction that ends or overrides a freeze.
fn of_clients(
    transaction: &Transaction,
    before: &State,
    applied: &Applied,
    checks: &Checks,
) -> Option<Clients> {
    let concerns_freezes =
        |op: &AccessOp| matches!(op, AccessOp::Thaw { .. } | AccessOp::OverrideFreezes);
    if before.freezes.is_empty() || !transaction.access.iter().any(concerns_freezes) {
        return None;
    }
    let (had, has) = (before.served(), applied.state.served());
    let held = before.freezes.iter().flat_map(|freeze| freeze.parts().held.keys().cloned());
    let changed = applied.changes.iter().map(|one| (one.scope.clone(), one.key.clone()));
    let places: BTreeSet<_> = held.chain(changed).collect();
    let changes = places.into_iter().filter_map(|(scope, key)| {
        let (old, new) = (had.get(&scope, &key), has.get(&scope, &key));
        let kind = kind_of(old.map(|old| &**old), new.map(|new| &**new))?;
        let resource = new.cloned();
        Some(Change { scope, key, kind, resource })
    });
    let changes = changes.collect();
    let has = Applied { state: has, outcome: applied.outcome.clone(), changes };
    let references = checks.references(before, &had, &has);
    Some(Clients { had: Arc::new(had), has, references })
}

impl Attempt {
    pub(crate) fn of(transaction: Transaction, before: Arc<State>, checks: &Checks) -> Self {
        Self::Tried(Box::new(Trial::new(transaction, before, checks)))
    }
}
