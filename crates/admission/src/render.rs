//! Converts the bytes of a resource to JSON, for people and tools.
//!
//! The conversion never fails. Bytes that cannot be shown as fields are shown in base64, in a form that
//! manifests accept. Unknown fields are shown as `@unknown_fields`, which manifests reject. Otherwise they
//! would be lost silently.

use std::{collections::HashMap, sync::LazyLock};

use base64::{Engine, engine::general_purpose::STANDARD};
use chancery_model::{TypeUrl, types::RUNTIME};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use serde_json::{Map, Value as Json, json};

use crate::{
    collection,
    scalar::from_float,
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
    Renderer::default().any(type_url.as_str(), body, 0)
}

/// Returns the same for a YAML file that Envoy reads.
///
/// # Errors
/// Returns the first number that Envoy would read as text. In a runtime layer, a number and its text are the same.
pub(crate) fn body_to_yaml(type_url: &TypeUrl, body: &[u8]) -> Result<Json, f64> {
    let mut renderer = Renderer::default();
    let json = renderer.any(type_url.as_str(), body, 0);
    match renderer.text_in_yaml {
        Some(number) if type_url.as_str() != RUNTIME => Err(number),
        _ => Ok(json),
    }
}

/// Returns the canonical JSON of a resource with `@type`, as every parser of proto3 JSON reads it (REST-02).
///
/// # Errors
/// Returns the reason if the JSON would not be canonical or would lose something: a type without a
/// descriptor (REST-05), an unknown field, or malformed bytes.
pub fn canonical_json(type_url: &TypeUrl, body: &[u8]) -> Result<Json, String> {
    let mut renderer = Renderer::default();
    let json = renderer.any(type_url.as_str(), body, 0);
    match renderer.problem {
        Some(problem) => Err(problem),
        None => Ok(json),
    }
}

/// A conversion of one body.
#[derive(Default)]
struct Renderer {
    /// The first part that canonical JSON cannot express.
    problem: Option<String>,
    /// The first number of a `google.protobuf.Value` that Envoy reads as text from YAML.
    text_in_yaml: Option<f64>,
}

impl Renderer {
    fn lose(&mut self, problem: impl FnOnce() -> String) {
        self.problem.get_or_insert_with(problem);
    }

    fn any(&mut self, type_url: &str, body: &[u8], depth: usize) -> Json {
        let name = type_url.rsplit('/').next().unwrap_or(type_url);
        if let Some(fields) = self.fields_of_any(type_url, name, body, depth) {
            return fields;
        }
        let has_descriptor = chancery_proto::envoy_pool().get_message_by_name(name).is_some();
        self.lose(|| {
            if has_descriptor {
                format!("the bytes of a {name} are malformed or nested too deep")
            } else {
                format!("there is no descriptor of the type {type_url:?}")
            }
        });
        json!({"@type": type_url, "value": STANDARD.encode(body)})
    }

    fn fields_of_any(
        &mut self,
        type_url: &str,
        name: &str,
        body: &[u8],
        depth: usize,
    ) -> Option<Json> {
        if depth >= DEPTH_MAX || !type_url.contains('/') {
            return None;
        }
        let in_collection = (depth == 0).then(|| collection::message(type_url)).flatten();
        let known = || chancery_proto::envoy_pool().get_message_by_name(name);
        let decoded_as = in_collection.or_else(known)?;
        let decoded = DynamicMessage::decode(decoded_as, body).ok()?;
        let shown = self.message(&decoded, depth);
        match shown {
            Json::Object(mut fields) if !has_own_form(name) => {
                fields.insert("@type".to_owned(), type_url.into());
                Some(Json::Object(fields))
            }
            shown => Some(json!({"@type": type_url, "value": shown})),
        }
    }

    fn message(&mut self, message: &DynamicMessage, depth: usize) -> Json {
        let descriptor = message.descriptor();
        let own = descriptor
            .full_name()
            .strip_prefix("google.protobuf.")
            .and_then(|name| self.own_form(name, &descriptor, message, depth));
        own.unwrap_or_else(|| {
            let name = descriptor.full_name();
            if has_own_form(name) && name != "google.protobuf.Empty" {
                self.lose(|| format!("a value of a {name} has no JSON form"));
            }
            self.fields(message, depth)
        })
    }

