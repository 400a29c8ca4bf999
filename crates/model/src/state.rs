//! The replicated state, and [`State::apply`], the only function that changes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::OrdMap;

use crate::{
    Access, AccessOp, Assignments, Change, ChangeKind, Collection, CollectionKey, DataKeyId,
    Expectation, FreezeParts, FreezeTarget, Freezes, Incarnation, Keys, Outcome, Precondition,
    PreparedTransaction, Quota, QuotaUse, Quotas, Refusal, Reseal, Resource, ResourceKey,
    ResourceName, Revision, Scope, ScopeName, SealedCounts, Summary, Transaction, TypeUrl,
    VariantsBudget, access, default_assignment,
    freeze::NewestContent,
    prepared::{Group, Plan, Ready},
    quota_account::{self, Counted},
    resource::{Difference, Shared},
    sealing::keys_refusal,
    variant_index::conflict,
};

/// The complete replicated state at one revision. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct State {
    /// The position in the history that led to this state.
    pub revision: Revision,
    /// The incarnation of the cluster.
    pub incarnation: Incarnation,
    /// The scopes. A scope that becomes empty remains, with the revision that emptied it.
    pub scopes: OrdMap<ScopeName, Arc<Scope>>,
    /// The assignments of scopes to nodes.
    pub assignments: Arc<Assignments>,
    /// The access rules and tokens.
    pub access: Arc<Access>,
    /// The quotas, and their use.
    pub quotas: Arc<Quotas>,
    /// The keys of sealed resources, each encrypted by a key outside of the state.
    pub keys: Arc<Keys>,
    /// The freezes.
    pub freezes: Arc<Freezes>,
}

/// The result of [`State::apply`].
#[derive(Debug, Clone)]
pub struct Applied {
    /// The state after the transaction, or a clone of the old state if nothing changed.
    pub state: State,
    /// The outcome of the transaction.
    pub outcome: Outcome,
    /// The resources that changed, sorted by scope, type and name.
    pub changes: Vec<Change>,
}

impl State {
    /// Creates the state of a new cluster: no resources, and the scope `default` for every node.
    #[must_use]
    pub fn new(incarnation: Incarnation) -> Self {
        Self {
            revision: Revision(0),
            incarnation,
            scopes: OrdMap::new(),
            assignments: Arc::new(Assignments {
                changed: Revision(0),
                rules: vec![default_assignment()],
            }),
            access: Arc::default(),
            quotas: Arc::default(),
            keys: Arc::default(),
            freezes: Arc::default(),
        }
    }

    /// Returns what clients receive: the state with the frozen content of frozen scopes, in O(freezes).
    #[must_use]
    pub fn served(&self) -> Self {
        let mut served = self.clone();
        self.freezes.serve(&mut served.scopes, &mut served.assignments);
        served
    }

    /// Sets the freezes of a loaded state from their stored parts, in O(resources of the collections with held changes).
    pub fn load_freezes(&mut self, parts: Vec<FreezeParts>) {
        self.freezes = Arc::new(Freezes::load(parts, &self.scopes));
    }

    /// Returns whether the state follows an earlier one in the same history, or is equal to it.
    #[must_use]
    pub fn follows(&self, earlier: &Self) -> bool {
        self.incarnation == earlier.incarnation && self.revision >= earlier.revision
    }

    /// Returns the last revision that changed the assignments or the access rules. Until it changes, the
    /// scopes of a node and the rights of an identity stay the same.
    #[must_use]
    pub fn placement_changed(&self) -> Revision {
        self.assignments.changed.max(self.access.changed)
    }

    /// Returns one resource.
    #[must_use]
    pub fn get(&self, scope: &ScopeName, key: &ResourceKey) -> Option<&Arc<Resource>> {
        self.scopes.get(scope)?.types.get(&key.type_url)?.resources.get(&key.name)
    }

    /// Returns the collection of one type in one scope.
    #[must_use]
    pub fn collection(&self, scope: &ScopeName, type_url: &TypeUrl) -> Option<&Arc<Collection>> {
        self.scopes.get(scope)?.types.get(type_url)
    }

