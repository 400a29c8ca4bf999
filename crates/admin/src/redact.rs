//! Secrets never leave the store through the admin API.
//!
//! Envoy's API marks sensitive fields (`udpa.annotations.sensitive`): private keys, passwords,
//! tokens. Whatever the type of the resource, and however deep the message is nested in `Any`s,
//! text and bytes under such a field are replaced before a body leaves this crate. The name of a
//! file or of an environment variable that holds a secret is no secret.
//!
//! Invariant: what can not be read as the type it claims to be, and is of a type that may hold
//! secrets, is replaced as a whole.

use std::{collections::HashSet, sync::LazyLock};

use bytes::Bytes;
use chancery_model::TypeUrl;
use chancery_proto::envoy_pool;
use prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, ReflectMessage, Value,
};

/// What stands for a secret.
pub const MARK: &str = "[redacted]";
/// `MARK` in base64: how proto JSON shows it in a field of bytes.
const MARK_BASE64: &str = "W3JlZGFjdGVkXQ==";
/// Messages inside of `Any`s inside of `Any`s … that are looked into. Deeper ones are replaced.
const ANY_DEPTH_MAX: usize = 32;

/// Full names of the fields that are marked as sensitive.
static SENSITIVE: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let pool = envoy_pool();
    let extension = pool
        .get_extension_by_name("udpa.annotations.sensitive")
        .expect("the Envoy API imports it, and a test reads it");
    let marked = |field: &FieldDescriptor| {
        field.options().get_extension(&extension).as_bool().unwrap_or_default()
    };
    pool.all_messages()
        .flat_map(|message| message.fields().filter(marked).collect::<Vec<_>>())
        .map(|field| field.full_name().to_owned())
        .collect()
});

/// The body of a resource without its secrets. The same bytes if it has none.
pub(crate) fn body(type_url: &TypeUrl, body: Bytes) -> Bytes {
    let Some(descriptor) = envoy_pool().get_message_by_name(type_url.message_name()) else {
        return body;
    };
    match DynamicMessage::decode(descriptor, body.as_ref()) {
        Ok(mut message) => match redact_message(&mut message, Under::Nothing, ANY_DEPTH_MAX) {
            Redacted::Nothing => body,
            Redacted::Something | Redacted::Mark => message.encode_to_vec().into(),
        },
        Err(_) => Bytes::new(),
    }
}

/// A redacted body as JSON, with the mark readable where the field is one of bytes.
pub(crate) fn body_to_json(body: &prost_types::Any) -> serde_json::Value {
    let Ok(type_url) = TypeUrl::new(&body.type_url) else {
        return serde_json::json!({"@type": body.type_url});
    };
    let mut json = chancery_admission::body_to_json(&type_url, &body.value);
    make_readable(&mut json);
    json
}

/// Whether a body that an author sent has the mark where a secret belongs: it was read through this
/// API and would destroy the secret that the mark stands for.
pub(crate) fn has_mark(type_url: &TypeUrl, body: &[u8]) -> bool {
    if !body.windows(MARK.len()).any(|window| window == MARK.as_bytes()) {
        return false;
    }
    let descriptor = envoy_pool().get_message_by_name(type_url.message_name());
    descriptor.and_then(|descriptor| DynamicMessage::decode(descriptor, body).ok()).is_some_and(
        |mut message| redact_message(&mut message, Under::Nothing, ANY_DEPTH_MAX) == Redacted::Mark,
    )
}

fn make_readable(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::String(text) if text == MARK_BASE64 => MARK.clone_into(text),
        serde_json::Value::Array(items) => items.iter_mut().for_each(make_readable),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(make_readable),
        _ => {}
    }
}

/// What a value is part of.
#[derive(Clone, Copy, PartialEq)]
enum Under {
    Nothing,
    SensitiveField,
}

/// What was replaced; the greater one counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Redacted {
    Nothing,
    Something,
    /// Something, and it was the mark already.
    Mark,
}

impl Redacted {
    fn of(old: &[u8]) -> Self {
        if old == MARK.as_bytes() { Self::Mark } else { Self::Something }
    }
}

fn redact_message(message: &mut DynamicMessage, under: Under, depth: usize) -> Redacted {
    let descriptor = message.descriptor();
    match descriptor.full_name() {
        "google.protobuf.Any" => return redact_any(message, under, depth),
        "envoy.config.core.v3.DataSource" if under == Under::SensitiveField => {
            return redact_data_source(message, &descriptor);
        }
        _ => {}
    }
    let mut redacted = Redacted::Nothing;
    for (field, value) in message.fields_mut() {
        let under =
            if SENSITIVE.contains(field.full_name()) { Under::SensitiveField } else { under };
        redacted = redacted.max(redact_value(value, under, depth));
    }
    redacted
}

fn redact_value(value: &mut Value, under: Under, depth: usize) -> Redacted {
    match value {
        Value::Message(message) => redact_message(message, under, depth),
        Value::List(items) => items
            .iter_mut()
            .fold(Redacted::Nothing, |all, item| all.max(redact_value(item, under, depth))),
        Value::Map(entries) => {
            entries.iter_mut().fold(Redacted::Nothing, |all, (_, item): (&MapKey, _)| {
                all.max(redact_value(item, under, depth))
            })
        }
        Value::String(text) if under == Under::SensitiveField => {
            let redacted = Redacted::of(text.as_bytes());
            MARK.clone_into(text);
            redacted
        }
        Value::Bytes(bytes) if under == Under::SensitiveField => {
            let redacted = Redacted::of(bytes);
            *bytes = Bytes::from_static(MARK.as_bytes());
            redacted
        }
        _ => Redacted::Nothing,
    }
}

