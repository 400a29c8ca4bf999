//! Minimal aggregated streams: one connection, its streams, and their requests.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use chancery_model::types::CLUSTER;
use chancery_proto::{discovery::DeltaDiscoveryRequest, node::Node};
use chancery_tls::{ClientStream, ClientTls, ClientTlsFiles};
use h2::{
    RecvStream, SendStream,
    client::{Connection, ResponseFuture, SendRequest},
};
use http::HeaderValue;
use prost::Message as _;
use tokio::net::TcpSocket;

/// The method of aggregated delta streams.
pub const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The method of aggregated state-of-the-world streams.
pub const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The status of a stream whose server is going away (gRPC code 14).
const UNAVAILABLE: &str = "14";

/// The xDS port of a server, and the TLS settings of its clients. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Target {
    /// The address.
    pub at: SocketAddr,
    /// The host name in the certificate of the server; `None` for its IP address.
    host: Option<Arc<str>>,
    /// `None` without TLS.
    tls: Option<ClientTls>,
    /// The value of the header `authorization`.
    token: Option<HeaderValue>,
}

/// The flow-control windows of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The window of a stream in bytes.
    pub stream: u32,
    /// The window of a connection in bytes.
    pub connection: u32,
    /// The receive buffer of the socket in bytes; `None` for the kernel's default.
    pub socket: Option<u32>,
}

/// The requests of a stream.
#[derive(Debug)]
pub struct Requests(SendStream<Bytes>);

/// The responses of a stream.
#[derive(Debug)]
pub struct Responses(ResponseFuture);

/// The responses of a stream whose headers have arrived.
#[derive(Debug)]
pub struct Body {
    body: RecvStream,
    /// The status in the headers, of a stream that has no responses.
    status: Option<HeaderValue>,
}

/// The server has ended a stream.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Ended {
    /// Whether the status was `UNAVAILABLE`: the client should connect to another replica.
    pub is_unavailable: bool,
    what: String,
}

impl Windows {
    /// The windows of Envoy.
    pub const ENVOY: Self = Self { stream: 16 << 20, connection: 24 << 20, socket: None };
}

impl Target {
    /// Returns a port whose clients use TLS with these files. `None` means a port without TLS.
    ///
    /// # Errors
    /// Fails if a file is unusable.
    pub fn new(at: SocketAddr, files: Option<&ClientTlsFiles>) -> Result<Self> {
        Ok(Self { tls: files.map(ClientTls::new).transpose()?, ..Self::from(at) })
    }

    /// Returns the port of a named host. `tls` and `token` are `None` for a port without them.
    #[must_use]
    pub fn of_host(
        host: &str,
        at: SocketAddr,
        tls: Option<ClientTls>,
        token: Option<HeaderValue>,
    ) -> Self {
        Self { at, host: Some(host.into()), tls, token }
    }

    /// Returns the same port for a client with other TLS settings.
    #[must_use]
    pub fn with_tls(self, tls: ClientTls) -> Self {
        Self { tls: Some(tls), ..self }
    }
}

impl From<SocketAddr> for Target {
    fn from(at: SocketAddr) -> Self {
        Self { at, host: None, tls: None, token: None }
    }
}

/// Connects. The connection works only while the returned [`Connection`] is polled.
///
/// # Errors
/// Fails if there is no connection, or a handshake fails.
pub async fn connect(
    target: impl Into<Target>,
    windows: Windows,
) -> Result<(SendRequest<Bytes>, Connection<ClientStream>)> {
    let Target { at, host, tls, token: _ } = target.into();
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(bytes) = windows.socket {
        socket.set_recv_buffer_size(bytes)?;
    }
    let socket = socket.connect(at).await.with_context(|| format!("connect to {at}"))?;
    socket.set_nodelay(true)?;
    let socket = match tls {
        Some(tls) => {
            let host = host.map_or_else(|| at.ip().to_string(), |host| host.to_string());
            tls.connect(&host, socket).await.context("TLS handshake")?
        }
        None => ClientStream::plain(socket),
    };
    h2::client::Builder::new()
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .handshake(socket)
        .await
        .context("HTTP/2 handshake")
}

