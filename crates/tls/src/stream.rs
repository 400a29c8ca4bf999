//! The transport of a connection: TCP, with or without TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;

use crate::peer::Peer;

/// The maximum duration of a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The transport of a connection.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP, and the client if its certificate identifies it.
    Tls(Box<TlsStream<TcpStream>>, Option<Peer>),
}

impl Stream {
    /// Returns the client, if its certificate identifies it.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        match self {
            Self::Plain(_) | Self::Tls(_, None) => None,
            Self::Tls(_, Some(peer)) => Some(peer),
        }
    }
}

/// Waits for a TLS handshake.
///
/// # Errors
/// Fails if the handshake fails or takes longer than [`HANDSHAKE_TIMEOUT`].
pub(crate) async fn within_handshake_timeout<T>(
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
            Stream::Tls($inner, _) => $do,
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
            Self::Tls(inner, _) => inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_shutdown(cx))
    }
}
