//! Reads the content of earlier revisions.
//!
//! Each revision keeps the records that it replaced ([`crate::format::content`]). The content at a revision is that of
//! the stored image, except for the records that later revisions replaced: of these, the oldest counts.
//!
//! Invariant: the store deletes only content that the stored image no longer keeps. A reader that finds its revision in
//! the newest stored image after it has read has therefore missed nothing.

use std::{
    collections::BTreeMap,
    io,
    ops::{
        Bound::{Excluded, Included},
        ControlFlow,
    },
    sync::{Arc, Weak},
};

use bytes::Bytes;
use chancery_model::{
    Access, AccessRule, Assignment, Assignments, Quota, Resource, ResourceKey, ResourceName,
    Revision, ScopeName, State, TypeUrl,
};
use chancery_raft_proto::v1 as pb;
use chancery_secrets::Secrets;

use crate::{
    disk::{
        database::{Database, Deleted},
        image::Image,
        published::Published,
        records::{
            ASSIGNMENTS_KEY, QUOTA_PREFIX, RULE_PREFIX, SEPARATOR, resource_of_record,
            resources_prefix,
        },
    },
    format::{
        access_codec::rule_from_proto,
        codec::assignment_from_proto,
        content::{ABSENT, CONTENT, Replaced, put_record_key, records_key, split_record_key},
        keys::state_key,
        quota_codec::quota_from_proto,
        record::{self, Family, RecordError},
    },
};

/// Reads the records that revisions replaced. Does not keep the database open. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ContentReader {
    database: Weak<Database>,
    published: Published,
    /// The records that revisions replaced whose change is not stored.
    unstored: Arc<BTreeMap<Bytes, Bytes>>,
}

/// The reason why the content of a revision cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PastError {
    /// The content is no longer kept.
    #[error(
        "the content of revision {revision} is not kept; the oldest revision with content is {oldest}"
    )]
    Forgotten {
        /// The revision.
        revision: Revision,
        /// The oldest revision whose content can be found.
        oldest: Revision,
    },
    /// The revision does not exist yet.
    #[error("revision {revision} does not exist; the newest revision is {newest}")]
    Future {
        /// The revision.
        revision: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// More content than the caller accepts has changed since the revision.
    #[error(
        "more than {max} changes were made after revision {revision}; select a scope or a type"
    )]
    TooMany {
        /// The revision.
        revision: Revision,
        /// The maximum number of changes.
        max: usize,
    },
    /// A record is damaged or cannot be read.
    #[error("the content of revision {revision} cannot be read: {reason}")]
    Unreadable {
        /// The revision that replaced the record.
        revision: Revision,
        /// The reason.
        reason: String,
    },
    /// The replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// A part of the content.
#[derive(Debug, Clone)]
pub enum Part {
    /// A resource; `None` if it did not exist.
    Resource {
        /// The scope.
        scope: ScopeName,
        /// The key.
        key: ResourceKey,
        /// The resource.
        resource: Option<Arc<Resource>>,
    },
    /// All assignments, in evaluation order.
    Assignments(Vec<Assignment>),
    /// An access rule; `None` if it did not exist.
    Rule {
        /// The name.
        name: Arc<str>,
        /// The rule.
        rule: Option<Box<AccessRule>>,
    },
    /// A quota; `None` if it did not exist.
    Quota {
        /// The name.
        name: Arc<str>,
        /// The quota.
        quota: Option<Box<Quota>>,
    },
}

/// A part of the content before and after a revision.
#[derive(Debug, Clone)]
pub struct PartChange {
    /// The part before.
    pub before: Part,
    /// The part after.
    pub after: Part,
}

/// The change of a resource by a revision.
#[derive(Debug, Clone)]
pub struct ResourceChange {
    /// The revision.
    pub revision: Revision,
    /// The resource before; `None` if it did not exist.
    pub before: Option<Arc<Resource>>,
}

