//! The resources of the walk, and what a client that follows references has to hold.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chancery_admission::{Manifest, Options, admit, draft_from_body};
use chancery_model::{ScopeName, TypeUrl, types};
use serde_json::{Value, json};

/// A type and a name.
pub(super) type Key = (&'static str, String);
/// The bodies of resources.
pub(super) type Held = BTreeMap<Key, Bytes>;

/// The types of the walk.
pub(super) const TYPES: [&str; 5] =
    [types::CLUSTER, types::ENDPOINT, types::LISTENER, types::ROUTE, types::RUNTIME];
/// The types that clients request by name. Of the others, they request everything.
pub(super) const NAMED: [&str; 3] = [types::ENDPOINT, types::ROUTE, types::RUNTIME];
/// The names of resources of every type.
pub(super) const NAMES: [&str; 5] = ["n0", "n1", "n2", "n3", "n4"];
/// The text in content that clients reject.
const BAD: &str = "bad";
/// The start and the end of a mark.
const MARK: (&str, char) = ("mark", '.');

/// The content of a published resource.
#[derive(Debug, Clone)]
pub(super) struct Published {
    /// A text that no other content has.
    pub(super) mark: String,
    /// The name of the endpoints of a cluster, or of the routes of a listener.
    pub(super) refers: Option<String>,
}

impl Published {
    pub(super) fn new(number: u64, is_bad: bool, refers: Option<&str>) -> Self {
        let (start, end) = MARK;
        let bad = if is_bad { BAD } else { "" };
        Self { mark: format!("{start}{number}{bad}{end}"), refers: refers.map(str::to_owned) }
    }

    pub(super) fn is_bad(&self) -> bool {
        self.mark.contains(BAD)
    }
}

/// Returns whether a client rejects a body.
pub(super) fn is_bad(body: &[u8]) -> bool {
    body.windows(BAD.len()).any(|part| part == BAD.as_bytes())
}

/// Returns the mark in a body, for messages.
pub(super) fn mark(body: Option<&Bytes>) -> String {
    let Some(body) = body else { return "nothing".to_owned() };
    let text = String::from_utf8_lossy(body);
    let mark = text.split_once(MARK.0).and_then(|(_, rest)| rest.split_once(MARK.1));
    mark.map_or_else(|| format!("{body:?}"), |(mark, _)| format!("content {mark}"))
}

/// Returns the name of a type in files and messages.
pub(super) fn short(type_url: &str) -> &'static str {
    match type_url {
        types::CLUSTER => "cds",
        types::ENDPOINT => "eds",
        types::LISTENER => "lds",
        types::ROUTE => "rds",
        _ => "rtds",
    }
}

pub(super) fn is_named(type_url: &str) -> bool {
    NAMED.contains(&type_url)
}

pub(super) fn type_of(url: &str) -> &'static str {
    TYPES.into_iter().find(|it| *it == url).unwrap_or_else(|| panic!("unexpected type {url}"))
}

/// Returns the manifest of the published resources.
pub(super) fn manifest(content: &BTreeMap<Key, Published>) -> Value {
    let resources: Vec<Value> = content.iter().map(|(key, it)| resource(key, it)).collect();
    json!({"scope": "default", "resources": resources})
}

fn resource((type_url, name): &Key, Published { mark, refers }: &Published) -> Value {
    let source = json!({"ads": {}, "resource_api_version": "V3"});
    let mut it = json!({"@type": type_url, "name": name});
    match *type_url {
        types::CLUSTER => {
            it["alt_stat_name"] = json!(mark);
            if let Some(endpoints) = refers {
                it["type"] = json!("EDS");
                it["eds_cluster_config"] = json!({"eds_config": source, "service_name": endpoints});
            }
        }
        types::ENDPOINT => {
            it = json!({"@type": type_url, "cluster_name": name, "endpoints": [{"locality": {"region": mark}}]});
        }
        types::LISTENER => {
            it["stat_prefix"] = json!(mark);
            it["api_listener"] = json!({});
            if let Some(route) = refers {
                let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                               HttpConnectionManager";
                it["filter_chains"] = json!([{"filters": [{"name": "hcm", "typed_config": {"@type": manager,
                    "stat_prefix": "x", "rds": {"route_config_name": route, "config_source": source}}}]}]);
            }
        }
        types::ROUTE => it["virtual_hosts"] = json!([{"name": mark, "domains": ["*"]}]),
        _ => it["layer"] = json!({"mark": mark}),
    }
    it
}

/// Returns the resources of a manifest as the server stores them.
pub(super) fn admitted(manifest: &Manifest) -> Result<Held, String> {
    let options = Options::new(ScopeName::new("default").unwrap());
    let transaction = admit(std::slice::from_ref(manifest), &options)
        .map_err(|problems| format!("{problems:?}"))?;
    let drafts = transaction.upserts.into_iter().map(|upsert| upsert.draft);
    Ok(drafts
        .map(|it| ((type_of(it.key.type_url.as_str()), it.key.name.as_str().to_owned()), it.body))
        .collect())
}

/// Returns the resources of a JSON manifest as the server stores them.
pub(super) fn admitted_json(json: &Value) -> Held {
    let manifest = Manifest { file: "walk.json".to_owned(), content: json.to_string() };
    admitted(&manifest).unwrap()
}

/// Returns the names of a type that a client wants. These are the names to which its resources refer, and
/// for runtime layers the names that the test's client always requests.
pub(super) fn wanted(
    held: &Held,
    included: &BTreeSet<String>,
    type_url: &'static str,
) -> BTreeSet<String> {
    if type_url == types::RUNTIME {
        return included.clone();
    }
    let children = held.iter().flat_map(|((of, name), body)| {
        let draft = draft_from_body(&TypeUrl::from_static(of), Some(name), body.clone());
        draft.map(|draft| draft.children).unwrap_or_default()
    });
    let names = children.filter(|key| key.type_url.as_str() == type_url);
    names.map(|key| key.name.as_str().to_owned()).collect()
}

/// Returns the resources that a client wants.
pub(super) fn followed(held: &Held, included: &BTreeSet<String>) -> Held {
    let by_type = NAMED.map(|type_url| (type_url, wanted(held, included, type_url)));
    let is_wanted = |(type_url, name): &Key| {
        let names = by_type.iter().find(|(of, _)| of == type_url);
        names.is_none_or(|(_, names)| names.contains(name))
    };
    let kept = held.iter().filter(|(key, _)| is_wanted(key));
    kept.map(|(key, body)| (key.clone(), body.clone())).collect()
}

/// Describes how the resources of a client differ from the expected ones; `None` if they are equal.
pub(super) fn difference(found: &Held, expected: &Held) -> Option<String> {
    let keys: BTreeSet<&Key> = found.keys().chain(expected.keys()).collect();
    let different = keys.into_iter().filter(|key| found.get(*key) != expected.get(*key));
    let lines: Vec<String> = different
        .map(|key| {
            let (has, should) = (mark(found.get(key)), mark(expected.get(key)));
            format!("  {}/{}: holds {has}, expected {should}", short(key.0), key.1)
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
