//! Changes of keys and of sealed forms. Part of [`State::apply`].

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Change, ChangeKind, Collection, DATA_KEYS_MAX, DataKeyId, KeyOp, Keys, KeysRefusal, Refusal,
    Reseal, Resource, ResourceKey, Scope, ScopeName, SealedCounts, State, Transaction, TypeUrl,
};

impl State {
    /// Returns the number of resources that a data key encrypts, in O(collections).
    #[must_use]
    pub fn n_sealed_by(&self, key: DataKeyId) -> u64 {
        self.sealed_counts().map(|counts| counts.n_of(key)).sum()
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
        let mut collection = Collection::clone(collection);
        collection.replace_forms(resources);
        let mut new = Scope::clone(old);
        new.types.insert(type_url.clone(), collection.into());
        self.scopes.insert(scope.clone(), new.into());
    }

    /// Returns the state with other sealed forms, and `changes` with them. Resources that the transaction changes
    /// itself stay as they are, so that each resource has one change.
    pub(crate) fn with_reseals(
        mut self,
        reseals: &[Reseal],
        mut changes: Vec<Change>,
    ) -> (Self, Vec<Change>) {
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

impl State {
    /// Returns why the keys do not permit a transaction.
    pub(crate) fn keys_refusal(&self, transaction: &Transaction) -> Option<Refusal> {
        let uses = || {
            let upserts = transaction.upserts.iter();
            let drafts = upserts.filter_map(|upsert| upsert.draft.sealed.as_ref());
            drafts.chain(transaction.reseals.iter().map(|reseal| &reseal.sealed))
        };
        let unknown = uses().find(|sealed| self.keys.data_key(sealed.key).is_none());
        let unknown = unknown.map(|sealed| KeysRefusal::Unknown(sealed.key));
        let of_op = |op| {
            self.key_op_refusal(op).or_else(|| match *op {
                KeyOp::Retire(key) => match uses().filter(|sealed| sealed.key == key).count() {
                    0 => None,
                    resources => Some(KeysRefusal::InUse { key, resources: resources as u64 }),
                },
                KeyOp::Create { .. } | KeyOp::Add(_) | KeyOp::Rewrap { .. } => None,
            })
        };
        unknown.or_else(|| transaction.keys.iter().find_map(of_op)).map(Refusal::Keys)
    }

    fn key_op_refusal(&self, op: &KeyOp) -> Option<KeysRefusal> {
        match op {
            KeyOp::Create { .. } | KeyOp::Rewrap { .. } => None,
            KeyOp::Add(key) if key.id.0 != self.keys.next || !self.keys.exist() => {
                Some(KeysRefusal::NotNext(key.id))
            }
            KeyOp::Add(_) => {
                (self.keys.data.len() >= DATA_KEYS_MAX).then_some(KeysRefusal::TooMany)
            }
            KeyOp::Retire(id) if self.keys.data_key(*id).is_none() => {
                Some(KeysRefusal::Unknown(*id))
            }
            KeyOp::Retire(id) if self.keys.newest().is_some_and(|newest| newest.id == *id) => {
                Some(KeysRefusal::Newest(*id))
            }
            KeyOp::Retire(id) => {
                let resources = self.n_sealed_by(*id);
                (resources > 0).then_some(KeysRefusal::InUse { key: *id, resources })
            }
        }
    }

    /// Returns the state after the changes, and whether the keys changed.
    pub(crate) fn with_keys(self, ops: &[KeyOp]) -> (Self, bool) {
        if ops.is_empty() {
            return (self, false);
        }
        let mut keys = Keys::clone(&self.keys);
        let changed = ops.iter().filter(|op| keys.change(op)).count() > 0;
        if changed { (Self { keys: Arc::new(keys), ..self }, true) } else { (self, false) }
    }
}
