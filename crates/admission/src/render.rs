//! Converts the bytes of a resource to JSON, for people and tools.
//!
//! The conversion never fails. Bytes that cannot be shown as fields are shown in base64, in a form that
//! manifests accept. Unknown fields are shown as `@unknown_fields`, which manifests reject. Otherwise they
//! would be lost silently.

use base64::{Engine, engine::general_purpose::STANDARD};
use chancery_model::TypeUrl;
use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage, Value};
use serde_json::{Map, Value as Json, json};

use crate::{
    time,
    wellknown::{has_own_form, is_wrapper},
};

/// The depth in messages from which an `Any` is shown as its bytes.
///
/// Admitted bodies are not as deep. Without the limit, nested `Any`s could overflow the stack, because each
/// one starts a new decoder.
const DEPTH_MAX: usize = 100;

/// Returns the canonical JSON of a resource with `@type` and with the field names of the proto files. Nested
/// `Any`s of known types are shown as fields, others as `{"@type": …, "value": <base64>}`.
#[must_use]
pub fn body_to_json(type_url: &TypeUrl, body: &[u8]) -> Json {
    any(type_url.as_str(), body, 0)
}

fn any(type_url: &str, body: &[u8], depth: usize) -> Json {
    let name = type_url.rsplit('/').next().unwrap_or(type_url);
    fields_of_any(type_url, name, body, depth)
        .unwrap_or_else(|| json!({"@type": type_url, "value": STANDARD.encode(body)}))
}

fn fields_of_any(type_url: &str, name: &str, body: &[u8], depth: usize) -> Option<Json> {
    if depth >= DEPTH_MAX || !type_url.contains('/') {
        return None;
    }
    let message = chancery_proto::envoy_pool().get_message_by_name(name)?;
    let decoded = DynamicMessage::decode(message, body).ok()?;
    let shown = to_json(&decoded, depth);
    match shown {
        Json::Object(mut fields) if !has_own_form(name) => {
            fields.insert("@type".to_owned(), type_url.into());
            Some(Json::Object(fields))
        }
        shown => Some(json!({"@type": type_url, "value": shown})),
    }
}

fn to_json(message: &DynamicMessage, depth: usize) -> Json {
    let descriptor = message.descriptor();
    let own = descriptor
        .full_name()
        .strip_prefix("google.protobuf.")
        .and_then(|name| own_form(name, &descriptor, message, depth));
    own.unwrap_or_else(|| fields(message, depth))
}

fn fields(message: &DynamicMessage, depth: usize) -> Json {
    let mut fields = Map::new();
    for (field, value) in message.fields() {
        fields.insert(field.name().to_owned(), field_value(&field.kind(), value, depth));
    }
    let mut unknown = Vec::new();
    for field in message.unknown_fields() {
        field.encode(&mut unknown);
    }
    if !unknown.is_empty() {
        fields.insert("@unknown_fields".to_owned(), STANDARD.encode(unknown).into());
    }
    Json::Object(fields)
}

fn field_value(kind: &Kind, value: &Value, depth: usize) -> Json {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::I32(value) => (*value).into(),
        Value::U32(value) => (*value).into(),
        // Text, because a double cannot represent every 64-bit integer.
        Value::I64(value) => value.to_string().into(),
        Value::U64(value) => value.to_string().into(),
        // The shortest decimal that means the same 32 bits, instead of the digits of the 64-bit value.
        Value::F32(value) => float(value.to_string().parse().unwrap_or_else(|_| (*value).into())),
        Value::F64(value) => float(*value),
        Value::String(value) => value.as_str().into(),
        Value::Bytes(value) => STANDARD.encode(value).into(),
        Value::EnumNumber(number) => match kind {
            Kind::Enum(kind) if kind.full_name() == "google.protobuf.NullValue" => Json::Null,
            Kind::Enum(kind) => match kind.get_value(*number) {
                Some(value) => value.name().into(),
                None => (*number).into(),
            },
            _ => (*number).into(),
        },
        Value::Message(message) => to_json(message, depth + 1),
        Value::List(items) => {
            Json::Array(items.iter().map(|item| field_value(kind, item, depth)).collect())
        }
        Value::Map(entries) => {
            let value_kind = match kind {
                Kind::Message(entry) if entry.is_map_entry() => {
                    entry.map_entry_value_field().kind()
                }
                other => other.clone(),
            };
            let entries = entries.iter();
            Json::Object(
                entries
                    .map(|(key, value)| (key_text(key), field_value(&value_kind, value, depth)))
                    .collect(),
            )
        }
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(value) => value.clone(),
    }
}

fn float(value: f64) -> Json {
    match serde_json::Number::from_f64(value) {
        Some(number) => Json::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

/// Returns the special JSON form of a `google.protobuf` type; `None` if the type has none, or if the form
/// cannot express the value.
fn own_form(
    name: &str,
    descriptor: &MessageDescriptor,
    message: &DynamicMessage,
    depth: usize,
) -> Option<Json> {
    let field = |number| message.get_field_by_number(number);
    match name {
        "Any" => {
            let (url, body) = (field(1)?, field(2)?);
            Some(any(url.as_str()?, body.as_bytes()?, depth + 1))
        }
        "Duration" => {
            time::print_duration(field(1)?.as_i64()?, field(2)?.as_i32()?).map(Json::from)
        }
        "Timestamp" => {
            time::print_timestamp(field(1)?.as_i64()?, field(2)?.as_i32()?).map(Json::from)
        }
        "Struct" | "ListValue" => {
            let kind = descriptor.get_field(1)?.kind();
            Some(field_value(&kind, field(1)?.as_ref(), depth))
        }
        "Value" => {
            let set = message.fields().next();
            Some(set.map_or(Json::Null, |(field, value)| field_value(&field.kind(), value, depth)))
        }
        name if is_wrapper(name) => {
            let kind = descriptor.get_field(1)?.kind();
            Some(field_value(&kind, field(1)?.as_ref(), depth))
        }
        _ => None,
    }
}
