//! Entries that keep a stored resource, and entries of a list that the server has shown.
//!
//! The server never shows secrets. A resource with secrets is therefore written as its shown form and its version,
//! under the key `unchanged`. Such an entry publishes nothing: the stored resource stays, if it has this version and
//! still looks like the entry. `get -o json` shows resources with the key `body`. Such an entry is read like a wrapped
//! resource, and keeps the stored resource if its body has secrets.

use std::borrow::Cow;

use chancery_model::{ResourceDraft, ResourceKey, ScopeName, Version};
use serde_json::Value as Json;

use crate::{
    draft,
    node::Node,
    problem::Fault,
    resource_origin::ResourceOrigin,
    sensitive::{KEY_MARK, MARK},
};

/// The key of a wrapper with the version of the stored resource to keep.
pub(crate) const KEY: &str = "unchanged";
/// The key under which `chancery_admission::body_to_json` shows fields that this release does not know.
const UNKNOWN_FIELDS: &str = "@unknown_fields";
/// The keys of a list that the server has shown, beside those of a manifest.
pub(crate) const LIST_KEYS: [&str; 7] =
    ["revision", "next", "scope", "resources", "assignments", "access", "quotas"];
/// The key of the scope of a listed resource.
pub(crate) const SCOPE: &str = "scope";
/// The keys of a listed resource that have no counterpart in a manifest.
const SHOWN_ONLY: [&str; 6] = [SCOPE, "type_url", "version", "revision", "bytes", "variant"];

/// An entry that keeps the stored resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Unchanged {
    /// The scope of the resource.
    pub scope: ScopeName,
    /// The resource without its body and its children. The labels, the aliases and the TTL are those of the entry.
    pub draft: ResourceDraft,
    /// The version that the stored resource must have.
    pub version: Version,
    /// The place of the entry.
    pub origin: ResourceOrigin,
    /// The body as the entry shows it.
    pub(crate) body: Node,
}

impl Unchanged {
    /// Returns the type and the name of the resource, as messages have them: `Secret "cert"`.
    #[must_use]
    pub fn label(&self) -> String {
        let ResourceKey { type_url, name } = &self.draft.key;
        draft::label(type_url.as_str(), Some(name.base()))
    }

    /// Returns the path of the first field in which the entry differs from the stored body, as the server shows it.
    #[must_use]
    pub fn difference(&self, shown: &Json) -> Option<String> {
        difference(&self.body, shown)
    }
}

/// Reads the version under [`KEY`].
pub(crate) fn version(node: &Node) -> Result<Version, String> {
    wanted_version(node).ok_or_else(|| {
        format!("expected a version like \"1-5e99b8ee\", as `chancery get` shows it; found {node}")
    })
}

/// Returns the version in a text.
pub(crate) fn wanted_version(node: &Node) -> Option<Version> {
    node.text().and_then(Version::parse)
}

/// Returns whether a document is a list that the server has shown: `get -o json`.
pub(crate) fn is_list(root: &Node) -> bool {
    root.get("revision").is_some() && root.get("next").is_some()
}

/// Returns the reason why a list cannot be the whole content of its scopes.
pub(crate) fn incomplete(root: &Node) -> Option<Fault> {
    let is_last = root.get("next").and_then(Node::text).is_none_or(str::is_empty);
    let rule = "the list has only a part of the resources, so pruning would delete the others; get it without a limit";
    (!is_last).then(|| Fault::new(rule).within("next"))
}

/// Returns whether an entry is a resource of a list that the server has shown.
pub(crate) fn is_listed(entry: &Node) -> bool {
    let has = |key| entry.get(key).is_some();
    has("type_url") && has("body") && !has("@type") && !has("resource")
}

/// Returns an entry as in a manifest. A listed resource becomes a wrapped one.
pub(crate) fn in_manifest(entry: &Node) -> Cow<'_, Node> {
    let (true, Node::Map(entries)) = (is_listed(entry), entry) else { return Cow::Borrowed(entry) };
    let mut wrapper: Vec<(String, Node)> = Vec::new();
    for (key, value) in entries {
        match (key.as_str(), value) {
            (_, Node::Null) => {}
            ("body", body) => {
                if let Some(version) = entry.get("version").filter(|_| is_incomplete(body)) {
                    wrapper.push((KEY.to_owned(), version.clone()));
                }
                wrapper.push(("resource".to_owned(), body.clone()));
            }
            ("ttl_ms", Node::Int(0)) => {}
            ("ttl_ms", value) => wrapper.push(("ttl".to_owned(), ttl(value))),
            (key, _) if SHOWN_ONLY.contains(&key) => {}
            (key, value) => wrapper.push((key.to_owned(), value.clone())),
        }
    }
    Cow::Owned(Node::Map(wrapper))
}