    /// Returns the number of resources in all scopes, in O(scopes · types).
    #[must_use]
    pub fn len(&self) -> usize {
        self.scopes.values().map(|scope| scope.len()).sum()
    }

    /// Returns whether the state has no resources.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scopes.values().all(|scope| scope.is_empty())
    }

    /// Returns the number of resources that a data key encrypts, in O(collections + resources that freezes hold).
    #[must_use]
    pub fn n_sealed_by(&self, key: DataKeyId) -> u64 {
        let n: u64 = self.sealed_counts().map(|counts| counts.n_of(key)).sum();
        n + self.freezes.n_sealed_by(key)
    }

    /// Returns the numbers of sealed and of unopened resources, in O(collections).
    #[must_use]
    pub fn n_sealed(&self) -> (u64, u64) {
        self.sealed_counts().fold((0, 0), |(sealed, unopened), counts| {
            (sealed + counts.n_sealed(), unopened + counts.n_unopened())
        })
    }

    fn sealed_counts(&self) -> impl Iterator<Item = &SealedCounts> {
        let scopes = self.scopes.values();
        scopes.flat_map(|scope| scope.types.values().map(|collection| &collection.sealed))
    }

    /// Replaces the form of a resource that the state holds: by its opened form, or by another sealed form. The body
    /// and the version are the same, so revisions do not change.
    pub fn replace_form(&mut self, scope: &ScopeName, key: &ResourceKey, resource: Resource) {
        self.replace_forms(scope, &key.type_url, vec![resource]);
    }

    /// Replaces the forms of resources of one type, as [`State::replace_form`] does.
    pub fn replace_forms(
        &mut self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        resources: Vec<Resource>,
    ) {
        let Some(old) = self.scopes.get(scope) else { return };
        let Some(collection) = old.types.get(type_url) else { return };
        let forms = resources.into_iter().filter_map(|new| {
            let old = collection.resources.get(new.name())?;
            Some((Arc::clone(old), Arc::new(new)))
        });
        let forms: Vec<_> = forms.collect();
        let mut collection = Collection::clone(collection);
        collection.set_forms(forms.iter().map(|(_, new)| new));
        let mut new = Scope::clone(old);
        new.types.insert(type_url.clone(), collection.into());
        self.scopes.insert(scope.clone(), new.into());
        if !self.freezes.is_empty() {
            let mut freezes = Freezes::clone(&self.freezes);
            freezes.replace_forms(scope, type_url, &forms);
            self.freezes = Arc::new(freezes);
        }
    }

    /// Returns the state with other resources at some keys; `None` removes a resource. Everything else stays, also aliases
    /// and revisions: the result is for comparisons, and no client receives it.
    #[must_use]
    pub fn with_resources<'a>(
        &self,
        changed: impl IntoIterator<Item = (&'a ScopeName, &'a ResourceKey, Option<Arc<Resource>>)>,
    ) -> Self {
        let mut state = self.clone();
        for (scope, key, resource) in changed {
            let types = &mut Arc::make_mut(state.scopes.entry(scope.clone()).or_default()).types;
            let type_url = &key.type_url;
            let empty = || Arc::new(Collection::new(scope.clone(), type_url.clone()));
            let collection = types.entry(type_url.clone()).or_insert_with(empty);
            Arc::make_mut(collection).set(&key.name, resource);
        }
        state
    }

    /// Applies a transaction atomically, under one new revision.
    ///
    /// A transaction that changes nothing creates no revision. The function is total: no input
    /// makes it fail or panic. It takes O(d log M) for d resources in the transaction, plus O(scope)
    /// for each pruned scope.
    #[must_use]
    pub fn apply(&self, transaction: &Transaction) -> Applied {
        self.apply_planned(transaction, &Plan::new(transaction), &mut Ready::default())
    }

    /// Applies a transaction as [`State::apply`] does, with the same result. Takes the resources that were
    /// built for it.
    #[must_use]
    pub fn apply_prepared(&self, prepared: &mut PreparedTransaction) -> Applied {
        let PreparedTransaction { transaction, plan, ready } = prepared;
        self.apply_planned(transaction, plan, ready)
    }

    fn apply_planned(&self, transaction: &Transaction, plan: &Plan, ready: &mut Ready) -> Applied {
        let revision = Revision(self.revision.0 + 1);
        let work = Work { before: self, revision, transaction, plan };
        let refusal = self
            .refusal(transaction)
            .or_else(|| access::refusal(&self.access, &transaction.access));
        let n_sealed_by = |key| self.n_sealed_by(key);
        let refusal = refusal.or_else(|| keys_refusal(&self.keys, transaction, n_sealed_by));
        let groups = work.groups();
        if let Some(refusal) = refusal.or_else(|| work.variants_refusal(&groups)) {
            return self.refused(refusal);
        }
        let (state, changes, unchanged) = work.finish(groups, ready);
        let accounted =
            quota_account::account(&self.quotas, self, &state, &transaction.access, &changes);
        let (quotas, n_quotas) = match accounted {
            Ok((quotas, n_quotas)) => (Arc::new(quotas), n_quotas),
            Err(refusal) => return self.refused(refusal),
        };
        let (assignments, mut n_assignments) =
            state.assignments.with(revision, &transaction.assignments);
        let (access, n_access) = access::with(&state.access, revision, &transaction.access);
        let mut state = State { quotas, ..state };
        if let Some(assignments) = assignments {
            state.assignments = Arc::new(assignments);
        }
        if let Some(access) = access {
            state.access = Arc::new(access);
        }
        let mut n_access = n_access + n_quotas;
        let keys = state.keys.with(&transaction.keys);
        let has_new_keys = keys.is_some();
        if let Some(keys) = keys {
            state.keys = Arc::new(keys);
        }
        let State { scopes, assignments, .. } = &state;
        let label = &transaction.meta.label;
        let newest = NewestContent { revision, scopes, assignments, label };
        let mut any_passed = false;
        if let Some(after) = self.freezes.after(transaction, &newest, &changes) {
            state = state.touched(revision, self.freezes.released_by(&after.freezes), transaction);
            if self.freezes.releases_assignments(&after.freezes, &state.assignments) {
                let rules = state.assignments.rules.clone();
                state.assignments = Arc::new(Assignments { changed: revision, rules });
            }
            state.freezes = Arc::new(after.freezes);
            n_access += after.n_ops;
            n_assignments = n_assignments.max(after.n_assignments);
            any_passed = after.any_passed;
        }
        let removed = changes.iter().filter(|change| change.kind == ChangeKind::Removed).count();
        let has_changed =
            !changes.is_empty() || n_assignments > 0 || n_access > 0 || has_new_keys || any_passed;
        let state = if has_changed { State { revision, ..state } } else { self.clone() };
        let summary = Summary {
            revision: state.revision,
            changed: (changes.len() - removed) as u64,
            removed: removed as u64,
            unchanged,
            assignments: n_assignments,
            access: n_access,
        };
        let (state, changes) = state.with_reseals(&transaction.reseals, changes);
        Applied { state, outcome: Outcome::Committed(summary), changes }
    }

    /// Sets the revision of collections that a transaction thaws, even if the transaction does not change their resources.
    /// Clients may have had other content at the revision of the last change. A version must not repeat with different
    /// content (SOTW-15).
    fn touched(
        mut self,
        revision: Revision,
        collections: BTreeSet<CollectionKey>,
        transaction: &Transaction,
    ) -> Self {
        for (name, type_url) in collections {
            let Some(scope) = self.scopes.get(&name) else { continue };
            let Some(collection) = scope.types.get(&type_url) else { continue };
            let mut collection = Collection::clone(collection);
            collection.changed = revision;
            collection.label = transaction.meta.label.clone();
            let mut scope = Scope::clone(scope);
            scope.changed = revision;
            scope.types.insert(type_url, Arc::new(collection));
            self.scopes.insert(name, Arc::new(scope));
        }
        self
    }

    fn refused(&self, refusal: Refusal) -> Applied {
        let outcome = Outcome::Refused(refusal);
        Applied { state: self.clone(), outcome, changes: vec![] }
    }

    /// Replaces the quotas, and counts their use, in O(quotas · scopes). For the loading of a state.
    pub fn load_quotas(&mut self, mut rules: Vec<Quota>) {
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        let used = rules.iter().map(|quota| self.use_of_quota(quota)).collect();
        self.quotas = Arc::new(Quotas { rules: Arc::new(rules), used });
    }

    fn refusal(&self, transaction: &Transaction) -> Option<Refusal> {
        transaction.preconditions.iter().find_map(|precondition| match precondition {
            Precondition::Revision(expected) => self.revision_refusal(*expected, transaction),
            Precondition::Access(checked) => {
                let (checked, changed) = (*checked, self.access.changed);
                (changed > checked).then_some(Refusal::AccessChanged { checked, changed })
            }
            Precondition::Resource { scope, key, expectation } => {
                let found = self.get(scope, key).map(|resource| resource.version());
                let holds = match expectation {
                    Expectation::Absent => found.is_none(),
                    Expectation::Present => found.is_some(),
                    Expectation::Version(version) => found == Some(*version),
                };
                (!holds).then(|| Refusal::Resource {
                    scope: scope.clone(),
                    key: key.clone(),
                    expectation: *expectation,
                    found,
                })
            }
        })
    }

    fn revision_refusal(&self, expected: Revision, transaction: &Transaction) -> Option<Refusal> {
        if expected > self.revision {
            return Some(Refusal::RevisionAhead { expected, current: self.revision });
        }
        let thawed = transaction.access.iter().filter_map(|op| match op {
            AccessOp::Thaw { target, .. } => Some(target),
            _ => None,
        });
        let thaws_all = thawed.clone().any(|target| *target == FreezeTarget::All);
        let all = self.scopes.keys().filter(|_| thaws_all);
        let newest = transaction
            .scopes()
            .chain(thawed.filter_map(FreezeTarget::scope))
            .chain(all)
            .filter_map(|name| Some((name, self.scopes.get(name)?.changed)))
            .filter(|(_, changed)| *changed > expected)
            .max_by_key(|(_, changed)| *changed);
        if let Some((scope, changed)) = newest {
            return Some(Refusal::RevisionBehind { expected, scope: Some(scope.clone()), changed });
        }
        let changed = self.assignments.changed;
        ((thaws_all || !transaction.assignments.is_empty()) && changed > expected)
            .then_some(Refusal::RevisionBehind { expected, scope: None, changed })
    }

    /// Returns the state with other sealed forms, and `changes` with them. Resources that the transaction changes
    /// itself stay as they are, so that each resource has one change.
    fn with_reseals(mut self, reseals: &[Reseal], mut changes: Vec<Change>) -> (Self, Vec<Change>) {
        let mut resealed = BTreeMap::new();
        for Reseal { scope, key, version, sealed } in reseals {
            let Some(current) = self.get(scope, key) else { continue };
            let is_of_body = current.sealed().is_none_or(|old| old.mac == sealed.mac)
                && sealed.body_len as usize == current.body_len();
            let at = changes.binary_search_by(|change| place(change).cmp(&(scope, key)));
            if current.version() != *version
                || !is_of_body
                || current.sealed() == Some(sealed)
                || at.is_ok()
            {
                continue;
            }
            let resource = current.resealed(sealed.clone());
            self.replace_form(scope, key, resource);
            let resource = self.get(scope, key).cloned();
            let (scope, key) = (scope.clone(), key.clone());
            let change = Change { scope, key, kind: ChangeKind::Resealed, resource };
            resealed.insert((change.scope.clone(), change.key.clone()), change);
        }
        if !resealed.is_empty() {
            changes.extend(resealed.into_values());
            changes.sort_by(|a, b| place(a).cmp(&place(b)));
        }
        (self, changes)
    }
}

