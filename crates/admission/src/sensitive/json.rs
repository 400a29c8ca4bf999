//! Secrets in JSON: `google.protobuf.Struct`, and `TypedStruct`, which holds a message as a `Struct`.
//!
//! The fields of a known message decide, as in the message itself. Elsewhere the keys decide.

use prost::Message;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use prost_types::{Struct, Value, value::Kind as Json};

use super::values::{Secrecy, Values};
use crate::{
    credentials,
    wire::{Malformed, Raw, Reader, put_len},
};

/// The meaning of a part of JSON.
#[derive(Clone)]
enum Shape {
    Message(MessageDescriptor),
    /// A map with such values.
    Map(Box<Shape>),
    Unknown,
}

impl Shape {
    /// Returns the shape of the values of a field.
    fn of(field: &FieldDescriptor) -> Self {
        match field.kind() {
            Kind::Message(entry) if entry.is_map_entry() && has_messages(&entry) => {
                Self::Map(Box::new(Self::of(&entry.map_entry_value_field())))
            }
            Kind::Message(inner) if !inner.is_map_entry() => Self::of_message(inner),
            _ => Self::Unknown,
        }
    }

    fn of_message(message: MessageDescriptor) -> Self {
        if credentials::is_json(&message) { Self::Unknown } else { Self::Message(message) }
    }

    fn of_type(type_url: Option<&str>) -> Self {
        type_url.and_then(credentials::message_of).map_or(Self::Unknown, Self::of_message)
    }
}

fn has_messages(entry: &MessageDescriptor) -> bool {
    matches!(entry.map_entry_value_field().kind(), Kind::Message(_))
}

/// Returns the replacement for a message that is JSON or contains it.
pub(super) fn message(
    values: &mut Values<'_>,
    message: &MessageDescriptor,
    body: &[u8],
    secrecy: Secrecy,
) -> Result<Option<Vec<u8>>, Malformed> {
    const INVALID: Malformed = "not JSON";
    if credentials::is_typed_struct(message) {
        return typed_struct(values, body, secrecy);
    }
    if message.full_name() == credentials::STRUCT {
        let mut json = Struct::decode(body).map_err(|_| INVALID)?;
        let is_changed = entries(values, &mut json, &Shape::Unknown, secrecy);
        return Ok(is_changed.then(|| json.encode_to_vec()));
    }
    let mut json = Value::decode(body).map_err(|_| INVALID)?;
    Ok(part(values, &mut json, &Shape::Unknown, secrecy).then(|| json.encode_to_vec()))
}

fn typed_struct(
    values: &mut Values<'_>,
    body: &[u8],
    secrecy: Secrecy,
) -> Result<Option<Vec<u8>>, Malformed> {
    let (mut type_url, mut json) = ([].as_slice(), Struct::default());
    let mut reader = Reader(body);
    while let Some((number, raw)) = reader.next()? {
        match (number, raw) {
            (1, Raw::Len(bytes)) => type_url = bytes,
            (2, Raw::Len(bytes)) => {
                json.merge(bytes).map_err(|_| "a TypedStruct without JSON")?;
            }
            _ => {}
        }
    }
    let shape = Shape::of_type(std::str::from_utf8(type_url).ok());
    let is_changed = entries(values, &mut json, &shape, secrecy);
    Ok(is_changed.then(|| {
        let mut out = Vec::new();
        put_len(&mut out, 1, type_url);
        put_len(&mut out, 2, &json.encode_to_vec());
        out
    }))
}

/// Replaces the secrets of a map. Returns whether there were any.
fn entries(values: &mut Values<'_>, json: &mut Struct, shape: &Shape, secrecy: Secrecy) -> bool {
    let text = |name: &str| match json.fields.get(name).and_then(|value| value.kind.as_ref()) {
        Some(Json::StringValue(text)) => Some(text.clone()),
        _ => None,
    };
    let message = match shape {
        Shape::Message(message) if message.full_name() == credentials::ANY => {
            match Shape::of_type(text("@type").as_deref()) {
                Shape::Message(inner) => Some(inner),
                _ => None,
            }
        }
        Shape::Message(message) => Some(message.clone()),
        _ => None,
    };
    // A `TypedStruct` inside JSON names the message in its `value`.
    let inner = message
        .as_ref()
        .filter(|message| credentials::is_typed_struct(message))
        .map(|_| Shape::of_type(text("type_url").or_else(|| text("typeUrl")).as_deref()));
    let named = message.as_ref().filter(|message| credentials::has_named_value(message));
    let name_field = named.and_then(|message| message.get_field(1));
    let is_credential = name_field
        .as_ref()
        .and_then(|field| text(field.name()))
        .is_some_and(|name| credentials::names_credential(&name));
    let mut is_changed = false;
    for (key, value) in &mut json.fields {
        let field = message.as_ref().and_then(|message| {
            message.get_field_by_name(key).or_else(|| message.get_field_by_json_name(key))
        });
        let secrecy = match &field {
            _ if key == "@type" => Secrecy::ByField,
            // The name of a file or an environment variable is not secret.
            _ if ["filename", "environment_variable", "environmentVariable"]
                .contains(&key.as_str()) =>
            {
                Secrecy::ByField
            }
            Some(field) if name_field.as_ref() == Some(field) => Secrecy::ByField,
            Some(field) if is_credential || credentials::is(field) => Secrecy::Inherited,
            None if !matches!(shape, Shape::Map(_)) && credentials::names_credential(key) => {
                Secrecy::Inherited
            }
            _ => secrecy,
        };
        let shape = match (shape, field) {
            (_, Some(field)) if field.number() == 2 && inner.is_some() => {
                inner.clone().unwrap_or(Shape::Unknown)
            }
            (Shape::Map(values), _) => (**values).clone(),
            (_, Some(field)) => Shape::of(&field),
            (_, None) => Shape::Unknown,
        };
        is_changed |= part(values, value, &shape, secrecy);
    }
    let is_key = |key: &&String| chancery_model::has_private_key(key.as_bytes());
    let keys: Vec<String> = if values.has_key() {
        json.fields.keys().filter(is_key).cloned().collect()
    } else {
        Vec::new()
    };
    for key in keys {
        if let Some(mark) = values.replacement(key.as_bytes(), Secrecy::ByField)
            && let Some(value) = json.fields.remove(&key)
        {
            json.fields.insert(mark.to_owned(), value);
            is_changed = true;
        }
    }
    is_changed
}

/// Replaces the secrets of a value. Returns whether there were any.
fn part(values: &mut Values<'_>, json: &mut Value, shape: &Shape, secrecy: Secrecy) -> bool {
    let mark = match &mut json.kind {
        Some(Json::StructValue(json)) => return entries(values, json, shape, secrecy),
        Some(Json::ListValue(list)) => {
            let mut is_changed = false;
            for value in &mut list.values {
                is_changed |= part(values, value, shape, secrecy);
            }
            return is_changed;
        }
        Some(Json::StringValue(text)) => values.replacement(text.as_bytes(), secrecy),
        // A password of digits is a number if it is not quoted.
        Some(Json::NumberValue(number)) if secrecy == Secrecy::Inherited => {
            values.replacement(number.to_string().as_bytes(), secrecy)
        }
        _ => None,
    };
    if let Some(mark) = mark {
        json.kind = Some(Json::StringValue(mark.to_owned()));
    }
    mark.is_some()
}
