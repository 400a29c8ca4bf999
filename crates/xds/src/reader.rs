//! Reads a stream's requests and hands them to its shard.
//!
//! It goes on whatever the state of the response: a client that does not read is still listened to
//! (its ACKs free what it is owed). Memory is bounded by one message: the next is read when the shard
//! has taken this one.

use std::sync::Arc;

use bytes::Bytes;
use chancery_fanout::{End, EndCode, Intake, limit_hit};
use chancery_model::Node;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Status};
use chancery_protocol::{DeltaRequest, ErrorDetail, Protocol, Request, SotwRequest};
use http_body::Body;
use metrics::Counter;
use prost::Message;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    Config,
    bucket::Bucket,
    framing::{FrameError, Framed, Frames},
    node::{NodeError, NodeReader},
};

/// Reads the requests of one stream.
#[derive(Debug)]
pub(crate) struct Reader<B> {
    frames: Frames<B>,
    intake: Intake,
    protocol: Protocol,
    node: NodeReader,
    bucket: Bucket,
    names_max: usize,
    name_bytes_max: usize,
    nack_message_bytes_max: usize,
    bytes: Counter,
}

/// A request, as its shard gets it.
struct Read {
    request: Request,
    node: Option<Arc<Node>>,
    room: Option<OwnedSemaphorePermit>,
}

/// Why a stream is ended for its requests.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("malformed {message}: {error}")]
    Malformed { message: &'static str, error: prost::DecodeError },
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("a request names {found} resources, at most {max} are allowed (names_per_request_max)")]
    Names { found: usize, max: usize },
    #[error(
        "a request names a resource in {len} bytes, at most {max} are allowed (name_bytes_max)"
    )]
    NameLong { len: usize, max: usize },
    #[error("more than {max} requests per second (requests_per_second_max)")]
    Rate { max: u32 },
}

impl<B: Body<Data = Bytes> + Unpin> Reader<B> {
    pub(crate) fn new(
        frames: Frames<B>,
        intake: Intake,
        protocol: Protocol,
        config: &Config,
        bytes: Counter,
    ) -> Self {
        Self {
            frames,
            intake,
            protocol,
            node: NodeReader::new(config.node_bytes_max, config.node_metadata_max),
            bucket: Bucket::new(config.requests_per_second_max, config.requests_burst_max),
            names_max: config.names_per_request_max,
            name_bytes_max: config.name_bytes_max,
            nack_message_bytes_max: config.nack_message_bytes_max,
            bytes,
        }
    }

    /// Reads until the client closes its half or breaks a rule.
    pub(crate) async fn run(mut self) {
        loop {
            match self.next().await {
                Ok(Some(read)) => {
                    if self.intake.request(read.request, read.node, read.room).await.is_err() {
                        return;
                    }
                }
                // If the shard has stopped, that has ended the stream.
                Ok(None) => {
                    let _stopped = self.intake.half_close().await;
                    return;
                }
                Err(error) => return self.refuse(&error),
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Read>, ReadError> {
        let Some(Framed { message: bytes, room }) = self.frames.next().await? else {
            return Ok(None);
        };
        self.bytes.increment(bytes.len() as u64);
        if !self.bucket.take(Instant::now(), 1) {
            return Err(ReadError::Rate { max: self.bucket.per_second });
        }
        let (request, node) = self.decode(bytes)?;
        Ok(Some(Read { request, node, room }))
    }

    fn decode(&mut self, bytes: Bytes) -> Result<(Request, Option<Arc<Node>>), ReadError> {
        let (node, request) = match self.protocol {
            Protocol::Sotw => {
                let message = DiscoveryRequest::decode(bytes)
                    .map_err(|error| ReadError::Malformed { message: "DiscoveryRequest", error })?;
                self.check_names(message.resource_names.iter())?;
                let request = SotwRequest {
                    type_url: message.type_url,
                    version_info: message.version_info,
                    resource_names: message.resource_names,
                    response_nonce: message.response_nonce,
                    error_detail: message.error_detail.map(|status| self.error_detail(status)),
                };
                (message.node, Request::Sotw(request))
            }
            Protocol::Delta => {
                let message = DeltaDiscoveryRequest::decode(bytes).map_err(|error| {
                    ReadError::Malformed { message: "DeltaDiscoveryRequest", error }
                })?;
                self.check_names(
                    (message.resource_names_subscribe.iter())
                        .chain(&message.resource_names_unsubscribe)
                        .chain(message.initial_resource_versions.keys()),
                )?;
                let request = DeltaRequest {
                    type_url: message.type_url,
                    subscribe: message.resource_names_subscribe,
                    unsubscribe: message.resource_names_unsubscribe,
                    initial_resource_versions: message
                        .initial_resource_versions
                        .into_iter()
                        .collect(),
                    response_nonce: message.response_nonce,
                    error_detail: message.error_detail.map(|status| self.error_detail(status)),
                };
                (message.node, Request::Delta(request))
            }
        };
        Ok((request, self.node.read(node)?))
    }

    fn check_names<'a>(
        &self,
        names: impl Iterator<Item = &'a String> + Clone,
    ) -> Result<(), ReadError> {
        let (found, max) = (names.clone().count(), self.names_max);
        if found > max {
            return Err(ReadError::Names { found, max });
        }
        let (len, max) = (names.map(String::len).max().unwrap_or(0), self.name_bytes_max);
        if len > max { Err(ReadError::NameLong { len, max }) } else { Ok(()) }
    }

    /// A rejection, with its message as far as it is kept.
    fn error_detail(&self, status: Status) -> ErrorDetail {
        let Status { code, mut message, .. } = status;
        let max = self.nack_message_bytes_max;
        if message.len() > max {
            limit_hit("nack_message_bytes");
            message.truncate(message.floor_char_boundary(max));
            message.shrink_to_fit();
        }
        ErrorDetail { code, message }
    }

    fn refuse(&self, error: &ReadError) {
        if let Some(limit) = error.limit() {
            limit_hit(limit);
        }
        tracing::debug!(%error, "request refused");
        self.intake.end(End::new(error.code(), error.to_string()));
    }
}

impl ReadError {
    fn code(&self) -> EndCode {
        match self {
            Self::Frame(
                FrameError::TooLong { .. } | FrameError::Slow { .. } | FrameError::Stalled { .. },
            )
            | Self::Node(NodeError::TooLong { .. } | NodeError::Metadata { .. })
            | Self::Names { .. }
            | Self::NameLong { .. }
            | Self::Rate { .. } => EndCode::ResourceExhausted,
            Self::Frame(FrameError::Compressed) => EndCode::Unimplemented,
            Self::Frame(_) => EndCode::Internal,
            Self::Malformed { .. } | Self::Node(_) => EndCode::InvalidArgument,
        }
    }

    fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Frame(FrameError::TooLong { .. }) => Some("request_bytes"),
            Self::Frame(FrameError::Slow { .. } | FrameError::Stalled { .. }) => {
                Some("large_request_timeout")
            }
            Self::Node(NodeError::TooLong { .. }) => Some("node_bytes"),
            Self::Node(NodeError::Metadata { .. }) => Some("node_metadata"),
            Self::Names { .. } => Some("names_per_request"),
            Self::NameLong { .. } => Some("name_bytes"),
            Self::Rate { .. } => Some("requests_per_second"),
            Self::Frame(_) | Self::Malformed { .. } | Self::Node(_) => None,
        }
    }
}
