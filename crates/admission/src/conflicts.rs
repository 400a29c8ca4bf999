//! Resources of one transaction that a client rejects together.
//!
//! Envoy subscribes to all listeners and scopes of its view. Two listeners with one address, or two scopes with one
//! key, are rejected. Resources with structured names are requested one by one, and are not compared.

use std::{borrow::Cow, collections::HashMap};

use chancery_model::{ResourceDraft, ScopeName, is_structured, types};

use crate::{
    listener_address::{ListenerAddress, listener_addresses},
    mode::{Validation, ValidationMode},
    node::named,
    problem::{Fault, Severity},
    validate::scope_keys,
};

/// The keys that the resources of a transaction occupy, each with the name of the first resource.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(HashMap<(ScopeName, &'static str, String), String>);

impl Conflicts {
    /// Adds the conflicts of a resource with earlier ones to its errors, or to its warnings.
    pub(crate) fn check(
        &mut self,
        (scope, draft): (&ScopeName, &ResourceDraft),
        validation: &Validation,
        errors: &mut Vec<Fault>,
        warnings: &mut Vec<Fault>,
    ) {
        match validation.envoy_mode(scope) {
            ValidationMode::Off => {}
            ValidationMode::Warn => warnings.extend(self.find(scope, draft)),
            ValidationMode::Enforce => errors.extend(self.find(scope, draft)),
        }
    }

    fn find(&mut self, scope: &ScopeName, draft: &ResourceDraft) -> Vec<Fault> {
        let (kind, id, keys) = match draft.key.type_url.as_str() {
            types::LISTENER => {
                let addresses = listener_addresses(&draft.key, &draft.body).into_iter();
                let keys = addresses.map(|ListenerAddress { field, text }| (field, text)).collect();
                ("address", "listener.shared_address", keys)
            }
            types::SCOPED_ROUTE => ("key", "scoped_route.shared_key", keys_of_scope(draft)),
            _ => return Vec::new(),
        };
        let name = draft.key.name.as_str();
        let mut found = Vec::new();
        for (path, key) in keys {
            let first = self.0.entry((scope.clone(), kind, key)).or_insert_with(|| name.to_owned());
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
