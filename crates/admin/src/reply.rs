//! The replies of operations: as messages of gRPC, and as JSON over HTTP.

use std::{convert::Infallible, pin::Pin};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use futures::{Stream, StreamExt, stream};
use http::{HeaderValue, header};
use tonic::Status;

use crate::{
    AdminError, backup::BackupPieces, json::JsonMessage, nodes::NodePages, resources::Listing,
};

/// The pieces of a reply.
pub(crate) type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A reply of an operation.
pub(crate) trait Reply {
    /// The message that a method of gRPC returns.
    type Message;

    fn into_message(self) -> Self::Message;
}

/// A reply that HTTP can give.
pub(crate) trait HttpReply {
    /// The full name of the message whose JSON is the body.
    const NAME: &'static str;

    fn into_http(self) -> Response;
}

impl<M: JsonMessage> Reply for M {
    type Message = M;

    fn into_message(self) -> M {
        self
    }
}

impl<M: JsonMessage> HttpReply for M {
    const NAME: &'static str = M::NAME;

    fn into_http(self) -> Response {
        json(&self)
    }
}

impl Reply for Listing {
    type Message = Pieces<pb::ListResourcesResponse>;

    fn into_message(self) -> Self::Message {
        Box::pin(self.into_stream().map(Ok))
    }
}

/// Resources as JSON in the form of one `ListResourcesResponse`.
impl HttpReply for Listing {
    const NAME: &'static str = <pb::ListResourcesResponse as JsonMessage>::NAME;

    fn into_http(self) -> Response {
        let head = format!("{{\"revision\":{},\"resources\":[", self.revision());
        json_pieces(head, self.into_stream().map(|piece| piece.resources))
    }
}

impl Reply for NodePages {
    type Message = Pieces<pb::ListNodesResponse>;

    fn into_message(self) -> Self::Message {
        Box::pin(stream::iter(self.0.into_iter().map(Ok)))
    }
}

/// Nodes as JSON in the form of one `ListNodesResponse`.
impl HttpReply for NodePages {
    const NAME: &'static str = <pb::ListNodesResponse as JsonMessage>::NAME;

    fn into_http(self) -> Response {
        let not_asked = self.0.first().map_or(0, |piece| piece.replicas_not_asked);
        let pieces = stream::iter(self.0).then(|piece| async {
            tokio::task::yield_now().await;
            piece.nodes
        });
        json_pieces(format!("{{\"replicas_not_asked\":{not_asked},\"nodes\":["), pieces)
    }
}

impl Reply for BackupPieces {
    type Message = Pieces<pb::BackupResponse>;

    fn into_message(self) -> Self::Message {
        Box::pin(self.into_stream().map(Ok))
    }
}

/// Returns the result of a write. If `inside`, the answer has the problems of rejected input.
pub(crate) fn problems_in(
    inside: bool,
) -> impl FnOnce(Result<pb::WriteResponse, AdminError>) -> Result<pb::WriteResponse, AdminError> {
    move |result| match result {
        Err(AdminError::Input(pb::Problems { problems, checked_clients, .. })) if inside => {
            Ok(pb::WriteResponse { problems, checked_clients, ..Default::default() })
        }
        other => other,
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let (status, _) = self.http();
        let mut response = (status, json(&self.to_response())).into_response();
        if matches!(self, Self::Busy { .. }) {
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, second);
        }
        response
    }
}

fn json<M: JsonMessage>(message: &M) -> Response {
    json_body(Body::from(message.to_json().to_string()))
}

pub(crate) fn json_body(body: Body) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Returns a list as JSON. Only one piece at a time is in memory.
fn json_pieces<M: JsonMessage>(
    head: String,
    pieces: impl Stream<Item = Vec<M>> + Send + 'static,
) -> Response {
    let mut separator = "";
    let pieces = pieces.map(move |items| {
        let mut text = String::new();
        for item in &items {
            text.push_str(separator);
            text.push_str(&item.to_json().to_string());
            separator = ",";
        }
        Bytes::from(text)
    });
    let head = stream::once(async { Bytes::from(head) });
    let tail = stream::once(async { Bytes::from_static(b"]}") });
    json_body(Body::from_stream(head.chain(pieces).chain(tail).map(Ok::<_, Infallible>)))
}
