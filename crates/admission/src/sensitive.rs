//! Secrets in resources: their detection and redaction.
//!
//! All code that shows, logs or compares a body uses this module. A value is secret if one of these
//! conditions holds:
//! - Envoy's API annotates its field as sensitive (`udpa.annotations.sensitive`), or [`credentials`]
//!   lists the field.
//! - It has the name of a credential, such as a header or a key of JSON, or is compared with such a value.
//! - It contains a private key in PEM form, in any field.
//!
//! The name of a file or an environment variable that holds a secret is not secret.
//!
//! Invariant: bytes that do not parse as their declared type are secret as a whole.

use bytes::Bytes;
use chancery_model::TypeUrl;
use prost_reflect::{Kind, MessageDescriptor};

use crate::{
    credentials,
    inspect::DEPTH_MAX,
    wire::{Malformed, Raw, Reader, put_len},
};

pub use crate::credentials::{KEY_MARK, MARK};

mod json;
mod values;

use values::{Replace, Secrecy, Values};

/// The rule against [`MARK`] in place of a secret.
pub(crate) const IS_MARK: &str = "has \"[redacted]\" in place of a secret: it was read from the server, \
                                  which never shows secrets; give the secret itself";

/// The rule against a private key in place of a name.
pub(crate) const IS_KEY: &str =
    "contains a private key in PEM form, which is not shown; give a name";

/// Returns a rule with an explanation why it does not show the value.
pub(crate) fn hidden(rule: &str) -> String {
    format!("{rule}; the value is not shown, because the field is sensitive")
}

/// Reports all secret values of a body, including those of nested messages.
pub fn secret_values(type_url: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])) {
    walk(type_url, body, &mut |value, _| {
        found(value);
        None
    });
}

/// Returns the body with a mark in place of each secret value. A body without secrets stays the same, and
/// unreadable parts become a mark.
#[must_use]
pub fn redacted(type_url: &TypeUrl, body: &Bytes) -> Bytes {
    walk(type_url, body, &mut |_, mark| Some(mark)).map_or_else(|| body.clone(), Bytes::from)
}

/// Returns whether a body has a mark of [`redacted`] in place of a secret.
pub(crate) fn has_mark(type_url: &TypeUrl, body: &[u8]) -> bool {
    message_has_mark(credentials::message_of(type_url.as_str()).as_ref(), body)
}

/// Like [`has_mark`], for the body of a message; `None` if its type is unknown.
pub(crate) fn message_has_mark(message: Option<&MessageDescriptor>, body: &[u8]) -> bool {
    let mut has_mark = contains(body, KEY_MARK);
    if contains(body, MARK) {
        walk_message(message, body, &mut |value, _| {
            has_mark |= value == MARK.as_bytes();
            None
        });
    }
    has_mark
}

/// Returns whether the value of a field has a mark of [`redacted`] in place of a secret.
pub(crate) fn is_mark(value: &[u8], is_secret: bool) -> bool {
    is_secret && value == MARK.as_bytes() || contains(value, KEY_MARK)
}

fn contains(bytes: &[u8], mark: &str) -> bool {
    // Both marks start with a bracket, which is rare.
    let mut starts = (0..bytes.len()).filter(|start| bytes[*start] == b'[');
    starts.any(|start| bytes[start..].starts_with(mark.as_bytes()))
}

/// Calls `replace` for each secret value of a body. Returns the body with the replacements if there are any.
fn walk(type_url: &TypeUrl, body: &[u8], replace: &mut Replace<'_>) -> Option<Vec<u8>> {
    walk_message(credentials::message_of(type_url.as_str()).as_ref(), body, replace)
}

fn walk_message(
    message: Option<&MessageDescriptor>,
    body: &[u8],
    replace: &mut Replace<'_>,
) -> Option<Vec<u8>> {
    let mut walk = Walk { values: Values::new(body, replace) };
    match message {
        Some(message) => walk.message(message, body, Secrecy::ByField, 0),
        None => walk.unreadable(body, Secrecy::ByField),
    }
}

/// A walk over the fields of messages.
struct Walk<'a> {
    values: Values<'a>,
}

