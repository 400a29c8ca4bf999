//! Names of listeners whose author gave none.
//!
//! Envoy accepts a listener without a name in its bootstrap. A control plane needs one to update the listener.
//! The name is made of the address, so that the same file updates the same listener again.

use std::borrow::Cow;

use chancery_model::types;

use crate::{
    node::{Node, named},
    problem::{Fault, Severity},
    resource,
};

/// Returns the entry with a name, and the name that was generated. Only a listener without a name and
/// with an address gets one.
pub(crate) fn complete(entry: &Node) -> (Cow<'_, Node>, Option<Fault>) {
    let inner = resource::inner(entry);
    let is_listener = inner.get("@type").and_then(Node::text) == Some(types::LISTENER);
    let has_name = inner.get("name").is_some_and(|name| name.text() != Some(""));
    if !is_listener || has_name {
        return (Cow::Borrowed(entry), None);
    }
    let is_wrapped = !std::ptr::eq(inner, entry);
    let given = entry.get("name").and_then(Node::text).filter(|_| is_wrapped);
    let Some(name) = given.map(ToOwned::to_owned).or_else(|| of_address(inner)) else {
        return (Cow::Borrowed(entry), None);
    };
    let note = Fault {
        id: "listener.generated_name".into(),
        fix: "give the listener a name of your own to choose another one".to_owned(),
        severity: Severity::Warning,
        ..Fault::new(format!("has no name; it is stored as {}", named(&name)))
    };
    let complete = with(inner, "name", Node::Text(name));
    let complete = if is_wrapped { with(entry, "resource", complete) } else { complete };
    (Cow::Owned(complete), Some(note))
}

/// Returns a map with another value of a key.
fn with(node: &Node, key: &str, value: Node) -> Node {
    let Node::Map(entries) = node else { return node.clone() };
    let mut entries: Vec<_> = entries.iter().filter(|(other, _)| other != key).cloned().collect();
    entries.push((key.to_owned(), value));
    Node::Map(entries)
}

/// Returns `listener_127.0.0.1_8080` for a listener on this address.
fn of_address(listener: &Node) -> Option<String> {
    let either =
        |node: &'_ Node, names: [&str; 2]| names.iter().find_map(|name| node.get(name)).cloned();
    let address = listener.get("address")?;
    if let Some(path) = address.get("pipe").and_then(|pipe| pipe.get("path")) {
        return path.text().map(|path| format!("listener_{path}"));
    }
    let socket = either(address, ["socket_address", "socketAddress"])?;
    let ip = socket.get("address")?.text()?.to_owned();
    match either(&socket, ["port_value", "portValue"])? {
        Node::Int(port) => Some(format!("listener_{ip}_{port}")),
        Node::Text(port) => Some(format!("listener_{ip}_{port}")),
        _ => None,
    }
}