/// The place of a change in the order of changes.
fn place(change: &Change) -> (&ScopeName, &ResourceKey) {
    (&change.scope, &change.key)
}

impl Counted for State {
    fn use_of_scope(&self, scope: &ScopeName) -> QuotaUse {
        self.scopes.get(scope).map(|scope| scope.quota_use()).unwrap_or_default()
    }

    fn use_of_quota(&self, quota: &Quota) -> QuotaUse {
        let mut used = QuotaUse::default();
        for (_, scope) in self.scopes.iter().filter(|(name, _)| quota.includes(name)) {
            used.add(scope.quota_use());
        }
        used
    }

    fn body_len(&self, scope: &ScopeName, key: &ResourceKey) -> Option<u64> {
        self.get(scope, key).map(|resource| resource.body_len() as u64)
    }
}

/// The application of one transaction.
#[derive(Clone, Copy)]
struct Work<'a> {
    before: &'a State,
    revision: Revision,
    transaction: &'a Transaction,
    plan: &'a Plan,
}

/// The affected collections, by scope and type.
type Groups<'a> = BTreeMap<(&'a ScopeName, &'a TypeUrl), Affected>;

/// The operations on a collection.
struct Affected {
    group: Group,
    /// Whether all other resources of the collection are removed.
    pruned: bool,
}

