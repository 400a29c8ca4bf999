//! The changes that a write made, for its author.

use std::{
    collections::{BTreeMap, BTreeSet},
    ptr,
};

use chancery_admin_proto::v1 as pb;
use chancery_diff::{Difference, Edit, Path, diff, unified, words};
use chancery_model::{Applied, Assignment, Change, ChangeKind, Resource, State};
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
/// The maximum number of lines of an answer, and of one of its changes.
const LINES_MAX: usize = 10_000;
const LINES_OF_CHANGE_MAX: usize = 1000;

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
    list_first(CHANGES_MAX, before, (&applied.state, &applied.changes), effect, response)
}

/// Returns all changes from one state to another. `changes` are those of resources.
pub(crate) fn list_all(before: &State, after: &State, changes: &[Change]) -> pb::WriteResponse {
    let response = pb::WriteResponse::default();
    list_first(usize::MAX, before, (after, changes), Effect::DryRun, response)
}

/// Adds the first `max` changes of each kind to the answer, with the number of omitted changes.
fn list_first(
    max: usize,
    before: &State,
    (state, changes): (&State, &[Change]),
    effect: Effect,
    response: pb::WriteResponse,
) -> pb::WriteResponse {
    let mut lines_left = LINES_MAX;
    let mut assignments =
        list_assignments(&before.assignments.rules, &state.assignments.rules, &mut lines_left);
    let mut access = access_changes::list(before, state);
    let n_changes = changes.len() + assignments.len() + access.len();
    assignments.truncate(max);
    access.truncate(max);
    let access: Vec<pb::AccessChange> =
        access.into_iter().map(|changed| show_access(changed, &mut lines_left)).collect();
    let listed = changes.iter().take(max);
    let listed: Vec<pb::Change> =
        listed.map(|change| show(before, change, effect, &mut lines_left)).collect();
    pb::WriteResponse {
        changes_omitted: (n_changes - listed.len() - assignments.len() - access.len()) as u64,
        changes: listed,
        assignment_changes: assignments,
        access_changes: access,
        ..response
    }
}

/// Returns the assignments that differ, sorted by name.
fn list_assignments(
    before: &[Assignment],
    after: &[Assignment],
    lines_left: &mut usize,
) -> Vec<pb::AssignmentChange> {
    if ptr::eq(before, after) {
        return Vec::new();
    }
    let by_name = |rules: &[Assignment]| -> BTreeMap<_, _> {
        rules.iter().map(|rule| (rule.name.clone(), rule.clone())).collect()
    };
    let (old, new) = (by_name(before), by_name(after));
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let changed = names.into_iter().filter_map(|name| {
        let shown = |rule: Option<&Assignment>| Some(show_assignment(rule?).to_json());
        let (old, new) = (old.get(name), new.get(name));
        if old == new {
            return None;
        }
        let kind = kind_of(old, new);
        let text = differing([(shown(old), shown(new))], lines_left);
        Some(pb::AssignmentChange {
            name: name.to_string(),
            kind: kind.to_owned(),
            differences: if kind == "updated" { text.differences } else { Vec::new() },
            differences_omitted: text.omitted,
            unified: text.unified,
            unified_lines_omitted: text.lines_omitted,
        })
    });
    changed.collect()
}

/// Returns the word for the change of an object beside the resources.
fn kind_of<T>(before: Option<T>, after: Option<T>) -> &'static str {
    match (before, after) {
        (None, _) => "added",
        (Some(_), None) => "deleted",
        (Some(_), Some(_)) => "updated",
    }
}

fn show_access(changed: Changed, lines_left: &mut usize) -> pb::AccessChange {
    let Changed { object, name, id, before, after } = changed;
    let kind = kind_of(before.as_ref(), after.as_ref());
    // All fields of an object that is added or deleted differ.
    let fields = |side: Option<Value>| Some(side.unwrap_or_else(|| Value::Object(Map::new())));
    let text = differing([(fields(before), fields(after))], lines_left);
    pb::AccessChange {
        object: object.to_owned(),
        name,
        id,
        kind: kind.to_owned(),
        differences: text.differences,
        differences_omitted: text.omitted,
        unified: text.unified,
        unified_lines_omitted: text.lines_omitted,
    }
}

