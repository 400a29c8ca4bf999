//! TLS contexts and secrets.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    certificate::{self, Leaf},
    common::repeated,
    pem, tls_parameters,
};
use crate::{
    node::named,
    validate::{findings::Findings, tree::Message},
};

/// The length of a key for session tickets in bytes.
const TICKET_KEY_BYTES: usize = 80;
/// The maximum length of the name of a protocol in bytes.
const ALPN_BYTES_MAX: usize = 255;
/// The maximum length of the list of protocols in bytes, in the form of TLS.
const ALPN_LIST_BYTES_MAX: usize = 65_535;
/// `SubjectAltNameMatcher.san_type` of names that an object identifier describes.
const OTHER_NAME: u64 = 5;
/// `DownstreamTlsContext.ocsp_staple_policy` that requires a response for each certificate.
const MUST_STAPLE: u64 = 2;

/// A server has a certificate, and its certificates fit its policy.
pub(super) fn server_context<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    const SOURCES: [&str; 6] = [
        "custom_tls_certificate_selector",
        "tls_certificates",
        "tls_certificate_sds_secret_configs",
        "tls_certificate_provider_instance",
        "tls_certificate_certificate_provider",
        "tls_certificate_certificate_provider_instance",
    ];
    let common = context.message("common_tls_context");
    // Envoy ignores a certificate without content.
    let is_empty = |certificate: &Message<'_>| {
        const PARTS: [&str; 4] =
            ["certificate_chain", "private_key", "private_key_provider", "pkcs12"];
        !PARTS.iter().any(|part| certificate.has(part))
    };
    let has_source = |common: &Message<'_>| {
        SOURCES.iter().any(|source| match *source {
            "tls_certificates" => !common.messages(source).all(is_empty),
            source => common.has(source),
        })
    };
    let Some(common) = common.filter(|common| has_source(common)) else {
        return findings.field("common_tls_context", |findings| {
            let rule = "a TLS server needs a certificate";
            let fix = "give tls_certificates or tls_certificate_sds_secret_configs";
            findings.refuse_with_fix("tls.no_certificate", rule, fix);
        });
    };
    let policy = context.bits("ocsp_staple_policy");
    findings.field("common_tls_context", |findings| {
        if common.has("tls_certificates") && common.has("tls_certificate_sds_secret_configs") {
            findings.field("tls_certificate_sds_secret_configs", |findings| {
                let rule = "cannot be combined with tls_certificates in a TLS server";
                findings.refuse_with_fix("tls.mixed_certificates", rule, "remove one of the two");
            });
        }
        for (index, certificate) in common.messages("tls_certificates").enumerate() {
            findings.item("tls_certificates", index, |findings| {
                served(certificate, policy, findings);
            });
        }
    });
}

/// A key for session tickets has a fixed length.
fn ticket_key<'m>(key: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some((field, content)) = pem::inline(key) else { return };
    let n = content.len();
    if n != TICKET_KEY_BYTES {
        let rule = format!("has {n} bytes, but a key for session tickets has {TICKET_KEY_BYTES}");
        findings.field(field, |findings| findings.refuse("tls.ticket_key", rule));
    }
}

/// The keys for session tickets have a fixed length.
pub(super) fn ticket_keys<'m>(keys: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, key) in keys.messages("keys").enumerate() {
        findings.item("keys", index, |findings| ticket_key(key, findings));
    }
}

/// A certificate of a server has a name, and an OCSP response where one is required.
fn served<'m>(certificate: &'m Message<'_>, policy: u64, findings: &mut Findings<'m>) {
    let chain = certificate.message("certificate_chain");
    let leaf = chain.and_then(|chain| pem::inline(chain));
    let leaf = leaf.and_then(|(_, content)| certificate::chain(content).ok());
    let must_staple = policy == MUST_STAPLE || leaf.as_ref().is_some_and(|leaf| leaf.must_staple);
    let has_certificate = chain.is_some() || certificate.has("pkcs12");
    if has_certificate && must_staple && !certificate.has("ocsp_staple") {
        findings.field("ocsp_staple", |findings| {
            let rule = "is required by the certificate or by ocsp_staple_policy, but missing";
            findings.refuse("tls.ocsp_missing", rule);
        });
    }
    if leaf.is_some_and(|leaf| !leaf.has_name) {
        findings.field("certificate_chain", |findings| {
            let rule = "the certificate has neither a common name nor a subject alternative name";
            findings.refuse("tls.no_name", rule);
        });
    }
}

