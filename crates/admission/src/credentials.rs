//! The fields, headers and keys that hold credentials.
//!
//! Redaction and the errors of admission use the same tables, so an error never shows a value that `get`
//! hides.

use std::{collections::HashSet, sync::LazyLock};

use chancery_proto::envoy_pool;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::collection;

/// The replacement for a value that is secret because of its field.
pub const MARK: &str = "[redacted]";

/// The replacement for a private key outside of sensitive fields. Admission rejects this value in a manifest,
/// because it would overwrite the real one.
pub const KEY_MARK: &str = "[redacted private key]";

/// The fields that hold credentials, and that Envoy's API does not annotate as sensitive.
///
/// A key set in `local_jwks` may contain symmetric keys. `RouteMatch.cookies` compares whole cookies.
const UNMARKED: [&str; 17] = [
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.ServiceAccountJWTAccessCredentials.json_key",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.GoogleIAMCredentials.authorization_token",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.access_token",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.google_refresh_token",
    "envoy.config.route.v3.CookieMatcher.string_match",
    "envoy.config.trace.v3.LightstepConfig.access_token",
    "envoy.extensions.filters.common.jwks.v3.JwtHandshakeValidator.local_jwks",
    "envoy.extensions.filters.http.aws_lambda.v3.Credentials.secret_access_key",
    "envoy.extensions.filters.http.aws_lambda.v3.Credentials.session_token",
    "envoy.extensions.filters.http.gcp_authn.v3.Audience.IAMAccessToken.authorization",
    "envoy.extensions.filters.http.jwt_authn.v3.JwtProvider.local_jwks",
    "envoy.extensions.grpc_service.call_credentials.access_token.v3.AccessTokenCredentials.token",
    "envoy.extensions.grpc_service.call_credentials.google_iam.v3.GoogleIamCredentials.authorization_token",
    "envoy.extensions.grpc_service.call_credentials.google_refresh_token.v3.GoogleRefreshTokenCredentials.token",
    "envoy.extensions.grpc_service.call_credentials.service_account_jwt_access.v3.ServiceAccountJwtAccessCredentials.json_key",
    "envoy.service.redis_auth.v3.RedisProxyExternalAuthRequest.password",
    "istio.security.v1beta1.JWTRule.jwks",
];

/// The ends of names of credentials: of headers, query parameters, environment variables and keys of JSON.
/// Names are compared without `-`, `_` and case: `x-api-key` and `apiKey` end in `apikey`.
const WORDS: [&str; 15] = [
    "accesskey",
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "encryptionkey",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "sharedkey",
    "signingkey",
    "token",
];

/// The messages whose first field names what their other fields contain, or are compared with.
const NAMED_VALUES: [&str; 7] = [
    "envoy.config.core.v3.HeaderValue",
    "envoy.config.core.v3.KeyValue",
    "envoy.config.core.v3.KeyValuePair",
    "envoy.config.core.v3.QueryParameter",
    "envoy.config.route.v3.HeaderMatcher",
    "envoy.config.route.v3.QueryParameterMatcher",
    "envoy.extensions.filters.network.generic_proxy.matcher.v3.KeyValueMatchEntry",
];

