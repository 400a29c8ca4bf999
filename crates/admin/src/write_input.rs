//! The input files of a write, with the origin of each published resource.

use std::collections::{HashMap, HashSet};

use chancery_admission::{Manifest, Problem, ResourceOrigin};
use chancery_model::{ResourceKey, ScopeName, Transaction};

use crate::{references::Finding, work::Size};

/// Input of more bytes is large work.
const SMALL_INPUT_BYTES_MAX: usize = 32 << 10;
/// Input of more files is large work, even if the files are short.
const SMALL_FILES_MAX: usize = 100;

/// The files of a write, and the results of admission.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) files: Vec<Manifest>,
    /// The origin of each resource that the transaction publishes, in the order of `upserts`.
    pub(crate) origins: Vec<ResourceOrigin>,
    /// The findings that do not refuse the write.
    pub(crate) warnings: Vec<Problem>,
}

/// Returns the size of the work to read files.
pub(crate) fn reading_size(files: &[Manifest]) -> Size {
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    Size::of(files.len() <= SMALL_FILES_MAX && bytes <= SMALL_INPUT_BYTES_MAX)
}

/// The published resources that a finding may concern, each with its index in the transaction.
#[derive(Debug, Default)]
pub(crate) struct Published(HashMap<(ScopeName, ResourceKey), usize>);

impl Published {
    /// Selects those of `resources` that a transaction publishes. If `resources` is empty, this costs nothing.
    pub(crate) fn of<'a>(
        transaction: &Transaction,
        resources: impl Iterator<Item = (&'a ScopeName, &'a ResourceKey)>,
    ) -> Self {
        let resources: HashSet<_> = resources.collect();
        if resources.is_empty() {
            return Self::default();
        }
        let all = transaction.upserts.iter().map(|upsert| (&upsert.scope, &upsert.draft.key));
        let found = all.enumerate().filter(|(_, resource)| resources.contains(resource));
        Self(found.map(|(index, (scope, key))| ((scope.clone(), key.clone()), index)).collect())
    }

    /// Returns each finding with the origin of its resource, if it has one.
    pub(crate) fn origins(
        &self,
        origins: &[ResourceOrigin],
        findings: Vec<Finding>,
    ) -> Vec<(Option<ResourceOrigin>, Problem)> {
        let with_origin = |Finding { subject, problem }| {
            let index = subject.and_then(|subject| self.0.get(&subject));
            (index.and_then(|index| origins.get(*index)).copied(), problem)
        };
        findings.into_iter().map(with_origin).collect()
    }
}
