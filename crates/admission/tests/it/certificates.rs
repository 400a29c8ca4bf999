//! Certificates, private keys and TLS parameters. The verdicts are those of Envoy 1.40.

use serde_json::{Value as Json, json};

use crate::{
    semantic::{assert_findings, tls, typed},
    validate::findings,
};

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
        // Envoy ignores other texts, which a warning says.
        (context(json!({"inline_string": "AAAA"})), &[&broken]),
        (context(pem("authority")), &[&broken]),
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

fn text(name: &str) -> String {
    let all: Json = serde_json::from_str(include_str!("data/tls.json")).unwrap();
    all[name].as_str().unwrap().to_owned()
}

fn inline(text: &str) -> Json {
    json!({"inline_string": text})
}

fn chain(chain: &str) -> Json {
    let pair = json!({"certificate_chain": inline(chain), "private_key": pem("private_key")});
    tls("Downstream", &json!({"tls_certificates": [pair]}))
}

fn key(key: &str) -> Json {
    let pair = json!({"certificate_chain": pem("certificate"), "private_key": inline(key)});
    tls("Downstream", &json!({"tls_certificates": [pair]}))
}

fn authority(authority: &str) -> Json {
    let pair = json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
    let validation = json!({"trusted_ca": inline(authority)});
    tls("Downstream", &json!({"tls_certificates": [pair], "validation_context": validation}))
}

/// Each variant of a text in PEM, and whether Envoy accepts it.
#[test]
fn pem_is_read_as_envoy_reads_it() {
    let foo = "-----BEGIN FOO-----\nAAAA\n-----END FOO-----\n";
    for (name, wrap) in [
        ("certificate", &chain as &dyn Fn(&str) -> Json),
        ("private_key", &key),
        ("authority", &authority),
    ] {
        let good = text(name);
        let lines: Vec<&str> = good.lines().collect();
        let (first, last, n) = (lines[0], lines[lines.len() - 1], lines.len());
        let body = lines[1..n - 1].concat();
        let indented =
            |lines: &[&str]| lines.iter().map(|it| format!("  {it}\n")).collect::<String>();
        for (text, is_taken) in [
            (good.clone(), true),
            (format!("note\n{good}"), true),
            (format!("\n\n{foo}{good}"), true),
            (good.replace('\n', "\r\n"), true),
            (good.replace('\n', "  \n"), true),
            (format!("{first}\n{body}\n{last}"), true),
            (format!("{first}\n{}{last}\n", indented(&lines[1..n - 1])), true),
            (format!("{first}\n\n{}\n", lines[1..].join("\n")), true),
            (format!("{first}\n\n{}\n\n{}\n", lines[1], lines[2..].join("\n")), true),
            (format!("{first}\n\n{}\n\n{last}\n", lines[1..n - 1].join("\n")), true),
            (format!("{}{good}", indented(&lines)), true),
            (indented(&lines), false),
            (format!(" {good}"), false),
            (format!("\u{feff}{good}"), false),
            (format!("note {good}"), false),
            (good.replace('\n', "\r"), false),
            (good.replace('\n', "\\n"), false),
            (lines.concat(), false),
            (good.replace(last, &format!("  {last}")), false),
            (good.replace(last, ""), false),
            (good.replace(last, &format!("{last} note")), false),
            (good.replace(first, &format!("{first} note")), false),
            (good.replace(lines[1], &format!("{}\n!!!", lines[1])), false),
            (good.replace(lines[1], &format!("{}\n", lines[1])), false),
            (good.replace("=\n", "\n"), !good.contains("=\n")),
            (format!("{first}\nA: b\n\n{}\n", lines[1..].join("\n")), false),
            (format!("{}{good}", foo.replace("AAAA", "!!!")), false),
            (String::new(), false),
        ] {
            let found = findings(&wrap(&text));
            assert_eq!(found.is_empty(), is_taken, "{name} {text:?}: {found:?}");
        }
    }
}

/// A key in PKCS #8 may have the label of its own kind, but not of another one.
#[test]
fn key_in_pkcs8_has_the_label_of_its_kind() {
    let labelled = |label: &str| key(&text("pkcs8_key").replace("PRIVATE KEY", label));
    assert_findings(&[
        (labelled("PRIVATE KEY"), &[]),
        (labelled("EC PRIVATE KEY"), &[]),
        (labelled("RSA PRIVATE KEY"), &[&pair("private_key")]),
        (labelled("FOO PRIVATE KEY"), &[&pair("private_key")]),
    ]);
}

