//! The routes and listeners that send requests to removed clusters.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use chancery_admission::for_each_cluster;
use chancery_model::{Collection, ResourceKey, ResourceName, ScopeName, State, TypeUrl, types};

/// The types whose resources send requests to clusters.
const REFERRERS: [&str; 4] =
    [types::ROUTE, types::VIRTUAL_HOST, types::SCOPED_ROUTE, types::LISTENER];
/// With at most this many names, a body is searched for the names before it is parsed.
const SEARCHED_MAX: usize = 4;

/// The resources that refer to removed clusters, in each collection that was searched.
pub(super) struct References<'a> {
    removed: &'a BTreeSet<ResourceName>,
    /// By the address of the collection: each cluster and a resource that refers to it.
    found: HashMap<usize, Vec<(ResourceName, ResourceKey)>>,
}

impl<'a> References<'a> {
    pub(super) fn new(removed: &'a BTreeSet<ResourceName>) -> Self {
        Self { removed, found: HashMap::new() }
    }

    /// Returns a visible resource that sends requests to `cluster`. The first search of a collection
    /// costs O(bytes of its resources).
    pub(super) fn find(
        &mut self,
        state: &State,
        scopes: &[ScopeName],
        cluster: &ResourceName,
    ) -> Option<ResourceKey> {
        for type_url in REFERRERS.map(TypeUrl::from_static) {
            let mut above: Vec<&Arc<Collection>> = Vec::new();
            for scope in scopes {
                let Some(layer) = state.collection(scope, &type_url) else { continue };
                let removed = self.removed;
                let address = Arc::as_ptr(layer).addr();
                let found = self.found.entry(address).or_insert_with(|| search(layer, removed));
                let is_visible = |key: &ResourceKey| {
                    !above.iter().any(|above| above.resources.contains_key(&key.name))
                };
                let referrer = found.iter().find(|(name, key)| name == cluster && is_visible(key));
                if let Some((_, key)) = referrer {
                    return Some(key.clone());
                }
                above.push(layer);
            }
        }
        None
    }
}

fn search(
    collection: &Collection,
    removed: &BTreeSet<ResourceName>,
) -> Vec<(ResourceName, ResourceKey)> {
    let mut found = Vec::new();
    for (name, resource) in &collection.resources {
        let body = resource.body();
        let few = removed.len() <= SEARCHED_MAX;
        if few && !removed.iter().any(|cluster| contains(&body, cluster.as_str().as_bytes())) {
            continue;
        }
        let mut here = BTreeSet::new();
        for_each_cluster(&collection.type_url, &body, |cluster| {
            here.extend(removed.get(cluster));
        });
        let key = || ResourceKey { type_url: collection.type_url.clone(), name: name.clone() };
        found.extend(here.into_iter().map(|cluster| (cluster.clone(), key())));
    }
    found
}

fn contains(body: &[u8], name: &[u8]) -> bool {
    !name.is_empty() && body.windows(name.len()).any(|window| window == name)
}
