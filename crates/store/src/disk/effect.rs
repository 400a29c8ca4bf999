//! The effect of an entry on the state, and the records that follow from it.
//!
//! Encoding the records takes longer than the effect itself. The two are separate, so that later entries can take
//! effect before the records of a large transaction are encoded and written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{
    Access, Change, Freeze, FrozenVersion, PreparedTransaction, Quotas, ScopeName, State, TypeUrl,
};
use imbl::{OrdMap, ordmap::DiffItem};

use crate::{
    disk::{
        kept::KeptContent,
        records::{
            ASSIGNMENTS_KEY, QUOTA_PREFIX, RULE_PREFIX, Record, access_records, alias_record,
            assignments_record, collection_record, freeze_records, held_record, history_record,
            keys_record, quota_records, record_of_freeze, scope_record, seal_resource,
            stamp_record,
        },
        tally::Tally,
    },
    format::{
        content::{ABSENT, Replaced, Retention, put_record_key, revision_key},
        history::HistoryEntry,
        record::Family,
    },
};

/// The effect of an entry.
#[derive(Debug)]
pub(crate) enum Effect {
    /// No record changes.
    None,
    /// Records change.
    Changed(Box<Changed>),
}

/// An effect that changes records.
#[derive(Debug)]
pub(crate) struct Changed {
    /// The state before, or `None` if the entry formed the cluster.
    pub(crate) before: Option<State>,
    pub(crate) after: State,
    /// The changed resources, sorted by scope, type and name, each once.
    pub(crate) changes: Vec<Change>,
    pub(crate) history: Remembered,
    /// How long the history keeps the replaced records.
    pub(crate) retention: Retention,
    /// The remains of the transaction. Freeing them takes long, so they are freed with this effect.
    #[expect(dead_code, reason = "it is held, and freed later")]
    pub(crate) spent: Option<Box<PreparedTransaction>>,
}

/// A change of the history.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    pub(crate) added: Option<Arc<HistoryEntry>>,
    pub(crate) dropped: Option<Arc<HistoryEntry>>,
}

/// A record to write or to delete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edit<'a> {
    pub(crate) place: Place,
    pub(crate) family: Family,
    pub(crate) key: &'a [u8],
    /// The new record; `None` deletes it.
    pub(crate) record: Option<&'a [u8]>,
}

/// The part of the database that an edit changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The records of the state.
    State,
    /// The records that revisions replaced ([`crate::format::content`]).
    Content,
}

/// The values that are computed from the records of an image, once these are encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Computed {
    /// The tally of the records.
    pub(crate) tally: Tally,
    /// The revisions whose replaced records are kept.
    pub(crate) kept: KeptContent,
}

impl From<Changed> for Effect {
    fn from(changed: Changed) -> Self {
        Self::Changed(Box::new(changed))
    }
}

/// The assumed length of the record of a resource, in bytes.
const RECORD_BYTES: usize = 256;

impl Effect {
    /// Estimates the length of the records to write, in bytes: a short command may delete many resources, whose bodies the
    /// history keeps.
    pub(crate) fn len_estimate(&self) -> usize {
        let Self::Changed(changed) = self else { return 0 };
        let Some(before) = &changed.before else { return 0 };
        let old = |change: &Change| before.get(&change.scope, &change.key);
        let bodies = changed.changes.iter().filter_map(old).map(|old| old.body_len());
        let held =
            |state: &State| state.freezes.iter().map(|freeze| freeze.parts().held.len()).sum();
        let (held, still_held): (usize, usize) = (held(before), held(&changed.after));
        (changed.changes.len() + held.abs_diff(still_held)) * RECORD_BYTES + bodies.sum::<usize>()
    }

    /// Returns the changed resources.
    pub(crate) fn changes(&self) -> &[Change] {
        match self {
            Self::None => &[],
            Self::Changed(changed) => &changed.changes,
        }
    }

    /// Passes the records to write and to delete to `write`, and counts them.
    pub(crate) fn edit(&self, computed: &mut Computed, write: &mut dyn FnMut(Edit<'_>)) {
        if let Self::Changed(changed) = self {
            let replaced = changed.history.added.as_deref().map(|entry| Replaced {
                revision: entry.revision,
                records: 0,
                bytes: 0,
                time_ms: entry.meta.time_ms,
            });
            let tally = &mut computed.tally;
            let mut editor = Editor { tally, write, replaced, content_key: Vec::new() };
            changed.edit(&mut editor);
            if let Some(replaced) = editor.end() {
                computed.kept.add(replaced, &changed.retention);
            }
        }
    }
}

impl Changed {
    /// Returns the effect of replacing one state by another, without changed resources.
    pub(crate) fn new(before: Option<State>, after: State) -> Self {
        Self {
            before,
            after,
            changes: Vec::new(),
            history: Remembered::default(),
            retention: Retention::default(),
            spent: None,
        }
    }

