//! Reads the requests of a stream and passes them to its shard.
//!
//! The reader continues regardless of the state of the response: a client that does not read can still
//! send ACKs, which free memory. Memory is bounded by one message, because the next one is read after
//! the shard has taken this one.

use std::sync::Arc;

use bytes::Bytes;
use chancery_auth::RateExceeded;
use chancery_fanout::{End, EndCode, RequestSink, limit_hit};
use chancery_model::Node;
use chancery_net::Bucket;
use chancery_protocol::{
    DecodeError, DecodeLimits, DecodedRequest, Protocol, Request, RequestDecoder,
};
use http_body::Body;
use metrics::Counter;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    Config,
    caller::RequestRate,
    framing::{FrameError, Framed, Frames},
    node::{NodeError, NodeReader},
};

/// The collection of the trigger: the first message to a remote sink, without resources. Some sinks send nothing before
/// the first message of a source (MCP-65).
pub(crate) const TRIGGER: &str = "$triggerCollection";

/// Reads the requests of one stream.
#[derive(Debug)]
pub(crate) struct Reader<B> {
    frames: Frames<B>,
    sink: RequestSink,
    protocol: Protocol,
    node: NodeReader,
    bucket: Bucket,
    limits: DecodeLimits,
    bytes: Counter,
    /// The rate of the identity. The first request counts as the opening of the stream.
    rate: Option<RequestRate>,
    is_first: bool,
}

/// A request for the shard.
struct Read {
    request: Request,
    node: Option<Arc<Node>>,
    memory: Option<OwnedSemaphorePermit>,
}

/// The reason why a stream ends because of its requests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("more than {max} requests per second (requests_per_second_max)")]
    Rate { max: u32 },
    #[error(transparent)]
    IdentityRate(#[from] RateExceeded),
}

impl<B: Body<Data = Bytes> + Unpin> Reader<B> {
    pub(crate) fn new(
        frames: Frames<B>,
        sink: RequestSink,
        protocol: Protocol,
        config: &Config,
        bytes: Counter,
    ) -> Self {
        Self {
            frames,
            sink,
            protocol,
            node: NodeReader::new(config.node_bytes_max, config.node_metadata_max),
            bucket: Bucket::new(config.requests_per_second_max, config.requests_burst_max),
            limits: DecodeLimits {
                names_max: config.names_per_request_max,
                name_bytes_max: config.name_bytes_max,
                nack_message_bytes_max: config.nack_message_bytes_max,
            },
            bytes,
            rate: None,
            is_first: true,
        }
    }

    /// Limits the requests to the rate of an identity.
    pub(crate) fn limited(self, rate: Option<RequestRate>) -> Self {
        Self { rate, ..self }
    }

    /// Reads until the client closes its half of the stream or breaks a rule.
    pub(crate) async fn run(mut self) {
        loop {
            match self.next().await {
                Ok(Some(read)) => {
                    if self.sink.request(read.request, read.node, read.memory).await.is_err() {
                        return;
                    }
                }
                // If the shard has stopped, it has already ended the stream.
                Ok(None) => {
                    let _stopped = self.sink.half_close().await;
                    return;
                }
                Err(error) => return self.reject(&error),
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Read>, ReadError> {
        loop {
            let Some(Framed { message: bytes, memory }) = self.frames.next().await? else {
                return Ok(None);
            };
            self.bytes.increment(bytes.len() as u64);
            if !self.bucket.take(Instant::now(), 1) {
                return Err(ReadError::Rate { max: self.bucket.per_second() });
            }
            // The opening of the stream has counted as its first request.
            let is_first = std::mem::take(&mut self.is_first);
            if let Some(rate) = self.rate.as_ref().filter(|_| !is_first) {
                rate.take()?;
            }
            if let Some((request, node)) = self.decode(bytes).await? {
                return Ok(Some(Read { request, node, memory }));
            }
        }
    }

    /// Decodes the message in bounded steps. Other tasks run between them. Returns `None` for the answer of a sink to
    /// the trigger, which is no request (MCP-65).
    async fn decode(
        &mut self,
        message: Bytes,
    ) -> Result<Option<(Request, Option<Arc<Node>>)>, ReadError> {
        let mut decoder = RequestDecoder::new(self.protocol, message, self.limits);
        let decoded = loop {
            if let Some(decoded) = decoder.step()? {
                break decoded;
            }
            tokio::task::yield_now().await;
        };
        let DecodedRequest { request, node, is_nack_cut, .. } = decoded;
        if is_nack_cut {
            limit_hit("nack_message_bytes");
        }
        // Sinks of older Istio releases answer the trigger with an empty collection.
        if let Request::Mcp(request) = &request
            && request.response_nonce.is_empty()
            && (request.collection == TRIGGER
                || (request.collection.is_empty() && request.error_detail.is_some()))
        {
            return Ok(None);
        }
        let node = match self.protocol {
            Protocol::Sotw | Protocol::Delta => self.node.read(node)?,
            Protocol::Mcp => self.node.read_sink(node.unwrap_or_default())?,
        };
        Ok(Some((request, node)))
    }

    fn reject(&self, error: &ReadError) {
        if let Some(limit) = error.limit() {
            limit_hit(limit);
        }
        self.sink.reject(self.node.id(), End::new(error.code(), error.to_string()));
    }
}

impl ReadError {
    pub(crate) fn code(&self) -> EndCode {
        match self {
            Self::Frame(
                FrameError::TooLong { .. } | FrameError::Slow { .. } | FrameError::Stalled { .. },
            )
            | Self::Node(
                NodeError::TooLong { .. }
                | NodeError::Metadata { .. }
                | NodeError::Annotations { .. }
                | NodeError::Values { .. }
                | NodeError::Paths { .. },
            )
            | Self::Decode(DecodeError::Names { .. } | DecodeError::NameLong { .. })
            | Self::Rate { .. }
            | Self::IdentityRate(_) => EndCode::ResourceExhausted,
            Self::Frame(FrameError::Compressed) => EndCode::Unimplemented,
            Self::Frame(_) => EndCode::Internal,
            Self::Decode(_) | Self::Node(_) => EndCode::InvalidArgument,
        }
    }

    pub(crate) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Frame(FrameError::TooLong { .. }) => Some("request_bytes"),
            Self::Frame(FrameError::Slow { .. } | FrameError::Stalled { .. }) => {
                Some("large_request_timeout")
            }
            Self::Node(NodeError::TooLong { .. } | NodeError::Paths { .. }) => Some("node_bytes"),
            Self::Node(
                NodeError::Metadata { .. }
                | NodeError::Annotations { .. }
                | NodeError::Values { .. },
            ) => Some("node_metadata"),
            Self::Decode(DecodeError::Names { .. }) => Some("names_per_request"),
            Self::Decode(DecodeError::NameLong { .. }) => Some("name_bytes"),
            Self::Rate { .. } => Some("requests_per_second"),
            Self::Frame(_) | Self::Decode(_) | Self::Node(_) | Self::IdentityRate(_) => None,
        }
    }
}
