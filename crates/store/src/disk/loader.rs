//! Builds an [`Image`] from its records, and checks that they are complete.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use chancery_model::{
    Access, Assignments, Collection, CollectionKey, FreezeParts, FreezeTarget, FrozenResource,
    FrozenVersion, Incarnation, Keys, Quota, ResourceKey, ResourceName, Revision, Scope, ScopeName,
    State, TypeUrl,
};
use chancery_raft_proto::v1 as pb;

use crate::{
    disk::{
        effect::Computed,
        image::Image,
        kept::KeptContent,
        records::{
            ACCESS_KEY, ALIAS_PREFIX, ASSIGNMENTS_KEY, COLLECTION_PREFIX, FREEZE_PREFIX,
            HELD_PREFIX, KEYS_KEY, QUOTA_PREFIX, RULE_PREFIX, SCOPE_PREFIX, SEPARATOR,
            STAMP_PREFIX, TOKEN_PREFIX, resource_of_record,
        },
        tally::Tally,
    },
    format::{
        access_codec::{rule_from_proto, token_from_proto},
        assignment_codec::assignment_from_proto,
        codec::cluster_id_from_proto,
        content::Replaced,
        freeze_codec::{
            freeze_parts, held_from_proto, split_held_key, split_stamp_key, stamp_from_proto,
        },
        history::{HISTORY_MAX, History, HistoryEntry},
        history_chain::HistoryHash,
        keys_codec::keys_from_proto,
        quota_codec::quota_from_proto,
        raft_codec::{log_id_from_proto, stored_membership_from_proto},
        record::{self, Family, RecordError},
    },
};

/// The reason why records do not form an image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// A record cannot be read.
    #[error("the record {:?} of {family:?}: {source}", String::from_utf8_lossy(key))]
    Record {
        /// The family of the record.
        family: Family,
        /// The key of the record.
        key: Vec<u8>,
        /// The reason.
        source: RecordError,
    },
    /// The records are inconsistent.
    #[error("{0}")]
    Whole(String),
}

fn content(text: impl ToString) -> RecordError {
    RecordError::Content(text.to_string())
}

/// Builds an image from its records: those of the index first, then the others in any order.
#[derive(Debug, Default)]
pub(crate) struct Loader {
    tally: Tally,
    /// The collections by scope and type, as in the keys of the resources.
    collections: BTreeMap<Vec<u8>, Collection>,
    scopes: BTreeMap<ScopeName, Revision>,
    assignments: Option<Assignments>,
    access: Access,
    quotas: Vec<Quota>,
    freezes: BTreeMap<FreezeTarget, FreezeParts>,
    /// The held resources and stamps of the freezes.
    held: Vec<(FreezeTarget, (ScopeName, ResourceKey), FrozenResource)>,
    stamps: Vec<(FreezeTarget, CollectionKey, Option<FrozenVersion>)>,
    keys: Keys,
    /// The sealed resources.
    sealed: Vec<(ScopeName, ResourceKey)>,
    /// The collection of the last resource, taken out of `collections`.
    current: Option<(Vec<u8>, Collection)>,
    history: BTreeMap<Revision, Arc<HistoryEntry>>,
    /// The sizes of what revisions replaced, ordered by revision.
    replaced: Vec<Replaced>,
    n_resources: u64,
    /// Each alias: the prefix of its collection, the alias, and the name.
    aliases: Vec<(Vec<u8>, ResourceName, ResourceName)>,
}

impl Loader {
    /// Adds a record.
    pub(crate) fn add(
        &mut self,
        family: Family,
        key: &[u8],
        record: Bytes,
    ) -> Result<(), LoadError> {
        self.tally.add(&record);
        let result = match family {
            Family::Resources => self.add_resource(key, record),
            Family::Index => self.add_index(key, record),
            Family::History => self.add_history(key, record),
            Family::Log | Family::Meta => Err(content("it is not part of the state")),
        };
        result.map_err(|source| LoadError::Record { family, key: key.to_vec(), source })
    }

