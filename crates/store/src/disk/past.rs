//! Reads the content of earlier revisions.
//!
//! Each revision keeps the records that it replaced ([`crate::format::content`]). The content at a revision is that of
//! the stored image, except for the records that later revisions replaced: of each, the oldest copy counts.
//!
//! Invariant: the store deletes only content that the stored image no longer keeps. A reader that finds its revision in
//! the newest stored image after it has read has therefore missed nothing.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use chancery_model::{Resource, ResourceKey, ResourceName, Revision, ScopeName, State, TypeUrl};
use chancery_secrets::Secrets;

use crate::{
    disk::{
        content_reader::{ContentReader, Scanned},
        image::Image,
        part::{Differing, Part, PartChange, PartKey, before_of, part_key, split_resource_key},
        records::resources_prefix,
    },
    format::{
        content::{Replaced, put_record_key, records_key, split_record_key},
        record::{Family, RecordError},
    },
};

/// The reason why the content of a revision cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PastError {
    /// The content is no longer kept.
    #[error(
        "cannot read revision {revision}: its content is no longer kept; the oldest revision that can be read is {oldest}"
    )]
    Forgotten {
        /// The revision.
        revision: Revision,
        /// The oldest revision whose content can be found.
        oldest: Revision,
    },
    /// The records that the revision replaced are no longer kept.
    #[error(
        "cannot show the changes of revision {revision}: they are no longer kept; only revisions after {oldest} still \
         have their changes"
    )]
    ChangesForgotten {
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
    /// A restore skipped the revision.
    #[error("revision {revision} does not exist: a restore from a backup skipped it")]
    Skipped {
        /// The revision.
        revision: Revision,
    },
    /// Later revisions replaced more than one answer reads.
    #[error(
        "cannot read revision {revision}: the answer would need more than {max} replaced resources, or more than 256 MiB \
         of them; select a scope and a type"
    )]
    TooMany {
        /// The revision.
        revision: Revision,
        /// The maximum number of records.
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
}

/// The change of a resource by a revision.
#[derive(Debug, Clone)]
pub struct ResourceChange {
    /// The revision.
    pub revision: Revision,
    /// The resource before; `None` if it did not exist.
    pub before: Option<Arc<Resource>>,
}

impl ResourceChange {
    /// Returns whether the resource before is not sealed, or could be opened.
    #[must_use]
    pub fn is_opened(&self) -> bool {
        self.before.as_ref().is_none_or(|before| before.is_opened())
    }
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
    /// Returns a prefix of the keys of all selected records that a revision replaced. Other records may share it.
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

/// The newest content, and that of earlier revisions. Reading blocks.
#[derive(Clone)]
pub struct Past {
    image: Image,
    reader: ContentReader,
    secrets: Secrets,
}

/// The number of records that a scan reads. The first scan reads fewer, because many readers need only a few records.
const SCAN_RECORDS: usize = 1024;
const FIRST_SCAN_RECORDS: usize = 16;
/// The maximum number of lookups for one page of changes, after which the page ends.
const LOOKUPS_MAX: usize = 1_000_000;
/// The maximum size of the records that one answer reads, in bytes.
const BYTES_MAX: usize = 256 << 20;

/// The records that an answer may still read.
struct Budget {
    records: usize,
    bytes: usize,
}

impl Budget {
    fn unlimited() -> Self {
        Self { records: usize::MAX, bytes: usize::MAX }
    }

