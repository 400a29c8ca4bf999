//! TLS contexts and certificates.

use super::pem;
use crate::validate::{findings::Findings, tree::Message};

/// A server has a certificate.
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
    if !common.is_some_and(|common| SOURCES.iter().any(|source| common.has(source))) {
        findings.field("common_tls_context", |findings| {
            let rule = "a TLS server needs a certificate";
            let fix = "give tls_certificates or tls_certificate_sds_secret_configs";
            findings.refuse_with_fix("tls.no_certificate", rule, fix);
        });
    }
}

/// A client has at most one certificate.
pub(super) fn client_context<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(common) = context.message("common_tls_context") else { return };
    for list in ["tls_certificates", "tls_certificate_sds_secret_configs"] {
        let n = common.messages(list).count();
        if n > 1 && !common.has("custom_tls_certificate_selector") {
            findings.field("common_tls_context", |findings| {
                let rule = format!("has {n} certificates, but a TLS client may have at most 1");
                findings.field(list, |findings| findings.refuse("tls.client_certificates", rule));
            });
        }
    }
}

/// A certificate comes with its private key.
pub(super) fn certificate<'m>(certificate: &'m Message<'_>, findings: &mut Findings<'m>) {
    let has_key = certificate.has("private_key") || certificate.has("private_key_provider");
    if certificate.has("pkcs12") {
        return;
    }
    if let Some(chain) = certificate.message("certificate_chain") {
        findings.field("certificate_chain", |f| pem::check(chain, "CERTIFICATE", f));
    }
    if let Some(key) = certificate.message("private_key") {
        findings.field("private_key", |f| pem::check(key, "PRIVATE KEY", f));
    }
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

pub(super) fn validation<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Some(authority) = context.message("trusted_ca") {
        findings.field("trusted_ca", |f| pem::check(authority, "CERTIFICATE", f));
    }
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
