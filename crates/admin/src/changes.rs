//! The changes that a write made, for its author.

use std::collections::BTreeMap;

use chancery_admin_proto::v1 as pb;
use chancery_model::{Applied, Assignment, Change, ChangeKind, State};
use serde_json::{Map, Value};

use crate::{
    access_changes::{self, Changed},
    cluster::show_assignment,
    json::JsonMessage,
    resources,
};

/// The maximum number of changes in an answer.
const CHANGES_MAX: usize = 1000;
/// The maximum number of differences of one resource.
const DIFFERENCES_MAX: usize = 100;
/// The maximum length of one value in a difference, in bytes.
const VALUE_BYTES_MAX: usize = 1000;

/// Whether the changes are in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The changes are in effect, and their versions are known.
    Committed,
    /// The changes are hypothetical. The differences are shown field by field.
    DryRun,
}

/// Adds the changes of a transaction to the answer, with the number of omitted changes. The
/// transaction was applied to `before`.
pub(crate) fn list(
    before: &State,
    applied: &Applied,
    effect: Effect,
    response: pb::WriteResponse,
) -> pb::WriteResponse {
    let Applied { state, changes, .. } = applied;
    let listed: Vec<pb::Change> =
        changes.iter().take(CHANGES_MAX).map(|change| show(before, change, effect)).collect();
    let mut assignments = list_assignments(&before.assignments.rules, &state.assignments.rules);
    let mut access = access_changes::list(before, state);
    let n_changes = changes.len() + assignments.len() + access.len();
    assignments.truncate(CHANGES_MAX);
    access.truncate(CHANGES_MAX);
    pb::WriteResponse {
        changes_omitted: (n_changes - listed.len() - assignments.len() - access.len()) as u64,
        changes: listed,
        assignment_changes: assignments,
        access_changes: access.into_iter().map(show_access).collect(),
        ..response
    }
}

/// Returns the assignments that differ, sorted by name.
fn list_assignments(before: &[Assignment], after: &[Assignment]) -> Vec<pb::AssignmentChange> {
    let by_name = |rules: &[Assignment]| -> BTreeMap<_, _> {
        rules.iter().map(|rule| (rule.name.clone(), rule.clone())).collect()
    };
    let (old, mut new) = (by_name(before), by_name(after));
    let mut listed = BTreeMap::new();
    for (name, old) in old {
        let change = match new.remove(&name) {
            Some(new) if new == old => continue,
            Some(new) => {
                let mut differences = Vec::new();
                let (old, new) = (show_assignment(&old).to_json(), show_assignment(&new).to_json());
                diff("", Some(&old), Some(&new), &mut differences);
                ("updated", differences)
            }
            None => ("deleted", Vec::new()),
        };
        listed.insert(name, change);
    }
    listed.extend(new.into_keys().map(|name| (name, ("added", Vec::new()))));
    let listed = listed.into_iter().map(|(name, (kind, differences))| pb::AssignmentChange {
        name: name.to_string(),
        kind: kind.to_owned(),
        differences,
    });
    listed.collect()
}

fn show_access(changed: Changed) -> pb::AccessChange {
    let Changed { object, name, id, before, after } = changed;
    let kind = match (&before, &after) {
        (None, _) => "added",
        (Some(_), None) => "deleted",
        (Some(_), Some(_)) => "updated",
    };
    // All fields of an object that is added or deleted differ.
    let fields = |side: Option<Value>| side.unwrap_or_else(|| Value::Object(Map::new()));
    let mut differences = Vec::new();
    diff("", Some(&fields(before)), Some(&fields(after)), &mut differences);
    pb::AccessChange { object: object.to_owned(), name, id, kind: kind.to_owned(), differences }
}

fn show(before: &State, change: &Change, effect: Effect) -> pb::Change {
    let version = change.resource.as_ref().map(|resource| resource.version().to_string());
    let differences = match (effect, change.kind) {
        (Effect::DryRun, ChangeKind::Updated | ChangeKind::Relabeled) => {
            differences(before, change)
        }
        _ => Vec::new(),
    };
    pb::Change {
        scope: change.scope.to_string(),
        type_url: change.key.type_url.to_string(),
        name: change.key.name.base().to_owned(),
        kind: kind(change.kind).to_owned(),
        version: version.filter(|_| effect == Effect::Committed).unwrap_or_default(),
        differences,
        variant: resources::variant_text(&change.key.name),
    }
}

