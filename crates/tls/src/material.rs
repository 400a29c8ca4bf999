//! The files of a port, and the TLS configurations that are built from them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime},
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};

use crate::{
    client_verifier::{ClientVerifier, TrustDomains},
    error::{TlsError, TlsFile},
    files::{Stamp, read_certificates, read_crls, read_key, unreadable},
    validity::Validity,
};

/// The ports that can use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPort {
    /// The port for xDS clients.
    Xds,
    /// The port for authors and operators.
    Admin,
    /// The port for replicas. A replica uses the same certificate for outgoing connections, and accepts
    /// only certificates of its CA, on both sides.
    Raft,
    /// The connections to MCP sources and sinks, whoever opens them. The server uses one certificate for all of them,
    /// and accepts only certificates of the CA.
    Mcp,
}

/// The lowest TLS version that a port accepts. All ports accept TLS 1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2, with forward secrecy and authenticated encryption only.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// The PEM files of a port. Empty paths are files that are not configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The port that uses the files, for messages and metrics.
    pub port: TlsPort,
    /// The file with the certificate of the port, and the intermediate certificates up to the CA.
    pub cert: PathBuf,
    /// The file with the private key of the certificate.
    pub key: PathBuf,
    /// The file with the CAs whose certificates the port accepts from clients. If it is empty, clients send
    /// no certificates.
    pub ca: PathBuf,
    /// The file with revocation lists of these CAs. A certificate of a CA without a list is accepted.
    pub crl: PathBuf,
    /// The lowest TLS version.
    pub min_version: MinVersion,
    /// The use of the certificates of clients. The ports for replicas and MCP always require certificates.
    pub clients: ClientCertificates,
}

/// The use of the certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Whether a client must have a certificate. An invalid certificate is always refused.
    pub required: bool,
    /// The name of the CAs in the identities of clients without a SPIFFE ID.
    pub ca_name: Arc<str>,
    /// Whether the common name identifies a client without a SPIFFE ID, instead of the DNS name.
    pub by_common_name: bool,
    /// The trust domains, each with the file of the CAs that may sign for it. If there are any, a SPIFFE ID of another
    /// trust domain is refused, and the CAs of the port sign only certificates without a SPIFFE ID.
    pub trust_domains: Vec<(Arc<str>, PathBuf)>,
}

impl Default for ClientCertificates {
    fn default() -> Self {
        Self {
            required: true,
            ca_name: "clients".into(),
            by_common_name: false,
            trust_domains: Vec::new(),
        }
    }
}

/// The configurations that the files yield.
#[derive(Debug, Clone)]
pub(crate) struct Sides {
    pub(crate) server: Arc<ServerConfig>,
    /// The configuration for connections that the server opens.
    pub(crate) client: Option<Arc<ClientConfig>>,
    /// The verifier of the certificates of clients.
    pub(crate) verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The time in which the certificate and its chain are valid.
    pub(crate) validity: Validity,
}

/// The CA certificates, and the verifier of certificates that they signed.
struct Authority {
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
    trust_domains: Option<TrustDomains>,
}

impl TlsPort {
    /// All ports.
    pub(crate) const ALL: [Self; 4] = [Self::Xds, Self::Admin, Self::Raft, Self::Mcp];

    /// Returns the label of metrics, which is the name of the section in the configuration.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Xds => "xds",
            Self::Admin => "admin",
            Self::Raft => "raft",
            Self::Mcp => "mcp",
        }
    }

    /// Returns the phrase for log messages that follows "for".
    pub(crate) fn purpose(self) -> &'static str {
        match self {
            Self::Xds => "xDS clients",
            Self::Admin => "the admin port",
            Self::Raft => "replication",
            Self::Mcp => "MCP sources and sinks",
        }
    }

    /// Returns the peers of the port in log messages.
    fn peers(self) -> &'static str {
        match self {
            Self::Xds | Self::Admin => "clients",
            Self::Raft => "other replicas",
            Self::Mcp => "MCP sources and sinks",
        }
    }

    /// Returns the application protocols. The xDS port serves REST polls over HTTP/1.1, too.
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Xds | Self::Admin => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::Raft | Self::Mcp => vec![b"h2".to_vec()],
        }
    }

    /// Returns whether the clients of the port have identities of their own.
    pub(crate) fn identifies_clients(self) -> bool {
        matches!(self, Self::Xds | Self::Admin | Self::Mcp)
    }

    /// Returns whether the server also opens connections, with the same certificate.
    fn opens_connections(self) -> bool {
        matches!(self, Self::Raft | Self::Mcp)
    }
}

/// Returns the only cryptographic provider.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

const TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
pub(crate) const TLS12_AND_13: &[&rustls::SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];
pub(crate) const HAS_VERSIONS: &str = "the provider has cipher suites for TLS 1.2 and 1.3";

fn read_roots(what: TlsFile, path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for root in read_certificates(what, path)? {
        roots.add(root).map_err(|error| unreadable(what, path, error))?;
    }
    Ok(Arc::new(roots))
}

/// Returns the time in seconds of the Unix epoch.
pub(crate) fn unix_time() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

