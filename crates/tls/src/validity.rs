//! The time in which certificates are valid, for reports to operators.

use std::path::Path;

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{
    error::{TlsError, TlsFile},
    files::{read_certificates, unreadable},
};

/// The largest remaining time below which operators should replace a certificate.
const WARNING_SECONDS_MAX: i64 = 14 * 86_400;

/// The time in which a certificate and its chain are valid, in seconds of the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The latest start of the certificates.
    pub not_before: i64,
    /// The earliest end of the certificates.
    pub not_after: i64,
}

/// Returns the remaining time below which operators should replace a certificate of this lifetime, in seconds: 14 days,
/// or a quarter of the lifetime if that is less. Issuers such as cert-manager replace certificates earlier, after two
/// thirds of the lifetime. The alerts in `deploy/mixin/alerts.yaml` use the same limits.
#[must_use]
pub fn expiry_warning_seconds(lifetime: i64) -> i64 {
    (lifetime / 4).min(WARNING_SECONDS_MAX)
}

impl Validity {
    /// Returns the time from the start to the end, in seconds. It is 0 if the certificates are never valid together.
    #[must_use]
    pub fn lifetime(&self) -> i64 {
        self.not_after.saturating_sub(self.not_before).max(0)
    }

    /// Reads the certificates of a file.
    ///
    /// # Errors
    /// Fails if the file is unusable.
    pub fn of_file(path: &Path) -> Result<Self, TlsError> {
        let chain = read_certificates(TlsFile::Cert, path)?;
        Self::of_chain(&chain).map_err(|reason| unreadable(TlsFile::Cert, path, reason))
    }

    /// Returns the validity of a chain, or the reason why a certificate cannot be read.
    pub(crate) fn of_chain(chain: &[CertificateDer<'_>]) -> Result<Self, String> {
        let mut whole = Self { not_before: i64::MIN, not_after: i64::MAX };
        for certificate in chain {
            let (_, certificate) =
                X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
            let validity = certificate.validity();
            whole.not_before = whole.not_before.max(validity.not_before.timestamp());
            whole.not_after = whole.not_after.min(validity.not_after.timestamp());
        }
        Ok(whole)
    }
}