    fn edit(&self, editor: &mut Editor<'_>) {
        let assignments = |state: &State| Some(assignments_record(&state.assignments));
        let Some(before) = &self.before else {
            editor.replace(None, assignments(&self.after));
            return;
        };
        editor.replace_resources(before, &self.changes);
        let mut collections: BTreeSet<(&ScopeName, &TypeUrl)> = BTreeSet::new();
        let same_type =
            |a: &Change, b: &Change| a.scope == b.scope && a.key.type_url == b.key.type_url;
        for changes in self.changes.chunk_by(same_type) {
            let (scope, type_url) = (&changes[0].scope, &changes[0].key.type_url);
            editor.replace_aliases(before, &self.after, scope, type_url);
            collections.insert((scope, type_url));
        }
        // The end of a freeze gives collections another revision, although they did not change.
        let ended = before.freezes.iter().map(|freeze| freeze.parts());
        let ended = ended.filter(|parts| self.after.freezes.get(&parts.target).is_none());
        collections.extend(ended.flat_map(|parts| parts.stamps.keys().map(|(s, t)| (s, t))));
        for (scope, type_url) in &collections {
            let record = |state: &State| {
                state.collection(scope, type_url).map(|collection| collection_record(collection))
            };
            editor.replace(record(before), record(&self.after));
        }
        for name in collections.into_iter().map(|(scope, _)| scope).collect::<BTreeSet<_>>() {
            let record =
                |state: &State| state.scopes.get(name).map(|scope| scope_record(name, scope));
            editor.replace(record(before), record(&self.after));
        }
        if !Arc::ptr_eq(&before.assignments, &self.after.assignments) {
            editor.replace(assignments(before), assignments(&self.after));
        }
        editor.replace_access(&before.access, &self.after.access);
        editor.replace_quotas(&before.quotas, &self.after.quotas);
        editor.replace_freezes(before, &self.after);
        if !Arc::ptr_eq(&before.keys, &self.after.keys) {
            editor.replace(keys_record(&before.keys), keys_record(&self.after.keys));
        }
        let Remembered { added, dropped } = &self.history;
        editor.replace(None, added.as_deref().map(history_record));
        editor.replace(dropped.as_deref().map(history_record), None);
    }
}

/// Counts and passes on the records of an effect.
struct Editor<'a> {
    tally: &'a mut Tally,
    write: &'a mut dyn FnMut(Edit<'_>),
    /// The records that were replaced so far; `None` if the effect makes no revision.
    replaced: Option<Replaced>,
    content_key: Vec<u8>,
}

