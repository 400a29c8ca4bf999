//! The display of redacted bodies. Secrets never leave the store through the admin API, because
//! `chancery_admission` replaces the secret values of each body that is shown.

use chancery_admission::{KEY_MARK, MARK};
use chancery_model::TypeUrl;
use serde_json::Value;

/// The marks in base64, as proto JSON shows them in a field of bytes.
const MARKS_IN_BASE64: [(&str, &str); 2] =
    [("W3JlZGFjdGVkXQ==", MARK), ("W3JlZGFjdGVkIHByaXZhdGUga2V5XQ==", KEY_MARK)];

/// Returns a redacted body as JSON, with readable marks in fields of bytes.
pub(crate) fn body_to_json(body: &prost_types::Any) -> Value {
    let Ok(type_url) = TypeUrl::new(&body.type_url) else {
        return serde_json::json!({"@type": body.type_url});
    };
    let mut json = chancery_admission::body_to_json(&type_url, &body.value);
    make_readable(&mut json);
    json
}

fn make_readable(json: &mut Value) {
    match json {
        Value::String(text) => {
            if let Some((_, mark)) = MARKS_IN_BASE64.iter().find(|(base64, _)| *text == **base64) {
                (*mark).clone_into(text);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_readable),
        Value::Object(fields) => fields.values_mut().for_each(make_readable),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use chancery_admission::redacted;
    use chancery_model::types;
    use chancery_proto::envoy_pool;
    use prost_reflect::DynamicMessage;
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
        let value = redacted(&type_url, &any.value.into()).to_vec();
        body_to_json(&prost_types::Any { type_url: any.type_url, value })
    }

    /// CSDS-14, OPS-19: the answer contains no secret values.
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

    /// OPS-19: a private key in the wrong field is not shown.
    #[test]
    fn private_key_in_place_of_a_certificate_is_replaced() {
        const KEY_IN_BASE64: &str = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1DNENBUQo=";
        for key in [
            json!({"inline_string": "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n"}),
            json!({"inline_bytes": KEY_IN_BASE64}),
        ] {
            let certificate = json!({"certificate_chain": key});
            let secret =
                json!({"@type": types::SECRET, "name": "cert", "tls_certificate": certificate});
            let shown = shown(&secret);
            let chain = &shown["tls_certificate"]["certificate_chain"];
            let value = chain.get("inline_string").or_else(|| chain.get("inline_bytes"));
            assert_eq!(value.unwrap(), KEY_MARK, "{shown}");
        }
    }
}