fn kind(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Updated => "updated",
        ChangeKind::Relabeled => "relabeled",
        ChangeKind::Resealed => "resealed",
        ChangeKind::Removed => "removed",
    }
}

/// Returns the differences between a resource before and after, with redacted secrets.
fn differences(before: &State, change: &Change) -> Vec<pb::FieldDifference> {
    let (Some(old), Some(new)) = (before.get(&change.scope, &change.key), &change.resource) else {
        return Vec::new();
    };
    let shown = |resource| {
        let type_url = &change.key.type_url;
        let shown = resources::show(&change.scope, type_url, resource, resources::Body::Shown);
        let mut json = shown.to_json();
        let mut kept = Map::new();
        for key in ["labels", "aliases", "ttl_ms"] {
            kept.insert(key.to_owned(), json[key].take());
        }
        (json["body"].take(), Value::Object(kept))
    };
    if !old.is_opened() || !new.is_opened() {
        let before = format!("{} bytes, sealed; this replica cannot open them", old.body_len());
        let after = format!("{} bytes", new.body_len());
        return vec![pb::FieldDifference { path: "body".to_owned(), before, after }];
    }
    let ((old_body, old_rest), (new_body, new_rest)) = (shown(old), shown(new));
    let mut out = Vec::new();
    diff("", Some(&old_body), Some(&new_body), &mut out);
    diff("", Some(&old_rest), Some(&new_rest), &mut out);
    if out.is_empty() && old.body() != new.body() {
        // The difference is in a secret, or in an encoding with the same meaning.
        out.push(pb::FieldDifference {
            path: "body".to_owned(),
            before: format!("{} bytes", old.body_len()),
            after: format!("{} bytes, with different content", new.body_len()),
        });
    }
    out.truncate(DIFFERENCES_MAX);
    out
}

/// Adds the leaves at which `before` and `after` differ. Admission limits the depth of the JSON.
fn diff(
    path: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    out: &mut Vec<pb::FieldDifference>,
) {
    if before == after || out.len() >= DIFFERENCES_MAX {
        return;
    }
    match (before, after) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let dot = if path.is_empty() { "" } else { "." };
                diff(&format!("{path}{dot}{key}"), old.get(key), new.get(key), out);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            for index in 0..old.len().max(new.len()) {
                diff(&format!("{path}[{index}]"), old.get(index), new.get(index), out);
            }
        }
        _ => {
            let text = |value: Option<&Value>| match value {
                Some(value) => short(value.to_string()),
                None => String::new(),
            };
            let (before, after) = (text(before), text(after));
            out.push(pb::FieldDifference { path: path.to_owned(), before, after });
        }
    }
}

fn short(mut text: String) -> String {
    if text.len() > VALUE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(VALUE_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_is_shown_at_the_changed_field() {
        let before = json!({"a": {"b": [1, {"c": 2}]}, "gone": true, "same": 1});
        let after = json!({"a": {"b": [1, {"c": 3}, 4]}, "new": "x", "same": 1});
        let mut out = Vec::new();
        diff("", Some(&before), Some(&after), &mut out);
        let lines: Vec<String> =
            out.iter().map(|d| format!("{}: {} -> {}", d.path, d.before, d.after)).collect();
        assert_eq!(
            lines,
            ["a.b[1].c: 2 -> 3", "a.b[2]:  -> 4", "gone: true -> ", "new:  -> \"x\""]
        );
    }

    #[test]
    fn the_list_of_differences_is_bounded() {
        let before: Vec<u32> = (0..1000).collect();
        let after: Vec<u32> = (1..1001).collect();
        let mut out = Vec::new();
        diff("", Some(&json!(before)), Some(&json!(after)), &mut out);
        assert_eq!(out.len(), DIFFERENCES_MAX);
        assert_eq!(short("é".repeat(1000)).len(), VALUE_BYTES_MAX + "…".len());
    }
}
