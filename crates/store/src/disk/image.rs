//! The result of applying the log, as one immutable value, and its changes.
//!
//! Pure: applying a command returns the next image and the records to write for it. Cloning an
//! image is cheap, so a snapshot is an image, and takes no time to make.
//!
//! Invariant: [`Tally`] counts and sums the records of the image. It is stored with every batch
//! that changes them, and compared with all records when they are loaded. The loader therefore
//! detects a record that was lost, or that reverted to an earlier version, even if the record
//! itself is intact.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{
    Access, Applied, Assignments, ChangeKind, Collection, Incarnation, Outcome, Quotas, Resource,
    ResourceKey, ResourceName, Revision, Scope, ScopeName, State, Summary, Transaction,
    TransactionMeta, TypeUrl,
};
use chancery_proto::raft::v1 as pb;
use imbl::{OrdMap, ordmap::DiffItem};
use openraft::EntryPayload;
use prost::Message;

use crate::format::{
    access_codec::{rule_to_proto, token_to_proto},
    codec::{
        Command, Request, assignment_to_proto, command_from_proto, resource_to_proto,
        version_to_proto,
    },
    history::{HISTORY_MAX, History, HistoryEntry, history_key},
    history_chain::HistoryHash,
    quota_codec::quota_to_proto,
    raft::{Entry, LogId, Response, StoredMembership},
    raft_codec::{log_id_to_proto, stored_membership_to_proto},
    record::{self, Family, RecordError},
    request_id::RequestId,
};

/// The image of the log up to `applied`.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// The ID of the cluster; `None` until the cluster is formed.
    pub(crate) cluster_id: Option<[u8; 16]>,
    /// The replicated state.
    pub(crate) state: State,
    /// The newest revisions, oldest first.
    pub(crate) history: History,
    /// The hash of the newest revision that the history no longer has, if it has one.
    pub(crate) history_anchor: Option<HistoryHash>,
    /// The revision that each request of the history made.
    pub(crate) requests: OrdMap<RequestId, Revision>,
    /// The last entry that is applied.
    pub(crate) applied: Option<LogId>,
    /// The membership at that entry.
    pub(crate) membership: StoredMembership,
    /// The tally of the image's records.
    pub(crate) tally: Tally,
    /// The number of resources in the state.
    pub(crate) n_resources: u64,
}

/// The earlier effect of a request.
enum Seen {
    No,
    /// The request took effect as this revision.
    Before(Arc<HistoryEntry>),
    /// Another request with this ID took effect, as this revision.
    Other(Revision),
    /// The history no longer reaches back far enough.
    Forgotten,
}

/// The identity that a restore gives to a state, in place of that of the old cluster.
pub(crate) struct RestoredIdentity {
    pub(crate) cluster_id: [u8; 16],
    pub(crate) incarnation: Incarnation,
    pub(crate) revision: Revision,
    pub(crate) applied: LogId,
    pub(crate) membership: StoredMembership,
}

/// The number of records and the sum of their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    pub(crate) sum: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, record: &[u8]) {
        self.records = self.records.wrapping_add(1);
        self.sum = self.sum.wrapping_add(record::checksum(record));
    }

    fn remove(&mut self, record: &[u8]) {
        self.records = self.records.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(record::checksum(record));
    }
}

/// A record to write or to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) family: Family,
    pub(crate) key: Vec<u8>,
    /// The new record; `None` deletes it.
    pub(crate) record: Option<Vec<u8>>,
}

/// A record with its family and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) family: Family,
    pub(crate) key: Vec<u8>,
    pub(crate) record: Vec<u8>,
}

pub(crate) const ASSIGNMENTS_KEY: &[u8] = b"a";
pub(crate) const ACCESS_KEY: &[u8] = b"x";
pub(crate) const RULE_PREFIX: u8 = b'r';
pub(crate) const TOKEN_PREFIX: u8 = b't';
pub(crate) const QUOTA_PREFIX: u8 = b'q';
pub(crate) const COLLECTION_PREFIX: u8 = b'c';
pub(crate) const SCOPE_PREFIX: u8 = b's';
pub(crate) const ALIAS_PREFIX: u8 = b'l';
/// Ends a scope and a type URL in a key; neither can contain it.
pub(crate) const SEPARATOR: u8 = 0;

