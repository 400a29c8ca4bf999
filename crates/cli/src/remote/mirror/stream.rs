//! A delta stream of the aggregated discovery service, as a client.

use std::time::Duration;

use chancery_model::types;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Endpoint,
};
use tonic_prost::ProstCodec;

use super::address;
use crate::{
    failure::Failure,
    remote::connector::{self, Channel, Link, Security},
};

/// The maximum time to open a connection, and to open the stream on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The keepalive times, which bound the time to detect a server that has vanished.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum size of a response: a resource of the greatest size, and the rest of the response.
const RESPONSE_BYTES_MAX: usize = chancery_admission::BODY_BYTES_MAX + (16 << 20);
/// The number of requests that wait for the transport. More requests wait in [`Stream::send`].
const REQUESTS_MAX: usize = 64;

/// A server, and the TLS settings for it.
pub(super) struct Server {
    pub(super) address: String,
    link: Link,
}

impl Server {
    /// Creates a server at a valid address.
    pub(super) fn new(address: &str, security: &Security) -> Result<Self, Failure> {
        let (scheme, _) = address::split(address);
        let link = security.of_scheme(scheme, address)?;
        Ok(Self { address: address.to_owned(), link })
    }

    async fn connect(&self) -> Result<Channel, Lost> {
        let (scheme, address) = address::split(&self.address);
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| error.to_string())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        connector::connect(&endpoint, &self.link).await.map_err(|error| innermost(&error))
    }
}

/// The reason why there is no stream.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) reason: String,
    /// Whether the next attempt would fail for the same reason: a wrong certificate, token or port, or missing rights.
    pub(super) is_final: bool,
}

impl From<String> for Lost {
    fn from(reason: String) -> Self {
        Self { reason, is_final: false }
    }
}

impl From<&str> for Lost {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// An open stream.
pub(super) struct Stream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Stream {
    /// Connects to an xDS port, and opens a stream with its first request.
    pub(super) async fn open(server: &Server, first: DeltaDiscoveryRequest) -> Result<Self, Lost> {
        let opening = Self::open_here(server, first);
        match tokio::time::timeout(CONNECT_TIMEOUT * 2, opening).await {
            Ok(opened) => opened.map_err(|lost| match server.link.last_advice() {
                Some(reason) => Lost { reason, is_final: true },
                None => lost,
            }),
            Err(_) => Err("it accepts connections, but does not answer".into()),
        }
    }

    async fn open_here(server: &Server, first: DeltaDiscoveryRequest) -> Result<Self, Lost> {
        let mut client =
            Grpc::new(server.connect().await?).max_decoding_message_size(RESPONSE_BYTES_MAX);
        client.ready().await.map_err(|error| innermost(&error))?;
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let service = &types::AGGREGATED;
        let path = format!("/{}/{}", service.name, service.delta);
        let path: PathAndQuery = path.parse().map_err(|_| "the path is invalid")?;
        // The server sends its response headers only after the first request, so queue it first.
        requests.send(first).await.map_err(|_| "the stream has ended")?;
        let queue = Request::new(ReceiverStream::new(queue));
        let codec: ProstCodec<DeltaDiscoveryRequest, DeltaDiscoveryResponse> =
            ProstCodec::default();
        let opened = client.streaming(queue, path, codec).await;
        let responses = opened.map_err(|status| in_words(&status))?.into_inner();
        Ok(Self { requests, responses })
    }

    /// Sends a request.
    pub(super) async fn send(&mut self, request: DeltaDiscoveryRequest) -> Result<(), Lost> {
        if self.requests.send(request).await.is_ok() {
            return Ok(());
        }
        // The server has ended the stream. Its reason follows the responses.
        let reason = async {
            loop {
                if let Err(lost) = self.next().await {
                    return lost;
                }
            }
        };
        let reason = tokio::time::timeout(CONNECT_TIMEOUT, reason).await;
        Err(reason.unwrap_or_else(|_| "the stream has ended".into()))
    }

    /// Waits for the next response.
    pub(super) async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Lost> {
        match self.responses.message().await {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err("the server ended the stream".into()),
            Err(status) => Err(in_words(&status)),
        }
    }
}

fn in_words(status: &Status) -> Lost {
    let (code, message) = (status.code(), status.message());
    let is_final =
        matches!(code, Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied);
    match message {
        "" if code == Code::Unimplemented => {
            let reason = "it serves no discovery services; use the address of its xDS port";
            Lost { reason: reason.to_owned(), is_final }
        }
        message if message.is_empty() || connector::advice(status).is_some() => innermost(status),
        message => Lost { reason: message.to_owned(), is_final },
    }
}

/// Returns the text of the innermost error, which explains the failure.
fn innermost(error: &(dyn std::error::Error + 'static)) -> Lost {
    if let Some(reason) = connector::advice(error) {
        return Lost { reason, is_final: true };
    }
    let last = std::iter::successors(Some(error), |&error| error.source()).last();
    let text = last.map(ToString::to_string).unwrap_or_default();
    // The error number in `Connection refused (os error 111)` has no use for the reader.
    text.split(" (os error").next().unwrap_or_default().to_lowercase().into()
}