/// Returns a time in milliseconds as in a manifest. Any other value stays, and is then rejected.
fn ttl(millis: &Node) -> Node {
    match millis {
        Node::Int(millis) if *millis > 0 => {
            Node::Text(format!("{}.{:03}s", millis / 1000, millis % 1000))
        }
        other => other.clone(),
    }
}

/// Returns whether a shown body lacks something that the stored one has.
fn is_incomplete(body: &Node) -> bool {
    match body {
        Node::Text(text) => text == MARK || text.contains(KEY_MARK),
        Node::List(items) => items.iter().any(is_incomplete),
        Node::Map(entries) => entries.iter().any(|(key, value)| {
            key == UNKNOWN_FIELDS || key.contains(KEY_MARK) || is_incomplete(value)
        }),
        _ => false,
    }
}

/// Returns whether the shown form of a body lacks something that the stored body has: a secret, or a field that this
/// release does not know. A manifest then has to keep the stored resource.
#[must_use]
pub fn is_shown_in_part(body: &Json) -> bool {
    match body {
        Json::String(text) => text == MARK || text.contains(KEY_MARK),
        Json::Array(items) => items.iter().any(is_shown_in_part),
        Json::Object(fields) => fields.iter().any(|(key, value)| {
            key == UNKNOWN_FIELDS || key.contains(KEY_MARK) || is_shown_in_part(value)
        }),
        _ => false,
    }
}

/// Returns the path of the first difference; empty for the whole value.
fn difference(node: &Node, json: &Json) -> Option<String> {
    let is_equal = match (node, json) {
        (Node::Map(entries), Json::Object(fields)) => {
            for (key, value) in entries {
                let Some(field) = fields.get(key) else { return Some(key.clone()) };
                if let Some(rest) = difference(value, field) {
                    return Some(joined(key, &rest));
                }
            }
            let is_missing = |key: &&String| node.get(key).is_none();
            return fields.keys().find(is_missing).cloned();
        }
        (Node::List(items), Json::Array(values)) => {
            for (index, (item, value)) in items.iter().zip(values).enumerate() {
                if let Some(rest) = difference(item, value) {
                    return Some(joined(&format!("[{index}]"), &rest));
                }
            }
            let shorter = items.len().min(values.len());
            return (items.len() != values.len()).then(|| format!("[{shorter}]"));
        }
        (Node::Null, Json::Null) => true,
        (Node::Bool(one), Json::Bool(other)) => one == other,
        (Node::Text(one), Json::String(other)) => one == other,
        (Node::Int(one), Json::Number(other)) if other.as_i64().is_some() => {
            other.as_i64() == Some(*one)
        }
        (Node::Uint(one), Json::Number(other)) if other.as_u64().is_some() => {
            other.as_u64() == Some(*one)
        }
        (Node::Float(one), Json::Number(other)) => other.as_f64() == Some(*one),
        #[expect(clippy::cast_precision_loss, reason = "the shown number is a double")]
        (Node::Int(one), Json::Number(other)) => other.as_f64() == Some(*one as f64),
        #[expect(clippy::cast_precision_loss, reason = "the shown number is a double")]
        (Node::Uint(one), Json::Number(other)) => other.as_f64() == Some(*one as f64),
        _ => false,
    };
    (!is_equal).then(String::new)
}

