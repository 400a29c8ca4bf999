//! Secrets in resources: their detection and redaction.
//!
//! All code that shows, logs or compares a body uses this module. A value is secret if one of these
//! conditions holds:
//! - Its field is marked in Envoy's API (`udpa.annotations.sensitive`) or listed in [`UNMARKED`].
//! - It is the value of a header that carries credentials, or a value that such a header is matched with.
//! - It contains a private key in PEM form, in any field.
//!
//! The name of a file or an environment variable that holds a secret is not secret.
//!
//! Invariant: bytes that do not parse as their declared type are secret as a whole.

use std::{collections::HashSet, sync::LazyLock};

use bytes::Bytes;
use chancery_model::TypeUrl;
use chancery_proto::envoy_pool;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::{
    inspect::DEPTH_MAX,
    wire::{Malformed, Raw, Reader, put_len},
};

/// The replacement for a value that is secret because of its field.
pub const MARK: &str = "[redacted]";
/// The replacement for a value of another field that contains a private key. Admission rejects this value in
/// a manifest, because it would overwrite the real one.
pub const KEY_MARK: &str = "[redacted private key]";

/// The rule against [`MARK`] in place of a secret.
pub(crate) const IS_MARK: &str = "has \"[redacted]\" in place of a secret: it was read from the server, \
                                  which never shows secrets; give the secret itself";

/// The fields that hold credentials and are not marked in Envoy's API.
const UNMARKED: [&str; 10] = [
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.ServiceAccountJWTAccessCredentials.json_key",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.GoogleIAMCredentials.authorization_token",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.access_token",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.google_refresh_token",
    "envoy.extensions.filters.http.aws_lambda.v3.Credentials.secret_access_key",
    "envoy.extensions.filters.http.aws_lambda.v3.Credentials.session_token",
    "envoy.extensions.grpc_service.call_credentials.access_token.v3.AccessTokenCredentials.token",
    "envoy.extensions.grpc_service.call_credentials.google_iam.v3.GoogleIamCredentials.authorization_token",
    "envoy.extensions.grpc_service.call_credentials.google_refresh_token.v3.GoogleRefreshTokenCredentials.token",
    "envoy.extensions.grpc_service.call_credentials.service_account_jwt_access.v3.ServiceAccountJwtAccessCredentials.json_key",
];

/// The headers that carry credentials: those of RFC 9110 and RFC 6265, and the common ones for API keys and
/// tokens.
const CREDENTIAL_HEADERS: [&str; 9] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "api-key",
    "x-api-key",
    "x-auth-token",
    "x-amz-security-token",
    "x-goog-api-key",
];

/// The messages whose first field is the name of a header. The other fields are its value, or what it is
/// matched with.
const HEADERS: [&str; 2] =
    ["envoy.config.core.v3.HeaderValue", "envoy.config.route.v3.HeaderMatcher"];

const ANY: &str = "google.protobuf.Any";
const DATA_SOURCE: &str = "envoy.config.core.v3.DataSource";

/// The full names of the sensitive fields.
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
        .chain(UNMARKED.map(str::to_owned))
        .collect()
});

/// The full names of the messages that can hold a secret by their fields. An `Any` can hold any message.
static HOLDERS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let mut holders = HashSet::from([ANY, HEADERS[0], HEADERS[1]].map(str::to_owned));
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

/// Returns whether a field holds a secret.
pub(crate) fn is(field: &FieldDescriptor) -> bool {
    FIELDS.contains(field.full_name())
}

/// Returns a rule with an explanation why it does not show the value.
pub(crate) fn hidden(rule: &str) -> String {
    format!("{rule}; the value is not shown, because the field is sensitive")
}

/// Returns whether the bytes contain a private key in PEM form, or the beginning of one.
pub(crate) fn has_private_key(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const KEY: &[u8] = b"PRIVATE KEY";
    /// The maximum length of the key's kind before `KEY`: `ENCRYPTED ` and some reserve.
    const KIND_BYTES_MAX: usize = 24;
    // `BEGIN` starts with five dashes. One of any five consecutive bytes has an index `at` of this sequence.
    let starts =
        (4..bytes.len()).step_by(5).filter(|at| bytes[*at] == b'-').flat_map(|at| at - 4..=at);
    starts.map(|start| &bytes[start..]).any(|from| {
        from.strip_prefix(BEGIN).is_some_and(|kind| {
            let kind = &kind[..kind.len().min(KIND_BYTES_MAX + KEY.len())];
            let header = kind.split(|byte| *byte == b'-').next().unwrap_or_default();
            header.windows(KEY.len()).any(|window| window == KEY)
        })
    })
}

/// Reports all secret values of a body, including those of nested messages.
pub fn secret_values(type_url: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])) {
    walk(type_url, body, &mut |value, _| {
        found(value);
        None
    });
}

/// Returns the body with a mark in place of each secret value. A body without secrets stays the same, and
/// unreadable parts become empty.
#[must_use]
pub fn redacted(type_url: &TypeUrl, body: &Bytes) -> Bytes {
    walk(type_url, body, &mut |_, mark| Some(mark)).map_or_else(|| body.clone(), Bytes::from)
}