/// A client has at most one certificate.
pub(super) fn client_context<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    if context.text("sni").contains('\0') {
        findings.field("sni", |findings| {
            findings.refuse("tls.sni", "must not contain a null character");
        });
    }
    let Some(common) = context.message("common_tls_context") else { return };
    let names: Vec<&str> = common.texts("alpn_protocols").collect();
    if let Some(index) = empty_protocol(&names) {
        findings.field("common_tls_context", |findings| {
            findings.item("alpn_protocols", index, |findings| {
                findings.refuse("tls.alpn", "the name of a protocol is empty; remove it");
            });
        });
    }
    const LISTS: [&str; 2] = ["tls_certificates", "tls_certificate_sds_secret_configs"];
    let n: usize = LISTS.iter().map(|list| common.messages(list).count()).sum();
    if n > 1 && !common.has("custom_tls_certificate_selector") {
        let list = if common.has(LISTS[0]) { LISTS[0] } else { LISTS[1] };
        findings.field("common_tls_context", |findings| {
            let rule = format!("has {n} certificates, but a TLS client may have at most 1");
            findings.field(list, |findings| findings.refuse("tls.client_certificates", rule));
        });
    }
}

/// Returns the position of an empty name beside others. Envoy joins the names with commas, and splits them again.
fn empty_protocol(names: &[&str]) -> Option<usize> {
    let is_list = names.len() > 1 || names.iter().any(|name| !name.is_empty());
    let has_empty = |names: &&str| names.split(',').any(str::is_empty);
    names.iter().position(has_empty).filter(|_| is_list)
}

/// The parameters of a context are known to Envoy's TLS library.
pub(super) fn common<'m>(common: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, name) in common.texts("alpn_protocols").enumerate() {
        // Envoy joins the names with commas, and splits them again.
        if name.split(',').any(|name| name.len() > ALPN_BYTES_MAX) {
            findings.item("alpn_protocols", index, |findings| {
                let rule = format!("the name of a protocol has at most {ALPN_BYTES_MAX} bytes");
                findings.refuse("tls.alpn", rule);
            });
        }
    }
    // Each name has a byte for its length.
    let len: usize = common.texts("alpn_protocols").map(|name| name.len() + 1).sum();
    if len > ALPN_LIST_BYTES_MAX {
        findings.field("alpn_protocols", |findings| {
            let rule = format!(
                "has {len} bytes with the lengths of its names, but at most {ALPN_LIST_BYTES_MAX}"
            );
            findings.refuse("tls.alpn", rule);
        });
    }
    let Some(parameters) = common.message("tls_params") else { return };
    findings.field("tls_params", |findings| tls_parameters::check(parameters, findings));
}

/// A certificate comes with its private key.
pub(super) fn certificate<'m>(certificate: &'m Message<'_>, findings: &mut Findings<'m>) {
    staple(certificate, findings);
    key_provider(certificate, findings);
    let has_key = certificate.has("private_key") || certificate.has("private_key_provider");
    if let Some(archive) = certificate.message("pkcs12") {
        for other in ["certificate_chain", "private_key"] {
            if certificate.has(other) {
                let rule = "cannot be combined with pkcs12, which contains it";
                findings.field(other, |findings| findings.refuse("tls.pkcs12", rule));
            }
        }
        if pem::inline(archive).is_some_and(|(_, content)| !certificate::is_sequence(content)) {
            let rule = "is not a PKCS #12 archive in DER";
            findings.field("pkcs12", |findings| findings.refuse("tls.pkcs12", rule));
        }
        return;
    }
    let leaf = certificate.message("certificate_chain").and_then(pem::inline).and_then(
        |(field, content)| {
            let checked = checked_chain(content);
            match checked {
                Ok(leaf) => Some(leaf),
                Err((id, rule)) => {
                    findings.field("certificate_chain", |findings| {
                        findings.field(field, |findings| findings.refuse(id, rule));
                    });
                    None
                }
            }
        },
    );
    private_key(certificate, leaf.as_ref(), findings);
    if certificate.has("certificate_chain") && !has_key {
        findings.field("private_key", |findings| {
            findings.refuse("tls.private_key", "is required with a certificate_chain, but missing");
        });
    }
    if has_key && !certificate.has("certificate_chain") {
        findings.field("certificate_chain", |findings| {
            findings.refuse("tls.certificate_chain", "is required with a private key, but missing");
        });
    }
}

/// Checks that a secret has content, and that a `tls_certificate` has a certificate. Envoy ignores an empty certificate
/// only inside a context.
pub(super) fn secret<'m>(secret: &'m Message<'_>, findings: &mut Findings<'m>) {
    const KINDS: [&str; 4] =
        ["tls_certificate", "session_ticket_keys", "validation_context", "generic_secret"];
    if !KINDS.iter().any(|kind| secret.has(kind)) {
        let rule =
            "has no content: an Envoy that verifies certificates with it would verify nothing";
        let fix = format!("give one of {}", KINDS.join(", "));
        findings.refuse_with_fix("tls.secret_content", rule, fix);
    }
    const PARTS: [&str; 4] = ["certificate_chain", "private_key", "private_key_provider", "pkcs12"];
    let certificate = secret.message("tls_certificate");
    if certificate.is_some_and(|certificate| !PARTS.iter().any(|part| certificate.has(part))) {
        findings.field("tls_certificate", |findings| {
            findings.refuse("tls.no_certificate", "needs certificate_chain and private_key");
        });
    }
}

