//! Resources of one transaction that a client rejects together.
//!
//! Envoy subscribes to all listeners and scopes of its view. Two listeners with one address, or two scopes with one
//! key, are rejected. So are two settings of one cache of forward proxies. Resources with structured names are requested
//! one by one, and are not compared. The contents of a collection of MCP have one type.

use std::{borrow::Cow, collections::HashMap};

use chancery_model::{ResourceDraft, ResourceKey, ScopeName, TypeUrl, is_structured, types};
use prost_reflect::DynamicMessage;

use crate::{
    collection,
    dns_caches::{DnsCache, dns_caches},
    listener_address::{ListenerAddress, listener_addresses},
    mode::{Validation, ValidationMode},
    node::named,
    problem::{Fault, Severity},
    validate::scope_keys,
};

/// The keys and collections of the resources of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    /// The name of the first resource with each key.
    keys: HashMap<(ScopeName, &'static str, String), String>,
    /// The first settings of each cache of forward proxies, and the name of its resource.
    caches: HashMap<(ScopeName, String), (DynamicMessage, String)>,
    /// The type of the first content of each collection, and the name of its resource.
    contents: HashMap<(ScopeName, TypeUrl), (String, String)>,
}

impl Conflicts {
    /// Adds the conflicts of a resource with earlier ones to its errors, or to its warnings.
    pub(crate) fn check(
        &mut self,
        (scope, draft): (&ScopeName, &ResourceDraft),
        validation: &Validation,
        errors: &mut Vec<Fault>,
        warnings: &mut Vec<Fault>,
    ) {
        let is_collection = draft.key.type_url.is_collection();
        let (mode, find): (_, fn(&mut Self, _, _) -> Vec<Fault>) = if is_collection {
            (validation.mode(scope), Self::find_content)
        } else {
            (validation.envoy_mode(scope), Self::find)
        };
        match mode {
            ValidationMode::Off => {}
            ValidationMode::Warn => warnings.extend(find(self, scope, draft)),
            ValidationMode::Enforce => errors.extend(find(self, scope, draft)),
        }
    }

    /// Finds a content of another type than the first one of the collection (MCP-16).
    fn find_content(&mut self, scope: &ScopeName, draft: &ResourceDraft) -> Vec<Fault> {
        let Ok((_, content)) = collection::name_and_type(&draft.body) else { return Vec::new() };
        let ResourceKey { type_url, name } = &draft.key;
        let new = || (content.clone(), name.to_string());
        let place = (scope.clone(), type_url.clone());
        let (expected, first) = self.contents.entry(place).or_insert_with(new);
        if *expected == content {
            return Vec::new();
        }
        let rule = format!(
            "has the type {}, but {} of the same collection has {}",
            named(&content),
            named(first),
            named(expected)
        );
        vec![Fault {
            path: "body.@type".to_owned(),
            id: "collection.content_type".into(),
            fix: "publish each type of content in a collection of its own".to_owned(),
            severity: Severity::Error,
            ..Fault::new(rule)
        }]
    }

    /// Finds a cache with other settings than the first one of its name.
    fn find_cache(&mut self, scope: &ScopeName, draft: &ResourceDraft) -> Vec<Fault> {
        let mut found = Vec::new();
        for DnsCache { path, name, settings } in dns_caches(draft) {
            let new = || (settings.clone(), draft.key.name.to_string());
            let place = (scope.clone(), name.clone());
            let (expected, first) = self.caches.entry(place).or_insert_with(new);
            if *expected != settings {
                let (name, first) = (named(&name), named(first));
                found.push(Fault {
                    path,
                    id: "dns.cache".into(),
                    fix: "give both the same settings, or different names".to_owned(),
                    severity: Severity::Error,
                    ..Fault::new(format!("the cache {name} has other settings in {first}"))
                });
            }
        }
        found
    }

    fn find(&mut self, scope: &ScopeName, draft: &ResourceDraft) -> Vec<Fault> {
        let (kind, id, keys) = match draft.key.type_url.as_str() {
            types::LISTENER => {
                let addresses = listener_addresses(&draft.key, &draft.body).into_iter();
                let keys = addresses.map(|ListenerAddress { field, text }| (field, text)).collect();
                ("address", "listener.shared_address", keys)
            }
            types::SCOPED_ROUTE => ("key", "scoped_route.shared_key", keys_of_scope(draft)),
            _ => return self.find_cache(scope, draft),
        };
        let name = draft.key.name.as_str();
        let mut found = self.find_cache(scope, draft);
        for (path, key) in keys {
            let first =
                self.keys.entry((scope.clone(), kind, key)).or_insert_with(|| name.to_owned());
            if first != name {
                found.push(Fault {
                    path: path.into_owned(),
                    id: id.into(),
                    fix: format!("give each its own {kind}, or put them into different scopes"),
                    severity: Severity::Error,
                    ..Fault::new(format!("is also the {kind} of {}", named(first)))
                });
            }
        }
        found
    }
}

/// Returns the key of a scope, unless it is requested by its name.
fn keys_of_scope(draft: &ResourceDraft) -> Vec<(Cow<'static, str>, String)> {
    let name = &draft.key.name;
    if is_structured(name.as_str()) || name.as_str().contains('?') || name.is_variant() {
        return Vec::new();
    }
    let keys = scope_keys(&draft.key.type_url, &draft.body);
    keys.into_iter().map(|key| (Cow::Borrowed("key"), key)).collect()
}