/// Returns whether a body has a mark of [`redacted`] in place of a secret.
#[must_use]
pub fn has_mark(type_url: &TypeUrl, body: &[u8]) -> bool {
    let contains = |mark: &str| body.windows(mark.len()).any(|window| window == mark.as_bytes());
    let mut has_mark = contains(KEY_MARK);
    if contains(MARK) {
        secret_values(type_url, body, &mut |value| has_mark |= value == MARK.as_bytes());
    }
    has_mark
}

/// Calls `replace` for each secret value of a body. Returns the body with the replacements if there are any.
fn walk(type_url: &TypeUrl, body: &[u8], replace: &mut Replace<'_>) -> Option<Vec<u8>> {
    let mut walk = Walk { has_key: has_private_key(body), replace };
    match envoy_pool().get_message_by_name(type_url.message_name()) {
        Some(message) => walk.message(&message, body, Secrecy::ByField, 0),
        None => walk.unreadable(body, Secrecy::ByField),
    }
}

/// Takes a secret value and its mark, and returns what replaces the value.
type Replace<'a> = dyn FnMut(&[u8], &'static str) -> Option<&'static str> + 'a;

/// The reason why values are secret.
#[derive(Clone, Copy, PartialEq)]
enum Secrecy {
    /// The fields of the values decide.
    ByField,
    /// A message around the values is secret.
    Inherited,
}

struct Walk<'a> {
    /// Whether the body contains a private key. The walk then reads all fields.
    has_key: bool,
    replace: &'a mut Replace<'a>,
}

impl Walk<'_> {
    /// Returns the replacement for a value that is text or bytes.
    fn value(&mut self, value: &[u8], secrecy: Secrecy) -> Option<Vec<u8>> {
        let mark = match secrecy {
            Secrecy::Inherited => MARK,
            Secrecy::ByField if self.has_key && has_private_key(value) => KEY_MARK,
            Secrecy::ByField => return None,
        };
        (self.replace)(value, mark).map(|mark| mark.as_bytes().to_vec())
    }

    /// Returns the replacement for secret bytes of unknown structure, which is empty.
    fn unreadable(&mut self, bytes: &[u8], secrecy: Secrecy) -> Option<Vec<u8>> {
        self.value(bytes, secrecy).map(|_| Vec::new())
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
            ANY => self.any(message, body, secrecy, depth),
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
        let name = message.full_name();
        let is_source = name == DATA_SOURCE;
        let is_credential = HEADERS.contains(&name) && names_credentials(body)?;
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
                Some(field) if is_credential || is(field) => Secrecy::Inherited,
                _ => secrecy,
            };
            let replacement = match (raw, field.map(|field| field.kind())) {
                (Raw::Len(bytes), Some(Kind::Message(inner))) => {
                    let is_read = secrecy == Secrecy::Inherited
                        || self.has_key
                        || HOLDERS.contains(inner.full_name());
                    is_read.then(|| self.message(&inner, bytes, secrecy, depth + 1)).flatten()
                }
                (Raw::Len(bytes), Some(Kind::String | Kind::Bytes)) => self.value(bytes, secrecy),
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
        any: &MessageDescriptor,
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
        let name = name.rsplit('/').next().unwrap_or(name);
        let replacement = match any.parent_pool().get_message_by_name(name) {
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

/// Returns whether the first field of a message names a header that carries credentials.
fn names_credentials(body: &[u8]) -> Result<bool, Malformed> {
    let mut reader = Reader(body);
    let mut name = [].as_slice();
    while let Some((number, raw)) = reader.next()? {
        if let (1, Raw::Len(bytes)) = (number, raw) {
            name = bytes;
        }
    }
    Ok(CREDENTIAL_HEADERS.iter().any(|header| name.eq_ignore_ascii_case(header.as_bytes())))
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

    /// A misspelled name would protect nothing.
    #[test]
    fn listed_fields_and_messages_exist() {
        let pool = envoy_pool();
        for name in UNMARKED {
            let (message, field) = name.rsplit_once('.').unwrap();
            let message = pool.get_message_by_name(message).unwrap();
            assert!(message.get_field_by_name(field).is_some(), "{name}");
        }
        for name in HEADERS {
            let first = pool.get_message_by_name(name).unwrap().get_field(1).unwrap();
            assert!(["key", "name"].contains(&first.name()), "{name}");
        }
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
    fn redaction_changes_secrets_and_nothing_else() {
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
        assert_eq!(redacted(&type_url, &body), "");
        let foreign = TypeUrl::new("type.googleapis.com/example.Foreign").unwrap();
        assert_eq!(redacted(&foreign, &body), body);
        let key = Bytes::from_static(b"\xff -----BEGIN PRIVATE KEY-----");
        assert_eq!(redacted(&foreign, &key), "");
        let mut found = Vec::new();
        secret_values(&type_url, &body, &mut |value| found.extend_from_slice(value));
        assert_eq!(found, body);
    }

    #[test]
    fn mark_is_found_in_a_secret_and_nowhere_else() {
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