/// The parts of the content that a reader selects: all resources with these properties. Without any, also assignments,
/// access rules and quotas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The scope.
    pub scope: Option<ScopeName>,
    /// The type.
    pub type_url: Option<TypeUrl>,
    /// The published name.
    pub name: Option<ResourceName>,
}

impl Selection {
    /// Returns the beginning of the keys of what a revision replaced of the selection. Other keys may have it, too.
    fn prefix(&self, revision: Revision) -> Vec<u8> {
        let mut key = records_key(revision).to_vec();
        if let Some(scope) = &self.scope {
            let prefix = resources_prefix(scope, self.type_url.as_ref());
            put_record_key(&mut key, revision, Family::Resources, &prefix);
        }
        key
    }

    /// Returns whether the selection includes the part at a key.
    fn includes(&self, key: &[u8]) -> Result<bool, RecordError> {
        if *self == Self::default() {
            return Ok(true);
        }
        let Some((_, Family::Resources, key)) = split_record_key(key) else { return Ok(false) };
        let (scope, of) = split_resource_key(key)?;
        Ok(self.scope.as_ref().is_none_or(|wanted| *wanted == scope)
            && self.type_url.as_ref().is_none_or(|wanted| *wanted == of.type_url)
            && self.name.as_ref().is_none_or(|wanted| wanted.base() == of.name.base()))
    }
}

/// The content at a revision, as far as it differs from the newest content: what later revisions replaced.
#[derive(Debug, Clone, Default)]
pub struct Differing {
    /// The resources; `None` for a resource that did not exist.
    pub resources: BTreeMap<(ScopeName, ResourceKey), Option<Arc<Resource>>>,
    /// The assignments in evaluation order, if they were changed.
    pub assignments: Option<Vec<Assignment>>,
    /// The access rules; `None` for a rule that did not exist.
    pub rules: BTreeMap<Arc<str>, Option<Box<AccessRule>>>,
    /// The quotas; `None` for a quota that did not exist.
    pub quotas: BTreeMap<Arc<str>, Option<Box<Quota>>>,
}

/// The newest content, and that of earlier revisions. Reading blocks.
#[derive(Clone)]
pub struct Past {
    image: Image,
    reader: ContentReader,
    secrets: Secrets,
}

impl ContentReader {
    /// Creates a reader of the content of a database.
    pub(crate) fn new(database: &Arc<Database>, published: Published) -> Self {
        Self { database: Arc::downgrade(database), published, unstored: Arc::default() }
    }

    /// Adds the records that revisions replaced whose change is not stored, by key.
    pub(crate) fn with_unstored(self, unstored: BTreeMap<Bytes, Bytes>) -> Self {
        Self { unstored: Arc::new(unstored), ..self }
    }

    /// Returns the oldest revision whose content can be found now.
    pub(crate) fn oldest(&self) -> Revision {
        self.published.stored().computed.kept.from()
    }

    /// Returns at most `limit` of the records that a revision replaced, with their keys, after the key `after`.
    pub(crate) fn records(
        &self,
        revision: Revision,
        after: Option<&[u8]>,
        limit: usize,
    ) -> io::Result<Vec<(Bytes, Bytes)>> {
        let begin = records_key(revision);
        let from = match after {
            Some(after) => [after, &[0]].concat(),
            None => begin.to_vec(),
        };
        let end = records_key(Revision(revision.0 + 1));
        self.scan(&from, &end, limit)
    }

