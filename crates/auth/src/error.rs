//! The reasons for the refusal of a credential.

/// A way to authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The caller has no credential.
    None,
    /// A client certificate.
    Certificate,
    /// The user at the other end of a UNIX socket.
    Unix,
    /// A bearer token of an unknown kind.
    Bearer,
    /// A token that Chancery has created.
    Token,
    /// A JSON Web Token.
    Jwt,
    /// A service account token of Kubernetes.
    Kubernetes,
}

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There are several `authorization` headers.
    Several,
    /// The scheme of the `authorization` header is not `Bearer`.
    Scheme,
    /// The credential is too long.
    TooLong,
    /// The credential is in the URL, where logs show it.
    InUrl,
    /// The credential has no valid form.
    Malformed,
    /// The token is not, or no longer, known.
    UnknownToken,
    /// The credential has expired.
    Expired,
    /// The credential is not valid yet.
    NotYetValid,
    /// The token is valid for too long.
    Lifetime,
    /// The algorithm of the signature is not allowed.
    Algorithm,
    /// The header has a parameter that must be understood and is not, or another type.
    Header,
    /// The issuer is not configured.
    Issuer,
    /// The token is for another audience.
    Audience,
    /// No key set of the issuer has been read yet.
    NoKeys,
    /// The key set of the issuer does not contain the key.
    UnknownKey,
    /// The signature is wrong.
    Signature,
    /// A claim is missing or invalid.
    Claim,
    /// The certificate has no name that identifies its owner.
    NoName,
    /// The address had too many failures, so the credential was not verified.
    TooManyFailures,
}

/// A refused credential. The text never contains the credential itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct AuthError {
    method: Method,
    reason: Reason,
    text: String,
}

impl Method {
    /// All ways to authenticate.
    pub(crate) const ALL: [Self; 7] = [
        Self::None,
        Self::Certificate,
        Self::Unix,
        Self::Bearer,
        Self::Token,
        Self::Jwt,
        Self::Kubernetes,
    ];

    /// Returns the label of the metric.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Certificate => "certificate",
            Self::Unix => "unix",
            Self::Bearer => "bearer",
            Self::Token => "token",
            Self::Jwt => "jwt",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl Reason {
    /// Returns the label of the metric.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Several => "several",
            Self::Scheme => "scheme",
            Self::TooLong => "too_long",
            Self::InUrl => "in_url",
            Self::Malformed => "malformed",
            Self::UnknownToken => "unknown_token",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Lifetime => "lifetime",
            Self::Algorithm => "algorithm",
            Self::Header => "header",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::NoKeys => "no_keys",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Claim => "claim",
            Self::NoName => "no_name",
            Self::TooManyFailures => "too_many_failures",
        }
    }
}

impl AuthError {
    pub(crate) fn new(method: Method, reason: Reason, text: impl Into<String>) -> Self {
        Self { method, reason, text: text.into() }
    }

    /// Returns the label of the reason, for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.reason.label()
    }

    /// Returns whether the credential was not verified, because its address had too many failures.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.reason == Reason::TooManyFailures
    }

    /// Returns the kind of the credential.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }
}
