//! The keys of a document that is a `DiscoveryResponse`, beside those of a manifest.

use std::borrow::Cow;

use chancery_model::TypeUrl;

use crate::{
    node::Node,
    problem::Fault,
    resource::{self, DISCOVERY_RESOURCE},
};

/// The keys of a `DiscoveryResponse`, in both spellings of JSON. A manifest has only the first one.
pub(crate) const KEYS: [&str; 11] = [
    "resources",
    "version_info",
    "versionInfo",
    "type_url",
    "typeUrl",
    "nonce",
    "canary",
    "control_plane",
    "controlPlane",
    "resource_errors",
    "resourceErrors",
];

/// Returns whether a document is a `DiscoveryResponse`. With `resources` alone, it is a manifest of the same form.
pub(crate) fn is_response(root: &Node) -> bool {
    KEYS[1..].iter().any(|key| root.get(key).is_some())
}

/// Returns the faults of the values that are checked: the texts.
pub(crate) fn faults(root: &Node) -> Vec<Fault> {
    let texts = ["version_info", "versionInfo", "type_url", "typeUrl", "nonce"];
    texts
        .into_iter()
        .filter_map(|key| match root.get(key) {
            None | Some(Node::Null | Node::Text(_)) => None,
            Some(other) => Some(Fault::new(format!("expected text, found {other}")).within(key)),
        })
        .collect()
}

/// Returns a resource of a response with the collection as its type, if the `type_url` of the response is a collection of
/// MCP. In MCP over xDS, the type of such a resource is that of its message.
pub(crate) fn in_collection<'n>(root: &Node, resource: &'n Node) -> Cow<'n, Node> {
    let Some(text) = type_url(root) else { return Cow::Borrowed(resource) };
    let collection = TypeUrl::new(text).ok().filter(TypeUrl::is_collection);
    let is_member =
        |url: &TypeUrl| resource.get("@type").and_then(Node::text) == Some(url.message_url());
    match (collection.filter(is_member), resource) {
        (Some(_), Node::Map(entries)) => {
            let typed = |(key, value): &(String, Node)| match key.as_str() {
                "@type" => (key.clone(), Node::Text(text.to_owned())),
                _ => (key.clone(), value.clone()),
            };
            Cow::Owned(Node::Map(entries.iter().map(typed).collect()))
        }
        _ => Cow::Borrowed(resource),
    }
}

fn type_url(root: &Node) -> Option<&str> {
    root.get("type_url").or_else(|| root.get("typeUrl"))?.text()
}

/// Returns the fault of a resource whose type is not the type of the response. Envoy rejects such a file.
pub(crate) fn type_fault(root: &Node, resource: &Node) -> Option<Fault> {
    let expected = type_url(root)?;
    let found = resource::inner(resource).get("@type")?.text()?;
    // A wrapped resource without content has a fault of its own.
    let is_other = !expected.is_empty() && ![expected, DISCOVERY_RESOURCE].contains(&found);
    is_other.then(|| {
        Fault::new(format!("is {found:?}, but the type_url of the file is {expected:?}"))
            .within("@type")
    })
}