/// Envoy reads only the first private key, but all certificates.
#[test]
fn broken_block_behind_a_private_key_is_not_read() {
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let open = "-----BEGIN FOO-----\nAAAA\n";
    let after = |name: &str, rest: &str| text(name) + rest;
    assert_findings(&[
        (key(&after("private_key", open)), &[]),
        (key(&after("private_key", broken)), &[]),
        (
            key(&text("private_key").replace("EC PRIVATE", "OPENSSH PRIVATE")),
            &[&pair("private_key")],
        ),
        (chain(&after("certificate", open)), &[&pair("certificate_chain")]),
        (chain(&after("certificate", broken)), &[&pair("certificate_chain")]),
        (chain(&after("certificate", &text("private_key"))), &[]),
        (authority(&after("authority", &text("revocation_list"))), &[]),
    ]);
}

fn pair(field: &str) -> String {
    format!("{SERVER}.tls_certificates[0].{field}.inline_string: tls.pem")
}

fn with_parameters(field: &str, values: &[&str]) -> Json {
    let pair = json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
    let common = json!({"tls_certificates": [pair], "tls_params": {field: values}});
    tls("Downstream", &common)
}

#[test]
fn lists_of_a_tls_context_are_read_as_envoy_reads_them() {
    let taken: [(&str, &[&str]); 24] = [
        ("ecdh_curves", &[]),
        ("ecdh_curves", &[""]),
        ("ecdh_curves", &["X25519MLKEM768", "P-256"]),
        ("signature_algorithms", &[""]),
        ("signature_algorithms", &["rsa_pkcs1_sha256_legacy", "rsa_pkcs1_sha256"]),
        ("signature_algorithms", &["mldsa44", "mldsa65", "mldsa87"]),
        ("cipher_suites", &[""]),
        ("cipher_suites", &["", "AES128-SHA"]),
        ("cipher_suites", &["AES128-SHA", "AES128-SHA:"]),
        ("cipher_suites", &["[AES128-SHA|AES128-SHA|]", "AES256-SHA"]),
        ("cipher_suites", &["[AES128-SHA|AES256-SHA][ECDHE+AESGCM|ALL]"]),
        ("cipher_suites", &["AES128-SHA!AES256-SHA"]),
        ("cipher_suites", &["ALL:!AES128-SHA:+AES256-SHA:@STRENGTH"]),
        ("cipher_suites", &["ALL:@STRENGTH+x"]),
        ("cipher_suites", &["DEFAULT:!3DES"]),
        ("cipher_suites", &["AES128-SHA:-CHACHA20"]),
        ("cipher_suites", &["AES128-SHA:!ECDHE+RSA"]),
        ("cipher_suites", &["AES128-SHA:!TLS_AES_256_GCM_SHA384"]),
        ("cipher_suites", &["-AES128-SHA:AES128-SHA"]),
        ("cipher_suites", &["-AES128-SHA:[AES128-SHA]"]),
        ("cipher_suites", &["3DES"]),
        ("cipher_suites", &["DES-CBC3-SHA:!ALL"]),
        ("cipher_suites", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),
        ("cipher_suites", &["ECDHE-ECDSA-AES128-SHA256"]),
    ];
    for (field, values) in taken {
        assert_eq!(findings(&with_parameters(field, values)), <[&str; 0]>::default(), "{values:?}");
    }
    let refused: [(&str, &[&str], &str); 30] = [
        ("ecdh_curves", &["X25519", "X25519"], "[1]"),
        ("ecdh_curves", &["P-256:prime256v1"], "[0]"),
        ("ecdh_curves", &["", "X25519"], "[0]"),
        ("ecdh_curves", &["X25519:"], "[0]"),
        ("ecdh_curves", &["p-256"], "[0]"),
        ("signature_algorithms", &["ed25519", "ed25519"], "[1]"),
        ("signature_algorithms", &["PSS+SHA256", "rsa_pss_rsae_sha256"], "[1]"),
        ("signature_algorithms", &["rsa_pkcs1_sha256", ""], "[1]"),
        ("cipher_suites", &["", ""], ""),
        ("cipher_suites", &["[AES128-SHA"], "[0]"),
        ("cipher_suites", &["[AES128-SHA", "AES256-SHA]"], "[0]"),
        ("cipher_suites", &["AES256-SHA]"], "[0]"),
        ("cipher_suites", &["[[AES256-SHA]]"], "[0]"),
        ("cipher_suites", &["[]"], ""),
        ("cipher_suites", &["AES128-SHA|AES256-SHA"], "[0]"),
        ("cipher_suites", &["[!AES128-SHA|AES256-SHA]"], "[0]"),
        ("cipher_suites", &["[AES128-SHA]", "-AES128-SHA"], "[1]"),
        ("cipher_suites", &["ALL:+[AES128-SHA]"], "[0]"),
        ("cipher_suites", &["ECDHE+"], "[0]"),
        ("cipher_suites", &["AES128-SHA+AESGCM"], "[0]"),
        ("cipher_suites", &["ECDHE+RSA"], ""),
        ("cipher_suites", &["AES128-SHA,AES256-SHA"], "[0]"),
        ("cipher_suites", &["ALL:@SECLEVEL=1"], "[0]"),
        ("cipher_suites", &["!AES128-SHA:AES128-SHA"], ""),
        ("cipher_suites", &["AES128-SHA:!TLS_RSA_WITH_AES_128_CBC_SHA"], ""),
        ("cipher_suites", &["ALL:-HIGH"], ""),
        ("cipher_suites", &["AES128-SHA:DEFAULT"], "[0]"),
        ("cipher_suites", &["TLS_AES_256_GCM_SHA384"], ""),
        ("cipher_suites", &["TLS_FOO_WITH_BAR"], "[0]"),
        ("cipher_suites", &["aes128-sha"], "[0]"),
    ];
    for (field, values, index) in refused {
        let expected = format!("{SERVER}.tls_params.{field}{index}: tls.parameter");
        let found = findings(&with_parameters(field, values));
        assert!(found.contains(&expected), "{values:?}: {found:?}");
    }
}

