//! The transport of a connection: TCP, with or without TLS.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, TlsStream, rustls::ServerConfig};

/// The maximum duration of a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a port uses TLS.
#[derive(Clone)]
pub enum Security {
    /// The port does not use TLS.
    Plain,
    /// The port uses TLS. The function returns the configuration for a new connection, so that
    /// certificates can be renewed.
    Tls(Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>),
}

/// The transport of a connection.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Security {
    /// Does the TLS handshake of an incoming connection, if the port uses TLS.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes longer than [`HANDSHAKE_TIMEOUT`].
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let Self::Tls(config) = self else { return Ok(Stream::Plain(stream)) };
        let accepted = within_handshake_timeout(TlsAcceptor::from(config()).accept(stream)).await?;
        Ok(Stream::Tls(Box::new(accepted.into())))
    }
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Tls(_) => "Tls",
        })
    }
}

/// Waits for a TLS handshake.
///
/// # Errors
/// Fails if the handshake fails or takes longer than [`HANDSHAKE_TIMEOUT`].
pub async fn within_handshake_timeout<T>(
    handshake: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    done.unwrap_or_else(|_| {
        let text = format!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

/// Evaluates an expression with the stream of either kind.
macro_rules! either {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => $do,
            Stream::Tls($inner) => $do,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, inner => Pin::new(inner).poll_write(cx, buffer))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, inner => Pin::new(inner).poll_write_vectored(cx, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(inner) => inner.is_write_vectored(),
            Self::Tls(inner) => inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_shutdown(cx))
    }
}
