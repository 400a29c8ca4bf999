//! The order in which files are written and removed.
//!
//! Envoy applies each file on its own, and rejects a configuration that refers to a missing file (FS-06). The
//! order is therefore: files that do not exist yet; clusters, with those that will be removed; endpoints,
//! listeners, routes and the other types (FS-13); the clusters again, without the removed ones; removals.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_model::{ResourceKey, TypeUrl, types};

use super::{
    names::{file_name, short},
    view::{Changes, Content, View},
};

/// A file that holds resources of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// The path in the directory, without its extension.
    pub(super) path: String,
    pub(super) type_url: TypeUrl,
    /// The one resource of the file; `None` if the file holds all resources of its type.
    pub(super) name: Option<String>,
    pub(super) version: String,
    pub(super) resources: Vec<(String, Bytes)>,
}

/// A step of a plan. Envoy gets time to apply the files of a step before the next one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Files that no client reads yet.
    Create(Vec<File>),
    /// Files of one type.
    Write(Vec<File>),
    /// Paths without extension of resources that are no longer mirrored.
    Remove(Vec<String>),
}

/// Returns the path of a resource that is requested by its name; `None` for a type without files.
pub(super) fn path(key: &ResourceKey) -> Option<String> {
    Some(format!("{}/{}", short(key.type_url.as_str())?, file_name(key.name.as_str())))
}

/// Returns the steps that bring the files from the published state to the view. `exists` tells whether there is
/// a file with a path, and `is_current` whether its content is the given one; `clusters` are those of the published
/// file.
pub(super) fn steps(
    view: &View,
    changes: &Changes,
    clusters: &BTreeMap<String, Bytes>,
    exists: impl Fn(&str) -> bool,
    is_current: impl Fn(&File) -> bool,
) -> Vec<Step> {
    let mut create = Vec::new();
    let mut remove = Vec::new();
    let mut by_order: BTreeMap<u8, Vec<File>> = BTreeMap::new();
    let order = |url: &TypeUrl| types::properties(url).order;
    for key in &changes.named {
        let Some(path) = path(key) else { continue };
        let is_there = exists(&path);
        let Some(named) = view.named().get(key) else {
            remove.push(path);
            continue;
        };
        let (version, resources) = match &named.content {
            Content::Held(held) => {
                (held.version.clone(), vec![(key.name.as_str().to_owned(), held.body.clone())])
            }
            // A file without a resource: Envoy requires that the file exists.
            Content::Absent if !is_there => ("absent".to_owned(), Vec::new()),
            Content::Absent | Content::Unanswered => continue,
        };
        let name = Some(key.name.as_str().to_owned());
        let file = File { path, type_url: key.type_url.clone(), name, version, resources };
        if is_there {
            by_order.entry(order(&key.type_url)).or_default().push(file)
        } else {
            create.push(file)
        }
    }
    for url in changes.full.iter().filter(|url| **url != types::CLUSTER) {
        let file = full_file(view, url, &BTreeMap::new());
        // Most nodes have no scoped routes.
        let is_needed = *url == types::LISTENER || !file.resources.is_empty() || exists(&file.path);
        if is_needed {
            by_order.entry(order(&file.type_url)).or_default().push(file);
        }
    }
    by_order.values_mut().for_each(|files| files.retain(|file| !is_current(file)));
    by_order.retain(|_, files| !files.is_empty());
    let mut steps = vec![Step::Create(create)];
    let has_clusters = changes.full.contains(types::CLUSTER);
    if has_clusters && !by_order.is_empty() {
        steps.push(Step::Write(vec![full_file(view, types::CLUSTER, clusters)]));
    }
    steps.extend(by_order.into_values().map(Step::Write));
    if has_clusters {
        steps.push(Step::Write(vec![full_file(view, types::CLUSTER, &BTreeMap::new())]));
    }
    steps.push(Step::Remove(remove));
    steps.retain(|step| match step {
        Step::Create(files) | Step::Write(files) => !files.is_empty(),
        Step::Remove(paths) => !paths.is_empty(),
    });
    steps
}

/// Returns the file with all resources of a type, and those of `others` that the view does not contain.
fn full_file(view: &View, url: &'static str, others: &BTreeMap<String, Bytes>) -> File {
    let type_url = TypeUrl::from_static(url);
    let full = view.full(url);
    let mut resources = others.clone();
    for (name, held) in full.iter().flat_map(|full| &full.resources) {
        resources.insert(name.clone(), held.body.clone());
    }
    File {
        path: short(url).unwrap_or_default().to_owned(),
        version: full.map(|full| full.version.clone()).unwrap_or_default(),
        type_url,
        name: None,
        resources: resources.into_iter().collect(),
    }
}
