//! Whether a port uses TLS.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use crate::{handshake::HandshakeError, port::PortTls, stream::Stream};

/// Whether a port uses TLS.
#[derive(Debug, Clone)]
pub enum Security {
    /// The port does not use TLS.
    Plain,
    /// The port uses TLS with these certificates.
    Tls(PortTls),
}

impl Security {
    /// Does the TLS handshake of an incoming connection, if the port uses TLS.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes longer than [`crate::HANDSHAKE_TIMEOUT`].
    pub async fn accept(&self, stream: TcpStream) -> Result<Stream, HandshakeError> {
        match self {
            Self::Plain => Ok(Stream::Plain(stream)),
            // A handshake needs more memory than an open connection, and only for a short time.
            Self::Tls(tls) => Box::pin(tls.accept(stream)).await,
        }
    }

    /// Logs a failed handshake, at a limited rate.
    pub fn log_refusal(&self, peer: SocketAddr, error: &HandshakeError) {
        if let Self::Tls(tls) = self {
            tls.log_refusal(peer, error);
        }
    }
}

impl From<Option<PortTls>> for Security {
    fn from(tls: Option<PortTls>) -> Self {
        tls.map_or(Self::Plain, Self::Tls)
    }
}