    fn scan(&self, from: &[u8], end: &[u8], limit: usize) -> io::Result<Vec<(Bytes, Bytes)>> {
        // A revision is either stored as a whole, or not.
        let unstored = self.unstored.range::<[u8], _>((Included(from), Excluded(end)));
        let unstored: Vec<(Bytes, Bytes)> =
            unstored.take(limit).map(|(key, record)| (key.clone(), record.clone())).collect();
        if !unstored.is_empty() {
            return Ok(unstored);
        }
        let stopped = || io::Error::other("the database is closed");
        let database = self.database.upgrade().ok_or_else(stopped)?;
        let (from, end) = (state_key(CONTENT, from), state_key(CONTENT, end));
        let found = database.scan(Family::History, &from, Some(&end), Deleted::Skip);
        let found = found.take(limit).map(|item| {
            let (key, record) = item?;
            Ok((key.slice(size_of_val(&CONTENT)..), record))
        });
        found.collect()
    }
}

impl std::fmt::Debug for ContentReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentReader").finish_non_exhaustive()
    }
}

/// The number of records that one scan reads.
const SCAN_RECORDS: usize = 1024;

impl Past {
    /// Creates a reader of a stored image and of the content before it, which opens sealed resources with `secrets`.
    pub(crate) fn new(image: Image, reader: ContentReader, secrets: Secrets) -> Self {
        Self { image, reader, secrets }
    }

