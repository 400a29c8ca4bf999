//! TLS between replicas: who has no certificate of the cluster's own CA is not talked to.
//!
//! Invariants:
//! - Both sides show a certificate, and both check that it is signed by that CA. Whoever connects checks
//!   besides that the certificate names the host that it wanted, or the one name that is set for all.
//! - TLS 1.3 alone: there is nobody old to talk to.
//! - The files are looked at again when a connection is made, and now and then, so that certificates can be
//!   renewed while the replica runs; what can not be read is told, and the old ones stay in use.
//! - How long the certificate in use is good for is known at any time, so that somebody can be told before
//!   it is not.
//! - A handshake takes [`HANDSHAKE_TIMEOUT`] at most, and waits for nobody else's.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor, TlsConnector, TlsStream,
    rustls::{
        self, CertificateError, ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer, ServerName, UnixTime,
            pem::{self, PemObject},
        },
        server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    },
};

use crate::metrics::gauge_value;

/// Neither side waits longer for the other.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The files for TLS between replicas, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// This replica's certificate, and those between it and the CA. It is shown to those that connect and to
    /// those that are connected to: if it limits its use, then to both.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The CA of the cluster; several while one takes the place of another. Whoever has a certificate of
    /// it is taken for a replica, so that it must not be one that signs anything else.
    pub ca: PathBuf,
    /// The name that the certificates of all replicas have; `None` if each has the host of its address.
    pub server_name: Option<String>,
}

/// Why TLS can not be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can not be read.
    #[error("cannot read the {what} in {}: {reason}", path.display())]
    File {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The key is of another certificate.
    #[error(
        "the key in {} is not that of the certificate in {}: {reason}",
        key.display(),
        cert.display()
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Other replicas would refuse the certificate.
    #[error(
        "the certificate in {} is not one that the CA in {} has signed for a replica: {reason}",
        cert.display(),
        ca.display()
    )]
    Untrusted {
        /// The certificate's file.
        cert: PathBuf,
        /// The CA's file.
        ca: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The name is none.
    #[error("{name:?} is no name of a server: {reason}")]
    ServerName {
        /// The name.
        name: String,
        /// Why not.
        reason: String,
    },
}

/// What both sides use now. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Shared>);

struct Shared {
    config: TlsConfig,
    server_name: Option<ServerName<'static>>,
    current: Mutex<Current>,
}

/// What was read from the files, and which files those were.
struct Current {
    stamp: Stamp,
    sides: Sides,
}

/// Later than any certificate expires, whose years have four digits.
const NEVER: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));

#[derive(Clone)]
struct Sides {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Until when the certificate is good; `None` if it is for ever.
    expires: Option<UnixTime>,
}

/// Tells a file that was replaced from the one it was.
type Stamp = [Option<(u64, i64, i64, u64)>; 3];

impl TlsConfig {
    /// Reads the files, as a replica does when it starts.
    ///
    /// # Errors
    /// What is wrong with the first of them that can not be used.
    pub fn check(&self) -> Result<(), TlsError> {
        self.server_name.as_deref().map(server_name).transpose()?;
        self.read().map(drop)
    }

    fn stamp(&self) -> Stamp {
        [&self.cert, &self.key, &self.ca].map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
        })
    }

    fn read(&self) -> Result<Sides, TlsError> {
        let Self { cert, key, ca, .. } = self;
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for root in read_certificates("CA", ca)? {
            roots.add(root).map_err(|error| unreadable("CA", ca, error))?;
        }
        let roots = Arc::new(roots);
        let chain = read_certificates("certificate", cert)?;
        let private_key =
            PrivateKeyDer::from_pem_file(key).map_err(|error| not_pem("key", key, error))?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| unreadable("CA", ca, error))?;
        self.check_own(&*verifier, &chain)?;
        let expires = expiry(&*verifier, &chain);
        let mismatch = |error: rustls::Error| TlsError::Mismatch {
            cert: cert.clone(),
            key: key.clone(),
            reason: error.to_string(),
        };
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(VERSIONS)
            .expect(HAS_VERSIONS)
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private_key.clone_key())
            .map_err(mismatch)?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .expect(HAS_VERSIONS)
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private_key)
            .map_err(mismatch)?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        client.alpn_protocols = vec![b"h2".to_vec()];
        // What replicas say to each other changes with every call; there is nothing to resume that would be
        // worth a certificate that has been withdrawn since.
        server.send_tls13_tickets = 0;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Sides { client: Arc::new(client), server: Arc::new(server), expires })
    }

    /// A certificate that others would refuse is a mistake that is better told at once. One that has expired
    /// is told too, but a replica that can not talk to others can still serve what it has.
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

/// Until when others take a certificate: until it, or one between it and the CA, expires. They are asked what they
/// would say at that time. `None` if it is never.
fn expiry(
    verifier: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'static>],
) -> Option<UnixTime> {
    let (own, between) = chain.split_first()?;
    let mut latest = None;
    // Each time another certificate of the chain is named, one that expires earlier.
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

fn unreadable(what: &'static str, path: &Path, error: impl ToString) -> TlsError {
    TlsError::File { what, path: path.to_owned(), reason: error.to_string() }
}

fn not_pem(what: &'static str, path: &Path, error: pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => unreadable(what, path, error),
        pem::Error::NoItemsFound => unreadable(what, path, format!("there is no PEM {what} in it")),
        // It would print what is in the file, which may be the key.
        _ => unreadable(what, path, "it is not valid PEM"),
    }
}

fn read_certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| not_pem(what, path, error))?;
    match certificates.is_empty() {
        true => Err(unreadable(what, path, "there is no PEM certificate in it")),
        false => Ok(certificates),
    }
}

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

    /// What is to be used for a new connection. The files are looked at first: they are small, and connections
    /// between replicas are few.
    fn sides(&self) -> Sides {
        self.refresh();
        self.0.current.lock().sides.clone()
    }

    /// Seconds until the certificate in use expires; negative if it has, infinite if it never does.
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

    /// Reads the files again if they are others than before.
    pub(crate) fn refresh(&self) {
        let mut current = self.0.current.lock();
        let stamp = self.0.config.stamp();
        if stamp != current.stamp {
            // Not looked at again before they change again.
            current.stamp = stamp;
            match self.0.config.read() {
                Ok(sides) => {
                    tracing::info!("the certificate files for other replicas were read again");
                    current.sides = sides;
                }
                Err(error) => {
                    tracing::error!(%error, "the certificate files have changed and can not be used; \
                        the old ones stay in use");
                }
            }
        }
    }

    /// Makes a connection to `address` secure.
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
        within_timeout(connect).await.map(TlsStream::Client)
    }

    /// Makes a connection that came in secure.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let accept = TlsAcceptor::from(self.sides().server).accept(stream);
        within_timeout(accept).await.map(TlsStream::Server)
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.0.config).finish()
    }
}

async fn within_timeout<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    done.unwrap_or_else(|_| {
        let text = format!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned())
        .map_err(|error| TlsError::ServerName { name: name.to_owned(), reason: error.to_string() })
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_to_check_is_the_host_of_the_address() {
        assert_eq!(host_of("replica-1.chancery:18002"), "replica-1.chancery");
        assert_eq!(host_of("127.0.0.1:18002"), "127.0.0.1");
        assert_eq!(host_of("[::1]:18002"), "::1");
        assert!(matches!(server_name(host_of("[::1]:1")), Ok(ServerName::IpAddress(_))));
        assert!(server_name("no such name").is_err());
    }
}
