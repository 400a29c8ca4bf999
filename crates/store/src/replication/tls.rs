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
//! - A handshake takes at most [`chancery_net::HANDSHAKE_TIMEOUT`], and does not wait for other handshakes.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chancery_net::{Security, within_handshake_timeout};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector, TlsStream,
    rustls::{
        self, CertificateError, ClientConfig, RootCertStore, ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{
            CertificateDer, PrivateKeyDer, ServerName, UnixTime,
            pem::{self, PemObject},
        },
        server::{ParsedCertificate, WebPkiClientVerifier, danger::ClientCertVerifier},
        sign::CertifiedKey,
    },
};

use crate::{
    config::TlsConfig,
    error::{TlsError, TlsFile},
    metrics::gauge_value,
};

/// The current TLS configurations of both sides. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Shared>);

struct Shared {
    config: TlsConfig,
    server_name: Option<ServerName<'static>>,
    current: Mutex<Current>,
}

/// The loaded configurations, and the stamp of the files that they were loaded from.
struct Current {
    stamp: Stamp,
    sides: TlsConfigs,
}

/// A time after the expiry of any certificate. The year of an expiry has four digits.
const NEVER: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));

#[derive(Clone)]
struct TlsConfigs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// The expiry of the certificate; `None` if it never expires.
    expires: Option<UnixTime>,
}

/// Inode, modification time and length of each file, which detect a replaced file.
type Stamp = [Option<(u64, i64, i64, u64)>; 3];

impl TlsConfig {
    /// Reads and checks the files, like a replica at its start. Returns all problems. A file with an
    /// empty path is ignored.
    #[must_use]
    pub fn check(&self) -> Vec<TlsError> {
        let mut errors = Vec::new();
        let mut note = |error: Option<TlsError>| errors.extend(error);
        note(self.server_name.as_deref().and_then(|name| server_name(name).err()));
        let is_given = |path: &PathBuf| !path.as_os_str().is_empty();
        let authority = is_given(&self.ca).then(|| self.read_ca());
        let chain = is_given(&self.cert).then(|| self.read_chain());
        let key = is_given(&self.key).then(|| self.read_key());
        if let (Some(Ok(authority)), Some(Ok(chain))) = (&authority, &chain) {
            note(self.check_own(&*authority.verifier, chain).err());
        }
        if let (Some(Ok(chain)), Some(Ok(key))) = (&chain, &key) {
            note(self.check_key(chain, key).err());
        }
        note(authority.and_then(Result::err));
        note(chain.and_then(Result::err));
        note(key.and_then(Result::err));
        errors
    }

    fn stamp(&self) -> Stamp {
        [&self.cert, &self.key, &self.ca].map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
        })
    }

    fn read(&self) -> Result<TlsConfigs, TlsError> {
        let Authority { roots, verifier } = self.read_ca()?;
        let chain = self.read_chain()?;
        let key = self.read_key()?;
        self.check_own(&*verifier, &chain)?;
        self.check_key(&chain, &key)?;
        let expires = expiry(&*verifier, &chain);
        let mismatch = |error| self.mismatch(error);
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect(HAS_VERSIONS)
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(mismatch)?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect(HAS_VERSIONS)
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(mismatch)?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        client.alpn_protocols = vec![b"h2".to_vec()];
        // Without resumption, every connection verifies the certificates again.
        server.send_tls13_tickets = 0;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(TlsConfigs { client: Arc::new(client), server: Arc::new(server), expires })
    }

    fn read_ca(&self) -> Result<Authority, TlsError> {
        let unusable = |error: &dyn ToString| unreadable(TlsFile::Ca, &self.ca, error.to_string());
        let mut roots = RootCertStore::empty();
        for root in read_certificates(TlsFile::Ca, &self.ca)? {
            roots.add(root).map_err(|error| unusable(&error))?;
        }
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
            .build()
            .map_err(|error| unusable(&error))?;
        Ok(Authority { roots, verifier })
    }

    fn read_chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = read_certificates(TlsFile::Cert, &self.cert)?;
        for certificate in &chain {
            ParsedCertificate::try_from(certificate)
                .map_err(|error| unreadable(TlsFile::Cert, &self.cert, error))?;
        }
        Ok(chain)
    }

    fn read_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        check_file(TlsFile::Key, &self.key)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| not_pem(TlsFile::Key, &self.key, error))?;
        match provider().key_provider.load_private_key(key.clone_key()) {
            Ok(_) => Ok(key),
            Err(error) => Err(unreadable(TlsFile::Key, &self.key, error)),
        }
    }

    /// Fails if the key belongs to another certificate.
    fn check_key(
        &self,
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
    ) -> Result<(), TlsError> {
        CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider())
            .map(drop)
            .map_err(|error| self.mismatch(error))
    }

    fn mismatch(&self, error: rustls::Error) -> TlsError {
        let (cert, key) = (self.cert.clone(), self.key.clone());
        TlsError::Mismatch { cert, key, reason: error.to_string() }
    }

    /// Fails if other replicas would refuse the certificate. If it has expired or is not valid yet, only
    /// logs an error: a replica that cannot call others can still serve its state.
    fn check_own(
        &self,
        verifier: &dyn ClientCertVerifier,
        chain: &[CertificateDer<'static>],
    ) -> Result<(), TlsError> {
        let Some((own, between)) = chain.split_first() else { return Ok(()) };
        match verifier.verify_client_cert(own, between, UnixTime::now()) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(
                error @ (CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }),
            )) => {
                let path = self.cert.display();
                tracing::error!(%error, %path, "other replicas will refuse the certificate of this one");
                Ok(())
            }
            Err(error) => Err(TlsError::Untrusted {
                cert: self.cert.clone(),
                ca: self.ca.clone(),
                reason: error.to_string(),
            }),
        }
    }
}

