//! The names of ciphers, curves and signatures that Envoy's TLS library knows.

use std::collections::HashMap;

use super::cipher_list::{self, CipherList, Defect};
use crate::{
    node::named,
    validate::{findings::Findings, tree::Message},
};

/// The curves, each with all its names.
const CURVES: &[&[&str]] = &[
    &["MLKEM1024"],
    &["P-256", "prime256v1"],
    &["P-384", "secp384r1"],
    &["P-521", "secp521r1"],
    &["X25519", "x25519"],
    &["X25519MLKEM768"],
];

/// The signature algorithms, each with all its names.
const SIGNATURES: &[&[&str]] = &[
    &["ECDSA+SHA1", "ecdsa_sha1"],
    &["ECDSA+SHA256", "ecdsa_secp256r1_sha256"],
    &["ECDSA+SHA384", "ecdsa_secp384r1_sha384"],
    &["ECDSA+SHA512", "ecdsa_secp521r1_sha512"],
    &["PSS+SHA256", "RSA-PSS+SHA256", "rsa_pss_rsae_sha256"],
    &["PSS+SHA384", "RSA-PSS+SHA384", "rsa_pss_rsae_sha384"],
    &["PSS+SHA512", "RSA-PSS+SHA512", "rsa_pss_rsae_sha512"],
    &["RSA+SHA1", "rsa_pkcs1_sha1"],
    &["RSA+SHA256", "rsa_pkcs1_sha256"],
    &["RSA+SHA384", "rsa_pkcs1_sha384"],
    &["RSA+SHA512", "rsa_pkcs1_sha512"],
    &["ed25519"],
    &["mldsa44"],
    &["mldsa65"],
    &["mldsa87"],
    &["rsa_pkcs1_sha256_legacy"],
];

/// Checks the lists in the parameters of a TLS context. Envoy joins the entries of a list with colons, and treats an
/// empty text as no list.
pub(super) fn check<'m>(parameters: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_given = |field| {
        let mut entries = parameters.texts(field);
        entries.next().is_some_and(|first| !first.is_empty()) || entries.next().is_some()
    };
    if is_given("cipher_suites") {
        ciphers(parameters, findings);
    }
    for (field, what, known) in [
        ("ecdh_curves", "a curve", CURVES),
        ("signature_algorithms", "a signature algorithm", SIGNATURES),
    ] {
        if is_given(field) {
            names(parameters, (field, what, known), findings);
        }
    }
}

fn ciphers<'m>(parameters: &'m Message<'_>, findings: &mut Findings<'m>) {
    let mut list = CipherList::new();
    let mut has_defect = false;
    for (index, entry) in parameters.texts("cipher_suites").enumerate() {
        let Err(defect) = list.add(entry) else { continue };
        has_defect = true;
        findings.item("cipher_suites", index, |findings| match defect {
            Defect::Unknown(name) => {
                unknown("a cipher suite", &name, cipher_list::names(), findings);
            }
            Defect::Syntax(rule) => {
                findings.refuse("tls.parameter", format!("{} {rule}", named(entry)));
            }
        });
    }
    if list.is_empty() && !has_defect {
        let rule = "contains no cipher of TLS 1.2; the ciphers of TLS 1.3 are always enabled";
        findings.field("cipher_suites", |findings| findings.refuse("tls.parameter", rule));
    }
}

/// Checks a list of names without repetitions.
fn names<'m>(
    parameters: &'m Message<'_>,
    (field, what, known): (&'m str, &str, &'static [&'static [&'static str]]),
    findings: &mut Findings<'m>,
) {
    let mut seen: HashMap<usize, &str> = HashMap::new();
    for (index, entry) in parameters.texts(field).enumerate() {
        for name in entry.split(':') {
            let Some(at) = known.iter().position(|names| names.contains(&name)) else {
                let known = known.iter().copied().flatten().copied();
                findings.item(field, index, |findings| unknown(what, name, known, findings));
                continue;
            };
            if let Some(first) = seen.insert(at, name) {
                let rule = format!("{} repeats {}", named(name), named(first));
                findings.item(field, index, |findings| findings.refuse("tls.parameter", rule));
            }
        }
    }
}

fn unknown(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'static str>,
    findings: &mut Findings<'_>,
) {
    let rule = format!("{} is not {what} of Envoy's TLS library", named(name));
    match findings.suggestion(name, known) {
        Some(meant) => {
            findings.refuse_with_fix("tls.parameter", rule, format!("did you mean {meant}?"));
        }
        None => findings.refuse("tls.parameter", rule),
    }
}