    /// Adds the size of what a revision replaced, in the order of the revisions.
    pub(crate) fn add_replaced(&mut self, replaced: Replaced) {
        self.replaced.push(replaced);
    }

    fn add_resource(&mut self, key: &[u8], record: Bytes) -> Result<(), RecordError> {
        let (prefix, name) = split_resource_key(key)?;
        if self.current.as_ref().is_none_or(|(current, _)| current != prefix) {
            self.put_back();
            self.current = self.collections.remove_entry(prefix);
        }
        let (_, collection) =
            self.current.as_mut().ok_or_else(|| content("its collection is not in the index"))?;
        let of = ResourceKey { type_url: collection.type_url.clone(), name };
        let resource = resource_of_record(of.clone(), key, record)?;
        if resource.sealed().is_some() {
            self.sealed.push((collection.scope.clone(), of));
        }
        collection.add_stored(Arc::new(resource));
        self.n_resources += 1;
        Ok(())
    }

    fn put_back(&mut self) {
        if let Some((prefix, collection)) = self.current.take() {
            self.collections.insert(prefix, collection);
        }
    }

    fn add_index(&mut self, key: &[u8], record: Bytes) -> Result<(), RecordError> {
        if key == ASSIGNMENTS_KEY {
            let message: pb::AssignmentsRecord = record::open(Family::Index, key, record)?;
            let rules = message.rules.into_iter().map(assignment_from_proto);
            self.assignments = Some(Assignments {
                changed: Revision(message.changed),
                rules: rules.collect::<Result<_, _>>()?,
            });
            return Ok(());
        }
        if key == ACCESS_KEY {
            let message: pb::AccessRecord = record::open(Family::Index, key, record)?;
            self.access.changed = Revision(message.changed);
            return Ok(());
        }
        if key == KEYS_KEY {
            self.keys = keys_from_proto(record::open(Family::Index, key, record)?)?;
            return Ok(());
        }
        match key.split_first() {
            Some((&RULE_PREFIX, _)) => {
                let message = record::open(Family::Index, key, record)?;
                self.access.rules.push(rule_from_proto(message)?);
            }
            Some((&TOKEN_PREFIX, _)) => {
                let message = record::open(Family::Index, key, record)?;
                self.access.tokens.push(token_from_proto(message)?);
            }
            Some((&QUOTA_PREFIX, _)) => {
                let message = record::open(Family::Index, key, record)?;
                self.quotas.push(quota_from_proto(message)?);
            }
            Some((&FREEZE_PREFIX | &HELD_PREFIX | &STAMP_PREFIX, _)) => {
                self.add_freeze(key, record)?;
            }
            Some((&SCOPE_PREFIX, name)) => {
                let message: pb::ScopeRecord = record::open(Family::Index, key, record)?;
                let name = ScopeName::new(text(name)?).map_err(content)?;
                self.scopes.insert(name, Revision(message.changed));
            }
            Some((&COLLECTION_PREFIX, prefix)) => {
                let message: pb::CollectionRecord = record::open(Family::Index, key, record)?;
                let (scope, type_url) = text(prefix)?
                    .split_once(char::from(SEPARATOR))
                    .ok_or_else(|| content("its key does not consist of scope and type URL"))?;
                let scope = ScopeName::new(scope).map_err(content)?;
                let type_url = TypeUrl::new(type_url).map_err(content)?;
                let mut collection = Collection::new(scope, type_url);
                collection.changed = Revision(message.changed);
                collection.label = message.label.map(Arc::from);
                self.collections.insert(prefix.to_vec(), collection);
            }
            Some((&ALIAS_PREFIX, alias)) => {
                let (prefix, alias) = split_resource_key(alias)?;
                let message: pb::AliasRecord = record::open(Family::Index, key, record)?;
                let name = ResourceName::stored(&message.name).map_err(content)?;
                self.aliases.push((prefix.to_vec(), alias, name));
            }
            _ => return Err(content("its key has an unknown prefix")),
        }
        Ok(())
    }

