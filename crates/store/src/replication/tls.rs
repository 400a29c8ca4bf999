//! TLS between replicas. A replica communicates only with holders of a certificate of the cluster's CA.
//!
//! Invariants:
//! - Both sides present a certificate, and both verify that the CA signed it. The connecting side also
//!   verifies that the certificate names the host of the address, or the DNS name that is configured.
//! - Only TLS 1.3 is supported, because no older replicas exist.
//! - The files are checked for changes before each connection, and periodically, so that certificates can be
//!   renewed while the replica runs. If a file is unusable, the replica logs an error and keeps the previous
//!   certificates.
//! - The remaining validity of the certificate in use is always known, so that an alert can precede its
//!   expiry.
//! - A handshake takes at most [`chancery_tls::HANDSHAKE_TIMEOUT`], and does not wait for other handshakes.

use std::io;

use chancery_tls::{PortTls, Security, Stream, TlsError, check_server_name, host_of};
use tokio::net::TcpStream;

use crate::config::TlsConfig;

/// The certificates of a replica, for both sides of a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    certificates: PortTls,
    server_name: Option<String>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn new(config: TlsConfig) -> Result<Self, TlsError> {
        config.server_name.as_deref().map_or(Ok(()), check_server_name)?;
        let certificates = PortTls::new(config.files())?;
        Ok(Self { certificates, server_name: config.server_name })
    }

    /// Returns the certificates.
    pub(crate) fn certificates(&self) -> &PortTls {
        &self.certificates
    }

    /// Does the TLS handshake of an outgoing connection to `address`.
    pub(crate) async fn connect(&self, address: &str, stream: TcpStream) -> io::Result<Stream> {
        let name = self.server_name.as_deref().unwrap_or_else(|| host_of(address));
        self.certificates.connect(name, stream).await
    }

    /// Returns the security of a port that uses these certificates.
    pub(crate) fn security(self) -> Security {
        Security::Tls(self.certificates)
    }
}
