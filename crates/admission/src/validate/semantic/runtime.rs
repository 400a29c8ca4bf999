//! The values of a layer of Envoy's runtime.

use crate::validate::{findings::Findings, tree::Message};

/// The kinds of values that Envoy reads. The fields of an object are read like those of the layer.
const KINDS: [&str; 3] = ["number_value", "string_value", "bool_value"];

/// A layer has numbers, texts, booleans, and objects of them.
pub(super) fn layer<'m>(runtime: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Some(layer) = runtime.message("layer") {
        findings.field("layer", |findings| values(layer, findings));
    }
}

fn values<'m>(parent: &'m Message<'_>, findings: &mut Findings<'m>) {
    for entry in parent.messages("fields") {
        let Some(value) = entry.message("value") else { continue };
        findings.key(entry.text("key"), |findings| match value.message("struct_value") {
            Some(inner) if is_fraction(inner) => {}
            Some(inner) => values(inner, findings),
            None if KINDS.iter().any(|kind| value.has(kind)) => {}
            None => {
                let rule = "is null or a list, but the runtime has only numbers, texts and booleans";
                findings.refuse("runtime.value", rule);
            }
        });
    }
}

/// Returns whether an object is a fractional percent. Envoy reads no other fields of it.
fn is_fraction(object: &Message<'_>) -> bool {
    object.messages("fields").any(|entry| ["numerator", "denominator"].contains(&entry.text("key")))
}