impl Editor<'_> {
    /// Keeps the record that a change replaces; `None` if there was no record.
    fn keep(&mut self, family: Family, key: &[u8], before: Option<&[u8]>) {
        let Some(replaced) = &mut self.replaced else { return };
        put_record_key(&mut self.content_key, replaced.revision, family, key);
        let record = before.unwrap_or(ABSENT);
        replaced.records += 1;
        replaced.bytes += (key.len() + record.len()) as u64;
        let (place, family, key) = (Place::Content, Family::History, &self.content_key);
        (self.write)(Edit { place, family, key, record: Some(record) });
    }

    /// Writes the size of the kept records, and returns it.
    fn end(self) -> Option<Replaced> {
        let replaced = self.replaced?;
        let (key, record) = (revision_key(replaced.revision), replaced.seal());
        let (place, family) = (Place::Content, Family::History);
        (self.write)(Edit { place, family, key: &key, record: Some(&record) });
        Some(replaced)
    }

    /// Replaces the records of resources. One transaction may change very many of them, so they share buffers.
    fn replace_resources(&mut self, before: &State, changes: &[Change]) {
        let (mut key, mut record) = (Vec::new(), Vec::new());
        for Change { scope, key: of, resource, .. } in changes {
            let old = before.get(scope, of);
            if let Some(old) = old {
                seal_resource(&mut key, &mut record, scope, &of.type_url, old);
                self.tally.remove(&record);
                self.keep(Family::Resources, &key, Some(&record));
            }
            let new = resource.as_ref().map(|new| {
                seal_resource(&mut key, &mut record, scope, &of.type_url, new);
                self.tally.add(&record);
                &record[..]
            });
            if old.is_none() {
                self.keep(Family::Resources, &key, None);
            }
            let (place, family) = (Place::State, Family::Resources);
            (self.write)(Edit { place, family, key: &key, record: new });
        }
    }

    fn replace(&mut self, old: Option<Record>, new: Option<Record>) {
        if let Some(old) = &old {
            self.tally.remove(&old.record);
        }
        if let Some(new) = &new {
            self.tally.add(&new.record);
        }
        let record = new.as_ref().map(|new| &new.record[..]);
        if let Some(Record { family, key, .. }) = new.as_ref().or(old.as_ref()) {
            if *family == Family::Index && can_be_restored(key) {
                self.keep(*family, key, old.as_ref().map(|old| &old.record[..]));
            }
            (self.write)(Edit { place: Place::State, family: *family, key, record });
        }
    }

    /// Replaces the records of access rules and tokens that differ from those before, in O(rules + tokens).
    fn replace_access(&mut self, before: &Arc<Access>, after: &Arc<Access>) {
        if Arc::ptr_eq(before, after) {
            return;
        }
        self.replace_all(access_records(before), access_records(after));
    }

    /// Replaces the records of quotas that differ from those before, in O(quotas).
    fn replace_quotas(&mut self, before: &Quotas, after: &Quotas) {
        if !Arc::ptr_eq(&before.rules, &after.rules) {
            self.replace_all(quota_records(before), quota_records(after));
        }
    }

    /// Replaces the records of freezes, in O(freezes + held resources that changed).
    fn replace_freezes(&mut self, before: &State, after: &State) {
        if Arc::ptr_eq(&before.freezes, &after.freezes) {
            return;
        }
        for old in before.freezes.iter() {
            let target = &old.parts().target;
            match after.freezes.get(target) {
                Some(new) => self.replace_freeze(old, new),
                None => freeze_records(old).for_each(|record| self.replace(Some(record), None)),
            }
        }
        for new in after.freezes.iter() {
            if before.freezes.get(&new.parts().target).is_none() {
                freeze_records(new).for_each(|record| self.replace(None, Some(record)));
            }
        }
    }

    fn replace_freeze(&mut self, old: &Arc<Freeze>, new: &Arc<Freeze>) {
        if Arc::ptr_eq(old, new) {
            return;
        }
        let (before, after) = (record_of_freeze(old), record_of_freeze(new));
        if before != after {
            self.replace(Some(before), Some(after));
        }
        let (old, new) = (old.parts(), new.parts());
        let record = |(place, held)| Some(held_record(&new.target, place, held));
        for item in old.held.diff(&new.held) {
            let (before, after) = sides(item);
            self.replace(before.and_then(record), after.and_then(record));
        }
        let record = |(of, stamp): (_, &Option<FrozenVersion>)| {
            Some(stamp_record(&new.target, of, stamp.as_ref()))
        };
        for item in old.stamps.diff(&new.stamps) {
            let (before, after) = sides(item);
            self.replace(before.and_then(record), after.and_then(record));
        }
    }

    fn replace_all(
        &mut self,
        old: impl Iterator<Item = Record>,
        new: impl Iterator<Item = Record>,
    ) {
        let mut old: BTreeMap<Vec<u8>, Record> =
            old.map(|record| (record.key.clone(), record)).collect();
        for record in new {
            let key = record.key.clone();
            let old = old.remove(&key);
            if old.as_ref().is_none_or(|old| old.record != record.record) {
                self.replace(old, Some(record));
            }
        }
        for (_, record) in old {
            self.replace(Some(record), None);
        }
    }

    /// Takes O(aliases that changed).
    fn replace_aliases(
        &mut self,
        before: &State,
        after: &State,
        scope: &ScopeName,
        type_url: &TypeUrl,
    ) {
        let none = OrdMap::new();
        let aliases = |state: &State| {
            state.collection(scope, type_url).map_or_else(|| none.clone(), |c| c.aliases.clone())
        };
        let (old, new) = (aliases(before), aliases(after));
        let record = |(alias, name)| Some(alias_record(scope, type_url, alias, name));
        for item in old.diff(&new) {
            match item {
                DiffItem::Add(alias, name) => self.replace(None, record((alias, name))),
                DiffItem::Update { old, new } => self.replace(record(old), record(new)),
                DiffItem::Remove(alias, name) => self.replace(record((alias, name)), None),
            }
        }
    }
}

/// An entry of a map.
type Entry<'a, K, V> = Option<(&'a K, &'a V)>;

/// Returns the entries of a map before and after a change.
fn sides<'a, K, V>(item: DiffItem<'a, 'a, K, V>) -> (Entry<'a, K, V>, Entry<'a, K, V>) {
    match item {
        DiffItem::Add(key, value) => (None, Some((key, value))),
        DiffItem::Update { old, new } => (Some(old), Some(new)),
        DiffItem::Remove(key, value) => (Some((key, value)), None),
    }
}

/// Returns whether an author can restore the record of the index at a key: assignments, access rules and quotas. Tokens
/// that were deleted must not become valid again.
fn can_be_restored(key: &[u8]) -> bool {
    key == ASSIGNMENTS_KEY || matches!(key.first(), Some(&(RULE_PREFIX | QUOTA_PREFIX)))
}

/// An [`Edit`] that outlives its effect.
#[cfg(test)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedEdit {
    pub(crate) place: Place,
    pub(crate) family: Family,
    pub(crate) key: Vec<u8>,
    pub(crate) record: Option<Vec<u8>>,
}

#[cfg(test)]
impl From<Edit<'_>> for OwnedEdit {
    fn from(Edit { place, family, key, record }: Edit<'_>) -> Self {
        Self { place, family, key: key.to_vec(), record: record.map(<[u8]>::to_vec) }
    }
}
