//! The result of a handshake: its label, and its explanation for the log.

use std::io;

use tokio_rustls::rustls::{self, CertificateError, PeerIncompatible};

use crate::{client_verifier::BadCertificate, spiffe::BadIdentity};

/// The result of the handshake of an incoming connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeResult {
    /// The connection is open.
    Ok,
    /// The client sent no certificate, and the port requires one.
    NoCertificate,
    /// No CA of the port signed the client's certificate.
    UnknownCa,
    /// The client's certificate is self-signed.
    SelfSigned,
    /// The client's certificate, or one of its chain, has expired.
    Expired,
    /// The client's certificate, or one of its chain, is not valid yet.
    NotYetValid,
    /// The client's certificate is revoked.
    Revoked,
    /// The client's certificate could not be checked against the revocation list.
    BadCrl,
    /// The client's certificate has several URI names, or an invalid SPIFFE ID.
    BadSan,
    /// The client's certificate is unusable for another reason, such as its key usage.
    BadCertificate,
    /// The client and the port have no TLS version in common.
    ProtocolVersion,
    /// The client and the port have no cipher suite, key exchange or signature scheme in common.
    Incompatible,
    /// The client offered only application protocols that the port does not speak.
    Alpn,
    /// The client did not speak TLS, or violated the protocol.
    Protocol,
    /// The client rejected the handshake, usually because it does not trust the server's certificate.
    RefusedByClient,
    /// The handshake took too long.
    Timeout,
    /// The client closed the connection.
    Closed,
}

/// A failed handshake of an incoming connection.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct HandshakeError {
    /// The kind of the failure.
    pub result: HandshakeResult,
    source: io::Error,
}

impl HandshakeResult {
    /// All results, in the order of their discriminants.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::NoCertificate,
        Self::UnknownCa,
        Self::SelfSigned,
        Self::Expired,
        Self::NotYetValid,
        Self::Revoked,
        Self::BadCrl,
        Self::BadSan,
        Self::BadCertificate,
        Self::ProtocolVersion,
        Self::Incompatible,
        Self::Alpn,
        Self::Protocol,
        Self::RefusedByClient,
        Self::Timeout,
        Self::Closed,
    ];

    /// Returns the label of the metric.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NoCertificate => "no_certificate",
            Self::UnknownCa => "unknown_ca",
            Self::SelfSigned => "self_signed",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Revoked => "revoked",
            Self::BadCrl => "bad_crl",
            Self::BadSan => "bad_san",
            Self::BadCertificate => "bad_certificate",
            Self::ProtocolVersion => "protocol_version",
            Self::Incompatible => "incompatible",
            Self::Alpn => "alpn",
            Self::Protocol => "protocol",
            Self::RefusedByClient => "refused_by_client",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
        }
    }

    /// Returns the result that an error of a handshake means.
    fn of(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(error) => Self::of_tls(error),
            None if error.kind() == io::ErrorKind::TimedOut => Self::Timeout,
            None => Self::Closed,
        }
    }

    fn of_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::NoCertificatesPresented => Self::NoCertificate,
            rustls::Error::InvalidCertificate(error) => Self::of_certificate(error),
            rustls::Error::InvalidCertRevocationList(_) => Self::BadCrl,
            rustls::Error::PeerIncompatible(
                PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
            ) => Self::ProtocolVersion,
            rustls::Error::PeerIncompatible(_) => Self::Incompatible,
            rustls::Error::NoApplicationProtocol => Self::Alpn,
            rustls::Error::AlertReceived(_) => Self::RefusedByClient,
            _ => Self::Protocol,
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer => Self::UnknownCa,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownRevocationStatus
            | CertificateError::ExpiredRevocationList
            | CertificateError::ExpiredRevocationListContext { .. } => Self::BadCrl,
            error => match own(error) {
                Some(BadCertificate::SelfSigned) => Self::SelfSigned,
                Some(BadCertificate::Identity(
                    BadIdentity::ManyUris(_) | BadIdentity::SpiffeId(..),
                )) => Self::BadSan,
                _ => Self::BadCertificate,
            },
        }
    }
}

/// Returns the reason if this crate refused the certificate.
fn own(error: &CertificateError) -> Option<&BadCertificate> {
    match error {
        CertificateError::Other(error) => error.0.downcast_ref(),
        _ => None,
    }
}

impl HandshakeError {
    pub(crate) fn new(source: io::Error) -> Self {
        Self { result: HandshakeResult::of(&source), source }
    }

    /// Returns the explanation for the log.
    pub(crate) fn explanation(&self) -> String {
        let source = &self.source;
        match self.result {
            HandshakeResult::NoCertificate => "the client sent no certificate".to_owned(),
            HandshakeResult::UnknownCa => {
                "no CA in tls_client_ca, or of its trust domain in tls_trust_domains, signed the client's certificate"
                    .to_owned()
            }
            HandshakeResult::SelfSigned
            | HandshakeResult::BadSan
            | HandshakeResult::BadCertificate => {
                format!("the client's certificate is refused: {}", self.certificate_reason())
            }
            HandshakeResult::Expired | HandshakeResult::NotYetValid => {
                format!("the client's {}", self.certificate_reason())
            }
            HandshakeResult::Revoked => "the client's certificate is revoked (tls_crl)".to_owned(),
            HandshakeResult::BadCrl => {
                format!("the client's certificate cannot be checked with tls_crl: {source}")
            }
            HandshakeResult::ProtocolVersion => {
                format!(
                    "the client offers only TLS versions that the port does not accept: {source}"
                )
            }
            HandshakeResult::Alpn => {
                "the client offers only application protocols (ALPN) that the port does not speak"
                    .to_owned()
            }
            HandshakeResult::Protocol => {
                format!("the client does not use TLS, or violates the protocol: {source}")
            }
            HandshakeResult::RefusedByClient => {
                format!(
                    "the client rejected the handshake, usually because it does not trust tls_cert: {source}"
                )
            }
            HandshakeResult::Ok
            | HandshakeResult::Incompatible
            | HandshakeResult::Timeout
            | HandshakeResult::Closed => source.to_string(),
        }
    }

    fn certificate_reason(&self) -> String {
        let inner = self.source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(error)) => {
                own(error).map_or_else(|| error.to_string(), ToString::to_string)
            }
            _ => self.source.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_list_matches_discriminants() {
        for (place, result) in HandshakeResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, place, "{}", result.label());
        }
    }
}