impl Walk<'_> {
    /// Returns the replacement for secret bytes of unknown structure. Admission refuses it, so that it never overwrites
    /// the secret.
    fn unreadable(&mut self, bytes: &[u8], secrecy: Secrecy) -> Option<Vec<u8>> {
        self.values.replacement(bytes, secrecy).map(|_| KEY_MARK.as_bytes().to_vec())
    }

    fn message(
        &mut self,
        message: &MessageDescriptor,
        body: &[u8],
        secrecy: Secrecy,
        depth: usize,
    ) -> Option<Vec<u8>> {
        let read = match message.full_name() {
            // Protobuf readers do not read deeper messages.
            _ if depth >= DEPTH_MAX => Err("too deep"),
            credentials::ANY => self.any(body, secrecy, depth),
            _ if credentials::is_json(message) || credentials::is_typed_struct(message) => {
                json::message(&mut self.values, message, body, secrecy)
            }
            _ => self.fields(message, body, secrecy, depth),
        };
        read.unwrap_or_else(|_| self.unreadable(body, Secrecy::Inherited))
    }

    fn fields(
        &mut self,
        message: &MessageDescriptor,
        body: &[u8],
        secrecy: Secrecy,
        depth: usize,
    ) -> Result<Option<Vec<u8>>, Malformed> {
        let is_source = message.full_name() == credentials::DATA_SOURCE;
        let is_credential = credentials::has_named_value(message)
            && credentials::names_credential(first_text(body)?);
        // The name of a header and the key of a map entry are not secret: they name the secret.
        let first_is_name = is_credential || message.is_map_entry();
        let mut reader = Reader(body);
        // The body up to `copied`, with replacements, once there is one.
        let mut out: Option<Vec<u8>> = None;
        let mut copied = 0;
        loop {
            let start = body.len() - reader.0.len();
            let Some((number, raw)) = reader.next()? else { break };
            let end = body.len() - reader.0.len();
            let field = message.get_field(number);
            let secrecy = match &field {
                _ if first_is_name && number == 1 => Secrecy::ByField,
                Some(field) if is_source && !field.name().starts_with("inline_") => {
                    Secrecy::ByField
                }
                Some(field) if is_credential || credentials::is(field) => Secrecy::Inherited,
                _ => secrecy,
            };
            let replacement = match (raw, field.map(|field| field.kind())) {
                (Raw::Len(bytes), Some(Kind::Message(inner))) => {
                    let is_read = secrecy == Secrecy::Inherited
                        || self.values.has_key()
                        || credentials::can_hold(&inner);
                    is_read.then(|| self.message(&inner, bytes, secrecy, depth + 1)).flatten()
                }
                (Raw::Len(bytes), Some(Kind::String | Kind::Bytes)) => {
                    self.values.replacement(bytes, secrecy).map(|mark| mark.as_bytes().to_vec())
                }
                (Raw::Len(bytes), None) => self.unreadable(bytes, secrecy),
                (Raw::Group, _) => self.unreadable(&body[start..end], secrecy),
                _ => None,
            };
            if let Some(replacement) = replacement {
                let out = out.get_or_insert_default();
                out.extend_from_slice(&body[copied..start]);
                if matches!(raw, Raw::Len(_)) {
                    put_len(out, number, &replacement);
                }
                copied = end;
            }
        }
        if let Some(out) = &mut out {
            out.extend_from_slice(&body[copied..]);
        }
        Ok(out)
    }

    fn any(
        &mut self,
        body: &[u8],
        secrecy: Secrecy,
        depth: usize,
    ) -> Result<Option<Vec<u8>>, Malformed> {
        let (mut type_url, mut payload) = ([].as_slice(), [].as_slice());
        let mut reader = Reader(body);
        while let Some((number, raw)) = reader.next()? {
            match (number, raw) {
                (1, Raw::Len(bytes)) => type_url = bytes,
                (2, Raw::Len(bytes)) => payload = bytes,
                _ => {}
            }
        }
        let name = std::str::from_utf8(type_url).unwrap_or_default();
        let replacement = match credentials::message_of(name) {
            Some(inner) => self.message(&inner, payload, secrecy, depth + 1),
            None => self.unreadable(payload, secrecy),
        };
        Ok(replacement.map(|payload| {
            let mut out = Vec::new();
            put_len(&mut out, 1, type_url);
            put_len(&mut out, 2, &payload);
            out
        }))
    }
}

/// Returns the text of the first field of a message.
fn first_text(body: &[u8]) -> Result<&str, Malformed> {
    let mut reader = Reader(body);
    let mut text = [].as_slice();
    while let Some((number, raw)) = reader.next()? {
        if let (1, Raw::Len(bytes)) = (number, raw) {
            text = bytes;
        }
    }
    std::str::from_utf8(text).map_err(|_| "a name is not valid UTF-8")
}

#[cfg(test)]
mod tests {
    use chancery_model::{ResourceDraft, types};
    use serde_json::json;

    use super::*;
    use crate::{Manifest, Options, admit};

    fn draft(resource: &serde_json::Value) -> ResourceDraft {
        let content = json!({"resources": [resource]}).to_string();
        let options = Options::new(chancery_model::ScopeName::new("default").unwrap());
        let manifest = Manifest { file: "x.json".to_owned(), content };
        let mut transaction = admit(&[manifest], &options).unwrap();
        transaction.upserts.remove(0).draft
    }