impl TlsConfig {
    /// Reads and checks the files, like a replica at its start. Returns all problems. A file with an
    /// empty path is ignored.
    #[must_use]
    pub fn check(&self) -> Vec<TlsError> {
        let mut errors = Vec::new();
        let mut note = |error: Option<TlsError>| errors.extend(error);
        let is_given = |path: &PathBuf| !path.as_os_str().is_empty();
        let authority = is_given(&self.ca).then(|| self.read_ca());
        let chain = is_given(&self.cert).then(|| self.read_chain());
        let key = is_given(&self.key).then(|| self.read_key());
        if let (TlsPort::Raft, Some(Ok(authority)), Some(Ok(chain))) =
            (self.port, &authority, &chain)
        {
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

    pub(crate) fn stamp(&self) -> Stamp {
        let domains = self.clients.trust_domains.iter().map(|(_, path)| path);
        Stamp::of([&self.cert, &self.key, &self.ca, &self.crl].into_iter().chain(domains))
    }

    pub(crate) fn read(&self) -> Result<Sides, TlsError> {
        let authority = if self.ca.as_os_str().is_empty() { None } else { Some(self.read_ca()?) };
        let chain = self.read_chain()?;
        let key = self.read_key()?;
        let validity = Validity::of_chain(&chain)
            .map_err(|reason| unreadable(TlsFile::Cert, &self.cert, reason))?;
        let client = match &authority {
            Some(Authority { roots, verifier, .. }) if self.port.opens_connections() => {
                match self.port {
                    TlsPort::Raft => self.check_own(&**verifier, &chain)?,
                    _ => self.warn_of_expiry(validity),
                }
                self.check_key(&chain, &key)?;
                Some(self.client(Arc::clone(roots), chain.clone(), key.clone_key())?)
            }
            _ => {
                self.check_key(&chain, &key)?;
                self.warn_of_expiry(validity);
                None
            }
        };
        let verifier = authority.map(|authority| self.client_verifier(authority));
        let server = self.server(verifier.clone(), chain, key)?;
        Ok(Sides { server: Arc::new(server), client: client.map(Arc::new), verifier, validity })
    }

    fn versions(&self) -> &'static [&'static rustls::SupportedProtocolVersion] {
        match self.min_version {
            MinVersion::Tls12 => TLS12_AND_13,
            MinVersion::Tls13 => TLS13,
        }
    }

    fn client_verifier(&self, authority: Authority) -> Arc<dyn ClientCertVerifier> {
        match self.port {
            TlsPort::Raft => authority.verifier,
            TlsPort::Xds | TlsPort::Admin | TlsPort::Mcp => {
                let Authority { verifier: chain, trust_domains, .. } = authority;
                Arc::new(ClientVerifier { chain, trust_domains })
            }
        }
    }

    fn server(
        &self,
        verifier: Option<Arc<dyn ClientCertVerifier>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<ServerConfig, TlsError> {
        let verifier = verifier.unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(self.versions())
            .expect(HAS_VERSIONS)
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| self.mismatch(error))?;
        server.alpn_protocols = self.port.alpn();
        // Without resumption, every connection verifies the certificates again.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.max_early_data_size = 0;
        Ok(server)
    }

    /// Returns the configuration for connections that the server opens.
    fn client(
        &self,
        roots: Arc<RootCertStore>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<ClientConfig, TlsError> {
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(self.versions())
            .expect(HAS_VERSIONS)
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| self.mismatch(error))?;
        client.alpn_protocols = self.port.alpn();
        client.resumption = Resumption::disabled();
        Ok(client)
    }

    /// Reads the CAs, those of the trust domains, and the revocation lists.
    fn read_ca(&self) -> Result<Authority, TlsError> {
        let roots = read_roots(TlsFile::Ca, &self.ca)?;
        let verifier = self.verifier(TlsFile::Ca, &self.ca, &roots)?;
        let domains = &self.clients.trust_domains;
        if domains.is_empty() {
            return Ok(Authority { roots, verifier, trust_domains: None });
        }
        let mut all = RootCertStore::clone(&roots);
        let mut by_name = BTreeMap::new();
        for (name, path) in domains {
            let roots = read_roots(TlsFile::TrustDomain, path)?;
            by_name.insert(Arc::clone(name), self.verifier(TlsFile::TrustDomain, path, &roots)?);
            all.roots.extend(roots.roots.iter().cloned());
        }
        let trust_domains = Some(TrustDomains { by_name, without_id: verifier });
        let verifier = self.verifier(TlsFile::Ca, &self.ca, &Arc::new(all))?;
        Ok(Authority { roots, verifier, trust_domains })
    }

    /// Returns the verifier of certificates that these CAs, which come from a file, have signed.
    fn verifier(
        &self,
        what: TlsFile,
        path: &Path,
        roots: &Arc<RootCertStore>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider());
        let builder = if self.clients.required || !self.port.identifies_clients() {
            builder
        } else {
            builder.allow_unauthenticated()
        };
        if self.crl.as_os_str().is_empty() {
            builder.build().map_err(|error| unreadable(what, path, error))
        } else {
            builder
                .with_crls(read_crls(&self.crl, unix_time())?)
                // While one CA replaces another, only one of them may have a list.
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| unreadable(TlsFile::Crl, &self.crl, error))
        }
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
        let key = read_key(&self.key)?;
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
                let peers = self.port.peers();
                tracing::error!(%error, %path, "{peers} will refuse the certificate of this replica");
                Ok(())
            }
            Err(error) => Err(TlsError::Untrusted {
                cert: self.cert.clone(),
                ca: self.ca.clone(),
                reason: error.to_string(),
            }),
        }
    }

    /// Logs an error if the certificate has expired.
    fn warn_of_expiry(&self, validity: Validity) {
        if validity.not_after < unix_time() {
            let (path, peers) = (self.cert.display(), self.port.peers());
            tracing::error!(%path, "{peers} will refuse the certificate of this port: it has expired");
        }
    }
}
