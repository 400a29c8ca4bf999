//! The difference between a message and the stored collection.

use std::collections::{BTreeMap, BTreeSet};

use chancery_admission::draft_from_body;
use chancery_model::{Collection, ResourceDraft, ResourceName, TypeUrl};

use super::failure::Failure;
use crate::message::Resources;

/// The maximum number of problems that a NACK lists.
const PROBLEMS_MAX: usize = 5;

/// The changes that a message makes to the stored collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The type of the resources in the collection.
    pub collection: TypeUrl,
    /// The resources that are new or have other bytes, sorted by name.
    pub upserts: Vec<ResourceDraft>,
    /// The stored resources to delete.
    pub deletes: BTreeSet<ResourceName>,
    /// The number of stored resources.
    pub n_stored: usize,
}

impl Change {
    /// Compares a message with the stored collection. Reports all problems of the message together.
    pub(super) fn new(
        message: &Resources,
        type_url: &TypeUrl,
        stored: Option<&Collection>,
    ) -> Result<Self, Failure> {
        let mut problems = Problems::default();
        let sent = drafts(message, type_url, &mut problems);
        // MCP-32: a full state has no removed names.
        let removed = if message.incremental {
            removed(&message.removed_resources, &sent, &mut problems)
        } else {
            BTreeSet::new()
        };
        problems.into_result()?;
        let deletes: BTreeSet<ResourceName> = match (stored, message.incremental) {
            (None, _) => BTreeSet::new(),
            // MCP-58: names that are not stored are ignored.
            (Some(stored), true) => {
                removed.into_iter().filter(|name| stored.resources.contains_key(name)).collect()
            }
            (Some(stored), false) => {
                stored.resources.keys().filter(|name| !sent.contains_key(*name)).cloned().collect()
            }
        };
        let find = |name: &ResourceName| stored.and_then(|stored| stored.resources.get(name));
        let n_stored = stored.map_or(0, |stored| stored.resources.len());
        let upserts = sent.into_values();
        let is_other = |draft: &ResourceDraft| {
            find(&draft.key.name)
                .is_none_or(|resource| resource.body().as_ref() != Some(&draft.body))
        };
        let upserts = upserts.filter(is_other).collect();
        Ok(Self { collection: type_url.clone(), upserts, deletes, n_stored })
    }

    /// Returns whether the collection already is as the message describes it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.deletes.is_empty()
    }

    /// Returns whether all stored resources would be deleted.
    pub(super) fn deletes_all(&self) -> bool {
        self.n_stored > 0 && self.deletes.len() == self.n_stored
    }
}

/// Checks the resources of a message (MCP-41).
fn drafts(
    message: &Resources,
    type_url: &TypeUrl,
    problems: &mut Problems,
) -> BTreeMap<ResourceName, ResourceDraft> {
    let mut drafts = BTreeMap::new();
    for (index, body) in message.resources.iter().enumerate() {
        match draft_from_body(type_url, None, body.clone()) {
            Ok(draft) => {
                let name = draft.key.name.clone();
                if let Some(other) = drafts.insert(name, draft) {
                    let name = other.key.name.as_str().to_owned();
                    problems.add(|| format!("two resources have the name {name:?}"));
                }
            }
            Err(problem) => problems.add(|| format!("resources[{index}]: {problem}")),
        }
    }
    drafts
}

/// Checks the names that a message removes (MCP-41).
fn removed(
    names: &[String],
    sent: &BTreeMap<ResourceName, ResourceDraft>,
    problems: &mut Problems,
) -> BTreeSet<ResourceName> {
    let mut removed = BTreeSet::new();
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            problems.add(|| format!("removed_resources[{index}]: the name is empty"));
        }
        // MCP-58: no resource has an invalid name.
        let Ok(name) = ResourceName::canonical(name) else { continue };
        let text = name.as_str();
        if sent.contains_key(&name) {
            problems.add(|| format!("{text:?} is in resources and in removed_resources"));
        } else if removed.contains(&name) {
            problems.add(|| format!("{text:?} is in removed_resources twice"));
        }
        removed.insert(name);
    }
    removed
}

/// The problems of a message.
#[derive(Debug, Default)]
struct Problems {
    shown: Vec<String>,
    n_all: usize,
}

impl Problems {
    fn add(&mut self, problem: impl FnOnce() -> String) {
        self.n_all += 1;
        if self.shown.len() < PROBLEMS_MAX {
            self.shown.push(problem());
        }
    }

    fn into_result(mut self) -> Result<(), Failure> {
        let n_more = self.n_all - self.shown.len();
        if n_more > 0 {
            self.shown.push(format!("and {n_more} more problems"));
        }
        if self.shown.is_empty() { Ok(()) } else { Err(Failure::invalid(self.shown.join("; "))) }
    }
}
