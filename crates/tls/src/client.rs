//! The side of the command line: it always verifies the server, and explains why a connection failed.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, AlertDescription, CertificateError, ClientConfig, RootCertStore,
        client::Resumption,
        pki_types::{PrivateKeyDer, ServerName},
    },
};

use crate::{
    error::{TlsError, TlsFile},
    files::{read_certificates, read_key, unreadable},
    material::{HAS_VERSIONS, TLS12_AND_13, provider},
    stream::within_handshake_timeout,
    validity::Validity,
};

/// The PEM files of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The file with the CAs that may sign the server's certificate; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The files with the certificate and the private key of the client, if it has them.
    pub cert_and_key: Option<(PathBuf, PathBuf)>,
}

/// The TLS settings of a client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    ca: Option<PathBuf>,
}

/// A connection to a server, with or without TLS.
///
/// In TLS 1.3, a client learns after its handshake that the server refuses its certificate. Reading and
/// writing then fail with a [`ServerRefusal`] as the source of the error.
#[derive(Debug)]
pub struct ClientStream {
    transport: Transport,
    last_refusal: LastRefusal,
}

/// The last refusal of a server. HTTP/2 may read it before a request waits for the answer, and the request
/// then fails without the reason. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LastRefusal(Arc<Mutex<Option<ServerRefusal>>>);

#[derive(Debug)]
enum Transport {
    Plain {
        stream: TcpStream,
        /// Whether the server has sent something.
        has_read: bool,
    },
    Tls(Box<TlsStream<TcpStream>>),
}

/// The first byte of a TLS alert, with which a server answers a client that does not use TLS. No answer
/// in HTTP begins with it.
const TLS_ALERT: u8 = 0x15;

/// The reason why there is no TLS connection to a server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host can have no certificate.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Host(String),
    /// No trusted CA signed the server's certificate.
    #[error("the server's certificate is not signed by {}", authority(ca.as_deref()))]
    UnknownCa {
        /// The file with the trusted CAs; `None` for those of the system.
        ca: Option<PathBuf>,
    },
    /// The server's certificate has other names.
    #[error("the server's certificate is for {}, not for {host:?}", names(presented))]
    WrongName {
        /// The host of the address.
        host: String,
        /// The names in the certificate.
        presented: Vec<String>,
    },
    /// The server's certificate is unusable for another reason.
    #[error("the server's certificate is invalid: {0}")]
    BadCertificate(CertificateError),
    /// The server does not speak TLS.
    #[error("the server does not use TLS on this port")]
    NotTls,
    /// The server rejected the connection.
    #[error("{0}")]
    Refused(ServerRefusal),
    /// Another error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The reason that a server gives for the rejection of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerRefusal {
    /// It requires a certificate, and the client sent none.
    #[error("the server needs a client certificate")]
    NeedsCertificate,
    /// It does not accept the CA of the client's certificate.
    #[error("the server does not trust the CA of the client certificate")]
    UnknownCa,
    /// The client's certificate has expired or is not valid yet.
    #[error("the server refuses the client certificate: it is expired or not valid yet")]
    Expired,
    /// The client's certificate is revoked.
    #[error("the server refuses the client certificate: it is revoked")]
    Revoked,
    /// The server has no TLS version in common with the client.
    #[error("the server accepts neither TLS 1.2 nor TLS 1.3")]
    ProtocolVersion,
    /// The server uses TLS, and the client does not.
    #[error("the server uses TLS")]
    NeedsTls,
    /// Another alert.
    #[error("the server rejected the connection with the TLS alert {0:?}")]
    Alert(AlertDescription),
}

fn authority(ca: Option<&Path>) -> String {
    match ca {
        Some(path) => format!("a CA in {}", path.display()),
        None => "a CA that this system trusts".to_owned(),
    }
}

fn names(presented: &[String]) -> String {
    match presented {
        [] => "no name".to_owned(),
        names => names.join(", "),
    }
}