    fn secrets(resource: &serde_json::Value) -> Vec<String> {
        let draft = draft(resource);
        let mut found = Vec::new();
        secret_values(&draft.key.type_url, &draft.body, &mut |secret| {
            found.push(String::from_utf8_lossy(secret).into_owned());
        });
        found.sort();
        found
    }

    #[test]
    fn only_sensitive_fields_yield_secret_values() {
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
    fn credentials_in_headers_and_unmarked_fields_are_secret() {
        let route = json!({
            "@type": types::ROUTE,
            "name": "main",
            "request_headers_to_add": [
                {"header": {"key": "Authorization", "value": "Bearer qT7"}},
                {"header": {"key": "x-api-key", "value": "key-1"}},
                {"header": {"key": "x-stamp", "value": "public"}},
            ],
            "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [{
                "direct_response": {"status": 200},
                "match": {"prefix": "/", "headers": [
                    {"name": "authorization", "string_match": {"exact": "Bearer zZ9"}},
                    {"name": ":path", "string_match": {"exact": "/public"}},
                ]},
            }]}],
        });
        assert_eq!(secrets(&route), ["Bearer qT7", "Bearer zZ9", "key-1"]);
        let cluster = json!({
            "@type": types::CLUSTER,
            "name": "web",
            "eds_cluster_config": {"eds_config": {"api_config_source": {
                "api_type": "GRPC",
                "grpc_services": [{"google_grpc": {
                    "target_uri": "x",
                    "stat_prefix": "x",
                    "call_credentials": [{"access_token": "token-1"}],
                }}],
            }}},
        });
        assert_eq!(secrets(&cluster), ["token-1"]);
    }

    /// OPS-19: the fields of Envoy's API that hold credentials without the mark.
    #[test]
    fn cookies_and_key_sets_are_secret() {
        let route = json!({
            "@type": types::ROUTE,
            "name": "main",
            "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [{
                "direct_response": {"status": 200},
                "match": {
                    "prefix": "/",
                    "cookies": [{"name": "session", "string_match": {"exact": "cookie-1"}}],
                    "query_parameters": [
                        {"name": "api_key", "string_match": {"exact": "key-1"}},
                        {"name": "page", "string_match": {"exact": "public"}},
                    ],
                },
            }]}],
        });
        assert_eq!(secrets(&route), ["cookie-1", "key-1"]);
        let filter = |config: serde_json::Value| {
            json!({
                "@type": types::EXTENSION,
                "name": "filter",
                "typed_config": config,
            })
        };
        let keys = filter(json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {
                "a": {"issuer": "public", "local_jwks": {"inline_string": "jwks-1"}},
                "b": {"local_jwks": {"filename": "/etc/jwks"}},
            },
        }));
        assert_eq!(secrets(&keys), ["jwks-1"]);
        let lightstep = filter(json!({
            "@type": "type.googleapis.com/envoy.config.trace.v3.LightstepConfig",
            "access_token": {"inline_string": "token-2"},
        }));
        assert_eq!(secrets(&lightstep), ["token-2"]);
        let wasm = filter(json!({
            "@type": "type.googleapis.com/envoy.extensions.wasm.v3.EnvironmentVariables",
            "key_values": {"DB_PASSWORD": "hunter2", "PORT": "5432"},
        }));
        assert_eq!(secrets(&wasm), ["hunter2"]);
    }

    fn typed_struct(package: &str, type_url: &str, value: &serde_json::Value) -> serde_json::Value {
        json!({
            "@type": types::EXTENSION,
            "name": "filter",
            "typed_config": {
                "@type": format!("type.googleapis.com/{package}.TypedStruct"),
                "type_url": type_url,
                "value": value,
            },
        })
    }

    /// OPS-19: a `TypedStruct` holds a message in another form.
    #[test]
    fn typed_struct_has_the_secrets_of_its_message() {
        const TLS: &str =
            "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        let context = json!({"sni": "public", "commonTlsContext": {"tls_certificates": [{
            "private_key": {"inline_string": "key-1"},
            "certificate_chain": {"inline_string": "public"},
            "password": {"filename": "/etc/password"},
        }]}});
        let route = json!({
            "name": "public",
            "request_headers_to_add": [{"header": {"key": "authorization", "value": "key-2"}}],
            "typed_per_filter_config": {"token": {
                "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
                "type_url": TLS,
                "value": context,
            }},
        });
        for package in ["udpa.type.v1", "xds.type.v3"] {
            assert_eq!(secrets(&typed_struct(package, TLS, &context)), ["key-1"]);
            assert_eq!(secrets(&typed_struct(package, types::ROUTE, &route)), ["key-1", "key-2"]);
        }
    }

    #[test]
    fn secrets_in_json_of_unknown_structure_are_found_by_their_keys() {
        let config = json!({
            "api_key": "key-1",
            "nested": [{"DB_PASSWORD": 5550001, "user": "public"}],
            "secret": {"inline_string": ["key-2"], "filename": "/etc/secret"},
            "token_endpoint": "https://public.example",
        });
        let resource = typed_struct("xds.type.v3", "example.com/acme.Plugin", &config);
        assert_eq!(secrets(&resource), ["5550001", "key-1", "key-2"]);
        let draft = draft(&resource);
        let body = redacted(&draft.key.type_url, &draft.body);
        let shown = crate::body_to_json(&draft.key.type_url, &body);
        let expected = json!({
            "api_key": MARK,
            "nested": [{"DB_PASSWORD": MARK, "user": "public"}],
            "secret": {"inline_string": [MARK], "filename": "/etc/secret"},
            "token_endpoint": "https://public.example",
        });
        assert_eq!(shown["typed_config"]["value"], expected);
        assert!(super::has_mark(&draft.key.type_url, &body));
        let cluster = json!({
            "@type": types::CLUSTER,
            "name": "web",
            "metadata": {"filter_metadata": {"lua": {
                "token": "token-1",
                "note": "-----BEGIN PRIVATE KEY-----",
                "-----BEGIN PRIVATE KEY-----": "note",
            }}},
        });
        let keys = ["-----BEGIN PRIVATE KEY-----"; 2];
        assert_eq!(secrets(&cluster), [keys.as_slice(), &["token-1"]].concat());
    }

    /// A private key that an author pasted into the wrong field is secret too.
    #[test]
    fn private_key_is_secret_in_every_field() {
        let keys = [
            "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\n",
            "a certificate\n-----BEGIN ENCRYPTED PRIVATE KEY-----\\nMC4CAQ",
            "------BEGIN EC PRIVATE KEY-----",
        ];
        for key in keys {
            let secret = json!({
                "@type": types::SECRET,
                "name": "cert",
                "tls_certificate": {
                    "certificate_chain": {"inline_string": key},
                    "ocsp_staple": {"filename": "-----BEGIN CERTIFICATE-----\nPRIVATE KEY"},
                }
            });
            assert_eq!(secrets(&secret), [key]);
        }
    }

    #[test]
    fn redaction_changes_only_secrets() {
        let type_url = TypeUrl::from_static(types::SECRET);
        let shown = |chain: &str| {
            let certificate = json!({
                "private_key": {"inline_string": "k"},
                "certificate_chain": {"inline_string": chain},
                "password": {"filename": "/etc/password"},
            });
            let secret =
                json!({"@type": types::SECRET, "name": "a", "tls_certificate": certificate});
            let body = redacted(&type_url, &draft(&secret).body);
            let shown = crate::body_to_json(&type_url, &body)["tls_certificate"].clone();
            assert_eq!(shown["private_key"]["inline_string"], MARK);
            assert_eq!(shown["password"]["filename"], "/etc/password");
            shown["certificate_chain"]["inline_string"].clone()
        };
        assert_eq!(shown("public"), "public");
        assert_eq!(shown("-----BEGIN PRIVATE KEY-----\nMC4CAQ"), KEY_MARK);
        let public = draft(&json!({"@type": types::SECRET, "name": "a"})).body;
        let unknown = Bytes::from([public.as_ref(), b"\xfa\x3f\x03abc"].concat());
        assert_eq!(redacted(&type_url, &unknown), unknown);
    }

    #[test]
    fn unreadable_bytes_are_secret_as_a_whole() {
        let type_url = TypeUrl::from_static(types::SECRET);
        let body = Bytes::from_static(b"\xff\xff secret");
        assert_eq!(redacted(&type_url, &body), KEY_MARK);
        let foreign = TypeUrl::new("type.googleapis.com/example.Foreign").unwrap();
        assert_eq!(redacted(&foreign, &body), body);
        let key = Bytes::from_static(b"\xff -----BEGIN PRIVATE KEY-----");
        assert_eq!(redacted(&foreign, &key), KEY_MARK);
        let mut found = Vec::new();
        secret_values(&type_url, &body, &mut |value| found.extend_from_slice(value));
        assert_eq!(found, body);
    }

    #[test]
    fn redaction_mark_is_found_in_secrets_only() {
        let type_url = TypeUrl::from_static(types::SECRET);
        let has_mark = |certificate: serde_json::Value| {
            let secret =
                json!({"@type": types::SECRET, "name": MARK, "tls_certificate": certificate});
            let body = draft(&secret).body;
            assert!(!super::has_mark(&type_url, &body));
            super::has_mark(&type_url, &redacted(&type_url, &body))
        };
        assert!(has_mark(json!({"private_key": {"inline_string": "k"}})));
        let key = "-----BEGIN PRIVATE KEY-----";
        assert!(has_mark(json!({"certificate_chain": {"inline_string": key}})));
        assert!(!has_mark(json!({"certificate_chain": {"inline_string": "public"}})));
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
