//! Freezes: while a scope is frozen, clients keep the content that it had. Writes commit, and are *held*.
//!
//! The state always has the newest content. [`State::served`](crate::State::served) is what clients receive: the same, except for the frozen
//! content of frozen scopes. A freeze keeps each resource that a held write replaces, once.
//!
//! Invariants:
//! - The frozen content of a scope equals its newest content, except for the resources in [`FreezeParts::held`].
//! - [`FreezeParts::stamps`] has each collection with held resources, with the revision and label that clients see.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::OrdMap;

use crate::{
    AccessOp, Assignments, Change, Collection, DataKeyId, FreezeTarget, Resource, ResourceKey,
    ResourceName, Revision, Scope, ScopeName, Transaction, TransactionMeta, TypeUrl,
};

/// The start, the end and the reason of a freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreezeMeta {
    /// The revision whose content clients keep. [`State::apply`](crate::State::apply) sets it.
    pub revision: Revision,
    /// The time of the freeze, in milliseconds since 1970.
    pub time_ms: u64,
    /// The time at which the leader ends the freeze, in milliseconds since 1970; `None` if it has no end.
    pub until_ms: Option<u64>,
    /// The author.
    pub author: String,
    /// The reason.
    pub reason: String,
}

/// A resource in the frozen content that the newest content does not have; `None` if the frozen content lacks it.
#[derive(Debug, Clone)]
pub struct FrozenResource(pub Option<Arc<Resource>>);

/// Compares identities: a held resource is never copied.
impl PartialEq for FrozenResource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// The revision, label and aliases of a frozen collection that the clients see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenVersion {
    /// The last revision that changed the collection.
    pub changed: Revision,
    /// The label of that revision.
    pub label: Option<Arc<str>>,
    /// The names of resources by alias.
    pub aliases: OrdMap<ResourceName, ResourceName>,
}

impl FrozenVersion {
    fn of(collection: &Collection) -> Self {
        let (label, aliases) = (collection.label.clone(), collection.aliases.clone());
        Self { changed: collection.changed, label, aliases }
    }
}

/// The place of a collection: scope and type.
pub type CollectionKey = (ScopeName, TypeUrl);

/// The parts of a freeze that are stored. The frozen content follows from them and from the newest content.
#[derive(Debug, Clone)]
pub struct FreezeParts {
    /// The target.
    pub target: FreezeTarget,
    /// Its start, end and reason.
    pub meta: FreezeMeta,
    /// The assignments that clients have. Only a freeze of all scopes has them.
    pub assignments: Option<Arc<Assignments>>,
    /// The held resources.
    pub held: OrdMap<(ScopeName, ResourceKey), FrozenResource>,
    /// The collections with held changes; `None` for a collection that did not exist.
    pub stamps: OrdMap<CollectionKey, Option<FrozenVersion>>,
}

/// A freeze and the content that it holds. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Freeze {
    parts: FreezeParts,
    /// The frozen scopes.
    scopes: OrdMap<ScopeName, Arc<Scope>>,
}

impl FreezeMeta {
    /// Creates the start, end and reason of a freeze that a transaction makes.
    fn new(revision: Revision, until_ms: Option<u64>, meta: &TransactionMeta) -> Self {
        let TransactionMeta { author, reason, time_ms, .. } = meta.clone();
        Self { revision, time_ms, until_ms, author, reason }
    }
}

/// The content after a transaction, and its revision.
pub(crate) struct NewestContent<'a> {
    pub(crate) revision: Revision,
    pub(crate) scopes: &'a OrdMap<ScopeName, Arc<Scope>>,
    pub(crate) assignments: &'a Arc<Assignments>,
    /// The label of the transaction.
    pub(crate) label: &'a Option<Arc<str>>,
}

impl NewestContent<'_> {
    fn collection(&self, (scope, type_url): &CollectionKey) -> Option<&Arc<Collection>> {
        self.scopes.get(scope)?.types.get(type_url)
    }
}

/// The freezes after a transaction.
pub(crate) struct FreezesAfter {
    pub(crate) freezes: Freezes,
    /// The number of freezes that it began, changed or ended.
    pub(crate) n_ops: u64,
    /// Whether it changed what clients have of frozen scopes.
    pub(crate) any_passed: bool,
    /// The number of assignments that it changed for clients although they are frozen.
    pub(crate) n_assignments: u64,
}

