//! The values of a layer of Envoy's runtime.

use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};

use crate::{
    node::named,
    validate::{findings::Findings, tree::Message},
};

/// A layer has numbers, texts, booleans, and objects of them.
pub(super) fn layer<'m>(runtime: &'m Message<'_>, findings: &mut Findings<'m>) {
    let layer = Struct::decode(runtime.bytes("layer")).unwrap_or_default();
    if let Some(path) = unreadable(&layer) {
        findings.field("layer", |findings| {
            let rule = format!(
                "has null or a list as {}, but a runtime has only numbers, texts and booleans",
                named(&path)
            );
            findings.refuse("runtime.value", rule);
        });
    }
}

/// Returns the name of the first value that Envoy cannot read, with dots between the names of objects.
fn unreadable(object: &Struct) -> Option<String> {
    object.fields.iter().find_map(|(name, Value { kind })| match kind {
        Some(Kind::NumberValue(_) | Kind::StringValue(_) | Kind::BoolValue(_)) => None,
        Some(Kind::StructValue(inner)) if is_fraction(inner) => None,
        Some(Kind::StructValue(inner)) => unreadable(inner).map(|path| format!("{name}.{path}")),
        Some(Kind::NullValue(_) | Kind::ListValue(_)) | None => Some(name.clone()),
    })
}

/// Returns whether an object is a fractional percent. Envoy reads no other fields of it.
fn is_fraction(object: &Struct) -> bool {
    ["numerator", "denominator"].iter().any(|field| object.fields.contains_key(*field))
}