    /// Adds a record of a freeze.
    fn add_freeze(&mut self, key: &[u8], record: Bytes) -> Result<(), RecordError> {
        match key.split_first() {
            Some((&HELD_PREFIX, place)) => {
                let (target, place) = split_held_key(place)?;
                let held = held_from_proto(&place.1, record::open(Family::Index, key, record)?)?;
                self.held.push((target, place, held));
            }
            Some((&STAMP_PREFIX, of)) => {
                let (target, of) = split_stamp_key(of)?;
                let stamp = stamp_from_proto(record::open(Family::Index, key, record)?)?;
                self.stamps.push((target, of, stamp));
            }
            _ => {
                let parts = freeze_parts(record::open(Family::Index, key, record)?)?;
                self.freezes.insert(parts.target.clone(), parts);
            }
        }
        Ok(())
    }

    fn add_history(&mut self, key: &[u8], record: Bytes) -> Result<(), RecordError> {
        let revision = key.try_into().map_err(|_| content("its key is not a revision"))?;
        let revision = Revision(u64::from_be_bytes(revision));
        let message = record::open(Family::History, key, record)?;
        self.history.insert(revision, Arc::new(HistoryEntry::from_proto(revision, message)));
        Ok(())
    }

    /// Returns the image, if every record that was written is present.
    pub(crate) fn finish(mut self, applied: pb::AppliedRecord) -> Result<Image, LoadError> {
        let whole = |error: RecordError| LoadError::Whole(error.to_string());
        let expected = Tally { records: applied.records, sum: applied.records_sum };
        if self.tally != expected {
            return Err(LoadError::Whole(format!(
                "there are {} records with the sum {:016x}, but {} with the sum {:016x} were written",
                self.tally.records, self.tally.sum, expected.records, expected.sum
            )));
        }
        let revision = Revision(applied.revision);
        let history_anchor = HistoryHash::from_bytes(&applied.history_anchor);
        let head = HistoryHash::from_bytes(&applied.history_head);
        let history = chained(self.take_history(revision)?, history_anchor, head)?;
        let replaced = std::mem::take(&mut self.replaced);
        let kept = KeptContent::load(&history, replaced, Revision(applied.content_from));
        let mut state = State { revision, ..State::new(Incarnation(applied.incarnation)) };
        if let Some(assignments) = self.assignments.take() {
            state.assignments = Arc::new(assignments);
        }
        self.access.sort();
        state.access = Arc::new(std::mem::take(&mut self.access));
        state.keys = Arc::new(std::mem::take(&mut self.keys));
        let freezes = self.take_freezes()?;
        self.put_back();
        for (prefix, alias, name) in self.aliases.drain(..) {
            let collection = self.collections.get_mut(&prefix).ok_or_else(|| {
                LoadError::Whole(format!(
                    "the collection of the alias {alias:?} is not in the index"
                ))
            })?;
            collection.aliases.insert(alias, name);
        }
        let mut scopes: BTreeMap<ScopeName, Scope> = self
            .scopes
            .into_iter()
            .map(|(name, changed)| (name, Scope { changed, ..Scope::default() }))
            .collect();
        for collection in self.collections.into_values() {
            let scope = scopes.get_mut(&collection.scope).ok_or_else(|| {
                LoadError::Whole(format!("scope {:?} is not in the index", collection.scope))
            })?;
            scope.types.insert(collection.type_url.clone(), Arc::new(collection));
        }
        state.scopes = scopes.into_iter().map(|(name, scope)| (name, Arc::new(scope))).collect();
        state.load_quotas(self.quotas);
        state.load_freezes(freezes);
        let cluster_id = match &applied.cluster_id {
            id if id.is_empty() => None,
            id => Some(cluster_id_from_proto(id).map_err(whole)?),
        };
        let membership = applied.membership.unwrap_or_default();
        let requests = history.iter().filter_map(|entry| Some((entry.request?, entry.revision)));
        Ok(Image {
            cluster_id,
            state,
            requests: requests.collect(),
            history,
            history_anchor,
            applied: applied.id.as_ref().map(log_id_from_proto),
            membership: stored_membership_from_proto(membership).map_err(whole)?,
            computed: Computed { tally: expected, kept },
            n_resources: self.n_resources,
            n_sealed: self.sealed.len() as u64,
            unopened: self.sealed.into_iter().collect(),
        })
    }

