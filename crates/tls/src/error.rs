//! Errors about the files of a port.

use std::{fmt, path::PathBuf};

/// One of the files of a [`crate::TlsConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// [`crate::TlsConfig::cert`].
    Cert,
    /// [`crate::TlsConfig::key`].
    Key,
    /// [`crate::TlsConfig::ca`].
    Ca,
    /// [`crate::TlsConfig::crl`].
    Crl,
    /// A file of [`crate::ClientCertificates::trust_domains`].
    TrustDomain,
}

impl fmt::Display for TlsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cert => "certificate",
            Self::Key => "key",
            Self::Ca => "CA",
            Self::Crl => "revocation list",
            Self::TrustDomain => "CA of the trust domain",
        })
    }
}

/// The reason why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what} in {}: {reason}", path.display())]
    File {
        /// The expected content of the file.
        what: TlsFile,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system or of the decoder.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} does not belong to the certificate in {}: {reason}",
        key.display(),
        cert.display()
    )]
    Mismatch {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
        /// The error of rustls.
        reason: String,
    },
    /// Other replicas would refuse the certificate.
    #[error(
        "other replicas would refuse the certificate in {}, because the CA in {} did not sign it for a \
         replica: {reason}",
        cert.display(),
        ca.display()
    )]
    Untrusted {
        /// The certificate file.
        cert: PathBuf,
        /// The CA file.
        ca: PathBuf,
        /// The error of the verification.
        reason: String,
    },
    /// The system has no CAs.
    #[error("this system has no CA certificates: {reason}")]
    NoSystemCa {
        /// The errors of the search for them.
        reason: String,
    },
    /// The server name is invalid.
    #[error("{name:?} is not a valid server name: {reason}")]
    ServerName {
        /// The name as configured.
        name: String,
        /// The error of the parser.
        reason: String,
    },
}

impl TlsError {
    /// Returns the file that is wrong, if the error is about one of them.
    #[must_use]
    pub fn file(&self) -> Option<TlsFile> {
        match self {
            Self::File { what, .. } => Some(*what),
            Self::Mismatch { .. } => Some(TlsFile::Key),
            Self::Untrusted { .. } => Some(TlsFile::Cert),
            Self::NoSystemCa { .. } | Self::ServerName { .. } => None,
        }
    }
}
