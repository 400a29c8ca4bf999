//! Imports the static resources of an Envoy bootstrap into a scope.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
};

use chancery_model::{ResourceDraft, ScopeName, types};

use crate::{
    draft,
    node::{Node, Spare},
    problem::{Fault, Place, Problem, Report},
    resource,
    source::{self, Stack},
};

/// The lists of `Bootstrap.StaticResources`, each with the type of its resources.
const LISTS: [(&str, &str); 3] =
    [("clusters", types::CLUSTER), ("listeners", types::LISTENER), ("secrets", types::SECRET)];

/// Returns the listeners, clusters and secrets in the `static_resources` of an Envoy bootstrap.
///
/// Ignores the rest of the bootstrap. If the caller sets `stop`, returns a problem soon after.
///
/// # Errors
/// If the bootstrap has no static resources, or one of them is invalid as in a manifest.
pub fn import_bootstrap(
    file: &str,
    content: &str,
    scope: &ScopeName,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<(ScopeName, ResourceDraft)>, Vec<Problem>> {
    let mut report = Report::default();
    let mut drafts = Vec::new();
    let place = Place { file, ..Place::default() };
    let mut spare = Spare::for_input(1, content.len(), stop);
    let mut documents = source::documents(file, content, &mut spare, Stack::Usual);
    match (documents.pop(), documents.len()) {
        (Some(Ok(document)), 0) => {
            static_resources(&place, &document.root, &mut drafts, &mut report);
        }
        (Some(Err(problem)), 0) => report.add(problem),
        (last, others) => {
            let n = others + usize::from(last.is_some());
            report.add(place.problem("", format!("a bootstrap is one document, found {n}")));
        }
    }
    report.finish(drafts.into_iter().map(|draft| (scope.clone(), draft)).collect())
}

fn static_resources(
    place: &Place<'_>,
    root: &Node,
    drafts: &mut Vec<ResourceDraft>,
    report: &mut Report,
) {
    let found = root.get("static_resources").or_else(|| root.get("staticResources"));
    let Some(Node::Map(lists)) = found else {
        let rule = match found {
            None => "there are no static_resources: this is not an Envoy bootstrap".to_owned(),
            Some(other) => format!("expected a map, found {other}"),
        };
        return report.add(place.problem("static_resources", rule));
    };
    let mut keys = HashSet::new();
    for (key, node) in lists {
        let path = format!("static_resources.{key}");
        let Some((_, type_url)) = LISTS.iter().find(|(list, _)| list == key) else {
            let rule = "unknown key; known keys are clusters, listeners, secrets";
            report.add(place.problem(&path, rule));
            continue;
        };
        let Node::List(items) = node else {
            if !node.is_null() {
                report.add(place.problem(&path, format!("expected a list, found {node}")));
            }
            continue;
        };
        for (index, item) in items.iter().enumerate() {
            if report.is_full() {
                return;
            }
            let name = item.get("name").and_then(Node::text);
            let resource = Some(format!("{path}[{index}] {}", draft::label(type_url, name)));
            let place = Place { resource, ..place.clone() };
            match read(item, type_url) {
                Err(faults) => report.add_faults(&place, faults),
                Ok(draft) if !keys.insert(draft.key.clone()) => {
                    report.add(place.problem("", "duplicate resource"));
                }
                Ok(draft) => drafts.push(draft),
            }
        }
    }
}

fn read(item: &Node, type_url: &str) -> Result<ResourceDraft, Vec<Fault>> {
    let Node::Map(fields) = item else {
        return Err(vec![Fault::new(format!("expected a map, found {item}"))]);
    };
    if item.get("@type").is_some() {
        return Err(vec![Fault::new("a bootstrap has no such key").within("@type")]);
    }
    let mut fields = fields.clone();
    fields.push(("@type".to_owned(), Node::Text(type_url.to_owned())));
    resource::read(&Node::Map(fields)).map(|entry| entry.draft)
}
