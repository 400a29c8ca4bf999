//! The principal of a client certificate.

use std::time::SystemTime;

use chancery_model::Principal;
use chancery_tls::PeerIdentity;

use crate::{
    clock::{date, time},
    error::{AuthError, Method, Reason},
};

/// Refuses a certificate that has expired since its connection was opened.
///
/// # Errors
/// Fails if the certificate has expired.
pub(crate) fn check(certificate: &PeerIdentity, now: u64) -> Result<(), AuthError> {
    if time(now) <= certificate.not_after {
        return Ok(());
    }
    let end = certificate.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (serial, end) = (&certificate.serial, date(end.as_secs()));
    let text =
        format!("the client certificate {serial} expired at {end}; reconnect with a new one");
    Err(AuthError::new(Method::Certificate, Reason::Expired, text))
}

/// Returns the principal of a certificate. A SPIFFE ID takes precedence. Otherwise the certificate must have exactly
/// one name of the kind that the port uses: a choice among several would be a guess.
///
/// # Errors
/// Fails if the certificate has no such name.
pub(crate) fn principal(certificate: &PeerIdentity) -> Result<Principal, AuthError> {
    let ca = &certificate.ca;
    let principal = match (&certificate.spiffe_id, &certificate.common_name) {
        (Some(id), _) => Principal::spiffe(id),
        (None, Some(name)) if certificate.by_common_name => Principal::common_name(ca, name),
        (None, _) if certificate.by_common_name => {
            return Err(no_name(certificate, "needs exactly one common name"));
        }
        (None, _) => match certificate.dns.as_slice() {
            [name] => Principal::dns(ca, name),
            [] => return Err(no_name(certificate, "has neither a SPIFFE ID nor a DNS name")),
            names => {
                let reason = format!("has no SPIFFE ID and {} DNS names", names.len());
                return Err(no_name(certificate, &reason));
            }
        },
    };
    principal.map_err(|error| no_name(certificate, &format!("has an unusable name: {error}")))
}

fn no_name(certificate: &PeerIdentity, reason: &str) -> AuthError {
    let serial = &certificate.serial;
    let text = format!(
        "the client certificate {serial} {reason}; use a certificate with a SPIFFE ID or with exactly one name"
    );
    AuthError::new(Method::Certificate, Reason::NoName, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spiffe: Option<&str>, dns: &[&str], cn: Option<&str>, by_cn: bool) -> String {
        let certificate = PeerIdentity {
            spiffe_id: spiffe.map(str::to_owned),
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            common_name: cn.map(str::to_owned),
            by_common_name: by_cn,
            not_after: time(100),
            serial: "07".to_owned(),
            ca: "clients".into(),
        };
        assert_eq!(check(&certificate, 100), Ok(()));
        assert_eq!(check(&certificate, 101).unwrap_err().reason(), "expired");
        match principal(&certificate) {
            Ok(principal) => principal.to_string(),
            Err(error) => error.reason().to_owned(),
        }
    }

    /// attack 9: a common name is no identity, unless the port is configured for it.
    #[test]
    fn certificate_has_exactly_one_principal() {
        let id = Some("spiffe://prod/ns/a");
        assert_eq!(of(id, &["a"], Some("cn"), true), "spiffe://prod/ns/a");
        assert_eq!(of(id, &["a", "b"], None, false), "spiffe://prod/ns/a");
        assert_eq!(of(None, &["a"], Some("cn"), false), "cert:clients/dns/a");
        assert_eq!(of(None, &[], Some("admin"), false), "no_name");
        assert_eq!(of(None, &["a", "b"], Some("cn"), false), "no_name");
        assert_eq!(of(None, &["a"], Some("admin/x"), true), "cert:clients/cn/admin%2Fx");
        assert_eq!(of(None, &["a"], None, true), "no_name");
        assert_eq!(of(None, &[""], None, false), "no_name");
    }
}
