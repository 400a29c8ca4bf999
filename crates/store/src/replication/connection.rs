//! Outgoing connections to other replicas, with TLS.

use std::{io, net::SocketAddr};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use super::tls::Tls;

/// Creates a channel that connects on first use, with TLS. `at` is the socket to connect to; without it, those to which
/// `address` resolves are tried.
pub(crate) fn connect_lazily(
    endpoint: &Endpoint,
    address: &str,
    at: Option<SocketAddr>,
    tls: &Tls,
) -> Channel {
    let (address, tls) = (address.to_owned(), tls.clone());
    let connector = tower::service_fn(move |_| {
        let (address, tls) = (address.clone(), tls.clone());
        async move {
            let stream = match at {
                Some(at) => TcpStream::connect(at).await?,
                None => TcpStream::connect(&address).await?,
            };
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioIo::new(tls.connect(&address, stream).await?))
        }
    });
    endpoint.connect_with_connector_lazy(connector)
}