    /// Returns the freezes with their held resources and stamps.
    fn take_freezes(&mut self) -> Result<Vec<FreezeParts>, LoadError> {
        let mut freezes = std::mem::take(&mut self.freezes);
        let lost = |target: &FreezeTarget| {
            LoadError::Whole(format!("the freeze of {target} is not in the index"))
        };
        for (target, place, held) in self.held.drain(..) {
            let parts = freezes.get_mut(&target).ok_or_else(|| lost(&target))?;
            parts.held.insert(place, held);
        }
        for (target, of, stamp) in self.stamps.drain(..) {
            let parts = freezes.get_mut(&target).ok_or_else(|| lost(&target))?;
            parts.stamps.insert(of, stamp);
        }
        Ok(freezes.into_values().collect())
    }

    /// Checks that the history ends at the revision of the state, and that its entries are
    /// consecutive. The only gaps are those that a restore has left.
    fn take_history(&mut self, revision: Revision) -> Result<History, LoadError> {
        let history: History = std::mem::take(&mut self.history).into_values().collect();
        let mut before: Option<Revision> = None;
        for entry in &history {
            let (previous, at) = (entry.previous(), entry.revision);
            if previous >= at || before.is_some_and(|before| before != previous) {
                let before = before.map_or("nothing".to_owned(), |before| before.to_string());
                return Err(LoadError::Whole(format!(
                    "in the history, revision {at} follows {before}, not revision {previous}"
                )));
            }
            before = Some(at);
        }
        // The replica drops old revisions only from a full history. A shorter history must contain all
        // revisions.
        let begins = history.front().map_or(Revision(0), |entry| entry.previous());
        let ends = history.back().map_or(Revision(0), |entry| entry.revision);
        let whole = begins == Revision(0) || history.len() == HISTORY_MAX;
        if ends != revision || !whole || history.len() > HISTORY_MAX {
            return Err(LoadError::Whole(format!(
                "the history has {} revisions after {begins} up to {ends}, but the state is at revision \
                 {revision}",
                history.len()
            )));
        }
        Ok(history)
    }
}

/// Computes the hashes of a history after a revision with the hash `anchor`, and compares the last one with the stored
/// `head`, which a directory of an older release does not have.
fn chained(
    history: History,
    anchor: Option<HistoryHash>,
    head: Option<HistoryHash>,
) -> Result<History, LoadError> {
    let mut before = anchor;
    let history: History = history
        .into_iter()
        .map(|entry| {
            let entry = HistoryEntry::clone(&entry).chained(before);
            before = entry.hash;
            Arc::new(entry)
        })
        .collect();
    if let (Some(found), Some(written)) = (before, head)
        && found != written
    {
        let last = history.back().map_or(Revision(0), |entry| entry.revision);
        return Err(LoadError::Whole(format!(
            "the history up to revision {last} has the hash {found}, but {written} was written: a record of it was \
             changed"
        )));
    }
    Ok(history)
}

/// Splits a key into its prefix (scope and type URL) and the name.
fn split_resource_key(key: &[u8]) -> Result<(&[u8], ResourceName), RecordError> {
    let mut separators = (0..key.len()).filter(|at| key[*at] == SEPARATOR);
    let (Some(_), Some(end)) = (separators.next(), separators.next()) else {
        return Err(content("its key does not consist of scope, type URL and name"));
    };
    Ok((&key[..end], ResourceName::stored(text(&key[end + 1..])?).map_err(content)?))
}

fn text(bytes: &[u8]) -> Result<&str, RecordError> {
    str::from_utf8(bytes).map_err(|_| content("its key is not text"))
}
