//! Principals: the authenticated identities of clients, authors and operators.

use std::{borrow::Cow, fmt, fmt::Write as _, sync::Arc};

use crate::{Revision, has_private_key, is_unprintable};

/// The maximum length of a principal in bytes. A SPIFFE ID has at most 2,048.
pub const PRINCIPAL_BYTES_MAX: usize = 2560;

/// The ways to authenticate, with the text at the start of their principals.
const SCHEMES: [&str; 7] = ["spiffe://", "cert:", "jwt:", "k8s:", "token:", "unix:", "anonymous"];

/// An authenticated identity. Principals of different ways to authenticate never collide.
///
/// | principal | authenticated by |
/// |---|---|
/// | `spiffe://TRUST-DOMAIN/PATH` | a certificate with a SPIFFE ID |
/// | `cert:CA/dns/NAME`, `cert:CA/cn/NAME` | another certificate, by the name of the configured CA |
/// | `jwt:ISSUER/SUBJECT` | a JSON Web Token, by the name of the configured issuer |
/// | `k8s:CLUSTER/NAMESPACE/SERVICE-ACCOUNT` | a service account token of Kubernetes |
/// | `token:NAME` | a token that Chancery has created |
/// | `unix:UID` | the process at the other end of a UNIX socket |
/// | `anonymous` | nothing |
///
/// Slashes and percent signs in a part are percent-encoded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

/// The reason why a text is not a principal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrincipalError {
    /// The text starts with no known way to authenticate.
    #[error(
        "the identity {0:?} is unknown; it must start with spiffe://, cert:, jwt:, k8s:, token: or unix:, or be anonymous"
    )]
    Scheme(String),
    /// The text is too long.
    #[error("the identity has {0} bytes, at most {PRINCIPAL_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// The text contains control characters or spaces.
    #[error("the identity {0:?} contains a space or a control character")]
    Character(String),
    /// A part between slashes is empty.
    #[error("the identity {0:?} has an empty part")]
    EmptyPart(String),
    /// The text contains a private key, which an error must not show.
    #[error("the identity contains a private key in PEM form, which is not shown; give a name")]
    PrivateKey,
}

impl Principal {
    /// Validates a principal that a person wrote, or that a replica stored.
    ///
    /// # Errors
    /// Fails if the text is no principal.
    pub fn new(text: &str) -> Result<Self, PrincipalError> {
        check(text)?;
        Ok(Self(text.into()))
    }

    /// Returns the principal of a SPIFFE ID. The caller has verified the certificate and the ID.
    ///
    /// # Errors
    /// Fails if the text is no SPIFFE ID.
    pub fn spiffe(id: &str) -> Result<Self, PrincipalError> {
        if !id.starts_with("spiffe://") {
            return Err(PrincipalError::Scheme(id.to_owned()));
        }
        Self::new(id)
    }

    /// Returns the principal of a certificate without a SPIFFE ID, by a DNS name.
    ///
    /// # Errors
    /// Fails if a part is empty or too long.
    pub fn dns(ca: &str, name: &str) -> Result<Self, PrincipalError> {
        Self::of_parts("cert:", &[ca, "dns", name])
    }

    /// Returns the principal of a certificate without a SPIFFE ID, by its common name.
    ///
    /// # Errors
    /// Fails if a part is empty or too long.
    pub fn common_name(ca: &str, name: &str) -> Result<Self, PrincipalError> {
        Self::of_parts("cert:", &[ca, "cn", name])
    }

    /// Returns the principal of a JSON Web Token.
    ///
    /// # Errors
    /// Fails if a part is empty or too long.
    pub fn jwt(issuer: &str, subject: &str) -> Result<Self, PrincipalError> {
        Self::of_parts("jwt:", &[issuer, subject])
    }

    /// Returns the principal of a service account of Kubernetes.
    ///
    /// # Errors
    /// Fails if a part is empty or too long.
    pub fn service_account(
        cluster: &str,
        namespace: &str,
        account: &str,
    ) -> Result<Self, PrincipalError> {
        Self::of_parts("k8s:", &[cluster, namespace, account])
    }

    /// Returns the principal of a token that Chancery has created.
    ///
    /// # Errors
    /// Fails if the name is empty or too long.
    pub fn token(name: &str) -> Result<Self, PrincipalError> {
        Self::of_parts("token:", &[name])
    }

