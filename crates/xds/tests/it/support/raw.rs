//! A client that sends raw bytes over HTTP/2. The test decides what it reads.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response};
use prost::Message;
use tokio::net::TcpStream;

use super::*;

/// Connects an HTTP/2 client.
pub(crate) async fn http2(server: &Server) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client.ready().await.unwrap()
}

/// A stream whose request is open.
pub(crate) struct Raw {
    pub(crate) send: h2::SendStream<Bytes>,
    pub(crate) response: Response<h2::RecvStream>,
    buffer: BytesMut,
    // The connection lives as long as its streams.
    _client: SendRequest<Bytes>,
}

/// Opens a stream on a separate connection.
pub(crate) async fn call(server: &Server, request: Request<()>) -> Raw {
    call_on(http2(server).await, request).await
}

/// Opens a stream on a connection.
pub(crate) async fn call_on(client: SendRequest<Bytes>, request: Request<()>) -> Raw {
    let mut client = client.ready().await.unwrap();
    let (response, send) = client.send_request(request, false).unwrap();
    let response = tokio::time::timeout(PATIENCE, response).await.expect("no headers").unwrap();
    Raw::new(send, response, client)
}

pub(crate) fn grpc(path: &str) -> http::request::Builder {
    Request::post(format!("http://chancery{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// Returns a gRPC message with this flag and these bytes.
pub(crate) fn framed(flag: u8, bytes: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(flag);
    framed.put_u32(u32::try_from(bytes.len()).unwrap());
    framed.put_slice(bytes);
    framed.freeze()
}

/// Returns the first request of a wildcard client for clusters.
pub(crate) fn subscription(id: &str) -> Bytes {
    let request = DeltaDiscoveryRequest {
        type_url: CDS.into(),
        node: node(id),
        ..DeltaDiscoveryRequest::default()
    };
    framed(0, &request.encode_to_vec())
}

impl Raw {
    pub(crate) fn new(
        send: h2::SendStream<Bytes>,
        response: Response<h2::RecvStream>,
        client: SendRequest<Bytes>,
    ) -> Self {
        Self { send, response, buffer: BytesMut::new(), _client: client }
    }

    /// Sends bytes as fast as the server accepts them. Returns `false` if the stream ended before it
    /// accepted all.
    pub(crate) async fn send_all(&mut self, mut bytes: Bytes) -> bool {
        while bytes.has_remaining() {
            self.send.reserve_capacity(bytes.len());
            let Some(Ok(n)) = std::future::poll_fn(|cx| self.send.poll_capacity(cx)).await else {
                return false;
            };
            let part = bytes.split_to(n.min(bytes.len()));
            if self.send.send_data(part, false).is_err() {
                return false;
            }
        }
        true
    }

    /// Returns the trailers, after everything before them, or the headers of a response without a body.
    pub(crate) async fn trailers(mut self) -> HeaderMap {
        if self.response.headers().contains_key("grpc-status") {
            return self.response.headers().clone();
        }
        let body = self.response.body_mut();
        let read = async {
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            body.trailers().await.unwrap().expect("no trailers")
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the stream has not ended")
    }

    /// Returns the code and the text that end the stream.
    pub(crate) async fn status(self) -> (i32, String) {
        let status = Status::from_header_map(&self.trailers().await).expect("no status");
        (status.code() as i32, status.message().to_owned())
    }

    /// Returns the next response.
    pub(crate) async fn next(&mut self) -> DeltaDiscoveryResponse {
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<5>() {
                let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                if self.buffer.len() >= 5 + len {
                    let message = self.buffer.split_to(5 + len).freeze().slice(5..);
                    return DeltaDiscoveryResponse::decode(message).unwrap();
                }
            }
            let body = self.response.body_mut();
            let data = tokio::time::timeout(PATIENCE, body.data()).await.expect("no data");
            let data = data.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            self.buffer.extend_from_slice(&data);
        }
    }

    pub(crate) fn ack(&mut self, response: &DeltaDiscoveryResponse) {
        let request = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        self.send.send_data(framed(0, &request.encode_to_vec()), false).unwrap();
    }
}
