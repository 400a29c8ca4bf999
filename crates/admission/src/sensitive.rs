//! Fields that hold secrets: a refusal must not carry what is in them into logs and terminals.
//!
//! Envoy's API marks them (`udpa.annotations.sensitive`): private keys, passwords, tokens.

use std::{collections::HashSet, sync::LazyLock};

use chancery_model::TypeUrl;
use chancery_proto::envoy_pool;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::{
    inspect::DEPTH_MAX,
    wire::{Raw, Reader},
};

/// What stands for a secret in what is read from a store.
pub(crate) const MARK: &str = "[redacted]";

/// What is said of it where a secret belongs.
pub(crate) const IS_MARK: &str = "has \"[redacted]\" in place of a secret: it was read from the server, \
                                  which never shows secrets; give the secret itself";

/// Full names of the fields that are marked.
static FIELDS: LazyLock<HashSet<String>> = LazyLock::new(|| {
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

/// Whether a field holds a secret.
pub(crate) fn is(field: &FieldDescriptor) -> bool {
    FIELDS.contains(field.full_name())
}

/// A rule, and why it does not say what it found.
pub(crate) fn hidden(rule: &str) -> String {
    format!("{rule}; what is there is not shown, because the field is sensitive")
}

/// Full names of the messages from which a sensitive field can be reached. An `Any` can hold any message.
static HOLDERS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let mut holders = HashSet::from([ANY.to_owned()]);
    loop {
        let known = holders.len();
        for message in envoy_pool().all_messages() {
            let reaches = |field: FieldDescriptor| match field.kind() {
                Kind::Message(inner) => is(&field) || holders.contains(inner.full_name()),
                _ => is(&field),
            };
            if message.fields().any(reaches) {
                holders.insert(message.full_name().to_owned());
            }
        }
        if holders.len() == known {
            return holders;
        }
    }
});

const ANY: &str = "google.protobuf.Any";
const DATA_SOURCE: &str = "envoy.config.core.v3.DataSource";

/// Reports the values of all sensitive fields of a body, those of nested messages included. The name of a
/// file or of an environment variable that holds a secret is no secret. A type that is not known has no
/// sensitive fields.
pub fn secret_values(type_url: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])) {
    if let Some(message) = envoy_pool().get_message_by_name(type_url.message_name()) {
        values_of(&message, body, false, 0, found);
    }
}

fn values_of(
    message: &MessageDescriptor,
    body: &[u8],
    is_sensitive: bool,
    depth: usize,
    found: &mut dyn FnMut(&[u8]),
) {
    if depth >= DEPTH_MAX {
        // No protobuf reader reads deeper messages.
        return;
    }
    let name = message.full_name();
    let (is_any, is_source) = (name == ANY, name == DATA_SOURCE);
    let (mut type_url, mut payload) = ("", [].as_slice());
    let mut reader = Reader(body);
    // Admission has refused bodies that do not parse.
    while let Ok(Some((number, raw))) = reader.next() {
        let Raw::Len(bytes) = raw else { continue };
        match (is_any, number) {
            (true, 1) => type_url = std::str::from_utf8(bytes).unwrap_or_default(),
            (true, 2) => payload = bytes,
            _ => {}
        }
        let Some(field) = message.get_field(number).filter(|_| !is_any) else { continue };
        let is_sensitive = is_sensitive || is(&field);
        match field.kind() {
            Kind::String | Kind::Bytes
                if is_sensitive && (!is_source || field.name().starts_with("inline_")) =>
            {
                found(bytes);
            }
            Kind::Message(inner) if is_sensitive || HOLDERS.contains(inner.full_name()) => {
                values_of(&inner, bytes, is_sensitive, depth + 1, found);
            }
            _ => {}
        }
    }
    if is_any {
        let name = type_url.rsplit('/').next().unwrap_or(type_url);
        match message.parent_pool().get_message_by_name(name) {
            Some(inner) => values_of(&inner, payload, is_sensitive, depth + 1, found),
            None if is_sensitive => found(payload),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::types;
    use serde_json::json;

    use super::*;
    use crate::{Manifest, Options, admit};

    fn secrets(resource: &serde_json::Value) -> Vec<String> {
        let content = json!({"resources": [resource]}).to_string();
        let options = Options::new(chancery_model::ScopeName::new("default").unwrap());
        let manifest = Manifest { file: "x.json".to_owned(), content };
        let transaction = admit(&[manifest], &options).unwrap();
        let draft = &transaction.upserts[0].draft;
        let mut found = Vec::new();
        secret_values(&draft.key.type_url, &draft.body, &mut |secret| {
            found.push(String::from_utf8_lossy(secret).into_owned());
        });
        found.sort();
        found
    }

    #[test]
    fn secret_values_are_those_of_sensitive_fields_alone() {
        let secret = json!({
            "@type": types::SECRET,
            "name": "cert",
            "tls_certificate": {
                "certificate_chain": {"inline_string": "public"},
                "private_key": {"inline_bytes": "c2VjcmV0"},
                "password": {"inline_string": "hunter2"},
            }
        });
        assert_eq!(secrets(&secret), ["hunter2", "secret"]);
        let of_file = json!({
            "@type": types::SECRET,
            "name": "cert",
            "tls_certificate": {"private_key": {"filename": "/etc/key.pem"}},
        });
        assert_eq!(secrets(&of_file), Vec::<String>::new());
    }

    #[test]
    fn secret_values_of_nested_any_messages_are_found() {
        let cluster = json!({
            "@type": types::CLUSTER,
            "name": "web",
            "transport_socket": {
                "name": "tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "sni": "web.example",
                    "common_tls_context": {"tls_certificates": [
                        {"private_key": {"inline_string": "nested key"}},
                    ]}
                }
            }
        });
        assert_eq!(secrets(&cluster), ["nested key"]);
    }
}
