//! The connection to a source that Chancery dials.

use std::{error::Error, io, time::Duration};

use bytes::Bytes;
use chancery_model::has_private_key;
use chancery_tls::{PortTls, Stream, host_of};
use http::{Uri, uri::PathAndQuery};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_stream::StreamExt as _;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tower::service_fn;

use crate::{message::SinkCodec, requests::Sent};

const METHOD: &str = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum length of the text of the source's status in bytes.
const STATUS_BYTES_MAX: usize = 1024;

/// Connects to a source, with TLS if there are certificates.
///
/// # Errors
/// The reason, as a text.
pub(crate) async fn connect(address: &str, tls: Option<PortTls>) -> Result<Channel, String> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
    let endpoint = endpoint.map_err(|error| chain(&error))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let remote = address.to_owned();
    let connect = service_fn(move |_: Uri| {
        let (address, tls) = (remote.clone(), tls.clone());
        async move { stream(&address, tls).await.map(TokioIo::new) }
    });
    let connected = endpoint.connect_with_connector(connect).await;
    connected.map_err(|error| format!("cannot connect to {address}: {}", chain(&error)))
}

async fn stream(address: &str, tls: Option<PortTls>) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    match tls {
        None => Ok(Stream::Plain(stream)),
        Some(tls) => tls.connect(host_of(address), stream).await,
    }
}

/// Opens the stream. The requests are sent at once, because some servers answer only after the first one.
///
/// # Errors
/// The reason, as a text.
pub(crate) async fn open(
    channel: Channel,
    requests: Sent,
    message_bytes_max: usize,
) -> Result<Streaming<Bytes>, String> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(message_bytes_max);
    grpc.ready().await.map_err(|error| chain(&error))?;
    // A client cannot send a status.
    let requests = Request::new(requests.map_while(Result::ok));
    let opened = grpc.streaming(requests, PathAndQuery::from_static(METHOD), SinkCodec).await;
    opened.map(tonic::Response::into_inner).map_err(|status| shown(&status))
}

/// Returns the text of the status with which a stream ended. A status with a cause comes from the transport, and not from
/// the source.
pub(crate) fn shown(status: &Status) -> String {
    if let Some(cause) = status.source() {
        return format!("the connection failed: {}", chain(cause));
    }
    let hint = match status.code() {
        Code::OutOfRange => " (mcp.message_bytes_max)",
        _ => "",
    };
    let text = if has_private_key(status.message().as_bytes()) {
        "a text with a private key, which is not shown"
    } else {
        status.message()
    };
    format!("{:?}: {}{hint}", status.code(), &text[..text.floor_char_boundary(STATUS_BYTES_MAX)])
}

/// Returns the text of an error and of its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
