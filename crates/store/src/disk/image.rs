//! The result of applying the log, as one immutable value, and its changes.
//!
//! Pure: applying a command changes the image, and returns the effect from which the records to write follow.
//! Cloning an image is cheap, so a snapshot is an image, and takes no time to make.
//!
//! Invariant: [`Tally`] counts and sums the records of the image. It is stored with every batch
//! that changes them, and compared with all records when they are loaded. The loader therefore
//! detects a record that was lost, or that reverted to an earlier version, even if the record
//! itself is intact.

use std::{sync::Arc, time::Duration};

use chancery_model::{
    Access, Applied, Change, ChangeKind, Freezes, Incarnation, Outcome, Resource, ResourceKey,
    Revision, ScopeName, State, Summary, TransactionMeta,
};
use chancery_raft_proto::v1 as pb;
use chancery_secrets::Secrets;
use imbl::{OrdMap, OrdSet};
use openraft::EntryPayload;

use crate::{
    disk::{
        effect::{Changed, Computed, Edit, Effect, Remembered},
        records::{
            Record, access_records, alias_record, assignments_record, collection_record,
            freeze_records, history_record, keys_record, quota_records, resource_record,
            scope_record,
        },
    },
    format::{
        codec::{Command, Request, decode_command},
        content::Retention,
        history::{HISTORY_MAX, History, HistoryEntry},
        history_chain::HistoryHash,
        prepared::Prepared,
        raft::{Entry, LogId, Response, StoredMembership},
        raft_codec::{log_id_to_proto, stored_membership_to_proto},
        record::RecordError,
        request_id::RequestId,
    },
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
    /// The values that are computed from the image's records.
    pub(crate) computed: Computed,
    /// The number of resources in the state.
    pub(crate) n_resources: u64,
    /// The number of sealed resources in the state.
    pub(crate) n_sealed: u64,
    /// The sealed resources that this replica has not opened. Not a part of the replicated state.
    pub(crate) unopened: OrdSet<(ScopeName, ResourceKey)>,
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
            computed: Computed::default(),
            n_resources: 0,
            n_sealed: 0,
            unopened: OrdSet::new(),
        }
    }

    /// Applies an entry of the log, including the computed values. Changes nothing if the command cannot be decoded.
    /// Passes the records to write and to delete to `write`.
    pub(crate) fn apply_entry(
        &mut self,
        entry: Entry,
        write: &mut dyn FnMut(Edit<'_>),
    ) -> Result<Response, RecordError> {
        let (response, effect) = self.advance(entry)?;
        self.compute(&effect, write);
        Ok(response)
    }

    /// Takes over the computed values of the stored image.
    pub(crate) fn resume_computed(&mut self, stored: Self) {
        self.computed = stored.computed;
    }

    /// Updates the computed values with an effect, and passes on its records.
    pub(crate) fn compute(&mut self, effect: &Effect, write: &mut dyn FnMut(Edit<'_>)) {
        effect.edit(&mut self.computed, write);
    }

    /// Applies an entry of the log, except that the computed values stay those of the image before. Changes nothing if the
    /// command cannot be decoded.
    pub(crate) fn advance(&mut self, entry: Entry) -> Result<(Response, Effect), RecordError> {
        let id = entry.log_id;
        let done = match entry.payload {
            EntryPayload::Blank => (Response::Done, Effect::None),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(id), membership);
                (Response::Done, Effect::None)
            }
            EntryPayload::Normal(command) => match command.take_prepared() {
                Some(prepared) => self.run_prepared(prepared),
                None => self.run(decode_command(&command.bytes)?),
            },
        };
        self.applied = Some(id);
        Ok(done)
    }

    /// Applies a prepared entry of the log, except that the computed values stay those of the image before.
    pub(crate) fn advance_prepared(&mut self, id: LogId, prepared: Prepared) -> (Response, Effect) {
        self.applied = Some(id);
        self.run_prepared(prepared)
    }

    /// Applies a command, except that the computed values stay those of the image before. Total.
    pub(crate) fn run(&mut self, ask: Command) -> (Response, Effect) {
        match ask {
            Command::Form { cluster_id, incarnation } => {
                // Only the first one counts. A second one would be a bug of a replica, and changes
                // nothing.
                if self.cluster_id.is_some() {
                    return (Response::Done, Effect::None);
                }
                self.cluster_id = Some(cluster_id);
                self.state = State::new(incarnation);
                (Response::Done, Changed::new(None, self.state.clone()).into())
            }
            Command::Transact { transaction, request, retention } => {
                match self.seen(request.as_ref()) {
                    Some(response) => (response, Effect::None),
                    None => {
                        let applied = self.state.apply(&transaction);
                        let (response, changed) = self.take(applied, &transaction.meta, request);
                        (response, Changed { retention, ..changed }.into())
                    }
                }
            }
        }
    }

    /// Applies a prepared transaction as [`Image::run`] applies one, with the same result.
    fn run_prepared(&mut self, prepared: Prepared) -> (Response, Effect) {
        let Prepared { mut transaction, request, retention } = prepared;
        if let Some(response) = self.seen(request.as_ref()) {
            return (response, Effect::None);
        }
        let applied = self.state.apply_prepared(&mut transaction);
        let (response, changed) = self.take(applied, &transaction.transaction().meta, request);
        // Freeing what remains of a large transaction takes long.
        (response, Changed { spent: Some(transaction), retention, ..changed }.into())
    }

    /// Makes the result of a transaction the state of this image.
    fn take(
        &mut self,
        applied: Applied,
        meta: &TransactionMeta,
        request: Option<Request>,
    ) -> (Response, Changed) {
        let Applied { state, outcome, changes } = applied;
        let before = std::mem::replace(&mut self.state, state);
        self.count(&before, &changes);
        let mut history = Remembered::default();
        if let Outcome::Committed(summary) = &outcome
            && self.state.revision > before.revision
        {
            history = self.remember(HistoryEntry {
                revision: self.state.revision,
                meta: meta.clone(),
                summary: *summary,
                request: request.map(|request| request.id),
                request_digest: request.map_or(0, |request| request.digest),
                restored_from: None,
                previous_hash: None,
                hash: None,
            });
        }
        let changed =
            Changed { changes, history, ..Changed::new(Some(before), self.state.clone()) };
        (Response::Outcome(outcome), changed)
    }

    /// Counts the resources, the sealed and the unopened ones, after changes of the state `before`.
    fn count(&mut self, before: &State, changes: &[Change]) {
        let is_sealed = |resource: &Resource| resource.sealed().is_some();
        // Without sealed resources, a large transaction costs no search for the ones that it replaces.
        let any_sealed = self.n_sealed > 0;
        for Change { scope, key, kind, resource } in changes {
            match kind {
                ChangeKind::Added => self.n_resources += 1,
                ChangeKind::Removed => self.n_resources -= 1,
                ChangeKind::Updated | ChangeKind::Relabeled | ChangeKind::Resealed => {}
            }
            if any_sealed && before.get(scope, key).is_some_and(|old| is_sealed(old)) {
                self.n_sealed -= 1;
            }
            let Some(new) = resource.as_ref().filter(|new| is_sealed(new)) else { continue };
            self.n_sealed += 1;
            if !new.is_opened() {
                self.unopened.insert((scope.clone(), key.clone()));
            }
        }
    }

    /// Returns the answer to a request that has taken effect before, or that may have: as far as the history
    /// shows. Returns `None` for a new request.
    fn seen(&self, request: Option<&Request>) -> Option<Response> {
        match self.find(request) {
            Seen::No => None,
            Seen::Before(entry) => Some(Response::Outcome(Outcome::Committed(entry.summary))),
            Seen::Other(revision) => Some(Response::Reused(revision)),
            Seen::Forgotten => Some(Response::Forgotten),
        }
    }

    /// Returns whether a request has taken effect before, as far as the history shows.
    fn find(&self, request: Option<&Request>) -> Seen {
        let Some(request) = request else { return Seen::No };
        if let Some(revision) = self.requests.get(&request.id) {
            let at = self.history.binary_search_by(|entry| entry.revision.cmp(revision));
            if let Some(entry) = at.ok().and_then(|at| self.history.get(at)) {
                let is_known = entry.request_digest != 0 && request.digest != 0;
                return if is_known && entry.request_digest != request.digest {
                    Seen::Other(*revision)
                } else {
                    Seen::Before(Arc::clone(entry))
                };
            }
        }
        // The history has dropped all revisions up to `forgotten`; 0 if none.
        let forgotten = self.history.front().map_or(Revision(0), |oldest| oldest.previous());
        if request.repeated && forgotten > request.since { Seen::Forgotten } else { Seen::No }
    }

    /// Adds a revision to the history, which drops the oldest one when it is full.
    fn remember(&mut self, entry: HistoryEntry) -> Remembered {
        if let Some(id) = entry.request {
            self.requests.insert(id, entry.revision);
        }
        let added = Arc::new(entry.chained(self.history_head()));
        self.history.push_back(Arc::clone(&added));
        let is_full = self.history.len() > HISTORY_MAX;
        let dropped = if is_full { self.history.pop_front() } else { None };
        if let Some(oldest) = &dropped {
            self.history_anchor = oldest.hash;
            if let Some(id) = oldest.request {
                self.requests.remove(&id);
            }
        }
        Remembered { added: Some(added), dropped }
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
        let before = self.state.clone();
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
        let history = self.remember(HistoryEntry {
            revision,
            meta,
            summary,
            request: None,
            request_digest: 0,
            restored_from,
            previous_hash: None,
            hash: None,
        });
        // The restored cluster drops revisions by its own settings, with its next write.
        let retention = Retention { bytes: u64::MAX, age: Duration::ZERO, ..Retention::default() };
        let changed =
            Changed { history, retention, ..Changed::new(Some(before), self.state.clone()) };
        Effect::from(changed).edit(&mut self.computed, &mut |_| {});
    }

    fn drop_tokens(&mut self) {
        if self.state.access.tokens.is_empty() {
            return;
        }
        self.state.access = Arc::new(Access {
            changed: self.state.revision,
            rules: self.state.access.rules.clone(),
            tokens: Vec::new(),
        });
    }

    /// Opens the sealed resources that are not opened yet, also those that freezes hold, as far as this replica has their
    /// keys. Takes O(held resources). Returns whether any was opened.
    pub(crate) fn open_sealed(&mut self, secrets: &Secrets) -> bool {
        self.open_newest(secrets) | self.open_held(secrets)
    }

    /// Opens the sealed resources of the newest content that are not opened yet. Returns whether any was opened.
    pub(crate) fn open_newest(&mut self, secrets: &Secrets) -> bool {
        let mut any = false;
        let unopened: Vec<_> = std::mem::take(&mut self.unopened).into_iter().collect();
        for of_type in unopened.chunk_by(|(scope, key), (next_scope, next)| {
            scope == next_scope && key.type_url == next.type_url
        }) {
            let mut opened = Vec::new();
            for (scope, key) in of_type {
                let Some(resource) = self.state.get(scope, key) else { continue };
                let Some(sealed) = resource.sealed().filter(|_| !resource.is_opened()) else {
                    continue;
                };
                match secrets.open(&self.state.keys, scope, key, sealed) {
                    Some(body) => opened.push(resource.opened(&key.type_url, body)),
                    None => drop(self.unopened.insert((scope.clone(), key.clone()))),
                }
            }
            if let Some((scope, key)) = of_type.first().filter(|_| !opened.is_empty()) {
                self.state.replace_forms(scope, &key.type_url, opened);
                any = true;
            }
        }
        any
    }

    /// Opens the sealed resources that freezes hold. Returns whether any was opened.
    fn open_held(&mut self, secrets: &Secrets) -> bool {
        if self.state.freezes.is_empty() {
            return false;
        }
        let mut freezes = Freezes::clone(&self.state.freezes);
        let mut any = false;
        for (target, scope, key, resource) in freezes.unopened() {
            let sealed = resource.sealed();
            let body = sealed.and_then(|of| secrets.open(&self.state.keys, &scope, &key, of));
            let Some(body) = body else { continue };
            freezes.set_opened(&target, &scope, &key, resource.opened(&key.type_url, body));
            any = true;
        }
        if any {
            self.state.freezes = Arc::new(freezes);
        }
        any
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
            .chain(keys_record(&self.state.keys))
            .chain(quota_records(&self.state.quotas))
            .chain(self.state.freezes.iter().flat_map(|freeze| freeze_records(freeze)))
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
            records: self.computed.tally.records,
            records_sum: self.computed.tally.sum,
            generation,
            history_anchor: HistoryHash::to_bytes(self.history_anchor).into(),
            history_head: HistoryHash::to_bytes(self.history_head()).into(),
            staged: false,
            content_from: self.computed.kept.from().0,
        }
    }
}

#[cfg(test)]
impl Image {
    /// Applies a command, including the computed values; adds the records to write to `edits`.
    pub(crate) fn apply(
        &mut self,
        ask: Command,
        edits: &mut Vec<crate::disk::effect::OwnedEdit>,
    ) -> Response {
        let (response, effect) = self.run(ask);
        effect.edit(&mut self.computed, &mut |edit| edits.push(edit.into()));
        response
    }
}
