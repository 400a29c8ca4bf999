//! The parts of the content that revisions replaced, decoded.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use chancery_model::{
    Access, AccessRule, Assignment, Assignments, Quota, Resource, ResourceKey, ResourceName,
    Revision, ScopeName, State, TypeUrl,
};
use chancery_raft_proto::v1 as pb;

use crate::{
    disk::records::{ASSIGNMENTS_KEY, QUOTA_PREFIX, RULE_PREFIX, SEPARATOR, resource_of_record},
    format::{
        access_codec::rule_from_proto,
        assignment_codec::assignment_from_proto,
        content::{ABSENT, split_record_key},
        quota_codec::quota_from_proto,
        record::{self, Family, RecordError},
    },
};

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

/// The key of a part of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartKey {
    /// A resource.
    Resource(ScopeName, ResourceKey),
    /// All assignments.
    Assignments,
    /// The access rule with this name.
    Rule(Arc<str>),
    /// The quota with this name.
    Quota(Arc<str>),
}

/// A part of the content before and after a revision.
#[derive(Debug, Clone)]
pub struct PartChange {
    /// The part before.
    pub before: Part,
    /// The part after.
    pub after: Part,
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

impl Differing {
    /// Returns a state with these parts replaced, at `revision`. The revisions of scopes, the aliases and the tokens stay
    /// those of the state.
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

    /// Returns whether there is a part with this key.
    #[must_use]
    pub fn has(&self, key: &PartKey) -> bool {
        match key {
            PartKey::Resource(scope, key) => {
                self.resources.contains_key(&(scope.clone(), key.clone()))
            }
            PartKey::Assignments => self.assignments.is_some(),
            PartKey::Rule(name) => self.rules.contains_key(name),
            PartKey::Quota(name) => self.quotas.contains_key(name),
        }
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

fn invalid_key() -> RecordError {
    RecordError::Content("its key is not that of replaced content".to_owned())
}

/// Decodes the key of a record that a revision replaced.
pub(crate) fn part_key(key: &[u8]) -> Result<PartKey, RecordError> {
    let (_, family, key) = split_record_key(key).ok_or_else(invalid_key)?;
    match (family, key.split_first()) {
        (Family::Resources, _) => {
            split_resource_key(key).map(|(scope, key)| PartKey::Resource(scope, key))
        }
        (Family::Index, _) if key == ASSIGNMENTS_KEY => Ok(PartKey::Assignments),
        (Family::Index, Some((&RULE_PREFIX, name))) => text(name).map(PartKey::Rule),
        (Family::Index, Some((&QUOTA_PREFIX, name))) => text(name).map(PartKey::Quota),
        _ => Err(invalid_key()),
    }
}

/// Decodes a record that a revision replaced.
pub(crate) fn before_of(key: &[u8], record: &Bytes) -> Result<Part, RecordError> {
    let (_, family, key) = split_record_key(key).ok_or_else(invalid_key)?;
    let record = Some(record).filter(|record| record[..] != *ABSENT).cloned();
    match (family, key.split_first()) {
        (Family::Resources, _) => resource_before(key, record),
        (Family::Index, _) if key == ASSIGNMENTS_KEY => {
            let record = record.ok_or_else(invalid_key)?;
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
        _ => Err(invalid_key()),
    }
}

pub(crate) fn split_resource_key(key: &[u8]) -> Result<(ScopeName, ResourceKey), RecordError> {
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