/// Opens a delta stream and subscribes to all clusters. Returns the sender for the next stream too.
///
/// # Errors
/// Fails if the connection has ended.
pub async fn open(
    sender: SendRequest<Bytes>,
    xds: SocketAddr,
    node: String,
) -> Result<(SendRequest<Bytes>, Requests, Responses)> {
    let first = DeltaDiscoveryRequest {
        node: Some(self::node(node)),
        type_url: CLUSTER.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    open_with(sender, xds, DELTA, &[first]).await
}

/// Opens a stream of a method and sends its first requests. Returns the sender for the next stream
/// too.
///
/// # Errors
/// Fails if the connection has ended.
pub async fn open_with(
    sender: SendRequest<Bytes>,
    xds: impl Into<Target>,
    method: &str,
    first: &[impl prost::Message],
) -> Result<(SendRequest<Bytes>, Requests, Responses)> {
    let Target { at, token, .. } = xds.into();
    let mut sender = sender.ready().await.context("wait until the server allows another stream")?;
    let mut request = http::Request::post(format!("http://{at}{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    if let Some(token) = token {
        request.headers_mut().insert(http::header::AUTHORIZATION, token);
    }
    let (response, requests) = sender.send_request(request, false)?;
    let mut requests = Requests(requests);
    for first in first {
        requests.send(first)?;
    }
    Ok((sender, requests, Responses(response)))
}

/// Returns the encoded node of a client.
#[must_use]
pub fn node(id: String) -> Bytes {
    let node = Node {
        id,
        cluster: "loadtest".to_owned(),
        user_agent_name: "loadtest".to_owned(),
        ..Node::default()
    };
    node.encode_to_vec().into()
}

impl Requests {
    /// Sends a request.
    ///
    /// # Errors
    /// Fails if the stream has ended.
    pub fn send(&mut self, request: &impl prost::Message) -> Result<()> {
        let len = request.encoded_len();
        let mut frame = BytesMut::with_capacity(len + 5);
        frame.put_u8(0);
        frame.put_u32(u32::try_from(len).context("the request exceeds 4 GiB")?);
        request.encode(&mut frame)?;
        Ok(self.0.send_data(frame.freeze(), false)?)
    }

    /// Waits for flow-control capacity, and returns at most `wanted` bytes of it. Returns `None` if
    /// the stream takes no more data.
    async fn room(&mut self, wanted: usize) -> Option<usize> {
        self.0.reserve_capacity(wanted);
        std::future::poll_fn(|cx| self.0.poll_capacity(cx)).await?.ok()
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// Fails if the stream has ended.
    pub fn send_bytes(&mut self, bytes: Bytes) -> Result<()> {
        Ok(self.0.send_data(bytes, false)?)
    }

    /// Sends bytes as fast as the server takes them. Returns `false` if the stream ended before
    /// that.
    pub async fn send_all(&mut self, mut bytes: Bytes) -> bool {
        while bytes.has_remaining() {
            let Some(room) = self.room(bytes.len()).await else { return false };
            let part = bytes.split_to(room.min(bytes.len()));
            if self.send_bytes(part).is_err() {
                return false;
            }
        }
        true
    }

    /// Acknowledges the delta response with this nonce.
    ///
    /// # Errors
    /// Fails if the stream has ended.
    pub fn ack(&mut self, nonce: String) -> Result<()> {
        self.send(&DeltaDiscoveryRequest {
            type_url: CLUSTER.to_owned(),
            response_nonce: nonce,
            ..DeltaDiscoveryRequest::default()
        })
    }
}

impl Responses {
    /// Waits for the headers and returns the body, without reading it.
    ///
    /// # Errors
    /// Fails if the connection ends.
    pub async fn body(self) -> Result<RecvStream> {
        Ok(self.open().await?.body)
    }

    /// Waits for the headers.
    ///
    /// # Errors
    /// Fails if the connection ends.
    pub async fn open(self) -> Result<Body> {
        let response = self.0.await.context("wait for the response's headers")?;
        let status = response.headers().get("grpc-status").cloned();
        Ok(Body { body: response.into_body(), status })
    }

    /// Passes all data to `on` until the server ends the stream, which is an error.
    ///
    /// # Errors
    /// Fails when the stream ends, or when `on` fails.
    pub async fn read(self, mut on: impl FnMut(&Bytes) -> Result<()>) -> Result<()> {
        let mut body = self.open().await?;
        loop {
            let chunk = body.chunk().await?;
            on(&chunk)?;
            body.release(chunk.len())?;
        }
    }
}

impl Body {
    /// Waits for the next data.
    ///
    /// # Errors
    /// Fails with [`Ended`] when the server ends the stream.
    pub async fn chunk(&mut self) -> Result<Bytes> {
        if let Some(chunk) = self.body.data().await {
            return Ok(chunk?);
        }
        let trailers = self.body.trailers().await?.unwrap_or_default();
        let message = trailers.get("grpc-message").cloned();
        let status = trailers.get("grpc-status").cloned().or(self.status.take());
        let is_unavailable = status.as_ref().is_some_and(|status| status == UNAVAILABLE);
        let what = format!("stream ended: status {status:?}, message {message:?}");
        bail!(Ended { is_unavailable, what })
    }

    /// Lets the server send as many further bytes as have been read.
    ///
    /// # Errors
    /// Fails if the stream has ended.
    pub fn release(&mut self, n_bytes: usize) -> Result<()> {
        Ok(self.body.flow_control().release_capacity(n_bytes)?)
    }
}