/// A resource that an operation names: the resource before, and the index of the upsert.
struct Target<'a> {
    name: &'a ResourceName,
    current: Option<&'a Shared>,
    upsert: Option<usize>,
}

impl<'a> Work<'a> {
    fn groups(&self) -> Groups<'a> {
        let groups = self.plan.groups(self.transaction);
        let affected = |group: &Group| Affected { group: group.clone(), pruned: false };
        let mut groups: Groups<'_> = groups.map(|(of, group)| (of, affected(group))).collect();
        for name in &self.transaction.prune {
            let Some((name, scope)) = self.before.scopes.get_key_value(name) else { continue };
            for type_url in scope.types.keys() {
                let affected = || Affected { group: Group::empty(), pruned: true };
                groups.entry((name, type_url)).or_insert_with(affected).pruned = true;
            }
        }
        groups
    }

    /// Iterates over the resources of a collection that an operation names, in order of their names.
    fn targets(
        &self,
        old: Option<&'a Collection>,
        affected: &Affected,
    ) -> Box<dyn Iterator<Item = Target<'a>> + 'a> {
        let Affected { group, pruned } = affected;
        let wanted = self.plan.wanted(self.transaction, group);
        let n_resources = old.map_or(0, |old| old.resources.len());
        if !pruned && group.len() * 8 < n_resources {
            return Box::new(wanted.map(move |(name, upsert)| {
                let current = old.and_then(|old| old.resources.get(name));
                Target { name, current, upsert }
            }));
        }
        let pruned = *pruned;
        let mut existing = old.into_iter().flat_map(|old| old.resources.iter()).peekable();
        let mut wanted = wanted.peekable();
        Box::new(std::iter::from_fn(move || {
            loop {
                let named = wanted.peek().map(|(name, _)| *name);
                let held = existing.peek().map(|(name, _)| *name);
                let (named, held) = match (named, held) {
                    (None, None) => return None,
                    (Some(named), Some(held)) => (named <= held, held <= named),
                    (named, held) => (named.is_some(), held.is_some()),
                };
                let current = if held { existing.next() } else { None };
                let upsert = if named { wanted.next() } else { None };
                match (upsert, current) {
                    (Some((name, upsert)), current) => {
                        let current = current.map(|(_, resource)| resource);
                        return Some(Target { name, current, upsert });
                    }
                    (None, Some((name, resource))) if pruned => {
                        return Some(Target { name, current: Some(resource), upsert: None });
                    }
                    (None, _) => {}
                }
            }
        }))
    }

    /// Returns the first name whose variants could not exist together (DYN-06).
    fn variants_refusal(&self, groups: &Groups<'a>) -> Option<Refusal> {
        let mut budget = VariantsBudget::default();
        for ((scope, type_url), affected) in groups {
            let old = self.before.collection(scope, type_url).map(|old| &**old);
            if !affected.group.has_variants && old.is_none_or(|old| old.variants.is_empty()) {
                continue;
            }
            let targets = self.targets(old, affected);
            let wanted: BTreeMap<&ResourceName, Option<usize>> =
                targets.map(|target| (target.name, target.upsert)).collect();
            let has_variants =
                |base: &str| old.is_some_and(|old| !old.variants.of(base).is_empty());
            let new = wanted.iter().filter(|(_, upsert)| upsert.is_some()).map(|(name, _)| *name);
            let bases: BTreeSet<ResourceName> = new
                .clone()
                .filter(|name| name.is_variant() || has_variants(name.as_str()))
                .map(ResourceName::to_base)
                .collect();
            for base in bases {
                let stays = |name: &&ResourceName| !wanted.contains_key(name);
                let plain = old.and_then(|old| old.resources.get_key_value(&base));
                let held = old.map_or(&[][..], |old| old.variants.of(base.as_str()));
                let held =
                    plain.map(|(name, _)| name).into_iter().chain(held.iter().map(|r| r.name()));
                let mut names: Vec<&ResourceName> = held.filter(stays).collect();
                // The names of one base are adjacent.
                let of_base = wanted.range::<ResourceName, _>(&base..);
                let of_base = of_base.take_while(|(name, _)| name.base() == base.as_str());
                let of_base = of_base.filter(|(_, upsert)| upsert.is_some());
                names.extend(of_base.map(|(name, _)| *name));
                names.sort_unstable();
                if let Some(reason) = conflict(&names, &mut budget) {
                    let key = ResourceKey { type_url: (*type_url).clone(), name: base };
                    return Some(Refusal::Variants { scope: (*scope).clone(), key, reason });
                }
            }
        }
        None
    }

    /// Returns the kind of change of a resource and the resource after it, or `None` if it does not change.
    fn outcome(
        &self,
        target: &Target<'_>,
        ready: &mut Ready,
    ) -> Option<(ChangeKind, Option<Shared>)> {
        let Some(upsert) = target.upsert else {
            return target.current.map(|_| (ChangeKind::Removed, None));
        };
        let draft = &self.transaction.upserts[upsert].draft;
        let difference = target.current.map(|current| current.compare(draft, ready.get(upsert)));
        let kind = match (difference, target.current) {
            (Some(Difference::None), _) => return None,
            (Some(Difference::Labels), Some(current)) => {
                let relabeled = Resource::with_version(draft, current.version());
                return Some((ChangeKind::Relabeled, Some(Arc::new(relabeled))));
            }
            (Some(_), _) => ChangeKind::Updated,
            (None, _) => ChangeKind::Added,
        };
        let build = || Arc::new(Resource::publish(draft, self.revision));
        Some((kind, Some(ready.take(upsert, self.revision).unwrap_or_else(build))))
    }

    /// Returns the new state, the changes, and the number of upserts that changed nothing. The
    /// state still has the old revision and assignments.
    fn finish(self, groups: Groups<'a>, ready: &mut Ready) -> (State, Vec<Change>, u64) {
        let mut state = self.before.clone();
        let mut changes = Vec::with_capacity(groups.values().map(|of| of.group.len()).sum());
        let mut unchanged = 0;
        for ((scope_name, type_url), affected) in groups {
            let old = self.before.collection(scope_name, type_url).map(|old| &**old);
            let first = changes.len();
            let mut replaced = Vec::with_capacity(affected.group.len());
            for target in self.targets(old, &affected) {
                let Some((kind, resource)) = self.outcome(&target, ready) else {
                    unchanged += u64::from(target.upsert.is_some());
                    continue;
                };
                let key = ResourceKey { type_url: type_url.clone(), name: target.name.clone() };
                changes.push(Change { scope: scope_name.clone(), key, kind, resource });
                replaced.push(target.current);
            }
            let changed = &changes[first..];
            if changed.is_empty() {
                continue;
            }
            let mut collection = match old {
                Some(old) => Collection::clone(old),
                None => Collection::new(scope_name.clone(), type_url.clone()),
            };
            collection.change(changed, &replaced);
            if changed.iter().any(|change| change.kind != ChangeKind::Relabeled) {
                collection.changed = self.revision;
                collection.label = self.transaction.meta.label.clone();
            }
            let mut scope =
                state.scopes.get(scope_name).map(|scope| Scope::clone(scope)).unwrap_or_default();
            scope.changed = self.revision;
            scope.types.insert(type_url.clone(), Arc::new(collection));
            state.scopes.insert(scope_name.clone(), Arc::new(scope));
        }
        (state, changes, unchanged)
    }
}