    /// Takes a record. Returns whether the budget permits it.
    fn take(&mut self, key: &[u8], record: &[u8]) -> bool {
        let left =
            self.records.checked_sub(1).zip(self.bytes.checked_sub(key.len() + record.len()));
        left.map(|(records, bytes)| *self = Self { records, bytes }).is_some()
    }
}

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
    /// `after`. The page may be shorter. The second value is the last key, if there are more.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn changes_of(
        &self,
        revision: Revision,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<PartChange>, Option<Bytes>), PastError> {
        let newest = self.image.state.revision;
        if revision > newest {
            return Err(PastError::Future { revision, newest });
        }
        if self.kept(revision).is_none() {
            return Err(PastError::ChangesForgotten { revision, oldest: self.oldest() });
        }
        let scanned = self.reader.records(revision, after, limit);
        let Scanned { records, mut has_more } =
            scanned.map_err(|error| unreadable(revision, &error))?;
        let (mut changes, mut last, mut lookups) = (Vec::with_capacity(records.len()), None, 0);
        for (key, record) in &records {
            if lookups > LOOKUPS_MAX {
                has_more = true;
                break;
            }
            let before = before_of(key, record).map_err(|error| unreadable(revision, &error))?;
            let before = self.opened_part(before);
            let after = match self.next_replaced(revision, key, &mut lookups)? {
                Some((_, after)) => after,
                None => self.newest(&before),
            };
            changes.push(PartChange { before, after });
            last = Some(key.clone());
        }
        self.check_kept(revision)?;
        Ok((changes, last.filter(|_| has_more)))
    }

    /// Returns the selected content at a revision, as far as later revisions replaced it. Fails if that is more than
    /// `max` parts, or more than 256 MiB.
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
        let (mut budget, mut is_spent) = (Budget { records: max, bytes: BYTES_MAX }, false);
        for replaced in self.image.computed.kept.revisions() {
            if replaced.revision <= revision {
                continue;
            }
            let on = |key: &[u8], record: &Bytes| {
                let unreadable = |error| unreadable(replaced.revision, &error);
                // Only the oldest copy of a part counts.
                if differing.has(&part_key(key).map_err(unreadable)?) {
                    return Ok(ControlFlow::Continue(()));
                }
                differing.add(before_of(key, record).map_err(unreadable)?);
                is_spent = !budget.take(key, record);
                Ok(if is_spent { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            };
            self.each(replaced.revision, selection, &mut Budget::unlimited(), on)?;
            if is_spent {
                return Err(PastError::TooMany { revision, max });
            }
        }
        self.check_kept(revision)?;
        for ((scope, key), before) in &mut differing.resources {
            *before = before.take().map(|before| self.opened(scope, key, before));
        }
        Ok(differing)
    }

    /// Passes the keys of the parts of a selection that a revision changed, in their order, until `on` breaks. Passes no
    /// keys if the history no longer has the changes of the revision. Returns `false` if more than `records_left` records
    /// are needed. Subtracts the records that it reads.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn each_changed(
        &self,
        revision: Revision,
        selection: &Selection,
        records_left: &mut usize,
        mut on: impl FnMut(PartKey) -> ControlFlow<()>,
    ) -> Result<bool, PastError> {
        if self.kept(revision).is_none() {
            return Ok(true);
        }
        let mut budget = Budget { records: *records_left, bytes: usize::MAX };
        let on = |key: &[u8], _: &Bytes| {
            part_key(key).map(&mut on).map_err(|error| unreadable(revision, &error))
        };
        let is_done = self.each(revision, selection, &mut budget, on)?;
        *records_left = budget.records;
        Ok(is_done)
    }

    /// Passes the records of a selection that a revision replaced, with their keys, in the order of their keys. Returns
    /// `false` if the budget ends before.
    fn each(
        &self,
        revision: Revision,
        selection: &Selection,
        budget: &mut Budget,
        mut on: impl FnMut(&[u8], &Bytes) -> Result<ControlFlow<()>, PastError>,
    ) -> Result<bool, PastError> {
        let mut from = selection.prefix(revision);
        let end = after_prefix(&from);
        let mut n_records = FIRST_SCAN_RECORDS;
        loop {
            let scanned = self.reader.scan(&from, &end, n_records);
            n_records = SCAN_RECORDS;
            let scanned = scanned.map_err(|error| unreadable(revision, &error))?;
            for (key, record) in &scanned.records {
                if !budget.take(key, record) {
                    return Ok(false);
                }
                let included = selection.includes(key);
                if included.map_err(|error| unreadable(revision, &error))?
                    && on(key, record)?.is_break()
                {
                    return Ok(true);
                }
            }
            match scanned.records.last() {
                Some((last, _)) if scanned.has_more => from = [last, &[0][..]].concat(),
                _ => return Ok(true),
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
        let found = self.next_replaced(revision, &resource_content_key(scope, key), &mut 0)?;
        self.check_kept(revision)?;
        match found {
            Some((_, Part::Resource { resource, .. })) => Ok(resource),
            _ => Ok(self.image.state.get(scope, key).cloned()),
        }
    }

    /// Returns the first revision after another that changed a resource.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn next_change(
        &self,
        after: Revision,
        scope: &ScopeName,
        key: &ResourceKey,
    ) -> Result<Option<Revision>, PastError> {
        let next = self.next_replaced(after, &resource_content_key(scope, key), &mut 0)?;
        Ok(next.map(|(revision, _)| revision))
    }

    /// Returns the newest `max` kept revisions that changed a resource, oldest first, each with the resource before it.
    ///
    /// # Errors
    /// See [`PastError`].
    pub fn changes_to(
        &self,
        scope: &ScopeName,
        key: &ResourceKey,
        max: usize,
    ) -> Result<Vec<ResourceChange>, PastError> {
        let of = resource_content_key(scope, key);
        let (mut changes, mut after) = (VecDeque::new(), self.oldest());
        while let Some((revision, before)) = self.next_replaced(after, &of, &mut 0)? {
            if let Part::Resource { resource: before, .. } = before {
                changes.push_back(ResourceChange { revision, before });
            }
            if changes.len() > max {
                changes.pop_front();
            }
            after = revision;
        }
        self.check_kept(self.oldest())?;
        Ok(changes.into())
    }

    /// Returns the first revision after another that replaced a part, and the part before it. `of` is the key of the part
    /// in any revision. Counts the lookups.
    fn next_replaced(
        &self,
        after: Revision,
        of: &[u8],
        lookups: &mut usize,
    ) -> Result<Option<(Revision, Part)>, PastError> {
        let mut key = of.to_vec();
        let revisions = self.image.computed.kept.revisions();
        let first = revisions.binary_search_by(|one| one.revision.cmp(&after));
        let first = first.map_or_else(|at| at, |at| at + 1);
        for Replaced { revision, .. } in revisions.iter().skip(first) {
            let begin = records_key(*revision);
            key[..begin.len()].copy_from_slice(&begin);
            *lookups += 1;
            let found = self.reader.get(&key);
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
        if revision == self.oldest() || self.kept(revision).is_some() {
            Ok(())
        } else if revision > self.oldest() {
            Err(PastError::Skipped { revision })
        } else {
            Err(self.forgotten(revision))
        }
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
