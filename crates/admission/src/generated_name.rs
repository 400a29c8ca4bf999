//! Names of resources whose author gave none.
//!
//! Envoy accepts a listener without a name in its bootstrap. A control plane needs one to update the listener.
//! The name is made of the address, so that the same file updates the same listener again. An author may also
//! give a name outside of the file, for the only resource without one.

use std::borrow::Cow;

use chancery_model::types;

use crate::{
    node::{Node, named},
    problem::{Fault, Place, Problem, Report, Severity},
    resource,
};

/// The name for the only resource of an input without a name, if the author gave one.
#[derive(Debug)]
pub(crate) struct OnlyName<'a> {
    name: Option<&'a str>,
    /// The problems of the resources without a name, if there are several.
    unnamed: Report,
    n_unnamed: usize,
}

impl<'a> OnlyName<'a> {
    pub(crate) fn new(name: Option<&'a str>) -> Self {
        Self { name, unnamed: Report::default(), n_unnamed: 0 }
    }

    /// Returns the entry with a name, and a note on a name that was generated.
    pub(crate) fn complete<'n, 'p>(
        &mut self,
        entry: &'n Node,
        place: impl FnOnce() -> Place<'p>,
    ) -> (Cow<'n, Node>, Option<Fault>) {
        if let Some(name) = self.name
            && let Some(field) = resource::absent_name(entry)
        {
            self.n_unnamed += 1;
            self.unnamed.add(place().problem(field, ""));
            if self.n_unnamed == 1 {
                return (Cow::Owned(with_name(entry, field, name)), None);
            }
        }
        complete(entry)
    }

    /// Reports that the name is not for exactly one resource. `report` is that of the whole input.
    pub(crate) fn finish(&mut self, report: &mut Report) {
        let Some(name) = self.name else { return };
        let rule = match self.n_unnamed {
            1 => return,
            0 => format!(
                "the name {name:?} is for one resource without a name, but all resources have names"
            ),
            n => format!(
                "the name {name:?} is for one resource without a name, but the input has {n}"
            ),
        };
        if self.n_unnamed == 0 {
            return report.add(Problem { rule, ..Problem::default() });
        }
        for place in std::mem::take(&mut self.unnamed).into_problems() {
            report.add(Problem { rule: rule.clone(), ..place });
        }
    }
}

/// Returns an entry whose resource has a name in a field of its body.
fn with_name(entry: &Node, field: &str, name: &str) -> Node {
    let inner = resource::inner(entry);
    let named = with(inner, field, Node::Text(name.to_owned()));
    if std::ptr::eq(inner, entry) { named } else { with(entry, "resource", named) }
}

/// Returns the entry with a name, and the name that was generated. Only a listener without a name and
/// with an address gets one.
fn complete(entry: &Node) -> (Cow<'_, Node>, Option<Fault>) {
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

/// Returns a map with another value of a key, in place of both spellings of the key.
fn with(node: &Node, key: &str, value: Node) -> Node {
    let Node::Map(entries) = node else { return node.clone() };
    let json_name = key.replace('_', "");
    let is_same = |other: &str| other == key || other.eq_ignore_ascii_case(&json_name);
    let mut entries: Vec<_> =
        entries.iter().filter(|(other, _)| !is_same(other)).cloned().collect();
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