    /// Returns the principal of a process on this machine.
    #[must_use]
    pub fn unix(uid: u32) -> Self {
        Self(format!("unix:{uid}").into())
    }

    /// Returns the principal of a caller without a credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self("anonymous".into())
    }

    /// Returns whether the caller has no credential.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        &*self.0 == "anonymous"
    }

    /// Returns the principal as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of_parts(scheme: &str, parts: &[&str]) -> Result<Self, PrincipalError> {
        let parts: Vec<_> = parts.iter().map(|part| encode(part)).collect();
        Self::new(&format!("{scheme}{}", parts.join("/")))
    }
}

/// Encodes a part of a principal, so that it contains no slash.
fn encode(part: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !matches!(c, '/' | '%' | '{' | '}' | '*') && !is_blank(c);
    if part.chars().all(is_plain) {
        return part.into();
    }
    let mut text = String::new();
    let mut buffer = [0; 4];
    for c in part.chars() {
        if is_plain(c) {
            text.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut buffer).bytes() {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text.into()
}

fn is_blank(c: char) -> bool {
    c.is_whitespace() || is_unprintable(c)
}

fn check(text: &str) -> Result<(), PrincipalError> {
    if text.len() > PRINCIPAL_BYTES_MAX {
        return Err(PrincipalError::TooLong(text.len()));
    }
    if has_private_key(text.as_bytes()) {
        return Err(PrincipalError::PrivateKey);
    }
    if text.chars().any(is_blank) {
        return Err(PrincipalError::Character(text.to_owned()));
    }
    let Some(scheme) = SCHEMES.iter().find(|scheme| text.starts_with(**scheme)) else {
        return Err(PrincipalError::Scheme(text.to_owned()));
    };
    let rest = &text[scheme.len()..];
    match *scheme {
        "anonymous" if rest.is_empty() => Ok(()),
        "anonymous" => Err(PrincipalError::Scheme(text.to_owned())),
        _ if rest.split('/').any(str::is_empty) => Err(PrincipalError::EmptyPart(text.to_owned())),
        _ => Ok(()),
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The identity of a connection or a call, as a credential has proved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The name that access rules match.
    pub principal: Principal,
    /// The digest of the token of Chancery that proved the identity. When the token is deleted, the
    /// identity is no longer valid.
    pub token: Option<TokenDigest>,
}

/// The SHA-256 digest of a token that Chancery has created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenDigest(pub [u8; 32]);

/// A token that Chancery has created. The replicas store its digest, never the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The name, which is also that of the principal `token:NAME`.
    pub name: Arc<str>,
    /// The SHA-256 digest, by which a presented token is found.
    pub digest: TokenDigest,
    /// The time of creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// The time from which the token is no longer valid, in milliseconds since 1970.
    pub expires_ms: u64,
    /// The revision that created the token.
    pub revision: Revision,
}

impl Identity {
    /// Returns the identity of a caller without a credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { principal: Principal::anonymous(), token: None }
    }
}

/// Shows the first bytes, which identify a digest to people.
impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_reach_into_other_parts() {
        assert_eq!(Principal::jwt("corp", "a/b%").unwrap().as_str(), "jwt:corp/a%2Fb%25");
        assert_eq!(Principal::jwt("corp", "x\n{y}*").unwrap().as_str(), "jwt:corp/x%0A%7By%7D%2A");
        let account = Principal::service_account("eu1", "shop", "cart").unwrap();
        assert_eq!(account.as_str(), "k8s:eu1/shop/cart");
        assert_eq!(Principal::common_name("ops", "anna").unwrap().as_str(), "cert:ops/cn/anna");
        assert_eq!(Principal::dns("ops", "a.b").unwrap().as_str(), "cert:ops/dns/a.b");
        assert!(Principal::token("").is_err());
    }

    #[test]
    fn invalid_text_is_no_principal() {
        for text in
            ["", "anna", "anonymous2", "jwt:", "jwt:a//b", "spiffe://", "k8s:a b", "unix:\u{7}"]
        {
            assert!(Principal::new(text).is_err(), "{text:?}");
        }
        let long = format!("token:{}", "x".repeat(PRINCIPAL_BYTES_MAX - 6));
        assert!(Principal::new(&long).is_ok());
        assert!(Principal::new(&format!("{long}x")).is_err());
        assert!(Principal::spiffe("jwt:a/b").is_err());
        assert!(Principal::anonymous().is_anonymous());
    }
}
