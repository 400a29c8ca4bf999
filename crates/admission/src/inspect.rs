//! Parses encoded messages without building them, and shows their values to a visitor.
//!
//! The parser checks the same as a reader of the declared type (SVC-23): wire types, lengths, UTF-8 and
//! depth, also inside `Any`s of known types. It skips unknown fields. The content of an `Any` of an unknown type must
//! be an encoded message.

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use crate::{
    node::named,
    problem::Fault,
    wire::{self, Raw, Reader},
};

/// The depth at which protobuf readers stop.
pub(crate) const DEPTH_MAX: usize = 100;

/// Returns the rule that too deep messages violate.
pub(crate) fn too_deep() -> String {
    format!("nested deeper than {DEPTH_MAX} messages")
}

/// A value for a visitor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(u64),
}

/// Receives every string and every unpacked varint of a message, in the order of the bytes.
pub(crate) trait Visitor {
    /// Receives a value of `field` of `message`. The depth of the resource itself is 0.
    fn value(
        &mut self,
        message: &MessageDescriptor,
        field: &FieldDescriptor,
        depth: usize,
        value: Value<'_>,
    );
}

impl Visitor for () {
    fn value(&mut self, _: &MessageDescriptor, _: &FieldDescriptor, _: usize, _: Value<'_>) {}
}

/// Checks that `body` parses as `message`.
pub(crate) fn check(message: &MessageDescriptor, body: &[u8]) -> Result<(), Fault> {
    walk(message, body, &mut ())
}

/// Parses `body` as `message`, and shows its values to `visitor`.
pub(crate) fn walk(
    message: &MessageDescriptor,
    body: &[u8],
    visitor: &mut dyn Visitor,
) -> Result<(), Fault> {
    walk_message(message, body, 0, visitor)
}

fn walk_message(
    message: &MessageDescriptor,
    body: &[u8],
    depth: usize,
    visitor: &mut dyn Visitor,
) -> Result<(), Fault> {
    if depth >= DEPTH_MAX {
        return Err(Fault::new(too_deep()));
    }
    let is_any = message.full_name() == "google.protobuf.Any";
    let (mut type_url, mut payload) = ("", [].as_slice());
    let mut reader = Reader(body);
    while let Some((number, raw)) = reader.next().map_err(Fault::new)? {
        let Some(field) = message.get_field(number) else { continue };
        walk_field(message, &field, raw, depth, visitor)
            .map_err(|fault| fault.within(field.name()))?;
        match (is_any, number, raw) {
            (true, 1, Raw::Len(bytes)) => type_url = text(bytes)?,
            (true, 2, Raw::Len(bytes)) => payload = bytes,
            _ => {}
        }
    }
    if !is_any {
        return Ok(());
    }
    if type_url.is_empty() && !payload.is_empty() {
        return Err(Fault::new("has a value, but no type").within("type_url"));
    }
    if type_url.is_empty() {
        return Ok(());
    }
    let pool = message.parent_pool();
    let name = message_name(pool, type_url).map_err(|rule| Fault::new(rule).within("type_url"))?;
    match pool.get_message_by_name(name) {
        Some(inner) => walk_message(&inner, payload, depth + 1, visitor),
        None => check_unknown(payload).map_err(|fault| fault.within("value")),
    }
}

/// Returns the name of the message in the type URL of an `Any`: the text after the last `/`. Envoy unpacks no `Any` without
/// a `/` in its type URL.
pub(crate) fn message_name<'u>(
    pool: &DescriptorPool,
    type_url: &'u str,
) -> Result<&'u str, String> {
    match type_url.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() => Ok(name),
        _ if pool.get_message_by_name(type_url).is_some() => Err(format!(
            "{} is not a type URL; did you mean \"type.googleapis.com/{type_url}\"?",
            named(type_url)
        )),
        _ => Err(format!("{} is not a type URL", named(type_url))),
    }
}

/// Checks that `body` is an encoded message, whose type is unknown. Clients that know the type cannot decode other
/// bytes. istiod deletes the resource that such a body replaces.
pub(crate) fn check_unknown(body: &[u8]) -> Result<(), Fault> {
    let not_encoded = |reason| Fault::new(format!("is not an encoded message: {reason}"));
    wire::check(body).map_err(not_encoded)
}

fn text(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::new("a string is not valid UTF-8"))
}

fn walk_field(
    message: &MessageDescriptor,
    field: &FieldDescriptor,
    raw: Raw<'_>,
    depth: usize,
    visitor: &mut dyn Visitor,
) -> Result<(), Fault> {
    let kind = field.kind();
    match (&kind, raw) {
        (Kind::Message(inner), Raw::Len(bytes)) => walk_message(inner, bytes, depth + 1, visitor),
        (Kind::String, Raw::Len(bytes)) => {
            visitor.value(message, field, depth, Value::Text(text(bytes)?));
            Ok(())
        }
        (Kind::Bytes, Raw::Len(_))
        | (Kind::Double | Kind::Fixed64 | Kind::Sfixed64, Raw::Fixed64(_))
        | (Kind::Float | Kind::Fixed32 | Kind::Sfixed32, Raw::Fixed32(_)) => Ok(()),
        (kind, Raw::Varint(value)) if is_varint(kind) => {
            visitor.value(message, field, depth, Value::Number(value));
            Ok(())
        }
        (kind, Raw::Len(bytes)) if field.is_list() => packed(kind, bytes),
        _ => Err(Fault::new("the wire type does not match the field")),
    }
}

fn is_varint(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Bool
            | Kind::Enum(_)
            | Kind::Int32
            | Kind::Int64
            | Kind::Sint32
            | Kind::Sint64
            | Kind::Uint32
            | Kind::Uint64
    )
}

fn packed(kind: &Kind, bytes: &[u8]) -> Result<(), Fault> {
    let mut reader = Reader(bytes);
    while !reader.0.is_empty() {
        match kind {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => reader.skip::<8>(),
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => reader.skip::<4>(),
            kind if is_varint(kind) => reader.varint().map(drop),
            _ => Err("the wire type does not match the field"),
        }
        .map_err(Fault::new)?;
    }
    Ok(())
}