/// All freezes. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Freezes(OrdMap<FreezeTarget, Arc<Freeze>>);

impl Freeze {
    fn new(target: FreezeTarget, meta: FreezeMeta, newest: &NewestContent<'_>) -> Self {
        let (scopes, assignments) = match &target {
            FreezeTarget::All => (newest.scopes.clone(), Some(Arc::clone(newest.assignments))),
            FreezeTarget::Scope(name) => {
                let scope = newest.scopes.get(name);
                (scope.map(|scope| (name.clone(), Arc::clone(scope))).into_iter().collect(), None)
            }
        };
        let (held, stamps) = (OrdMap::new(), OrdMap::new());
        Self { parts: FreezeParts { target, meta, assignments, held, stamps }, scopes }
    }

    /// Builds a freeze from its stored parts and the newest scopes, in O(held resources).
    fn load(parts: FreezeParts, newest: &OrdMap<ScopeName, Arc<Scope>>) -> Self {
        let scopes = match &parts.target {
            FreezeTarget::All => newest.clone(),
            FreezeTarget::Scope(name) => {
                newest.get_key_value(name).map(cloned).into_iter().collect()
            }
        };
        let mut held: BTreeMap<CollectionKey, Vec<(ResourceName, FrozenResource)>> =
            BTreeMap::new();
        for ((scope, key), resource) in &parts.held {
            let of = held.entry((scope.clone(), key.type_url.clone())).or_default();
            of.push((key.name.clone(), resource.clone()));
        }
        let stamps = parts.stamps.clone();
        let mut freeze = Self { parts, scopes };
        for (of, stamp) in &stamps {
            let (scope, type_url) = of;
            let Some(stamp) = stamp else {
                freeze.edit_scope(scope, |scope| drop(scope.types.remove(type_url)));
                continue;
            };
            let held = held.remove(of).unwrap_or_default();
            freeze.edit(scope, type_url, |collection| {
                for (name, FrozenResource(resource)) in held {
                    collection.set(&name, resource);
                }
                collection.changed = stamp.changed;
                collection.label = stamp.label.clone();
                collection.aliases = stamp.aliases.clone();
            });
        }
        for scope in stamps.keys().map(|(scope, _)| scope).collect::<BTreeSet<_>>() {
            let types = freeze.scopes.get(scope).map(|scope| &scope.types);
            let changed = types.and_then(|types| types.values().map(|of| of.changed).max());
            match changed {
                Some(changed) => freeze.edit_scope(scope, |scope| scope.changed = changed),
                // The scope did not exist.
                None => drop(freeze.scopes.remove(scope)),
            }
        }
        freeze
    }

    /// Returns the stored parts.
    #[must_use]
    pub fn parts(&self) -> &FreezeParts {
        &self.parts
    }

    fn get(&self, scope: &ScopeName, key: &ResourceKey) -> Option<&Arc<Resource>> {
        self.scopes.get(scope)?.types.get(&key.type_url)?.resources.get(&key.name)
    }

    fn edit_scope(&mut self, name: &ScopeName, edit: impl FnOnce(&mut Scope)) {
        let mut scope = self.scopes.get(name).map(|scope| Scope::clone(scope)).unwrap_or_default();
        edit(&mut scope);
        self.scopes.insert(name.clone(), Arc::new(scope));
    }

    fn edit(&mut self, scope: &ScopeName, type_url: &TypeUrl, edit: impl FnOnce(&mut Collection)) {
        self.edit_scope(scope, |of| {
            let collection = of.types.get(type_url).map(|collection| Collection::clone(collection));
            let empty = || Collection::new(scope.clone(), type_url.clone());
            let mut collection = collection.unwrap_or_else(empty);
            edit(&mut collection);
            of.types.insert(type_url.clone(), Arc::new(collection));
        });
    }

    /// Keeps the resource that a held write replaces.
    fn hold(&mut self, change: &Change) {
        let place = (change.scope.clone(), change.key.clone());
        if !self.parts.held.contains_key(&place) {
            let frozen = self.get(&change.scope, &change.key).cloned();
            self.parts.held.insert(place, FrozenResource(frozen));
        }
        let of = (change.scope.clone(), change.key.type_url.clone());
        if !self.parts.stamps.contains_key(&of) {
            self.stamp(of);
        }
    }

