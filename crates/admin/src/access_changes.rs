//! The access rules, tokens and quotas that a write changes, as JSON before and after it.

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::State;
use serde_json::Value;

use crate::{
    access_messages::{show_quota, show_rule, show_token},
    json::JsonMessage,
};

/// A rule, token or quota that differs.
pub(crate) struct Changed {
    /// The kind of object: `rule`, `token` or `quota`.
    pub(crate) object: &'static str,
    pub(crate) name: String,
    /// The ID of a token; empty for other objects.
    pub(crate) id: String,
    /// The fields before the write; `None` if the object did not exist.
    pub(crate) before: Option<Value>,
    /// The fields after the write; `None` if it no longer exists.
    pub(crate) after: Option<Value>,
}

/// The fields of all objects of one kind, by name and ID.
type Objects = BTreeMap<(String, String), Value>;

/// Returns the objects that differ: rules, tokens and quotas, each sorted by name.
pub(crate) fn list(before: &State, after: &State) -> Vec<Changed> {
    let is_same = before.access.changed == after.access.changed;
    let mut changed = Vec::new();
    if !is_same {
        add(&mut changed, "rule", rules(before), rules(after));
        add(&mut changed, "token", tokens(before), tokens(after));
    }
    if !Arc::ptr_eq(&before.quotas.rules, &after.quotas.rules) {
        add(&mut changed, "quota", quotas(before), quotas(after));
    }
    changed
}

fn add(out: &mut Vec<Changed>, object: &'static str, before: Objects, mut after: Objects) {
    let mut listed = BTreeMap::new();
    for (key, old) in before {
        match after.remove(&key) {
            Some(new) if new == old => {}
            new => drop(listed.insert(key, (Some(old), new))),
        }
    }
    listed.extend(after.into_iter().map(|(key, new)| (key, (None, Some(new)))));
    out.extend(listed.into_iter().map(|((name, id), (before, after))| Changed {
        object,
        name,
        id,
        before,
        after,
    }));
}

/// Returns the JSON of an object without these fields.
fn fields(object: &impl JsonMessage, without: &[&str]) -> Value {
    let mut json = object.to_json();
    if let Some(fields) = json.as_object_mut() {
        without.iter().for_each(|field| drop(fields.remove(*field)));
        // An absent value is not a field.
        fields.retain(|_, value| !is_empty(value));
    }
    json
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn rules(state: &State) -> Objects {
    let rules = state.access.rules.iter();
    let rules = rules.map(|rule| ((rule.name.to_string(), String::new()), show_rule(rule)));
    rules.map(|(key, rule)| (key, fields(&rule, &["name"]))).collect()
}

fn tokens(state: &State) -> Objects {
    let tokens = state.access.tokens.iter().map(show_token);
    let without = &["name", "id", "revision"];
    tokens.map(|token| ((token.name.clone(), token.id.clone()), fields(&token, without))).collect()
}

fn quotas(state: &State) -> Objects {
    let quotas = state.quotas.iter().map(|(quota, used)| show_quota(quota, used));
    let without = &["name", "resources", "bytes", "used_scopes"];
    quotas.map(|quota| ((quota.name.clone(), String::new()), fields(&quota, without))).collect()
}