/// The CA certificates, and the verifier of certificates that they signed.
struct Authority {
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the time until which other replicas accept a certificate; `None` if forever. The first expiry of
/// the certificate or an intermediate one ends the time. The verifier is asked about ever earlier times.
fn expiry(
    verifier: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'static>],
) -> Option<UnixTime> {
    let (own, between) = chain.split_first()?;
    let mut latest = None;
    // Each step reports another certificate of the chain, which expires earlier.
    for _ in chain {
        let at = latest.unwrap_or(NEVER);
        match verifier.verify_client_cert(own, between, at) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after,
                ..
            })) if not_after < at => latest = Some(not_after),
            _ => break,
        }
    }
    latest
}

fn unreadable(what: TlsFile, path: &Path, error: impl ToString) -> TlsError {
    TlsError::File { what, path: path.to_owned(), reason: error.to_string() }
}

fn not_pem(what: TlsFile, path: &Path, error: pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => unreadable(what, path, error),
        pem::Error::NoItemsFound => unreadable(what, path, format!("it contains no PEM {what}")),
        // The error would print the content of the file, which may be the key.
        _ => unreadable(what, path, "it is not valid PEM"),
    }
}

/// Fails if `path` is not a regular file of a plausible size. A pipe would block the reader, and a device
/// may have no end.
fn check_file(what: TlsFile, path: &Path) -> Result<(), TlsError> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(what, path, error))?;
    if !metadata.is_file() {
        return Err(unreadable(what, path, "it is not a regular file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(unreadable(what, path, format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(())
}

fn read_certificates(what: TlsFile, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    check_file(what, path)?;
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| not_pem(what, path, error))?;
    match certificates.is_empty() {
        true => Err(unreadable(what, path, "it contains no PEM certificate")),
        false => Ok(certificates),
    }
}

/// The maximum size of a PEM file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
const HAS_VERSIONS: &str = "ring has cipher suites for TLS 1.3";

impl Tls {
    /// Reads the files.
    pub(crate) fn new(config: TlsConfig) -> Result<Self, TlsError> {
        let server_name = config.server_name.as_deref().map(server_name).transpose()?;
        let stamp = config.stamp();
        let current = Mutex::new(Current { stamp, sides: config.read()? });
        Ok(Self(Arc::new(Shared { config, server_name, current })))
    }

    /// Returns the configurations for a new connection. Checks the files for changes first, because they are
    /// small and connections between replicas are rare.
    fn sides(&self) -> TlsConfigs {
        self.refresh();
        self.0.current.lock().sides.clone()
    }

    /// Returns the seconds until the certificate in use expires; negative if it has expired, infinite if
    /// it never does.
    pub(crate) fn seconds_left(&self) -> f64 {
        let expires = self.0.current.lock().sides.expires;
        expires.map_or(f64::INFINITY, |expires| {
            let (expires, now) = (expires.as_secs(), UnixTime::now().as_secs());
            match expires.checked_sub(now) {
                Some(left) => gauge_value(left),
                None => -gauge_value(now - expires),
            }
        })
    }

    /// Reads the files again if they have changed.
    pub(crate) fn refresh(&self) {
        let mut current = self.0.current.lock();
        let stamp = self.0.config.stamp();
        if stamp != current.stamp {
            // Set even on failure, so that unusable files are read only once.
            current.stamp = stamp;
            match self.0.config.read() {
                Ok(sides) => {
                    tracing::info!("read the changed certificate files for replication");
                    current.sides = sides;
                }
                Err(error) => {
                    tracing::error!(%error, "the certificate files have changed and are unusable; the previous \
                        certificates stay in use");
                }
            }
        }
    }

    /// Does the TLS handshake of an outgoing connection to `address`.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.0.server_name {
            Some(name) => name.clone(),
            None => server_name(host_of(address)).map_err(io::Error::other)?,
        };
        let connect = TlsConnector::from(self.sides().client).connect(name, stream);
        within_handshake_timeout(connect).await.map(TlsStream::Client)
    }

    /// Returns the security of a port that uses these certificates.
    pub(crate) fn security(self) -> Security {
        Security::Tls(Arc::new(move || self.sides().server))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.0.config).finish()
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned())
        .map_err(|error| TlsError::ServerName { name: name.to_owned(), reason: error.to_string() })
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_server_name_is_the_host_of_the_address() {
        assert_eq!(host_of("replica-1.chancery:18002"), "replica-1.chancery");
        assert_eq!(host_of("127.0.0.1:18002"), "127.0.0.1");
        assert_eq!(host_of("[::1]:18002"), "::1");
        assert!(matches!(server_name(host_of("[::1]:1")), Ok(ServerName::IpAddress(_))));
        assert!(server_name("no such name").is_err());
    }
}
