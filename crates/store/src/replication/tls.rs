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

use std::{io, path::PathBuf};

use chancery_tls::{
    ClientCertificates, MinVersion, PortTls, Security, Stream, TlsError, TlsPort,
    check_server_name, host_of,
};
use tokio::net::TcpStream;

use crate::config::TlsConfig;

/// The certificates of a replica, for both sides of a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    certificates: PortTls,
    server_name: Option<String>,
}

impl TlsConfig {
    /// Reads and checks the files, like a replica at its start. Returns all problems. A file with an
    /// empty path is ignored.
    #[must_use]
    pub fn check(&self) -> Vec<TlsError> {
        let name = self.server_name.as_deref().and_then(|name| check_server_name(name).err());
        name.into_iter().chain(self.files().check()).collect()
    }

    fn files(&self) -> chancery_tls::TlsConfig {
        chancery_tls::TlsConfig {
            port: TlsPort::Raft,
            cert: self.cert.clone(),
            key: self.key.clone(),
            ca: self.ca.clone(),
            crl: PathBuf::new(),
            min_version: MinVersion::Tls13,
            clients: ClientCertificates::default(),
        }
    }
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
