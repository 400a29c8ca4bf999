//! The rules for the names in a client certificate (SPIFFE, X.509-SVID).
//!
//! A certificate may have at most one URI name. If that name is a SPIFFE ID, the ID must have its only
//! valid spelling, so that equal identities are equal strings.

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

/// The maximum length of a SPIFFE ID in bytes.
const ID_BYTES_MAX: usize = 2048;
/// The maximum length of a trust domain in bytes.
const TRUST_DOMAIN_BYTES_MAX: usize = 255;
/// The number of characters of a name that an error shows.
const SHOWN_CHARS_MAX: usize = 100;

/// The reason why the names or the uses of a certificate are not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadIdentity {
    #[error("it has {0} URI names (subjectAltName), at most one is allowed")]
    ManyUris(usize),
    #[error("its URI name {0:?} is not a valid SPIFFE ID: {1}")]
    SpiffeId(String, &'static str),
    #[error("its key usage lacks digitalSignature")]
    NoSignature,
    #[error(
        "its key usage allows to sign certificates or revocation lists, as only that of a CA may"
    )]
    SignsOthers,
    #[error("it cannot be parsed: {0}")]
    Unreadable(String),
}

/// The names in a client certificate that obeys the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) spiffe_id: Option<String>,
    /// The DNS names in lower case, sorted, each once.
    pub(crate) dns: Vec<String>,
    /// The common name of the subject, if it has exactly one.
    pub(crate) common_name: Option<String>,
    /// The serial number in hexadecimal digits.
    pub(crate) serial: String,
}

/// Checks the URI names and the key usage of a client certificate whose chain is verified. Returns its names.
pub(crate) fn check(certificate: &CertificateDer<'_>) -> Result<Names, BadIdentity> {
    let unreadable = |error: &dyn ToString| BadIdentity::Unreadable(error.to_string());
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| unreadable(&error))?;
    let names = certificate.subject_alternative_name().map_err(|error| unreadable(&error))?;
    let general = || names.iter().flat_map(|names| &names.value.general_names);
    let uris = general().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let uris: Vec<&str> = uris.collect();
    let is_spiffe = match uris.as_slice() {
        [] => false,
        [uri] => check_uri(uri)?,
        more => return Err(BadIdentity::ManyUris(more.len())),
    };
    let usage = certificate.key_usage().map_err(|error| unreadable(&error))?;
    match usage.map(|usage| usage.value) {
        Some(usage) if usage.key_cert_sign() || usage.crl_sign() => {
            return Err(BadIdentity::SignsOthers);
        }
        Some(usage) if !usage.digital_signature() => return Err(BadIdentity::NoSignature),
        // An X.509-SVID must have a key usage.
        None if is_spiffe => return Err(BadIdentity::NoSignature),
        _ => {}
    }
    let spiffe_id = uris.first().filter(|_| is_spiffe).map(|uri| (*uri).to_owned());
    let dns = general().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let mut dns: Vec<String> = dns.collect();
    dns.sort_unstable();
    dns.dedup();
    let serial = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Names { spiffe_id, dns, common_name: common_name(&certificate), serial })
}

fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let mut names = certificate.subject().iter_common_name();
    match (names.next(), names.next()) {
        (Some(name), None) => name.as_str().ok().map(ToOwned::to_owned),
        _ => None,
    }
}

/// Returns whether a URI name is a SPIFFE ID. Fails if it has the scheme of one and is invalid.
fn check_uri(uri: &str) -> Result<bool, BadIdentity> {
    const SCHEME: &str = "spiffe:";
    let has_scheme =
        uri.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME));
    if !has_scheme {
        return Ok(false);
    }
    match id_rule(uri) {
        None => Ok(true),
        Some(rule) => Err(BadIdentity::SpiffeId(uri.chars().take(SHOWN_CHARS_MAX).collect(), rule)),
    }
}

/// Returns the trust domain of a valid SPIFFE ID.
pub(crate) fn trust_domain(id: &str) -> &str {
    let rest = id.strip_prefix("spiffe://").unwrap_or(id);
    rest.split_once('/').map_or(rest, |(trust_domain, _)| trust_domain)
}

/// Returns the rule that the name of a trust domain breaks.
#[must_use]
pub fn trust_domain_rule(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > TRUST_DOMAIN_BYTES_MAX {
        return Some("its trust domain must have 1 to 255 bytes");
    }
    if !name.bytes().all(|b| b.is_ascii_lowercase() || is_common(b)) {
        return Some("its trust domain may contain only a-z, 0-9, '.', '-' and '_'");
    }
    None
}

/// Returns whether a character is allowed in trust domains and in paths.
fn is_common(b: u8) -> bool {
    b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_')
}

/// Returns the rule that a SPIFFE ID breaks.
fn id_rule(id: &str) -> Option<&'static str> {
    if id.len() > ID_BYTES_MAX {
        return Some("it has more than 2048 bytes");
    }
    let Some(rest) = id.strip_prefix("spiffe://") else {
        return Some("it must begin with spiffe://");
    };
    let (trust_domain, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    if let Some(rule) = trust_domain_rule(trust_domain) {
        return Some(rule);
    }
    if path.is_empty() {
        return Some("it has no path");
    }
    for segment in path[1..].split('/') {
        if matches!(segment, "" | "." | "..") {
            return Some("its path has an empty segment, or one that is '.' or '..'");
        }
        if !segment.bytes().all(|b| b.is_ascii_alphabetic() || is_common(b)) {
            return Some("its path may contain only a-z, A-Z, 0-9, '.', '-', '_' and '/'");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPIFFE-ID, section 2: an identity has exactly one spelling. attack 5
    #[test]
    fn spiffe_id_has_one_spelling() {
        for uri in ["spiffe://a/b", "spiffe://prod.example_x-1/ns/a/sa/B.c", "spiffe://a/..."] {
            assert_eq!(check_uri(uri), Ok(true), "{uri}");
        }
        for uri in ["https://a/b", "spiff://a", "", "é", "urn:spiffe:x"] {
            assert_eq!(check_uri(uri), Ok(false), "{uri}");
        }
        let long = format!("spiffe://a/{}", "x".repeat(2048 - 10));
        let long_domain = format!("spiffe://{}/x", "a".repeat(256));
        for uri in [
            "spiffe:",
            "spiffe:a/b",
            "SPIFFE://a/b",
            "spiffe://",
            "spiffe:///b",
            "spiffe://a",
            "spiffe://a/",
            "spiffe://a/b/",
            "spiffe://a//b",
            "spiffe://a/./b",
            "spiffe://a/../b",
            "spiffe://a/%2e%2e/b",
            "spiffe://a/b%2Fc",
            "spiffe://A/b",
            "spiffe://a:80/b",
            "spiffe://u@a/b",
            "spiffe://a/b?c",
            "spiffe://a/b#c",
            "spiffe://a/b c",
            "spiffe://a/é",
            "spiffe://a/b\0",
            &long,
            &long_domain,
        ] {
            assert!(matches!(check_uri(uri), Err(BadIdentity::SpiffeId(..))), "{uri}");
        }
        assert_eq!(check_uri(&long[..2048]), Ok(true));
        assert_eq!(check_uri(&long_domain.replacen('a', "", 1)), Ok(true));
    }
}