    fn fields(&mut self, message: &DynamicMessage, depth: usize) -> Json {
        let mut fields = Map::new();
        for (field, value) in message.fields() {
            fields.insert(field.name().to_owned(), self.field_value(&field.kind(), value, depth));
        }
        for field in numbers_without_presence(message.descriptor().full_name()) {
            if let Some(zero) = minus_zero(message, field) {
                fields.insert(field.name().to_owned(), zero.into());
            }
        }
        self.unknown_fields(message, &mut fields);
        Json::Object(fields)
    }

    /// Adds the fields that the descriptor does not have.
    fn unknown_fields(&mut self, message: &DynamicMessage, fields: &mut Map<String, Json>) {
        let mut unknown = Vec::new();
        for field in message.unknown_fields() {
            field.encode(&mut unknown);
        }
        if !unknown.is_empty() {
            let descriptor = message.descriptor();
            self.lose(|| {
                format!(
                    "a {} has a field that its descriptor does not have",
                    descriptor.full_name()
                )
            });
            fields.insert("@unknown_fields".to_owned(), STANDARD.encode(unknown).into());
        }
    }

    fn field_value(&mut self, kind: &Kind, value: &Value, depth: usize) -> Json {
        match value {
            Value::Bool(value) => (*value).into(),
            Value::I32(value) => (*value).into(),
            Value::U32(value) => (*value).into(),
            // Text, because a double cannot represent every 64-bit integer.
            Value::I64(value) => value.to_string().into(),
            Value::U64(value) => value.to_string().into(),
            // The shortest decimal that means the same 32 bits, instead of the digits of the 64-bit value.
            Value::F32(value) => {
                float(value.to_string().parse().unwrap_or_else(|_| (*value).into()))
            }
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
            Value::Message(message) => self.message(message, depth + 1),
            Value::List(items) => {
                Json::Array(items.iter().map(|item| self.field_value(kind, item, depth)).collect())
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
                        .map(|(key, value)| {
                            (key_text(key), self.field_value(&value_kind, value, depth))
                        })
                        .collect(),
                )
            }
        }
    }

    /// Returns the special JSON form of a `google.protobuf` type; `None` if the type has none, or if the form
    /// cannot express the value.
    fn own_form(
        &mut self,
        name: &str,
        descriptor: &MessageDescriptor,
        message: &DynamicMessage,
        depth: usize,
    ) -> Option<Json> {
        let field = |number| message.get_field_by_number(number);
        match name {
            "Any" => {
                let (url, body) = (field(1)?, field(2)?);
                let (url, body) = (url.as_str()?, body.as_bytes()?);
                let is_empty = url.is_empty() && body.is_empty();
                let mut shown = if is_empty { json!({}) } else { self.any(url, body, depth + 1) };
                self.unknown_fields(message, shown.as_object_mut()?);
                Some(shown)
            }
            _ if message.unknown_fields().next().is_some() => None,
            "Duration" => {
                time::print_duration(field(1)?.as_i64()?, field(2)?.as_i32()?).map(Json::from)
            }
            "Timestamp" => {
                time::print_timestamp(field(1)?.as_i64()?, field(2)?.as_i32()?).map(Json::from)
            }
            "Struct" | "ListValue" => {
                let kind = descriptor.get_field(1)?.kind();
                Some(self.field_value(&kind, field(1)?.as_ref(), depth))
            }
            "Value" => {
                let set = message.fields().next();
                if let Some((_, Value::F64(number))) = &set
                    && !is_number_in_yaml(*number)
                {
                    self.text_in_yaml.get_or_insert(*number);
                }
                Some(set.map_or(Json::Null, |(field, value)| {
                    self.field_value(&field.kind(), value, depth)
                }))
            }
            name if is_wrapper(name) => {
                let kind = descriptor.get_field(1)?.kind();
                Some(self.field_value(&kind, field(1)?.as_ref(), depth))
            }
            _ => None,
        }
    }
}

/// Returns whether Envoy 1.40 reads a number of a `google.protobuf.Value` as a number from YAML. It reads integers of 32
/// bits, and all other numbers as text.
fn is_number_in_yaml(number: f64) -> bool {
    let is_minus_zero = number == 0.0 && number.is_sign_negative();
    let range = f64::from(i32::MIN)..=f64::from(i32::MAX);
    number.fract() == 0.0 && range.contains(&number) && !is_minus_zero
}