fn show(before: &State, change: &Change, effect: Effect, lines_left: &mut usize) -> pb::Change {
    let version = change.resource.as_ref().map(|resource| resource.version().to_string());
    let text = match effect {
        Effect::DryRun => resource_text(before, change, lines_left),
        Effect::Committed => Differing::default(),
    };
    pb::Change {
        scope: change.scope.to_string(),
        type_url: change.key.type_url.to_string(),
        name: change.key.name.base().to_owned(),
        kind: kind(change.kind).to_owned(),
        version: version.filter(|_| effect == Effect::Committed).unwrap_or_default(),
        differences: text.differences,
        variant: resources::variant_text(&change.key.name),
        differences_omitted: text.omitted,
        unified: text.unified,
        unified_lines_omitted: text.lines_omitted,
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

/// Differences for programs and for people.
#[derive(Debug, Default)]
struct Differing {
    differences: Vec<pb::FieldDifference>,
    omitted: u64,
    /// The lines, each after its sign.
    unified: String,
    lines_omitted: u64,
}

/// Returns the differences between a resource before and after, with redacted secrets.
fn resource_text(before: &State, change: &Change, lines_left: &mut usize) -> Differing {
    let (old, new) = (before.get(&change.scope, &change.key), change.resource.as_ref());
    if [old, new].into_iter().flatten().any(|resource| !resource.is_opened()) {
        let side = |resource: &Resource| {
            let len = resource.body_len();
            let sealed =
                if resource.is_opened() { "" } else { ", sealed; this replica cannot open them" };
            format!("{len} bytes{sealed}")
        };
        return body_only(old.map(|old| side(old)), new.map(|new| side(new)));
    }
    let (old_body, old_rest) = shown(change, old.map(|old| &**old)).unzip();
    let (new_body, new_rest) = shown(change, new.map(|new| &**new)).unzip();
    let mut text = differing([(old_body, new_body), (old_rest, new_rest)], lines_left);
    if let (Some(old), Some(new)) = (old, new) {
        if text.differences.is_empty() && old.body() != new.body() {
            // The difference is in a secret, or in an encoding with the same meaning.
            let (old, new) = (old.body_len(), new.body_len());
            let after = format!("{new} bytes, with different content");
            return body_only(Some(format!("{old} bytes")), Some(after));
        }
    } else {
        // The lines show all of a resource that is added or removed.
        text.differences = Vec::new();
        text.omitted = 0;
    }
    text
}

/// Returns a difference between two bodies whose content is not shown.
fn body_only(before: Option<String>, after: Option<String>) -> Differing {
    let lines = [("-", &before), ("+", &after)].into_iter();
    let lines =
        lines.filter_map(|(sign, side)| Some(format!("{sign} body: ({})\n", side.as_ref()?)));
    let unified = lines.collect();
    let differences = match (before, after) {
        (Some(before), Some(after)) => {
            let kind = Edit::Changed(&Value::Null, &Value::Null).kind().to_owned();
            vec![pb::FieldDifference { path: "body".to_owned(), before, after, kind }]
        }
        _ => Vec::new(),
    };
    Differing { differences, unified, ..Differing::default() }
}

/// Returns the body of a resource and its other fields, as they are shown.
fn shown(change: &Change, resource: Option<&Resource>) -> Option<(Value, Value)> {
    let type_url = &change.key.type_url;
    let shown = resources::show(&change.scope, type_url, resource?, resources::Body::Shown);
    let mut json = shown.to_json();
    let mut kept = Map::new();
    for key in ["labels", "aliases", "ttl_ms"] {
        let value = json[key].take();
        let is_empty = value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty)
            || value == 0;
        if !is_empty {
            kept.insert(key.to_owned(), value);
        }
    }
    Some((json["body"].take(), Value::Object(kept)))
}

/// Returns the differences between the parts of an object, each before and after.
fn differing<const N: usize>(
    parts: [(Option<Value>, Option<Value>); N],
    lines_left: &mut usize,
) -> Differing {
    let mut found = Vec::new();
    for (before, after) in &parts {
        match (before, after) {
            (Some(before), Some(after)) => found.extend(diff(before, after)),
            (None, Some(new)) if !is_empty(new) => found.push(whole(Edit::Added(new))),
            (Some(old), None) if !is_empty(old) => found.push(whole(Edit::Removed(old))),
            _ => {}
        }
    }
    let lines = unified(&found, LINES_OF_CHANGE_MAX.min(*lines_left));
    *lines_left -= lines.lines.len();
    Differing {
        omitted: found.len().saturating_sub(DIFFERENCES_MAX) as u64,
        differences: found.iter().take(DIFFERENCES_MAX).map(show_difference).collect(),
        unified: lines.lines.iter().map(|line| format!("{line}\n")).collect(),
        lines_omitted: lines.omitted as u64,
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

fn whole(edit: Edit<'_>) -> Difference<'_> {
    Difference::new(Path::default(), edit)
}

fn show_difference(difference: &Difference<'_>) -> pb::FieldDifference {
    let (before, after) = match difference.edit {
        Edit::Added(new) => (String::new(), new.to_string()),
        Edit::Removed(old) => (old.to_string(), String::new()),
        Edit::Changed(Value::String(old), Value::String(new)) => {
            let (old, new) = words(old, new);
            (Value::from(old).to_string(), Value::from(new).to_string())
        }
        Edit::Changed(old, new) => (old.to_string(), new.to_string()),
        Edit::Moved { from, to } => (from.to_string(), to.to_string()),
    };
    pb::FieldDifference {
        path: difference.path.to_string(),
        before: short(before),
        after: short(after),
        kind: difference.edit.kind().to_owned(),
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
    fn differences_and_lines_are_bounded_with_true_counts() {
        let value = |first: u32| Some(json!({"a": (first..first + 2000).collect::<Vec<_>>()}));
        let mut lines_left = LINES_MAX;
        let text = differing([(value(0), value(1000))], &mut lines_left);
        assert_eq!((text.differences.len(), text.omitted), (DIFFERENCES_MAX, 1900));
        assert_eq!(text.unified.lines().count(), LINES_OF_CHANGE_MAX);
        assert_eq!((text.lines_omitted, lines_left), (1001, LINES_MAX - LINES_OF_CHANGE_MAX));
        lines_left = 2;
        let text = differing([(None, value(0))], &mut lines_left);
        assert_eq!((text.unified.lines().count(), lines_left), (2, 0));
        assert_eq!(short("é".repeat(1000)).len(), VALUE_BYTES_MAX + "…".len());
    }
}
