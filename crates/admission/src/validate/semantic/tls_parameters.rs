//! The names of ciphers, curves and signatures that Envoy's TLS library knows.

use crate::{
    node::named,
    validate::{findings::Findings, tree::Message},
};

const CIPHERS: &[&str] = &[
    "AES128-GCM-SHA256",
    "AES128-SHA",
    "AES256-GCM-SHA384",
    "AES256-SHA",
    "DES-CBC3-SHA",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-PSK-AES128-CBC-SHA",
    "ECDHE-PSK-AES256-CBC-SHA",
    "ECDHE-PSK-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-SHA",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "PSK-AES128-CBC-SHA",
    "PSK-AES256-CBC-SHA",
];

/// Groups of ciphers, and the names that other lists use.
const CIPHER_GROUPS: &[&str] = &[
    "3DES", "DEFAULT", "AES", "AES128", "AES256", "AESGCM", "ALL", "CHACHA20", "ECDHE", "ECDSA",
    "EECDH", "FIPS", "HIGH", "PSK", "RSA", "SHA", "SHA1", "SSLv3", "TLSv1", "TLSv1.2", "aECDSA",
    "aPSK", "aRSA", "kECDHE", "kEECDH", "kPSK", "kRSA",
];

const CURVES: &[&str] = &[
    "MLKEM1024",
    "P-256",
    "P-384",
    "P-521",
    "X25519",
    "X25519MLKEM768",
    "prime256v1",
    "secp384r1",
    "secp521r1",
    "x25519",
];

const SIGNATURES: &[&str] = &[
    "ECDSA+SHA256",
    "ECDSA+SHA384",
    "ECDSA+SHA512",
    "PSS+SHA256",
    "PSS+SHA384",
    "PSS+SHA512",
    "RSA+SHA1",
    "RSA+SHA256",
    "RSA+SHA384",
    "RSA+SHA512",
    "ECDSA+SHA1",
    "RSA-PSS+SHA256",
    "RSA-PSS+SHA384",
    "RSA-PSS+SHA512",
    "ecdsa_secp256r1_sha256",
    "ecdsa_secp384r1_sha384",
    "ecdsa_secp521r1_sha512",
    "ecdsa_sha1",
    "ed25519",
    "rsa_pkcs1_sha1",
    "rsa_pkcs1_sha256",
    "rsa_pkcs1_sha384",
    "rsa_pkcs1_sha512",
    "rsa_pss_rsae_sha256",
    "rsa_pss_rsae_sha384",
    "rsa_pss_rsae_sha512",
];

/// Checks the names in the parameters of a TLS context.
pub(super) fn check<'m>(parameters: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, entry) in parameters.texts("cipher_suites").enumerate() {
        let ciphers = entry.split([':', '+', '!', '[', '|', ']']).filter(|name| !name.is_empty());
        for name in ciphers.map(|name| name.strip_prefix('-').unwrap_or(name)) {
            let is_known = CIPHERS.contains(&name) || CIPHER_GROUPS.contains(&name);
            // The name of a standard, which contains the key exchange before TLS 1.3.
            let is_standard = name.starts_with("TLS_") && name.contains("_WITH_");
            if !is_known && !is_standard {
                findings
                    .item("cipher_suites", index, |f| unknown("a cipher suite", name, CIPHERS, f));
            }
        }
    }
    for (field, what, known) in [
        ("ecdh_curves", "a curve", CURVES),
        ("signature_algorithms", "a signature algorithm", SIGNATURES),
    ] {
        for (index, entry) in parameters.texts(field).enumerate() {
            for name in entry.split(':').filter(|name| !known.contains(name)) {
                findings.item(field, index, |f| unknown(what, name, known, f));
            }
        }
    }
}

fn unknown(what: &str, name: &str, known: &[&'static str], findings: &mut Findings<'_>) {
    let rule = format!("{} is not {what} of Envoy's TLS library", named(name));
    match findings.suggestion(name, known.iter().copied()) {
        Some(meant) => {
            findings.refuse_with_fix("tls.parameter", rule, format!("did you mean {meant}?"));
        }
        None => findings.refuse("tls.parameter", rule),
    }
}