// === impl ClientTls ===

impl ClientTls {
    /// Reads the files, for connections with HTTP/2.
    ///
    /// # Errors
    /// Fails if a file is unusable, or the system has no CAs.
    pub fn new(files: &ClientTlsFiles) -> Result<Self, TlsError> {
        Self::with_alpn(files, b"h2")
    }

    /// Reads the files, for connections with HTTP/1.1.
    ///
    /// # Errors
    /// Fails if a file is unusable, or the system has no CAs.
    pub fn for_http1(files: &ClientTlsFiles) -> Result<Self, TlsError> {
        Self::with_alpn(files, b"http/1.1")
    }

    fn with_alpn(files: &ClientTlsFiles, protocol: &[u8]) -> Result<Self, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(TLS12_AND_13)
            .expect(HAS_VERSIONS)
            .with_root_certificates(roots(files.ca.as_deref())?);
        let mut config = match &files.cert_and_key {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = read_certificates(TlsFile::Cert, cert)?;
                let private = usable_key(key)?;
                builder.with_client_auth_cert(chain, private).map_err(|error| {
                    let (cert, key) = (cert.clone(), key.clone());
                    TlsError::Mismatch { cert, key, reason: error.to_string() }
                })?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), ca: files.ca.clone() })
    }

    /// Does the handshake of a connection to a server with this host name or IP address.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes longer than [`crate::HANDSHAKE_TIMEOUT`].
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<ClientStream, ConnectError> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| ConnectError::Host(host.to_owned()))?;
        let connect = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream);
        match within_handshake_timeout(connect).await {
            Ok(stream) => Ok(ClientStream::new(Transport::Tls(Box::new(stream)))),
            Err(error) => Err(self.explain(host, error)),
        }
    }

    fn explain(&self, host: &str, error: io::Error) -> ConnectError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(error)) => match error {
                CertificateError::UnknownIssuer => ConnectError::UnknownCa { ca: self.ca.clone() },
                CertificateError::NotValidForNameContext { presented, .. } => {
                    let (host, presented) = (host.to_owned(), presented.clone());
                    ConnectError::WrongName { host, presented }
                }
                error => ConnectError::BadCertificate(error.clone()),
            },
            Some(rustls::Error::AlertReceived(alert)) => {
                ConnectError::Refused(ServerRefusal::of(*alert))
            }
            Some(rustls::Error::InvalidMessage(_)) => ConnectError::NotTls,
            _ => ConnectError::Io(error),
        }
    }
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let reasons: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            return Err(TlsError::NoSystemCa { reason: reasons.join("; ") });
        }
        return Ok(roots);
    };
    for root in read_certificates(TlsFile::Ca, path)? {
        roots.add(root).map_err(|error| unreadable(TlsFile::Ca, path, error))?;
    }
    Ok(roots)
}

fn usable_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let key = read_key(path)?;
    match provider().key_provider.load_private_key(key.clone_key()) {
        Ok(_) => Ok(key),
        Err(error) => Err(unreadable(TlsFile::Key, path, error)),
    }
}

// === impl ServerRefusal ===

impl ServerRefusal {
    fn of(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::CertificateRequired => Self::NeedsCertificate,
            AlertDescription::UnknownCA => Self::UnknownCa,
            AlertDescription::CertificateExpired => Self::Expired,
            AlertDescription::CertificateRevoked => Self::Revoked,
            AlertDescription::ProtocolVersion => Self::ProtocolVersion,
            alert => Self::Alert(alert),
        }
    }

    /// Returns the reason if an error quotes it. HTTP/2 keeps only the text of the errors of a stream.
    #[must_use]
    pub fn quoted_in(text: &str) -> Option<Self> {
        let known = [
            Self::NeedsCertificate,
            Self::UnknownCa,
            Self::Expired,
            Self::Revoked,
            Self::ProtocolVersion,
            Self::NeedsTls,
        ];
        known.into_iter().find(|refusal| text.contains(&refusal.to_string()))
    }

    /// Returns the reason if the error is an alert of the server.
    fn of_error(error: &io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref()? {
            rustls::Error::AlertReceived(alert) => Some(Self::of(*alert)),
            _ => None,
        }
    }
}