    fn stamp(&mut self, of: CollectionKey) {
        let collection = self.scopes.get(&of.0).and_then(|scope| scope.types.get(&of.1));
        let stamp = collection.map(|collection| FrozenVersion::of(collection));
        self.parts.stamps.insert(of, stamp);
    }

    /// Gives clients the newest form of some resources of a collection.
    fn pass(
        &mut self,
        newest: &NewestContent<'_>,
        of: &CollectionKey,
        names: &BTreeSet<ResourceName>,
    ) -> bool {
        let (scope, type_url) = of;
        let key =
            |name: &ResourceName| ResourceKey { type_url: type_url.clone(), name: name.clone() };
        let collection = newest.collection(of);
        let mut passed = Vec::new();
        for name in names {
            let key = key(name);
            let new = collection.and_then(|collection| collection.resources.get(name)).cloned();
            if FrozenResource(self.get(scope, &key).cloned()) != FrozenResource(new.clone()) {
                passed.push((name, new));
            }
            self.parts.held.remove(&(scope.clone(), key));
        }
        if passed.is_empty() {
            return false;
        }
        self.edit(scope, type_url, |collection| {
            for (name, new) in passed {
                collection.set(name, new.clone());
                for alias in new.iter().flat_map(|new| new.aliases()) {
                    collection.aliases.insert(alias.clone(), name.clone());
                }
            }
            collection.changed = newest.revision;
            collection.label = newest.label.clone();
        });
        self.edit_scope(scope, |scope| scope.changed = newest.revision);
        self.stamp(of.clone());
        true
    }
}

impl Freezes {
    /// Builds the freezes from their stored parts and the newest scopes.
    pub(crate) fn load(parts: Vec<FreezeParts>, newest: &OrdMap<ScopeName, Arc<Scope>>) -> Self {
        let load = |parts| Freeze::load(parts, newest);
        let freezes = parts.into_iter().map(load);
        Self(freezes.map(|freeze| (freeze.parts.target.clone(), Arc::new(freeze))).collect())
    }