fn checked_chain(content: &[u8]) -> Result<Leaf, (&'static str, String)> {
    let leaf = certificate::chain(content).map_err(|rule| ("tls.pem", rule))?;
    certificate::strength(&leaf.key).map_err(|rule| ("tls.key_strength", rule))?;
    Ok(leaf)
}

/// A private key parses, is readable, and belongs to its certificate.
fn private_key<'m>(certificate: &'m Message<'_>, leaf: Option<&Leaf>, findings: &mut Findings<'m>) {
    let Some((field, content)) = certificate.message("private_key").and_then(pem::inline) else {
        return;
    };
    let (id, rule, fix) = match certificate::private_key(content) {
        Err(rule) => ("tls.pem", rule, ""),
        Ok(None) if !certificate.has("password") => {
            ("tls.encrypted_key", "is encrypted, but there is no password".into(), "give password")
        }
        Ok(Some(key)) if leaf.is_some_and(|leaf| certificate::differs(&leaf.key, &key)) => (
            "tls.key_mismatch",
            "is not the key of the first certificate in certificate_chain".into(),
            "put the certificate of this key first",
        ),
        Ok(_) => return,
    };
    findings.field("private_key", |findings| {
        findings.field(field, |findings| findings.refuse_with_fix(id, rule, fix));
    });
}

/// An OCSP response is inline bytes in DER.
fn staple<'m>(certificate: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(staple) = certificate.message("ocsp_staple") else { return };
    let (field, rule, fix) = if staple.has("inline_string") {
        ("inline_string", "cannot hold an OCSP response, which is binary", "use inline_bytes")
    } else if staple.has("inline_bytes")
        && let Err(rule) = certificate::ocsp_response(staple.bytes("inline_bytes"))
    {
        ("inline_bytes", rule, "")
    } else {
        return;
    };
    findings.field("ocsp_staple", |findings| {
        findings.field(field, |findings| findings.refuse_with_fix("tls.ocsp", rule, fix));
    });
}

/// The providers of private keys that some builds of Envoy have.
const KEY_PROVIDERS: [&str; 3] = ["cryptomb", "qat", "kae"];

fn key_provider<'m>(certificate: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(provider) = certificate.message("private_key_provider") else { return };
    let name = provider.text("provider_name");
    if name.is_empty() || certificate.has("private_key") {
        return;
    }
    findings.field("private_key_provider", |findings| {
        findings.field("provider_name", |findings| {
            if KEY_PROVIDERS.contains(&name) {
                findings.warn("tls.key_provider", "only some builds of Envoy have this provider")
            } else {
                let rule = format!("Envoy has no private key provider {}", named(name));
                findings.refuse("tls.key_provider", rule);
            }
        });
    });
}

/// The authorities, lists and hashes of a validation context can be read.
pub(super) fn validation<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    let authority = context.message("trusted_ca").and_then(pem::inline);
    if let Some((field, content)) = authority
        && let Err(rule) = certificate::authorities(content)
    {
        findings.field("trusted_ca", |findings| {
            findings.field(field, |findings| findings.refuse("tls.pem", rule));
        });
    }
    if let Some((field, content)) = context.message("crl").and_then(pem::inline) {
        findings.field("crl", |findings| {
            findings.field(field, |findings| match certificate::revocations(content) {
                Err(rule) => findings.refuse("tls.crl", rule),
                Ok(0) => {
                    let missing = pem::missing(content, "X509 CRL");
                    findings.warn(
                        "tls.crl",
                        format!("{missing}; Envoy accepts it, and revokes nothing"),
                    );
                }
                Ok(_) => {}
            });
        });
    }
    for (index, matcher) in context.messages("match_typed_subject_alt_names").enumerate() {
        if matcher.bits("san_type") == OTHER_NAME && !is_object_identifier(matcher.text("oid")) {
            findings.item("match_typed_subject_alt_names", index, |findings| {
                findings.field("oid", |findings| {
                    let rule = "OTHER_NAME needs an object identifier, such as 1.2.3";
                    findings.refuse("tls.oid", rule);
                });
            });
        }
    }
    for (index, hash) in context.texts("verify_certificate_hash").enumerate() {
        let digits = hash.replace(':', "");
        let is_hash = digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        // The rules of the proto file limit the length.
        if !is_hash && (64..=95).contains(&hash.len()) {
            findings.item("verify_certificate_hash", index, |findings| {
                let rule = "is not a SHA-256 hash of 64 hexadecimal digits";
                findings.refuse("tls.certificate_hash", rule);
            });
        }
    }
    for (index, hash) in context.texts("verify_certificate_spki").enumerate() {
        if hash.len() != 44 || is_spki_hash(hash) {
            continue;
        }
        findings.item("verify_certificate_spki", index, |findings| {
            findings.refuse("tls.certificate_hash", "is not a SHA-256 hash in base64");
        });
    }
    validator(context, findings);
}