/// Returns minus zero if a field has this value. `DynamicMessage::fields` omits the field, because minus zero equals
/// the default value.
fn minus_zero(message: &DynamicMessage, field: &FieldDescriptor) -> Option<f64> {
    let value = match *message.get_field(field) {
        Value::F32(value) => value.into(),
        Value::F64(value) => value,
        _ => return None,
    };
    (value == 0.0 && value.is_sign_negative()).then_some(value)
}

/// Returns the floating-point fields of a message that have no presence. Few messages have such fields, so they are
/// computed once.
fn numbers_without_presence(message: &str) -> &'static [FieldDescriptor] {
    static FIELDS: LazyLock<HashMap<String, Vec<FieldDescriptor>>> = LazyLock::new(|| {
        let is_number = |field: &FieldDescriptor| {
            matches!(field.kind(), Kind::Float | Kind::Double)
                && !field.is_list()
                && !field.supports_presence()
        };
        let all = chancery_proto::envoy_pool().all_messages();
        let with_fields = all.map(|one| {
            let fields: Vec<_> = one.fields().filter(is_number).collect();
            (one.full_name().to_owned(), fields)
        });
        with_fields.filter(|(_, fields)| !fields.is_empty()).collect()
    });
    FIELDS.get(message).map_or(&[], Vec::as_slice)
}

/// Returns a key of a map as text, without quotes.
pub(crate) fn key_text(key: &MapKey) -> String {
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
    // Without a point, as Envoy writes it. YAML with a point could mean text (`yaml_scalars`).
    let is_minus_zero = value == 0.0 && value.is_sign_negative();
    if let Some(whole) = from_float(value).filter(|_| !is_minus_zero)
        && let Ok(whole) = i64::try_from(whole)
    {
        return whole.into();
    }
    match serde_json::Number::from_f64(value) {
        Some(number) => Json::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::types::CLUSTER;
    use prost_reflect::DynamicMessage;

    use super::*;

    fn encode(json: &Json) -> (TypeUrl, Bytes) {
        let any = chancery_proto::envoy_pool().get_message_by_name("google.protobuf.Any").unwrap();
        let any = DynamicMessage::deserialize(any, json).unwrap();
        let url = any.get_field_by_name("type_url").unwrap().as_str().unwrap().to_owned();
        let body = any.get_field_by_name("value").unwrap().as_bytes().unwrap().clone();
        (TypeUrl::new(&url).unwrap(), body)
    }

    /// REST-02, REST-04: canonical JSON reads back as the same bytes, and hides no secret.
    #[test]
    fn canonical_json_reads_back_as_the_same_message() {
        let cluster = json!({
            "@type": CLUSTER,
            "name": "web",
            "connect_timeout": "1.500s",
            "per_connection_buffer_limit_bytes": 7,
            "metadata": {"filter_metadata": {"a": {"b": [1.5, null, true, {"c": "d"}]}}},
            "transport_socket": {
                "name": "tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "common_tls_context": {"tls_certificates": [
                        {"private_key": {"inline_string": "hunter2"}},
                    ]},
                },
            },
        });
        let (type_url, body) = encode(&cluster);
        let json = canonical_json(&type_url, &body).unwrap();
        assert!(json.to_string().contains("hunter2"), "{json}");
        assert_eq!(encode(&json), (type_url, body));
    }

    /// REST-05: what canonical JSON cannot express is an error that names it.
    #[test]
    fn what_has_no_canonical_json_is_named() {
        let type_url = TypeUrl::from_static(CLUSTER);
        let error = |body: &[u8]| canonical_json(&type_url, body).unwrap_err();
        let own = TypeUrl::from_static("type.googleapis.com/example.Own");
        let text = canonical_json(&own, b"").unwrap_err();
        assert_eq!(text, "there is no descriptor of the type \"type.googleapis.com/example.Own\"");
        assert!(error(b"\xff").contains("malformed"), "{}", error(b"\xff"));
        // A field with the number 2047.
        let unknown = error(b"\xf8\x7f\x01");
        assert!(unknown.contains("envoy.config.cluster.v3.Cluster has a field"), "{unknown}");
        // `connect_timeout` of 2^62 seconds.
        let long = error(b"\x22\x0a\x08\x80\x80\x80\x80\x80\x80\x80\x80\x40");
        assert!(long.contains("google.protobuf.Duration"), "{long}");
        // A transport socket with an `Any` of an unknown type.
        let nested = error(b"\xc2\x01\x07\x1a\x05\x0a\x03x/y");
        assert_eq!(nested, "there is no descriptor of the type \"x/y\"");
    }
}
