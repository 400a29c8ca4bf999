//! Certificates, private keys and TLS parameters. The verdicts are those of Envoy 1.40.

use serde_json::{Value as Json, json};

use crate::semantic::{assert_findings, tls};

const SERVER: &str = "filter_chains[0].transport_socket.typed_config.common_tls_context";

/// Returns a certificate or a key that was generated for these tests.
fn pem(name: &str) -> Json {
    let all: Json = serde_json::from_str(include_str!("data/tls.json")).unwrap();
    json!({"inline_string": all[name]})
}

fn server(certificate: &str, key: &str) -> Json {
    let pair = json!({"certificate_chain": pem(certificate), "private_key": pem(key)});
    tls("Downstream", &json!({"tls_certificates": [pair]}))
}

#[test]
fn private_key_must_belong_to_its_certificate() {
    let at =
        |path: &str, id: &str| format!("{SERVER}.tls_certificates[0].{path}.inline_string: {id}");
    assert_findings(&[
        (server("certificate", "private_key"), &[]),
        (server("certificate", "other_key"), &[&at("private_key", "tls.key_mismatch")]),
        (server("certificate", "weak_key"), &[&at("private_key", "tls.key_mismatch")]),
        (server("certificate", "encrypted_key"), &[&at("private_key", "tls.encrypted_key")]),
        (server("weak_certificate", "weak_key"), &[&at("certificate_chain", "tls.key_strength")]),
        (server("private_key", "private_key"), &[&at("certificate_chain", "tls.pem")]),
    ]);
}

#[test]
fn revocation_lists_must_be_readable() {
    let context = |crl: Json| {
        let validation = json!({"trusted_ca": pem("authority"), "crl": crl});
        let pair =
            json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
        let common = json!({"tls_certificates": [pair], "validation_context": validation});
        tls("Downstream", &common)
    };
    let block = |content: &str| {
        let text = format!("-----BEGIN X509 CRL-----\n{content}\n-----END X509 CRL-----\n");
        context(json!({"inline_string": text}))
    };
    let broken = format!("{SERVER}.validation_context.crl.inline_string: tls.crl");
    assert_findings(&[
        (context(pem("revocation_list")), &[]),
        // Envoy ignores other texts.
        (context(json!({"inline_string": "AAAA"})), &[]),
        (context(pem("authority")), &[]),
        (block("AAAA"), &[&broken]),
        (block("MAA="), &[&broken]),
    ]);
}

#[test]
fn parameters_of_a_tls_context_must_be_known() {
    let with = |rest: Json| {
        let pair =
            json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
        let mut common = json!({"tls_certificates": [pair]});
        common.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        tls("Downstream", &common)
    };
    let parameters = |name: &str, value: &str| with(json!({"tls_params": {name: [value]}}));
    let at = |name: &str| format!("{SERVER}.tls_params.{name}[0]: tls.parameter");
    let staple = |field: &str, value: &str| {
        let mut pair =
            json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
        pair["ocsp_staple"] = json!({field: value});
        tls("Downstream", &json!({"tls_certificates": [pair]}))
    };
    let ocsp = |field: &str| format!("{SERVER}.tls_certificates[0].ocsp_staple.{field}: tls.ocsp");
    assert_findings(&[
        (
            parameters(
                "cipher_suites",
                "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]",
            ),
            &[],
        ),
        (parameters("cipher_suites", "ECDHE+AESGCM:-3DES"), &[]),
        (parameters("cipher_suites", "TLS_AES_128_GCM_SHA256"), &[&at("cipher_suites")]),
        (parameters("ecdh_curves", "X25519:P-256"), &[]),
        (parameters("ecdh_curves", "P-224"), &[&at("ecdh_curves")]),
        (parameters("signature_algorithms", "sha256"), &[&at("signature_algorithms")]),
        (with(json!({"alpn_protocols": ["h2,http/1.1"]})), &[]),
        (
            with(json!({"alpn_protocols": ["x".repeat(256)]})),
            &[&format!("{SERVER}.alpn_protocols[0]: tls.alpn")],
        ),
        (
            with(
                json!({"tls_certificate_sds_secret_configs": [{"name": "s", "sds_config": {"ads": {}}}]}),
            ),
            &[&format!("{SERVER}.tls_certificate_sds_secret_configs: tls.mixed_certificates")],
        ),
        (staple("inline_string", "x"), &[&ocsp("inline_string")]),
        (staple("inline_bytes", "AAAA"), &[&ocsp("inline_bytes")]),
    ]);
}
