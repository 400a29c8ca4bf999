//! Connections to the server under test.

use std::{fmt, future::Future, io, pin::Pin};

use http::HeaderValue;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// A connection in both directions.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// The future of [`Transport::connect`].
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send + 'a>>;

/// The version of HTTP of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// The side of the kit that connects to the server.
pub trait Transport: Send + Sync {
    /// Returns the scheme of the server's URLs: `http` or `https`.
    fn scheme(&self) -> &'static str;

    /// Connects to `address`, which is `HOST:PORT`.
    fn connect<'a>(&'a self, address: &'a str, version: HttpVersion) -> Connecting<'a>;

    /// Returns the header `authorization` of all requests.
    fn authorization(&self) -> Option<HeaderValue> {
        None
    }

    /// Returns the reason why the server has closed the last connection, if TLS is the reason. A server may refuse a
    /// client certificate after the client has finished the handshake.
    fn refusal(&self) -> Option<String> {
        None
    }
}

/// Connections without TLS and without credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain;

impl Transport for Plain {
    fn scheme(&self) -> &'static str {
        "http"
    }

    fn connect<'a>(&'a self, address: &'a str, _version: HttpVersion) -> Connecting<'a> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Connection>)
        })
    }
}

impl fmt::Debug for dyn Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("scheme", &self.scheme()).finish_non_exhaustive()
    }
}