pub(crate) const ANY: &str = "google.protobuf.Any";
pub(crate) const DATA_SOURCE: &str = "envoy.config.core.v3.DataSource";
pub(crate) const STRUCT: &str = "google.protobuf.Struct";
const VALUE: &str = "google.protobuf.Value";
/// The messages that hold another message as a [`STRUCT`]. The first field is the type URL of that message.
const TYPED_STRUCTS: [&str; 2] = ["udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct"];

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
    let mut holders = HashSet::from([ANY, STRUCT, VALUE].map(str::to_owned));
    loop {
        let known = holders.len();
        for message in envoy_pool().all_messages() {
            let reaches = |field: FieldDescriptor| match field.kind() {
                Kind::Message(inner) => is(&field) || holders.contains(inner.full_name()),
                _ => is(&field),
            };
            if has_named_value(&message) || message.fields().any(reaches) {
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

/// Returns whether a message can hold a secret by its fields.
pub(crate) fn can_hold(message: &MessageDescriptor) -> bool {
    HOLDERS.contains(message.full_name())
}

/// Returns whether a message, or one directly inside it, has a secret in a field.
pub(crate) fn is_near(message: &MessageDescriptor) -> bool {
    has_named_value(message)
        || message.fields().any(|field| match field.kind() {
            Kind::Message(inner) => is(&field) || has_named_value(&inner),
            _ => is(&field),
        })
}

/// Returns whether the first field of a message is a name that [`names_credential`] can judge.
pub(crate) fn has_named_value(message: &MessageDescriptor) -> bool {
    let is_text_entry = || {
        message.is_map_entry()
            && message.map_entry_key_field().kind() == Kind::String
            && matches!(message.map_entry_value_field().kind(), Kind::String | Kind::Bytes)
    };
    NAMED_VALUES.contains(&message.full_name()) || is_text_entry()
}

/// Returns whether a message is a `TypedStruct`.
pub(crate) fn is_typed_struct(message: &MessageDescriptor) -> bool {
    TYPED_STRUCTS.contains(&message.full_name())
}

/// Returns whether the content of a message is JSON without field descriptors.
pub(crate) fn is_json(message: &MessageDescriptor) -> bool {
    [STRUCT, VALUE].contains(&message.full_name())
}

/// Returns whether a name is that of a credential.
pub(crate) fn names_credential(name: &str) -> bool {
    let letters = || {
        let bytes = name.bytes().rev().filter(|byte| !matches!(byte, b'-' | b'_'));
        bytes.map(|byte| byte.to_ascii_lowercase())
    };
    WORDS.iter().any(|word| letters().take(word.len()).eq(word.bytes().rev()))
}

/// Returns the message that a type URL names.
pub(crate) fn message_of(type_url: &str) -> Option<MessageDescriptor> {
    let name = type_url.rsplit('/').next().unwrap_or(type_url);
    collection::message(type_url).or_else(|| envoy_pool().get_message_by_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelled name would protect nothing.
    #[test]
    fn listed_fields_and_messages_exist() {
        let pool = envoy_pool();
        for name in UNMARKED {
            let (message, field) = name.rsplit_once('.').unwrap();
            let message = pool.get_message_by_name(message).unwrap();
            assert!(message.get_field_by_name(field).is_some(), "{name}");
        }
        for name in NAMED_VALUES {
            let first = pool.get_message_by_name(name).unwrap().get_field(1).unwrap();
            assert!(["key", "name"].contains(&first.name()), "{name}");
        }
        for name in TYPED_STRUCTS {
            let first = pool.get_message_by_name(name).unwrap().get_field(1).unwrap();
            assert_eq!(first.name(), "type_url");
        }
    }

    /// OPS-19: a new version of Envoy's API adds no credential that nobody has seen.
    #[test]
    fn every_field_that_may_hold_a_credential_is_reviewed() {
        const PARTS: [&str; 16] = [
            "api_key",
            "auth",
            "bearer",
            "cookie",
            "credential",
            "hmac",
            "jwk",
            "jwt",
            "pass",
            "private",
            "pwd",
            "secret",
            "shared",
            "signing",
            "token",
            "_key",
        ];
        let reviewed: HashSet<&str> = include_str!("credentials/reviewed.txt").lines().collect();
        let is_content = |field: &FieldDescriptor| match field.kind() {
            Kind::String | Kind::Bytes => true,
            Kind::Message(inner) => {
                inner.full_name() == DATA_SOURCE
                    || is_json(&inner)
                    || matches!(inner.name(), "BytesValue" | "StringMatcher" | "StringValue")
                    || inner.is_map_entry()
                        && matches!(
                            inner.map_entry_value_field().kind(),
                            Kind::String | Kind::Bytes
                        )
            }
            _ => false,
        };
        let mut unknown: Vec<String> = envoy_pool()
            .all_messages()
            .flat_map(|message| message.fields().collect::<Vec<_>>())
            .filter(|field| PARTS.iter().any(|part| field.name().contains(part)))
            .filter(|field| is_content(field) && !is(field))
            .map(|field| field.full_name().to_owned())
            .filter(|name| !reviewed.contains(name.as_str()))
            .collect();
        unknown.sort();
        assert!(unknown.is_empty(), "add to `UNMARKED` or `reviewed.txt`:\n{}", unknown.join("\n"));
    }

    #[test]
    fn credential_names_match_by_suffix() {
        for name in [
            "Authorization",
            "proxy-authorization",
            "cookie",
            "set-cookie",
            "api-key",
            "x-api-key",
            "x-auth-token",
            "x-amz-security-token",
            "x-goog-api-key",
            "DB_PASSWORD",
            "clientSecret",
        ] {
            assert!(names_credential(name), "{name}");
        }
        for name in ["", "token_endpoint", ":path", "x-stamp", "key", "keep"] {
            assert!(!names_credential(name), "{name}");
        }
    }
}