/// Returns whether a text is a SHA-256 hash in base64 of the standard alphabet, without bits that have no meaning.
fn is_spki_hash(text: &str) -> bool {
    BASE64_STANDARD.decode(text).is_ok_and(|hash| hash.len() == 32)
}

fn is_object_identifier(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.contains('.') && text.split('.').all(is_number)
}

/// The trust domains of SPIFFE are different, and their bundles can be read.
pub(super) fn spiffe<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let domains = || config.messages("trust_domains");
    for (index, first) in repeated(domains().map(|domain| domain.text("name"))) {
        findings.item("trust_domains", index, |findings| {
            let rule = format!("repeats the name of trust_domains[{first}]");
            findings.refuse("tls.trust_domain", rule);
        });
    }
    for (index, domain) in domains().enumerate() {
        let bundle = domain.message("trust_bundle");
        let rule = match bundle.map(pem::inline) {
            None => "is required, but missing".to_owned(),
            Some(Some((_, content))) => match certificate::authorities(content) {
                Err(rule) => rule,
                Ok(()) => continue,
            },
            Some(None) => continue,
        };
        findings.item("trust_domains", index, |findings| {
            findings.field("trust_bundle", |findings| findings.refuse("tls.pem", rule));
        });
    }
}

/// The names of the validators that can replace the one of Envoy.
const VALIDATORS: [&str; 3] = [
    "envoy.tls.cert_validator.default",
    "envoy.tls.cert_validator.dynamic_modules",
    "envoy.tls.cert_validator.spiffe",
];

/// A custom validator exists. Envoy finds it by its name.
fn validator<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(custom) = context.message("custom_validator_config") else { return };
    let name = custom.text("name");
    findings.field("custom_validator_config", |findings| {
        if !name.is_empty() && !VALIDATORS.contains(&name) {
            findings.field("name", |findings| {
                let rule = format!("Envoy has no certificate validator {}", named(name));
                findings.refuse("tls.validator", rule);
            });
        }
    });
}

/// Names are compared only in certificates that are verified. The authority of a combined context may come by SDS.
pub(super) fn names<'m>(parent: &'m Message<'_>, findings: &mut Findings<'m>) {
    const AUTHORITIES: [&str; 4] = [
        "trusted_ca",
        "ca_certificate_provider_instance",
        "system_root_certs",
        "custom_validator_config",
    ];
    let Some(context) = parent.message("validation_context") else { return };
    if context.has("crl") && !context.has("trusted_ca") {
        findings.field("validation_context", |findings| {
            findings.field("crl", |f| f.refuse("tls.crl_without_ca", "needs trusted_ca"));
        });
    }
    // The certificate of a secret may be that of a combined context.
    if context.bits("allow_expired_certificate") != 0
        && !context.has("trusted_ca")
        && !context.has("custom_validator_config")
        && !findings.is_resource()
    {
        findings.field("validation_context", |findings| {
            let rule = "needs trusted_ca: without it, Envoy never checks the validity period";
            findings
                .field("allow_expired_certificate", |f| f.refuse("tls.expired_without_ca", rule));
        });
    }
    if AUTHORITIES.iter().any(|field| context.has(field)) {
        return;
    }
    for names in ["match_typed_subject_alt_names", "match_subject_alt_names"] {
        if context.has(names) {
            let rule = "needs trusted_ca: without it, clients could present any certificate";
            findings.field("validation_context", |findings| {
                findings.field(names, |findings| findings.refuse("tls.unverified_names", rule));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::empty_protocol;

    /// Envoy reads a list of one empty name as no list.
    #[test]
    fn empty_protocol_is_found_beside_others() {
        assert_eq!(empty_protocol(&[]), None);
        assert_eq!(empty_protocol(&[""]), None);
        assert_eq!(empty_protocol(&["h2", "http/1.1,http/1.0"]), None);
        assert_eq!(empty_protocol(&["h2", "http/1.1", ""]), Some(2));
        assert_eq!(empty_protocol(&["h2", "http/1.1,"]), Some(1));
    }
}