    /// Returns the newest content.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.image.state
    }

    /// Returns the oldest revision whose content can be found.
    #[must_use]
    pub fn oldest(&self) -> Revision {
        self.image.computed.kept.from()
    }

    /// Returns the number of records that a revision replaced, if they are kept.
    #[must_use]
    pub fn n_replaced(&self, revision: Revision) -> Option<u64> {
        self.kept(revision).map(|replaced| replaced.records)
    }

    fn kept(&self, revision: Revision) -> Option<&Replaced> {
        let revisions = self.image.computed.kept.revisions();
        let at = revisions.binary_search_by(|one| one.revision.cmp(&revision)).ok()?;
        revisions.get(at)
    }

    /// Returns at most `limit` parts of the content that a revision replaced, in the order of their keys, after the key
    /// `after`. The second value is the last key, if there are more.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn changes_of(
        &self,
        revision: Revision,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<PartChange>, Option<Bytes>), PastError> {
        self.check_exists(revision)?;
        if self.kept(revision).is_none() {
            return Err(self.forgotten(revision));
        }
        let records = self.reader.records(revision, after, limit + 1);
        let mut records = records.map_err(|error| unreadable(revision, &error))?;
        let has_more = records.len() > limit;
        records.truncate(limit);
        let last = records.last().filter(|_| has_more).map(|(key, _)| key.clone());
        let mut changes = Vec::with_capacity(records.len());
        for (key, record) in &records {
            let before = before_of(key, record).map_err(|error| unreadable(revision, &error))?;
            let before = self.opened_part(before);
            let after = match self.next_replaced(revision, key)? {
                Some((_, after)) => after,
                None => self.newest(&before),
            };
            changes.push(PartChange { before, after });
        }
        self.check_kept(revision)?;
        Ok((changes, last))
    }

    /// Returns the selected content at a revision, as far as later revisions replaced it. Fails if they replaced more
    /// than `max` records.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn differing(
        &self,
        revision: Revision,
        selection: &Selection,
        max: usize,
    ) -> Result<Differing, PastError> {
        self.check_exists(revision)?;
        let mut differing = Differing::default();
        let mut n_records = 0;
        for replaced in self.image.computed.kept.revisions() {
            if replaced.revision <= revision {
                continue;
            }
            self.each(replaced.revision, selection, |key, record| {
                n_records += 1;
                if n_records > max {
                    return Err(PastError::TooMany { revision, max });
                }
                let part = before_of(key, record);
                differing.add(part.map_err(|error| unreadable(replaced.revision, &error))?);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        self.check_kept(revision)?;
        for ((scope, key), before) in &mut differing.resources {
            *before = before.take().map(|before| self.opened(scope, key, before));
        }
        Ok(differing)
    }

    /// Returns whether a revision changed something of a selection; `false` if its content is not kept.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn has_changed(
        &self,
        revision: Revision,
        selection: &Selection,
    ) -> Result<bool, PastError> {
        if self.kept(revision).is_none() {
            return Ok(false);
        }
        let mut any = false;
        self.each(revision, selection, |_, _| {
            any = true;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(any)
    }

    /// Passes the records of a selection that a revision replaced, with their keys, in the order of their keys.
    fn each(
        &self,
        revision: Revision,
        selection: &Selection,
        mut on: impl FnMut(&[u8], &Bytes) -> Result<ControlFlow<()>, PastError>,
    ) -> Result<(), PastError> {
        let mut from = selection.prefix(revision);
        let end = after_prefix(&from);
        loop {
            let found = self.reader.scan(&from, &end, SCAN_RECORDS);
            let found = found.map_err(|error| unreadable(revision, &error))?;
            for (key, record) in &found {
                let included = selection.includes(key);
                if included.map_err(|error| unreadable(revision, &error))?
                    && on(key, record)?.is_break()
                {
                    return Ok(());
                }
            }
            match found.last() {
                Some((last, _)) if found.len() == SCAN_RECORDS => from = [last, &[0][..]].concat(),
                _ => return Ok(()),
            }
        }
    }

    /// Returns the state at a revision, with [`Past::differing`].
    #[must_use]
    pub fn state_at(&self, revision: Revision, differing: &Differing) -> State {
        differing.applied_to(&self.image.state, revision)
    }

    fn opened_part(&self, part: Part) -> Part {
        match part {
            Part::Resource { scope, key, resource: Some(resource) } => {
                let resource = Some(self.opened(&scope, &key, resource));
                Part::Resource { scope, key, resource }
            }
            other => other,
        }
    }

    /// Opens a sealed resource, if this replica has its key.
    fn opened(
        &self,
        scope: &ScopeName,
        key: &ResourceKey,
        resource: Arc<Resource>,
    ) -> Arc<Resource> {
        let Some(sealed) = resource.sealed() else { return resource };
        match self.secrets.open(&self.image.state.keys, scope, key, sealed) {
            Some(body) => Arc::new(resource.opened(&key.type_url, body)),
            None => resource,
        }
    }

    /// Returns a resource at a revision; `None` if it did not exist.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn resource_at(
        &self,
        revision: Revision,
        scope: &ScopeName,
        key: &ResourceKey,
    ) -> Result<Option<Arc<Resource>>, PastError> {
        self.check_exists(revision)?;
        let found = self.next_replaced(revision, &resource_content_key(scope, key))?;
        self.check_kept(revision)?;
        match found {
            Some((_, Part::Resource { resource, .. })) => Ok(resource),
            _ => Ok(self.image.state.get(scope, key).cloned()),
        }
    }

    /// Returns the kept revisions that changed a resource, oldest first, each with the resource before it.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn changes_to(
        &self,
        scope: &ScopeName,
        key: &ResourceKey,
    ) -> Result<Vec<ResourceChange>, PastError> {
        let of = resource_content_key(scope, key);
        let (mut changes, mut after) = (Vec::new(), self.oldest());
        while let Some((revision, before)) = self.next_replaced(after, &of)? {
            if let Part::Resource { resource: before, .. } = before {
                changes.push(ResourceChange { revision, before });
            }
            after = revision;
        }
        self.check_kept(self.oldest())?;
        Ok(changes)
    }

    /// Returns the first revision after another that replaced a part, and the part before it. `of` is the key of the part
    /// in any revision.
    fn next_replaced(
        &self,
        after: Revision,
        of: &[u8],
    ) -> Result<Option<(Revision, Part)>, PastError> {
        let database = self.reader.database.upgrade().ok_or(PastError::Stopped)?;
        let mut key = of.to_vec();
        let revisions = self.image.computed.kept.revisions();
        let first = revisions.binary_search_by(|one| one.revision.cmp(&after));
        let first = first.map_or_else(|at| at, |at| at + 1);
        for Replaced { revision, .. } in revisions.iter().skip(first) {
            let begin = records_key(*revision);
            key[..begin.len()].copy_from_slice(&begin);
            let found = database.get(Family::History, &state_key(CONTENT, &key));
            if let Some(record) = found.map_err(|error| unreadable(*revision, &error))? {
                let before = before_of(&key, &record);
                let before = before.map_err(|error| unreadable(*revision, &error))?;
                return Ok(Some((*revision, self.opened_part(before))));
            }
        }
        Ok(None)
    }

    /// Returns a part as it is in the newest content.
    fn newest(&self, part: &Part) -> Part {
        let state = &self.image.state;
        match part {
            Part::Resource { scope, key, .. } => {
                let resource = state.get(scope, key).cloned();
                Part::Resource { scope: scope.clone(), key: key.clone(), resource }
            }
            Part::Assignments(_) => Part::Assignments(state.assignments.rules.clone()),
            Part::Rule { name, .. } => {
                let rule = state.access.rules.iter().find(|rule| rule.name == *name);
                Part::Rule { name: name.clone(), rule: rule.cloned().map(Box::new) }
            }
            Part::Quota { name, .. } => {
                let quota = state.quotas.rules.iter().find(|quota| quota.name == *name);
                Part::Quota { name: name.clone(), quota: quota.cloned().map(Box::new) }
            }
        }
    }

    fn check_exists(&self, revision: Revision) -> Result<(), PastError> {
        let newest = self.image.state.revision;
        if revision > newest {
            return Err(PastError::Future { revision, newest });
        }
        let exists = revision == self.oldest() || self.kept(revision).is_some();
        if exists { Ok(()) } else { Err(self.forgotten(revision)) }
    }

    /// Checks that the content at a revision has been kept until now.
    fn check_kept(&self, revision: Revision) -> Result<(), PastError> {
        let oldest = self.reader.oldest();
        if revision < oldest { Err(PastError::Forgotten { revision, oldest }) } else { Ok(()) }
    }

    fn forgotten(&self, revision: Revision) -> PastError {
        PastError::Forgotten { revision, oldest: self.oldest() }
    }
}

impl std::fmt::Debug for Past {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Past").field("revision", &self.image.state.revision).finish_non_exhaustive()
    }
}

