//! Outgoing connections to other replicas, with TLS.

use std::io;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use super::tls::Tls;

/// Creates a channel that connects on first use, with TLS.
pub(crate) fn connect_lazily(endpoint: &Endpoint, address: &str, tls: &Tls) -> Channel {
    let (address, tls) = (address.to_owned(), tls.clone());
    let connector = tower::service_fn(move |_| {
        let (address, tls) = (address.clone(), tls.clone());
        async move {
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioIo::new(tls.connect(&address, stream).await?))
        }
    });
    endpoint.connect_with_connector_lazy(connector)
}