impl Image {
    /// Returns the image of an empty log.
    pub(crate) fn new() -> Self {
        Self {
            cluster_id: None,
            state: State::new(Incarnation(0)),
            requests: OrdMap::new(),
            history: History::new(),
            history_anchor: None,
            applied: None,
            membership: StoredMembership::default(),
            tally: Tally::default(),
            n_resources: 0,
        }
    }

    /// Applies an entry of the log; adds the records to write to `edits`. Changes nothing if the
    /// command cannot be decoded.
    pub(crate) fn apply_entry(
        &mut self,
        entry: Entry,
        edits: &mut Vec<Edit>,
    ) -> Result<Response, RecordError> {
        let id = entry.log_id;
        let response = match entry.payload {
            EntryPayload::Blank => Response::Done,
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(id), membership);
                Response::Done
            }
            EntryPayload::Normal(command) => {
                let command = pb::Command::decode(command.0)?;
                self.apply(command_from_proto(command)?, edits)
            }
        };
        self.applied = Some(id);
        Ok(response)
    }

    /// Applies a command; adds the records to write to `edits`. Total.
    pub(crate) fn apply(&mut self, ask: Command, edits: &mut Vec<Edit>) -> Response {
        match ask {
            Command::Form { cluster_id, incarnation } => {
                // Only the first one counts. A second one would be a bug of a replica, and changes
                // nothing.
                if self.cluster_id.is_none() {
                    self.cluster_id = Some(cluster_id);
                    self.state = State::new(incarnation);
                    self.put(edits, None, assignments_record(&self.state.assignments));
                }
                Response::Done
            }
            Command::Transact { transaction, request } => match self.seen(request.as_ref()) {
                Seen::No => Response::Outcome(self.transact(&transaction, request.as_ref(), edits)),
                Seen::Before(entry) => Response::Outcome(Outcome::Committed(entry.summary)),
                Seen::Other(revision) => Response::Reused(revision),
                Seen::Forgotten => Response::Forgotten,
            },
        }
    }

    /// Returns whether a request has taken effect before, as far as the history shows.
    fn seen(&self, request: Option<&Request>) -> Seen {
        let Some(request) = request else { return Seen::No };
        if let Some(revision) = self.requests.get(&request.id) {
            let at = self.history.binary_search_by(|entry| entry.revision.cmp(revision));
            if let Some(entry) = at.ok().and_then(|at| self.history.get(at)) {
                let is_known = entry.request_digest != 0 && request.digest != 0;
                return match is_known && entry.request_digest != request.digest {
                    true => Seen::Other(*revision),
                    false => Seen::Before(Arc::clone(entry)),
                };
            }
        }
        // The history has dropped all revisions up to `forgotten`; 0 if none.
        let forgotten = self.history.front().map_or(Revision(0), |oldest| oldest.previous());
        match request.repeated && forgotten > request.since {
            true => Seen::Forgotten,
            false => Seen::No,
        }
    }

    fn transact(
        &mut self,
        transaction: &Transaction,
        request: Option<&Request>,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let Applied { state, outcome, changes } = self.state.apply(transaction);
        let before = std::mem::replace(&mut self.state, state);
        let mut touched = BTreeSet::new();
        for change in &changes {
            let old = before
                .get(&change.scope, &change.key)
                .map(|old| resource_record(&change.scope, &change.key.type_url, old));
            match change.kind {
                ChangeKind::Added => self.n_resources += 1,
                ChangeKind::Removed => self.n_resources -= 1,
                ChangeKind::Updated | ChangeKind::Relabeled => {}
            }
            let new = change.resource.as_ref();
            let new = new.map(|new| resource_record(&change.scope, &change.key.type_url, new));
            self.replace(edits, old, new);
            touched.insert((&change.scope, &change.key.type_url));
        }
        let mut scopes = BTreeSet::new();
        for (scope, type_url) in touched {
            let record =
                |state: &State| state.collection(scope, type_url).map(|c| collection_record(c));
            let new = record(&self.state);
            self.replace(edits, record(&before), new);
            self.replace_aliases(&before, scope, type_url, edits);
            scopes.insert(scope);
        }
        for name in scopes {
            let record = |state: &State| state.scopes.get(name).map(|s| scope_record(name, s));
            let new = record(&self.state);
            self.replace(edits, record(&before), new);
        }
        if !Arc::ptr_eq(&before.assignments, &self.state.assignments) {
            let old = assignments_record(&before.assignments);
            let new = assignments_record(&self.state.assignments);
            self.replace(edits, Some(old), Some(new));
        }
        self.replace_access(&before.access, edits);
        self.replace_quotas(&before.quotas, edits);
        if let Outcome::Committed(summary) = &outcome
            && self.state.revision > before.revision
        {
            self.remember(transaction, request, *summary, edits);
        }
        outcome
    }

    fn remember(
        &mut self,
        transaction: &Transaction,
        request: Option<&Request>,
        summary: Summary,
        edits: &mut Vec<Edit>,
    ) {
        let revision = self.state.revision;
        if let Some(request) = request {
            self.requests.insert(request.id, revision);
        }
        let entry = HistoryEntry {
            revision,
            meta: transaction.meta.clone(),
            summary,
            request: request.map(|request| request.id),
            request_digest: request.map_or(0, |request| request.digest),
            restored_from: None,
            previous_hash: None,
            hash: None,
        };
        self.push(entry, edits);
    }

    fn push(&mut self, entry: HistoryEntry, edits: &mut Vec<Edit>) {
        self.put(edits, None, history_record(&entry));
        let entry = entry.chained(self.history_head());
        self.history.push_back(Arc::new(entry));
        if self.history.len() > HISTORY_MAX
            && let Some(oldest) = self.history.pop_front()
        {
            self.history_anchor = oldest.hash;
            if let Some(id) = oldest.request {
                self.requests.remove(&id);
            }
            self.replace(edits, Some(history_record(&oldest)), None);
        }
    }

    /// Returns the hash of the newest revision.
    fn history_head(&self) -> Option<HistoryHash> {
        self.history.back().map_or(self.history_anchor, |newest| newest.hash)
    }

    /// Makes this image the state of another cluster, at a later revision. Tokens that were deleted after the
    /// backup must not become valid again, so the new cluster has no tokens. Changes nothing else of the
    /// state. The history records the origin. The caller ensures that `revision` is later.
    pub(crate) fn restore(&mut self, identity: RestoredIdentity, meta: TransactionMeta) {
        let RestoredIdentity { cluster_id, incarnation, revision, applied, membership } = identity;
        let restored_from = Some(self.state.revision);
        self.cluster_id = Some(cluster_id);
        self.state.incarnation = incarnation;
        self.state.revision = revision;
        self.drop_tokens();
        (self.applied, self.membership) = (Some(applied), membership);
        let summary = Summary {
            revision,
            changed: 0,
            removed: 0,
            unchanged: self.n_resources,
            assignments: 0,
            access: 0,
        };
        let entry = HistoryEntry {
            revision,
            meta,
            summary,
            request: None,
            request_digest: 0,
            restored_from,
            previous_hash: None,
            hash: None,
        };
        self.push(entry, &mut Vec::new());
    }

    fn drop_tokens(&mut self) {
        if self.state.access.tokens.is_empty() {
            return;
        }
        let access = Access {
            changed: self.state.revision,
            rules: self.state.access.rules.clone(),
            tokens: Vec::new(),
        };
        let before = std::mem::replace(&mut self.state.access, Arc::new(access));
        self.replace_access(&before, &mut Vec::new());
    }

    /// Replaces the records of access rules and tokens that differ from those before, in O(rules + tokens).
    fn replace_access(&mut self, before: &Arc<Access>, edits: &mut Vec<Edit>) {
        if Arc::ptr_eq(before, &self.state.access) {
            return;
        }
        let new: Vec<Record> = access_records(&self.state.access).collect();
        self.replace_all(access_records(before), new, edits);
    }

    /// Replaces the records of quotas that differ from those before, in O(quotas).
    fn replace_quotas(&mut self, before: &Quotas, edits: &mut Vec<Edit>) {
        if Arc::ptr_eq(&before.rules, &self.state.quotas.rules) {
            return;
        }
        let new: Vec<Record> = quota_records(&self.state.quotas).collect();
        self.replace_all(quota_records(before), new, edits);
    }

    fn replace_all(
        &mut self,
        old: impl Iterator<Item = Record>,
        new: Vec<Record>,
        edits: &mut Vec<Edit>,
    ) {
        let mut old: BTreeMap<Vec<u8>, Record> =
            old.map(|record| (record.key.clone(), record)).collect();
        let new = new.into_iter().map(|record| (record.key.clone(), record));
        for (key, record) in new {
            let old = old.remove(&key);
            if old.as_ref().is_none_or(|old| old.record != record.record) {
                self.replace(edits, old, Some(record));
            }
        }
        for (_, record) in old {
            self.replace(edits, Some(record), None);
        }
    }

    /// Takes O(aliases that changed).
    fn replace_aliases(
        &mut self,
        before: &State,
        scope: &ScopeName,
        type_url: &TypeUrl,
        edits: &mut Vec<Edit>,
    ) {
        let none = OrdMap::new();
        let aliases = |state: &State| {
            state.collection(scope, type_url).map_or_else(|| none.clone(), |c| c.aliases.clone())
        };
        let (old, new) = (aliases(before), aliases(&self.state));
        let record = |(alias, name)| Some(alias_record(scope, type_url, alias, name));
        for item in old.diff(&new) {
            match item {
                DiffItem::Add(alias, name) => self.replace(edits, None, record((alias, name))),
                DiffItem::Update { old, new } => self.replace(edits, record(old), record(new)),
                DiffItem::Remove(alias, name) => self.replace(edits, record((alias, name)), None),
            }
        }
    }

    fn put(&mut self, edits: &mut Vec<Edit>, old: Option<Record>, new: Record) {
        self.replace(edits, old, Some(new));
    }

    fn replace(&mut self, edits: &mut Vec<Edit>, old: Option<Record>, new: Option<Record>) {
        if let Some(old) = &old {
            self.tally.remove(&old.record);
        }
        if let Some(new) = &new {
            self.tally.add(&new.record);
        }
        match (old, new) {
            (_, Some(Record { family, key, record })) => {
                edits.push(Edit { family, key, record: Some(record) });
            }
            (Some(Record { family, key, .. }), None) => {
                edits.push(Edit { family, key, record: None });
            }
            (None, None) => {}
        }
    }

    /// Returns all records: the index first, then the resources, then the history.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let formed = self.cluster_id.is_some();
        let assignments = formed.then(|| assignments_record(&self.state.assignments));
        let scopes = self.state.scopes.iter().map(|(name, scope)| scope_record(name, scope));
        let collections = || self.state.scopes.iter().flat_map(|(_, scope)| scope.types.values());
        let aliases = collections().flat_map(|collection| {
            collection.aliases.iter().map(move |(alias, name)| {
                alias_record(&collection.scope, &collection.type_url, alias, name)
            })
        });
        let resources = collections().flat_map(|collection| {
            collection.resources.values().map(move |resource| {
                resource_record(&collection.scope, &collection.type_url, resource)
            })
        });
        assignments
            .into_iter()
            .chain(access_records(&self.state.access))
            .chain(quota_records(&self.state.quotas))
            .chain(collections().map(|collection| collection_record(collection)))
            .chain(aliases)
            .chain(scopes)
            .chain(resources)
            .chain(self.history.iter().map(|entry| history_record(entry)))
    }

    /// Returns the record of the last applied entry.
    pub(crate) fn applied_to_proto(&self, generation: u32) -> pb::AppliedRecord {
        pb::AppliedRecord {
            id: self.applied.as_ref().map(log_id_to_proto),
            membership: Some(stored_membership_to_proto(&self.membership)),
            cluster_id: self.cluster_id.map(|id| id.to_vec().into()).unwrap_or_default(),
            incarnation: self.state.incarnation.0,
            revision: self.state.revision.0,
            records: self.tally.records,
            records_sum: self.tally.sum,
            generation,
            history_anchor: HistoryHash::to_bytes(self.history_anchor).into(),
            history_head: HistoryHash::to_bytes(self.history_head()).into(),
        }
    }
}