impl Differing {
    /// Returns a state with the parts in place of those that it has, as if `revision` had made it. The revisions of scopes,
    /// the aliases, the use of quotas and the tokens stay those of the state.
    #[must_use]
    pub fn applied_to(&self, state: &State, revision: Revision) -> State {
        let changed = self.resources.iter();
        let changed = changed.map(|((scope, key), before)| (scope, key, before.clone()));
        let mut state = State { revision, ..state.with_resources(changed) };
        if let Some(rules) = &self.assignments {
            let rules = rules.clone();
            state.assignments = Arc::new(Assignments { changed: revision, rules });
        }
        if !self.rules.is_empty() {
            let mut access = Access::clone(&state.access);
            access.changed = revision;
            replace(&mut access.rules, &self.rules, |rule| &rule.name);
            state.access = Arc::new(access);
        }
        if !self.quotas.is_empty() {
            let mut quotas = Vec::clone(&state.quotas.rules);
            replace(&mut quotas, &self.quotas, |quota| &quota.name);
            state.load_quotas(quotas);
        }
        state
    }

    /// Adds a part, unless there is one with this key.
    pub fn add(&mut self, part: Part) {
        match part {
            Part::Resource { scope, key, resource } => {
                self.resources.entry((scope, key)).or_insert(resource);
            }
            Part::Assignments(rules) => {
                self.assignments.get_or_insert(rules);
            }
            Part::Rule { name, rule } => {
                self.rules.entry(name).or_insert(rule);
            }
            Part::Quota { name, quota } => {
                self.quotas.entry(name).or_insert(quota);
            }
        }
    }
}