#[test]
fn expired_certificates_are_allowed_only_with_an_authority() {
    let context = |validation: Json| {
        let pair =
            json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
        let common = json!({"tls_certificates": [pair], "validation_context": validation});
        tls("Downstream", &common)
    };
    let at =
        format!("{SERVER}.validation_context.allow_expired_certificate: tls.expired_without_ca");
    let domain = json!({"name": "a", "trust_bundle": pem("authority")});
    let spiffe = typed(
        "extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig",
        &json!({"trust_domains": [domain]}),
    );
    let spiffe = json!({"name": "envoy.tls.cert_validator.spiffe", "typed_config": spiffe});
    let hash = "a".repeat(64);
    assert_findings(&[
        (context(json!({"allow_expired_certificate": true})), &[&at]),
        (
            context(json!({"allow_expired_certificate": true, "verify_certificate_hash": [hash]})),
            &[&at],
        ),
        (context(json!({"allow_expired_certificate": true, "system_root_certs": {}})), &[&at]),
        (context(json!({"allow_expired_certificate": false})), &[]),
        (context(json!({"allow_expired_certificate": true, "trusted_ca": pem("authority")})), &[]),
        (
            context(json!({"allow_expired_certificate": true, "custom_validator_config": spiffe})),
            &[],
        ),
    ]);
}

/// A secret without content removes the certificates of an mTLS listener: Envoy acknowledges it, and verifies
/// nothing.
#[test]
fn secret_without_content_is_refused() {
    let secret = |rest: Json| typed("extensions.transport_sockets.tls.v3.Secret", &rest);
    assert_findings(&[
        (secret(json!({"name": "s"})), &[": tls.secret_content"]),
        (secret(json!({"name": "s", "validation_context": {}})), &[]),
        (secret(json!({"name": "s", "generic_secret": {}})), &[]),
    ]);
}

/// Envoy 1.40 rejects the other forms: "Invalid base64-encoded SHA-256".
#[test]
fn hash_of_a_key_is_in_standard_base64() {
    let with = |hash: &str| {
        let pair =
            json!({"certificate_chain": pem("certificate"), "private_key": pem("private_key")});
        let validation = json!({
            "trusted_ca": pem("certificate"),
            "verify_certificate_spki": [hash],
        });
        tls("Downstream", &json!({"tls_certificates": [pair], "validation_context": validation}))
    };
    let at =
        format!("{SERVER}.validation_context.verify_certificate_spki[0]: tls.certificate_hash");
    assert_findings(&[
        (with("4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v8="), &[]),
        (with("4OHi4-Tl5ufo6err7O3u7_Dx8vP09fb3-Pn6-_z9_v8="), &[&at]),
        (with("4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v9="), &[&at]),
    ]);
}