// === impl LastRefusal ===

impl LastRefusal {
    /// Returns the last refusal since [`Self::clear`].
    #[must_use]
    pub fn get(&self) -> Option<ServerRefusal> {
        *self.0.lock()
    }

    /// Forgets the last refusal.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }
}

// === impl ClientStream ===

/// Evaluates an expression with the stream of either kind.
macro_rules! either {
    ($stream:expr, $inner:ident => $do:expr) => {
        match &mut $stream.transport {
            Transport::Plain { stream: $inner, .. } => $do,
            Transport::Tls($inner) => $do,
        }
    };
}

impl ClientStream {
    /// Returns a connection without TLS.
    #[must_use]
    pub fn plain(stream: TcpStream) -> Self {
        Self::new(Transport::Plain { stream, has_read: false })
    }

    fn new(transport: Transport) -> Self {
        Self { transport, last_refusal: LastRefusal::default() }
    }

    /// Returns the time in which the server's certificate is valid. Returns `None` without TLS.
    #[must_use]
    pub fn server_validity(&self) -> Option<Validity> {
        match &self.transport {
            Transport::Plain { .. } => None,
            Transport::Tls(stream) => {
                Validity::of_chain(stream.get_ref().1.peer_certificates()?).ok()
            }
        }
    }

    /// Records a refusal of the server.
    #[must_use]
    pub fn recording(self, last_refusal: &LastRefusal) -> Self {
        Self { last_refusal: last_refusal.clone(), ..self }
    }

    /// Replaces the alert of a server by its explanation.
    fn explained(&self, error: io::Error) -> io::Error {
        match ServerRefusal::of_error(&error) {
            Some(refusal) => self.refused(error.kind(), refusal),
            None => error,
        }
    }

    fn refused(&self, kind: io::ErrorKind, refusal: ServerRefusal) -> io::Error {
        *self.last_refusal.0.lock() = Some(refusal);
        io::Error::new(kind, refusal)
    }

    /// Returns the result of a write. If the server has closed the connection, the alert that it sent before
    /// explains more than the error of the write. The wait for it is short, because a closed connection can
    /// always be read.
    fn on_write<T>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        let Poll::Ready(Err(error)) = done else { return done };
        if !matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset) {
            return Poll::Ready(Err(self.explained(error)));
        }
        let mut buffer = [0; 256];
        let read = self.as_mut().poll_read(cx, &mut ReadBuf::new(&mut buffer));
        let is_refusal =
            |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<ServerRefusal>());
        match read {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(refusal)) if is_refusal(&refusal) => Poll::Ready(Err(refusal)),
            Poll::Ready(_) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = either!(self, inner => Pin::new(inner).poll_read(cx, buffer));
        if let Transport::Plain { has_read, .. } = &mut self.transport
            && let Some(first) = buffer.filled().get(before)
            && !std::mem::replace(has_read, true)
            && *first == TLS_ALERT
        {
            buffer.set_filled(before);
            let kind = io::ErrorKind::InvalidData;
            return Poll::Ready(Err(self.refused(kind, ServerRefusal::NeedsTls)));
        }
        read.map_err(|error| self.explained(error))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = either!(self, inner => Pin::new(inner).poll_write(cx, buffer));
        self.on_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = either!(self, inner => Pin::new(inner).poll_write_vectored(cx, buffers));
        self.on_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain { stream, .. } => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = either!(self, inner => Pin::new(inner).poll_flush(cx));
        self.on_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = either!(self, inner => Pin::new(inner).poll_shutdown(cx));
        closed.map_err(|error| self.explained(error))
    }
}