// === records ===

fn seal(family: Family, key: Vec<u8>, message: &impl prost::Message) -> Record {
    let record = record::seal(family, &key, message);
    Record { family, key, record }
}

fn resource_record(scope: &ScopeName, type_url: &TypeUrl, resource: &Resource) -> Record {
    let key = ResourceKey { type_url: type_url.clone(), name: resource.name().clone() };
    let message = pb::ResourceRecord {
        version: Some(version_to_proto(resource.version())),
        content: Some(resource_to_proto(resource)),
    };
    seal(Family::Resources, resource_key(scope, &key), &message)
}

pub(crate) fn resource_key(scope: &ScopeName, key: &ResourceKey) -> Vec<u8> {
    let (scope, type_url, name) = (scope.as_str(), key.type_url.as_str(), key.name.as_str());
    let separator = &[SEPARATOR][..];
    [scope.as_bytes(), separator, type_url.as_bytes(), separator, name.as_bytes()].concat()
}

fn collection_record(collection: &Collection) -> Record {
    let (scope, type_url) = (collection.scope.as_str(), collection.type_url.as_str());
    let prefix = &[COLLECTION_PREFIX][..];
    let key = [prefix, scope.as_bytes(), &[SEPARATOR][..], type_url.as_bytes()].concat();
    let message = pb::CollectionRecord {
        changed: collection.changed.0,
        label: collection.label.as_deref().map(str::to_owned),
    };
    seal(Family::Index, key, &message)
}

