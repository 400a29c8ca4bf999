//! Clusters, secrets, endpoints and route tables to which nothing refers.

use chancery_admission::cluster_choice;
use chancery_model::{
    Collection, Resource, ResourceKey, ScopeName,
    types::{CLUSTER, ENDPOINT, EXTENSION, FILTER_CHAIN, LISTENER, ROUTE, SECRET, VIRTUAL_HOST},
};

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::references::{ReferenceIndex, label, names_of};

/// The types whose resources clients use only if another resource refers to them.
const TYPES: [&str; 4] = [CLUSTER, ENDPOINT, ROUTE, SECRET];

/// The types whose resources may select clusters.
const SELECTORS: [&str; 5] = [LISTENER, FILTER_CHAIN, ROUTE, VIRTUAL_HOST, EXTENSION];

const FIX: &str = "delete it, unless the bootstrap of the nodes refers to it";

const UNUSED: Rule = Rule { id: "resource.unused", severity: Severity::Warning, fix: FIX };

/// A resource to which nothing refers, but that may be in use.
const USE_UNKNOWN: Rule = Rule { id: "resource.use_unknown", severity: Severity::Info, fix: FIX };

/// Finds the resources that nothing uses. `index` is that of the whole state.
pub(super) fn find(world: &World, index: &ReferenceIndex, findings: &mut Findings) {
    for collection in world.collections().filter(|one| TYPES.contains(&one.type_url.as_str())) {
        let Collection { scope, type_url, .. } = collection;
        // Computed for the first cluster of the scope that needs it.
        let mut chooser: Option<Option<String>> = None;
        for (name, resource) in &collection.resources {
            let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
            let Err(elsewhere) = use_of(world, index, scope, &key, resource) else { continue };
            let doubt = if index.is_partial() {
                Some("this replica lacks the key of some sealed resources".to_owned())
            } else if type_url.as_str() == CLUSTER {
                chooser.get_or_insert_with(|| chooser_in_views_of(world, scope)).clone()
            } else {
                None
            };
            let finding = match doubt {
                None => UNUSED.of_resource(scope, &key, format!("nothing refers to it{elsewhere}")),
                Some(doubt) => {
                    let text = format!("nothing is known to refer to it, but {doubt}{elsewhere}");
                    USE_UNKNOWN.of_resource(scope, &key, text)
                }
            };
            findings.add(finding);
        }
    }
}

/// Succeeds if a resource of a view with the scope refers to a resource. Otherwise, returns the end of a sentence about
/// a resource of another view that does.
fn use_of(
    world: &World,
    index: &ReferenceIndex,
    scope: &ScopeName,
    key: &ResourceKey,
    resource: &Resource,
) -> Result<(), String> {
    let mut elsewhere = String::new();
    for name in names_of(key).iter().chain(resource.aliases()) {
        for (origin, referrer) in index.referrers(&key.type_url, name.as_str()) {
            if origin.scope == *scope && referrer == *key {
                continue;
            }
            if world.may_share_view(scope, &origin.scope) {
                return Ok(());
            }
            if elsewhere.is_empty() && world.may_name(&origin.scope, &referrer) {
                let (referrer, there) = (label(&referrer), &origin.scope);
                elsewhere =
                    format!("; {referrer} in scope {there:?} does, but no node has both scopes");
            }
        }
    }
    Err(elsewhere)
}

/// Returns a phrase about a resource that selects clusters by something else than their names, in a view with the
/// scope; `None` if no resource does so.
fn chooser_in_views_of(world: &World, scope: &ScopeName) -> Option<String> {
    for (other, content) in &world.whole().scopes {
        let collections = content.types.values();
        for collection in collections.filter(|one| SELECTORS.contains(&one.type_url.as_str())) {
            if collection.resources.is_empty() || !world.may_share_view(scope, other) {
                continue;
            }
            for (name, resource) in &collection.resources {
                let type_url = collection.type_url.clone();
                let key = ResourceKey { type_url, name: name.clone() };
                let body = resource.body().unwrap_or_default();
                if let Some(by) = cluster_choice(&key, &body) {
                    let who = if world.may_name(other, &key) {
                        format!("{} in scope {other:?}", label(&key))
                    } else {
                        "a resource of another scope".to_owned()
                    };
                    return Some(format!("{by} selects clusters in {who}"));
                }
            }
        }
    }
    None
}
