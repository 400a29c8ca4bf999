//! The replies of operations: as messages of gRPC, and as JSON over HTTP.

use std::{convert::Infallible, pin::Pin};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use chancery_admin_proto::v1::{self as pb, watch_event::Event};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderValue, header};
use tonic::Status;

use crate::{
    AdminError, backup::BackupPieces, json::JsonMessage, node_list::NodePages, resources::Listing,
    watch::WatchEvents,
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
    /// The content type of the body.
    const CONTENT_TYPE: &'static str = "application/json";

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
        let pb::ListResourcesResponse { revision, next, .. } = self.head();
        // A cursor has no character that JSON escapes.
        let head = format!("{{\"revision\":{revision},\"next\":\"{next}\",\"resources\":[");
        json_pieces(head, self.into_stream().map(|piece| piece.resources))
    }
}

impl Reply for NodePages {
    type Message = Pieces<pb::ListNodesResponse>;

    fn into_message(self) -> Self::Message {
        Box::pin(self.0.map_err(Status::from))
    }
}

/// Nodes as JSON in the form of one `ListNodesResponse`.
impl HttpReply for NodePages {
    const NAME: &'static str = <pb::ListNodesResponse as JsonMessage>::NAME;

    fn into_http(self) -> Response {
        let (mut separator, mut rest) = ("", pb::ListNodesResponse::default());
        let pieces = self.0.map_ok(move |mut piece| {
            let text = items(&std::mem::take(&mut piece.nodes), &mut separator);
            // The end of the list has what the pieces say about its completeness.
            rest.disconnected.append(&mut piece.disconnected);
            let disconnected = std::mem::take(&mut rest.disconnected);
            rest = pb::ListNodesResponse { disconnected, ..piece };
            (text, rest.clone())
        });
        json_body(Body::from_stream(with_rest(pieces)))
    }
}

impl Reply for WatchEvents {
    type Message = Pieces<pb::WatchEvent>;

    fn into_message(self) -> Self::Message {
        Box::pin(self.0.map_err(Status::from))
    }
}

/// Events as server-sent events. The ID of an event is its revision, so that a browser resumes after it.
impl HttpReply for WatchEvents {
    const NAME: &'static str = <pb::WatchEvent as JsonMessage>::NAME;
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn into_http(self) -> Response {
        let events = self.0.map(|event| {
            let text = match event {
                Ok(event) => {
                    let kind = match &event.event {
                        Some(Event::Made(_)) => "revision",
                        Some(Event::Node(_)) => "node",
                        Some(Event::Member(_)) => "member",
                        Some(Event::Missed(_)) => "missed",
                        None => "progress",
                    };
                    // A browser resumes with the ID alone.
                    let event = pb::WatchEvent { position: None, ..event };
                    format!("id: {}\nevent: {kind}\ndata: {}\n\n", event.revision, event.to_json())
                }
                Err(error) => format!("event: error\ndata: {}\n\n", error.to_response().to_json()),
            };
            Ok::<_, Infallible>(Bytes::from(text))
        });
        let content_type = HeaderValue::from_static(Self::CONTENT_TYPE);
        let no_cache = HeaderValue::from_static("no-cache");
        let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, no_cache)];
        (headers, Body::from_stream(events)).into_response()
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

/// Returns a list of nodes as JSON: the nodes piece by piece, then what the last piece has besides them. An error ends
/// the body early, so that no client takes the list for complete.
fn with_rest(
    pieces: impl Stream<Item = Result<(String, pb::ListNodesResponse), AdminError>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, AdminError>> + Send + 'static {
    enum Step<S> {
        Start(S),
        Rest(S, Box<pb::ListNodesResponse>),
    }
    stream::unfold(Some(Step::Start(Box::pin(pieces))), |step| async {
        let (mut pieces, head, rest) = match step? {
            Step::Start(pieces) => (pieces, "{\"nodes\":[", pb::ListNodesResponse::default()),
            Step::Rest(pieces, rest) => (pieces, "", *rest),
        };
        Some(match pieces.next().await {
            Some(Ok((text, mut next))) => {
                // Only the first piece has the freezes.
                next.held.splice(0..0, rest.held);
                (Ok(Bytes::from(format!("{head}{text}"))), Some(Step::Rest(pieces, Box::new(next))))
            }
            Some(Err(error)) => (Err(error), None),
            None => (Ok(Bytes::from(end_of_list(&rest))), None),
        })
    })
}

/// Returns the end of a list of nodes: all fields but the nodes.
fn end_of_list(rest: &pb::ListNodesResponse) -> String {
    let mut fields = rest.to_json();
    if let Some(fields) = fields.as_object_mut() {
        fields.remove("nodes");
    }
    fields.to_string().replacen('{', "],", 1)
}

/// Returns items of a list as JSON.
fn items<M: JsonMessage>(items: &[M], separator: &mut &str) -> String {
    let mut text = String::new();
    for item in items {
        text.push_str(separator);
        text.push_str(&item.to_json().to_string());
        *separator = ",";
    }
    text
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
    let pieces = pieces.map(move |all| Bytes::from(items(&all, &mut separator)));
    let head = stream::once(async { Bytes::from(head) });
    let tail = stream::once(async { Bytes::from_static(b"]}") });
    json_body(Body::from_stream(head.chain(pieces).chain(tail).map(Ok::<_, Infallible>)))
}