    /// Returns whether no scope is frozen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the freezes, that of all scopes first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Freeze>> {
        self.0.values()
    }

    /// Returns the number of held resources, in O(freezes).
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.iter().map(|freeze| freeze.parts.held.len()).sum()
    }

    /// Returns the freeze of a target.
    #[must_use]
    pub fn get(&self, target: &FreezeTarget) -> Option<&Arc<Freeze>> {
        self.0.get(target)
    }

    /// Returns the freeze that holds a scope. That of the scope itself takes precedence.
    #[must_use]
    pub fn of_scope(&self, scope: &ScopeName) -> Option<&Arc<Freeze>> {
        let own = self.0.get(&FreezeTarget::Scope(scope.clone()));
        own.or_else(|| self.0.get(&FreezeTarget::All))
    }

    /// Replaces the newest scopes and assignments by those that clients receive.
    pub(crate) fn serve(
        &self,
        served: &mut OrdMap<ScopeName, Arc<Scope>>,
        assignments: &mut Arc<Assignments>,
    ) {
        for Freeze { parts, scopes } in self.iter().map(|freeze| &**freeze) {
            match &parts.target {
                FreezeTarget::All => {
                    *served = scopes.clone();
                    *assignments = parts.assignments.clone().unwrap_or(Arc::clone(assignments));
                }
                FreezeTarget::Scope(name) => match scopes.get(name) {
                    Some(scope) => drop(served.insert(name.clone(), Arc::clone(scope))),
                    None => drop(served.remove(name)),
                },
            }
        }
    }

    /// Returns the collections with held changes of the freezes that `later` lacks.
    pub(crate) fn released_by(&self, later: &Self) -> BTreeSet<CollectionKey> {
        let ended = self.iter().filter(|freeze| later.get(&freeze.parts.target).is_none());
        ended.flat_map(|freeze| freeze.parts.stamps.keys().cloned()).collect()
    }

    /// Returns whether clients have had other assignments than the newest ones, by a freeze that `later` lacks.
    pub(crate) fn releases_assignments(&self, later: &Self, newest: &Assignments) -> bool {
        let all = self.get(&FreezeTarget::All).filter(|_| later.get(&FreezeTarget::All).is_none());
        let frozen = all.and_then(|all| all.parts.assignments.as_ref());
        frozen.is_some_and(|frozen| frozen.changed != newest.changed)
    }

    /// Returns the number of held resources that a data key encrypts.
    pub(crate) fn n_sealed_by(&self, key: DataKeyId) -> u64 {
        let held = self.iter().flat_map(|freeze| freeze.parts.held.values());
        let sealed = held.filter_map(|FrozenResource(resource)| resource.as_ref()?.sealed());
        sealed.filter(|sealed| sealed.key == key).count() as u64
    }

    /// Returns the held resources that are sealed and not opened.
    #[must_use]
    pub fn unopened(&self) -> Vec<(FreezeTarget, ScopeName, ResourceKey, Arc<Resource>)> {
        let of = |freeze: &Freeze| -> Vec<_> {
            let target = &freeze.parts.target;
            let held =
                freeze.parts.held.iter().filter_map(|((scope, key), FrozenResource(resource))| {
                    let resource = resource.as_ref().filter(|one| !one.is_opened())?;
                    Some((target.clone(), scope.clone(), key.clone(), Arc::clone(resource)))
                });
            held.filter(|(.., resource)| resource.sealed().is_some()).collect()
        };
        self.iter().flat_map(|freeze| of(freeze)).collect()
    }

    /// Replaces a held resource by its opened form.
    pub fn set_opened(
        &mut self,
        target: &FreezeTarget,
        scope: &ScopeName,
        key: &ResourceKey,
        opened: Resource,
    ) {
        let Some(freeze) = self.0.get(target) else { return };
        let mut freeze = Freeze::clone(freeze);
        let opened = Arc::new(opened);
        let place = (scope.clone(), key.clone());
        freeze.parts.held.insert(place, FrozenResource(Some(Arc::clone(&opened))));
        freeze.edit(scope, &key.type_url, |collection| {
            collection.set_forms([&opened]);
        });
        self.0.insert(target.clone(), Arc::new(freeze));
    }

    /// Returns the freezes after a transaction that leads to `newest`; `None` if nothing changes.
    pub(crate) fn after(
        &self,
        transaction: &Transaction,
        newest: &NewestContent<'_>,
        changes: &[Change],
    ) -> Option<FreezesAfter> {
        let is_freeze = |op: &&AccessOp| {
            matches!(
                op,
                AccessOp::Freeze { .. } | AccessOp::Thaw { .. } | AccessOp::OverrideFreezes
            )
        };
        let ops: Vec<&AccessOp> = transaction.access.iter().filter(is_freeze).collect();
        if ops.is_empty() && (self.is_empty() || changes.is_empty()) {
            return None;
        }
        let mut after =
            FreezesAfter { freezes: self.clone(), n_ops: 0, any_passed: false, n_assignments: 0 };
        if ops.iter().any(|op| matches!(op, AccessOp::OverrideFreezes)) {
            let passed = after.freezes.pass(transaction, newest, changes);
            (after.any_passed, after.n_assignments) = passed;
        } else {
            after.freezes.hold(changes);
        }
        for op in ops {
            after.n_ops += u64::from(after.freezes.change(op, newest, &transaction.meta));
        }
        Some(after)
    }

    /// Changes the freezes that include a scope.
    fn edit_of(&mut self, scope: &ScopeName, mut edit: impl FnMut(&mut Freeze)) {
        for target in [FreezeTarget::All, FreezeTarget::Scope(scope.clone())] {
            let Some(freeze) = self.0.get(&target) else { continue };
            let mut freeze = Freeze::clone(freeze);
            edit(&mut freeze);
            self.0.insert(target, Arc::new(freeze));
        }
    }

    fn hold(&mut self, changes: &[Change]) {
        for changes in changes.chunk_by(|a, b| a.scope == b.scope) {
            let Some(first) = changes.first() else { continue };
            self.edit_of(&first.scope, |freeze| changes.iter().for_each(|one| freeze.hold(one)));
        }
    }

    /// Replaces the forms of resources of a collection, where clients have the newest form. Each pair is a resource before
    /// and after.
    pub(crate) fn replace_forms(
        &mut self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        forms: &[(Arc<Resource>, Arc<Resource>)],
    ) {
        self.edit_of(scope, |freeze| {
            let collection = freeze.scopes.get(scope).and_then(|of| of.types.get(type_url));
            let Some(collection) = collection else { return };
            let frozen = |old: &Resource| collection.resources.get(old.name());
            let shared = forms
                .iter()
                .filter(|(old, _)| frozen(old).is_some_and(|frozen| Arc::ptr_eq(frozen, old)));
            let shared: Vec<&Arc<Resource>> = shared.map(|(_, new)| new).collect();
            if !shared.is_empty() {
                freeze.edit(scope, type_url, |collection| collection.set_forms(shared));
            }
        });
    }

    /// Passes what a transaction names to clients. Returns whether that changes what they have, and the number of
    /// assignments that it changes for them.
    fn pass(
        &mut self,
        transaction: &Transaction,
        newest: &NewestContent<'_>,
        changes: &[Change],
    ) -> (bool, u64) {
        let mut named: BTreeMap<CollectionKey, BTreeSet<ResourceName>> = BTreeMap::new();
        let mut name = |scope: &ScopeName, key: &ResourceKey| {
            let of = (scope.clone(), key.type_url.clone());
            named.entry(of).or_default().insert(key.name.clone());
        };
        transaction.upserts.iter().for_each(|one| name(&one.scope, &one.draft.key));
        transaction.deletes.iter().for_each(|(scope, key)| name(scope, key));
        changes.iter().for_each(|change| name(&change.scope, &change.key));
        for freeze in self.iter() {
            let held = freeze.parts.held.keys();
            let pruned = held.filter(|(scope, _)| transaction.prune.contains(scope));
            pruned.for_each(|(scope, key)| name(scope, key));
        }
        let (mut any, mut n_assignments) = (false, 0);
        if let Some(all) = self.0.get(&FreezeTarget::All)
            && let Some(frozen) = &all.parts.assignments
            && let (Some(passed), n) = frozen.with(newest.revision, &transaction.assignments)
        {
            let parts = FreezeParts { assignments: Some(Arc::new(passed)), ..all.parts.clone() };
            let all = Freeze { parts, scopes: all.scopes.clone() };
            self.0.insert(FreezeTarget::All, Arc::new(all));
            (any, n_assignments) = (true, n);
        }
        for (of, names) in named {
            self.edit_of(&of.0, |freeze| any |= freeze.pass(newest, &of, &names));
        }
        (any, n_assignments)
    }

    /// Applies an operation. Returns whether it changes something. While all scopes are frozen, no scope can be frozen
    /// or thawed alone.
    fn change(
        &mut self,
        op: &AccessOp,
        newest: &NewestContent<'_>,
        meta: &TransactionMeta,
    ) -> bool {
        let all_frozen = self.0.contains_key(&FreezeTarget::All);
        let is_covered = |target: &FreezeTarget| all_frozen && target.scope().is_some();
        match op {
            AccessOp::Freeze { target, .. } if is_covered(target) => false,
            AccessOp::Freeze { target, until_ms } => {
                let of = |revision| FreezeMeta::new(revision, *until_ms, meta);
                let freeze = match self.0.get(target) {
                    Some(freeze) => {
                        let meta = of(freeze.parts.meta.revision);
                        let parts = FreezeParts { meta, ..freeze.parts.clone() };
                        Freeze { parts, scopes: freeze.scopes.clone() }
                    }
                    None => Freeze::new(target.clone(), of(newest.revision), newest),
                };
                self.0.insert(target.clone(), Arc::new(freeze));
                true
            }
            AccessOp::Thaw { target, .. } if is_covered(target) => false,
            AccessOp::Thaw { target, until_ms } => {
                let ends = |freeze: &Arc<Freeze>| {
                    until_ms.is_none() || freeze.parts.meta.until_ms == *until_ms
                };
                self.0.get(target).is_some_and(ends) && self.0.remove(target).is_some()
            }
            _ => false,
        }
    }
}

/// Clones an entry.
fn cloned((name, scope): (&ScopeName, &Arc<Scope>)) -> (ScopeName, Arc<Scope>) {
    (name.clone(), Arc::clone(scope))
}
