//! Resources of one transaction that a client rejects together.
//!
//! Envoy subscribes to all listeners and scopes of its view. Two listeners with one address, or two scopes with one
//! key, are rejected. Resources with structured names are requested one by one, and are not compared.

use std::collections::HashMap;

use chancery_model::{ResourceDraft, ScopeName, is_structured, types};

use crate::{
    node::named,
    problem::{Fault, Severity},
    validate::shared_keys,
};

/// The keys that the resources of a transaction occupy, each with the name of the first resource.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(HashMap<(ScopeName, &'static str, String), String>);

impl Conflicts {
    /// Returns the conflicts of a resource with earlier ones.
    pub(crate) fn find(&mut self, scope: &ScopeName, draft: &ResourceDraft) -> Vec<Fault> {
        let (kind, path, id) = match draft.key.type_url.as_str() {
            types::LISTENER => ("address", "address", "listener.shared_address"),
            types::SCOPED_ROUTE => ("key", "key", "scoped_route.shared_key"),
            _ => return Vec::new(),
        };
        let name = draft.key.name.as_str();
        // A name with a query is requested by a server for itself.
        if is_structured(name) || name.contains('?') || draft.key.name.is_variant() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for key in shared_keys(&draft.key.type_url, &draft.body) {
            let first = self.0.entry((scope.clone(), kind, key)).or_insert_with(|| name.to_owned());
            if first != name {
                found.push(Fault {
                    path: path.to_owned(),
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