/// Replaces items by name; `None` removes an item.
fn replace<T: Clone>(
    items: &mut Vec<T>,
    by: &BTreeMap<Arc<str>, Option<Box<T>>>,
    name: impl Fn(&T) -> &Arc<str>,
) {
    items.retain(|item| !by.contains_key(name(item)));
    items.extend(by.values().flatten().map(|item| T::clone(item)));
    items.sort_by(|a, b| name(a).cmp(name(b)));
}

fn unreadable(revision: Revision, error: &dyn std::fmt::Display) -> PastError {
    PastError::Unreadable { revision, reason: error.to_string() }
}

/// Returns the key of a resource in the content of revision 0.
fn resource_content_key(scope: &ScopeName, key: &ResourceKey) -> Vec<u8> {
    let mut of = resources_prefix(scope, Some(&key.type_url));
    of.extend_from_slice(key.name.as_str().as_bytes());
    let mut content_key = Vec::new();
    put_record_key(&mut content_key, Revision(0), Family::Resources, &of);
    content_key
}

/// Returns the first key after all keys with a prefix, which does not consist of bytes of 255.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            break;
        }
    }
    end
}

/// Decodes a record that a revision replaced.
pub(crate) fn before_of(key: &[u8], record: &Bytes) -> Result<Part, RecordError> {
    let invalid = || RecordError::Content("its key is not that of replaced content".to_owned());
    let (_, family, key) = split_record_key(key).ok_or_else(invalid)?;
    let record = Some(record).filter(|record| record[..] != *ABSENT).cloned();
    match (family, key.split_first()) {
        (Family::Resources, _) => resource_before(key, record),
        (Family::Index, _) if key == ASSIGNMENTS_KEY => {
            let record = record.ok_or_else(invalid)?;
            let message: pb::AssignmentsRecord = record::open(Family::Index, key, record)?;
            let rules = message.rules.into_iter().map(assignment_from_proto);
            Ok(Part::Assignments(rules.collect::<Result<_, _>>()?))
        }
        (Family::Index, Some((&RULE_PREFIX, name))) => {
            let rule = record.map(|record| record::open(Family::Index, key, record)).transpose()?;
            let rule = rule.map(rule_from_proto).transpose()?.map(Box::new);
            Ok(Part::Rule { name: text(name)?, rule })
        }
        (Family::Index, Some((&QUOTA_PREFIX, name))) => {
            let quota =
                record.map(|record| record::open(Family::Index, key, record)).transpose()?;
            let quota = quota.map(quota_from_proto).transpose()?.map(Box::new);
            Ok(Part::Quota { name: text(name)?, quota })
        }
        _ => Err(invalid()),
    }
}

fn split_resource_key(key: &[u8]) -> Result<(ScopeName, ResourceKey), RecordError> {
    let invalid = |error: &dyn std::fmt::Display| RecordError::Content(error.to_string());
    let mut parts = key.splitn(3, |byte| *byte == SEPARATOR).map(text);
    let mut part = || parts.next().unwrap_or_else(|| Err(invalid(&"its key is too short")));
    let scope = ScopeName::new(&part()?).map_err(|error| invalid(&error))?;
    let type_url = TypeUrl::new(&part()?).map_err(|error| invalid(&error))?;
    let name = ResourceName::stored(&part()?).map_err(|error| invalid(&error))?;
    Ok((scope, ResourceKey { type_url, name }))
}

fn resource_before(key: &[u8], record: Option<Bytes>) -> Result<Part, RecordError> {
    let (scope, of) = split_resource_key(key)?;
    let resource = record.map(|record| resource_of_record(of.clone(), key, record)).transpose()?;
    Ok(Part::Resource { scope, key: of, resource: resource.map(Arc::new) })
}

fn text(bytes: &[u8]) -> Result<Arc<str>, RecordError> {
    let text = str::from_utf8(bytes);
    let text = text.map_err(|_| RecordError::Content("its key is not text".to_owned()))?;
    Ok(text.into())
}