fn joined(key: &str, rest: &str) -> String {
    let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{key}{dot}{rest}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chancery_model::{Expectation, Precondition, types};
    use serde_json::json;

    use super::*;
    use crate::{Admitted, Manifest, Options, Problem, Prune, admit_unless};

    fn admitted(document: &Json, prune: Prune) -> Result<Admitted, Vec<Problem>> {
        let manifest = Manifest { file: "x.json".to_owned(), content: document.to_string() };
        let scope = ScopeName::new("default").unwrap();
        let options = Options { prune, ..Options::new(scope) };
        admit_unless(&[manifest], &options, &Arc::default())
    }

    fn refusal(document: &Json) -> String {
        let problems = admitted(document, Prune::Prune).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    fn secret() -> Json {
        let key = json!({"inline_string": MARK});
        json!({"@type": types::SECRET, "name": "cert", "tls_certificate": {"private_key": key}})
    }

    #[test]
    fn entry_with_a_version_keeps_the_stored_resource() {
        let entry = json!({"unchanged": "3-5e99b8ee", "labels": {"a": "b"}, "resource": secret()});
        let admitted =
            admitted(&json!({"scope": "tls", "resources": [entry]}), Prune::Prune).unwrap();
        assert!(admitted.transaction.upserts.is_empty());
        assert_eq!(admitted.transaction.prune, [ScopeName::new("tls").unwrap()]);
        let [kept] = admitted.unchanged.as_slice() else { panic!("{:?}", admitted.unchanged) };
        assert_eq!(kept.scope.as_str(), "tls");
        assert_eq!(kept.label(), "Secret \"cert\"");
        assert_eq!(kept.draft.labels["a"], "b");
        assert_eq!(kept.version.to_string(), "3-5e99b8ee");
        let [Precondition::Resource { expectation, .. }] =
            admitted.transaction.preconditions.as_slice()
        else {
            panic!("{:?}", admitted.transaction.preconditions)
        };
        assert_eq!(*expectation, Expectation::Version(kept.version));
    }

    #[test]
    fn entry_that_was_edited_differs_at_the_edited_field() {
        let entry = json!({"unchanged": "3-5e99b8ee", "resource": secret()});
        let admitted = admitted(&json!({"resources": [entry]}), Prune::Keep).unwrap();
        let kept = &admitted.unchanged[0];
        assert_eq!(kept.difference(&secret()), None);
        let mut other = secret();
        other["tls_certificate"]["private_key"]["inline_string"] = json!("x");
        let path = "tls_certificate.private_key.inline_string";
        assert_eq!(kept.difference(&other).as_deref(), Some(path));
        let mut longer = secret();
        longer["tls_certificate"]["certificate_chain"] = json!({"filename": "/c"});
        let path = "tls_certificate.certificate_chain";
        assert_eq!(kept.difference(&longer).as_deref(), Some(path));
    }

    #[test]
    fn numbers_are_compared_by_value_and_lists_by_length() {
        let same = |node: Node, json: Json| difference(&node, &json);
        assert_eq!(same(Node::Int(3), json!(3)), None);
        assert_eq!(same(Node::Int(3), json!(3.0)), None);
        assert_eq!(same(Node::Float(0.5), json!(0.5)), None);
        assert_eq!(same(Node::Uint(u64::MAX), json!(u64::MAX)), None);
        assert_eq!(same(Node::Int(3), json!("3")).as_deref(), Some(""));
        let list = Node::List(vec![Node::Int(1), Node::Int(2)]);
        assert_eq!(same(list.clone(), json!([1, 3])).as_deref(), Some("[1]"));
        assert_eq!(same(list, json!([1])).as_deref(), Some("[1]"));
    }

    #[test]
    fn invalid_version_and_missing_name_are_reported() {
        let entry = json!({"unchanged": "three", "resource": secret()});
        let text = refusal(&json!({"resources": [entry]}));
        assert!(text.contains("unchanged: expected a version like \"1-5e99b8ee\""), "{text}");
        let nameless = json!({"unchanged": "3-5e99b8ee", "resource": {"@type": types::SECRET}});
        let text = refusal(&json!({"resources": [nameless]}));
        assert!(text.contains("needs a resource with \"@type\" and a name"), "{text}");
        let twice = json!({"unchanged": "3-5e99b8ee", "resource": secret()});
        let text = refusal(&json!({"resources": [twice.clone(), twice]}));
        assert!(text.contains("duplicate resource"), "{text}");
    }

    fn listed(scope: &str, body: &Json) -> Json {
        let type_url = body["@type"].clone();
        json!({
            "scope": scope, "type_url": type_url, "name": "cert", "version": "3-5e99b8ee", "revision": 3, "bytes": 9,
            "labels": {"a": "b"}, "ttl_ms": 1500, "aliases": ["other"], "body": body, "variant": "",
            "dynamic_parameter_constraints": null,
        })
    }

    /// The output of `get -o json` can be applied.
    #[test]
    fn listed_resources_are_read_in_their_own_scopes() {
        let plain = json!({"@type": types::SECRET, "name": "cert"});
        let list = json!({"revision": 3, "next": "", "resources": [
            listed("one", &plain), listed("two", &secret()),
        ]});
        let admitted = admitted(&list, Prune::Prune).unwrap();
        let [upsert] = admitted.transaction.upserts.as_slice() else { panic!("{admitted:?}") };
        assert_eq!(upsert.scope.as_str(), "one");
        assert_eq!(upsert.draft.ttl.map(|ttl| ttl.as_millis()), Some(1500));
        assert_eq!(upsert.draft.labels["a"], "b");
        assert_eq!(upsert.draft.aliases.len(), 1);
        assert_eq!(admitted.unchanged[0].scope.as_str(), "two");
        let scopes = ["one", "two"].map(|name| ScopeName::new(name).unwrap());
        assert_eq!(admitted.transaction.prune, scopes, "the scope \"default\" is not pruned");
    }

    #[test]
    fn page_of_a_list_is_not_pruned() {
        let page = json!({"revision": 3, "next": "abc", "resources": [listed("one", &secret())]});
        assert!(admitted(&page, Prune::Keep).is_ok());
        assert!(refusal(&page).contains("next: the list has only a part of the resources"));
    }
}