fn alias_record(
    scope: &ScopeName,
    type_url: &TypeUrl,
    alias: &ResourceName,
    name: &ResourceName,
) -> Record {
    let key = ResourceKey { type_url: type_url.clone(), name: alias.clone() };
    let key = [&[ALIAS_PREFIX][..], &resource_key(scope, &key)].concat();
    seal(Family::Index, key, &pb::AliasRecord { name: name.as_str().to_owned() })
}

fn scope_record(name: &ScopeName, scope: &Scope) -> Record {
    let key = [&[SCOPE_PREFIX][..], name.as_str().as_bytes()].concat();
    seal(Family::Index, key, &pb::ScopeRecord { changed: scope.changed.0 })
}

fn assignments_record(assignments: &Assignments) -> Record {
    let message = pb::AssignmentsRecord {
        changed: assignments.changed.0,
        rules: assignments.rules.iter().map(assignment_to_proto).collect(),
    };
    seal(Family::Index, ASSIGNMENTS_KEY.to_vec(), &message)
}

/// Returns the records of all access rules and tokens; none if there never was one.
fn access_records(access: &Access) -> impl Iterator<Item = Record> {
    let key = |prefix: u8, name: &[u8]| [&[prefix][..], name].concat();
    let changed = pb::AccessRecord { changed: access.changed.0 };
    let changed =
        (access.changed > Revision(0)).then(|| seal(Family::Index, ACCESS_KEY.to_vec(), &changed));
    let rules = access.rules.iter().map(move |rule| {
        seal(Family::Index, key(RULE_PREFIX, rule.name.as_bytes()), &rule_to_proto(rule))
    });
    let tokens = access.tokens.iter().map(move |token| {
        seal(Family::Index, key(TOKEN_PREFIX, &token.digest.0), &token_to_proto(token))
    });
    changed.into_iter().chain(rules).chain(tokens)
}

/// Returns the records of all quotas. Their use is not stored, but counted when the state is loaded.
fn quota_records(quotas: &Quotas) -> impl Iterator<Item = Record> {
    quotas.rules.iter().map(|quota| {
        let key = [&[QUOTA_PREFIX][..], quota.name.as_bytes()].concat();
        seal(Family::Index, key, &quota_to_proto(quota))
    })
}

fn history_record(entry: &HistoryEntry) -> Record {
    let key = history_key(Revision(entry.revision.0));
    seal(Family::History, key.to_vec(), &entry.to_proto())
}
