//! Checks the keys of a manifest's own maps, as opposed to the fields of a resource.

use crate::{
    node::Node,
    problem::{Fault, suggestion},
};

/// Adds a fault for each key of a map that is not in `known`.
pub(crate) fn unknown_keys(node: &Node, known: &[&'static str], faults: &mut Vec<Fault>) {
    let Node::Map(entries) = node else { return };
    for (key, _) in entries.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
        let rule = match suggestion(key, known.iter().copied()) {
            Some(meant) => format!("unknown key; did you mean {meant:?}?"),
            None => format!("unknown key; known keys are {}", known.join(", ")),
        };
        faults.push(Fault::new(rule).within(key));
    }
}