fn redact_data_source(message: &mut DynamicMessage, descriptor: &MessageDescriptor) -> Redacted {
    let mut redacted = Redacted::Nothing;
    for name in ["inline_bytes", "inline_string"] {
        let Some(field) = descriptor.get_field_by_name(name) else { continue };
        if message.has_field(&field) {
            redacted = redact_value(message.get_field_mut(&field), Under::SensitiveField, 0);
        }
    }
    redacted
}

fn redact_any(any: &mut DynamicMessage, under: Under, depth: usize) -> Redacted {
    let type_url = any.get_field_by_name("type_url");
    let name = type_url
        .as_ref()
        .and_then(|url| url.as_str())
        .and_then(|url| url.rsplit('/').next())
        .unwrap_or_default();
    let inner = envoy_pool().get_message_by_name(name);
    let value = any.get_field_by_name("value");
    let bytes = value.as_ref().and_then(|value| value.as_bytes().cloned()).unwrap_or_default();
    let (replacement, redacted) = match inner {
        None if under == Under::Nothing => return Redacted::Nothing,
        Some(inner) if depth > 0 => match DynamicMessage::decode(inner, bytes) {
            Ok(mut message) => match redact_message(&mut message, under, depth - 1) {
                Redacted::Nothing => return Redacted::Nothing,
                redacted => (message.encode_to_vec().into(), redacted),
            },
            Err(_) => (Bytes::new(), Redacted::Something),
        },
        _ => (Bytes::new(), Redacted::Something),
    };
    any.set_field_by_name("value", Value::Bytes(replacement));
    redacted
}

#[cfg(test)]
mod tests {
    use chancery_model::types;
    use serde_json::json;

    use super::*;

    fn encode(json: &serde_json::Value) -> prost_types::Any {
        let any = envoy_pool().get_message_by_name("google.protobuf.Any").unwrap();
        let any = DynamicMessage::deserialize(any, json).unwrap();
        prost_types::Any {
            type_url: any.get_field_by_name("type_url").unwrap().as_str().unwrap().to_owned(),
            value: any.get_field_by_name("value").unwrap().as_bytes().unwrap().to_vec(),
        }
    }

    fn shown(json: &serde_json::Value) -> serde_json::Value {
        let any = encode(json);
        let type_url = TypeUrl::new(&any.type_url).unwrap();
        let value = body(&type_url, any.value.into()).to_vec();
        body_to_json(&prost_types::Any { type_url: any.type_url, value })
    }

    /// CSDS-14, OPS-19: what must not be seen is not in the answer.
    #[test]
    fn keys_and_passwords_of_a_secret_are_replaced() {
        let secret = json!({
            "@type": types::SECRET,
            "name": "cert",
            "tls_certificate": {
                "certificate_chain": {"inline_string": "public"},
                "private_key": {"inline_bytes": "c2VjcmV0"},
                "password": {"inline_string": "hunter2"},
            }
        });
        let shown = shown(&secret);
        let certificate = &shown["tls_certificate"];
        assert_eq!(certificate["certificate_chain"]["inline_string"], "public");
        assert_eq!(certificate["private_key"]["inline_bytes"], MARK);
        assert_eq!(certificate["password"]["inline_string"], MARK);
        assert_eq!(shown["name"], "cert");
    }

    #[test]
    fn a_key_inside_of_a_cluster_is_replaced_and_a_file_name_is_not() {
        let certificate = |key: serde_json::Value| json!({"private_key": key});
        let cluster = json!({
            "@type": types::CLUSTER,
            "name": "web",
            "transport_socket": {
                "name": "tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "common_tls_context": {"tls_certificates": [
                        certificate(json!({"inline_string": "secret"})),
                        certificate(json!({"filename": "/etc/key.pem"})),
                    ]}
                }
            }
        });
        let shown = shown(&cluster);
        let keys =
            &shown["transport_socket"]["typed_config"]["common_tls_context"]["tls_certificates"];
        assert_eq!(keys[0]["private_key"]["inline_string"], MARK);
        assert_eq!(keys[1]["private_key"]["filename"], "/etc/key.pem");
    }

    #[test]
    fn a_body_without_secrets_keeps_its_bytes() {
        let any = encode(&json!({"@type": types::CLUSTER, "name": "web"}));
        let type_url = TypeUrl::from_static(types::CLUSTER);
        assert_eq!(body(&type_url, any.value.clone().into()), any.value);
    }

    #[test]
    fn a_body_that_can_not_be_read_is_not_shown() {
        let type_url = TypeUrl::from_static(types::SECRET);
        assert_eq!(body(&type_url, Bytes::from_static(b"\xff\xff secret")), Bytes::new());
    }

    #[test]
    fn the_mark_is_found_in_a_secret_and_nowhere_else() {
        let secret = |value: &str| {
            let key = json!({"private_key": {"inline_string": value}});
            encode(&json!({"@type": types::SECRET, "name": "[redacted]", "tls_certificate": key}))
        };
        let type_url = TypeUrl::from_static(types::SECRET);
        assert!(has_mark(&type_url, &secret(MARK).value));
        assert!(!has_mark(&type_url, &secret("key").value));
    }
}
