//! REST-JSON polling: each request is a poll of one type (REST-01).
//!
//! There is no session. The request has the node, the names, and the version that the client has. The
//! response is the JSON form of `DiscoveryResponse`, or 304 if nothing has changed.
//!
//! Invariants:
//! - A poll runs in the task of its connection. It delays no other connection.
//! - A poll that receives 304 costs the check for a current state and the lookup of its names.

mod body;
pub(crate) mod json;
pub(crate) mod polls;
mod repeats;
pub(crate) mod request;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_fanout::{
    Behind, ClientEvent, ClientEventKind, End, OpenError, Poll, UNOPENED, limit_hit, type_label,
};
use chancery_model::{
    Identity, Node, Revision, TypeUrl,
    types::{SECRET, properties},
};
use chancery_net::Bucket;
use chancery_protocol::{EndpointLists, NameList, PollContent, PollNames, PollResponse};
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use hyper::body::Incoming;
use metrics::counter;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    Config,
    body::{JsonBody, ResponseBody},
    caller::Caller,
    connection::{Connection, PollRegistration},
    grpc,
    node::{self, NodeError},
    shared::Shared,
};
pub use json::BodyEncoder;
use json::{EncodeError, Encoded, Outcome, Since, quoted};
use request::{Limits, PollRequest, RequestError};

const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The time after which a client should retry, in seconds.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");
/// The size from which a request is read on a blocking thread.
const LARGE_REQUEST_BYTES: usize = 256 << 10;
/// The maximum size of a request whose poll is held. The names of a held poll stay in memory.
const HELD_REQUEST_BYTES_MAX: usize = 16 << 10;
/// The number of names from which a response is decided on a blocking thread.
const LARGE_NAMES: usize = 2048;

/// The values of the label `result` of `chancery_xds_polls_total`.
pub(crate) const RESULTS: [&str; 5] = ["changed", "unchanged", "rejected", "unavailable", "failed"];

/// The reason why a poll gets no response.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error("{path} accepts POST only, not {method}")]
    Method { path: String, method: Method },
    #[error(
        "the request's headers have {bytes} bytes, at most {max} are allowed (header_list_bytes_max)"
    )]
    Headers { bytes: usize, max: usize },
    #[error(
        "this connection already has {max} streams and polls (streams_per_connection_max); use another \
         connection"
    )]
    Streams { max: usize },
    #[error("more than {max} polls per second on this connection (requests_per_second_max)")]
    Rate { max: u32 },
    #[error("compressed requests are not supported; send no Content-Encoding")]
    Compressed,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Body(#[from] body::BodyError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the request has no node; each poll needs one, with an id")]
    NoNode,
    #[error(transparent)]
    Node(NodeError),
    #[error("{path} serves {expected}, but type_url is {given:?}; remove type_url or use its path")]
    Type { path: String, expected: TypeUrl, given: String },
    #[error(
        "{0:?} is a collection, which polls cannot request; use a delta stream, or name its members"
    )]
    Glob(String),
    #[error(transparent)]
    Behind(#[from] Behind),
    #[error("{UNOPENED}")]
    Unopened,
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error("{}", .0.message)]
    Access(End),
}

/// A poll that is admitted. Dropping it frees its place.
#[derive(Debug)]
struct Admitted {
    poll: Poll,
    registration: PollRegistration,
    /// The ID of the node; empty until the request has been read.
    node: String,
}

/// The parsed request: the inputs of the response.
struct Question<'a> {
    type_url: &'a TypeUrl,
    identity: &'a Identity,
    node: Node,
    names: PollNames,
    version_info: String,
    /// The key of the request in [`repeats`].
    key: u64,
}

/// Content that the client does not have.
struct Changed {
    version: String,
    content: PollContent,
    /// The last revision of the assignments and access rules that decided what the client may have.
    placed_at: Revision,
}

/// The decision about a poll.
enum Decision {
    Unchanged,
    Changed(Arc<Encoded>),
}

/// Answers a poll of a type. `rate` limits the polls of the connection.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    rate: Arc<Mutex<Bucket>>,
    type_url: TypeUrl,
    caller: Caller,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let mut node = String::new();
    let decided = match admit(&shared, &connection, &rate, &request) {
        Ok(mut admitted) => {
            let decided = decide(&shared, &mut admitted, &type_url, &caller, request).await;
            node.clone_from(&admitted.node);
            decided.map(|decision| (decision, admitted))
        }
        Err(error) => Err(error),
    };
    let (result, response) = match decided {
        Ok((Decision::Unchanged, _)) => {
            let mut response = Response::new(ResponseBody::Empty);
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            ("unchanged", response)
        }
        Ok((Decision::Changed(encoded), admitted)) => {
            if type_url.as_str() == SECRET {
                shared.fanout.observe(ClientEvent {
                    kind: ClientEventKind::SecretsSent,
                    principal: Some(&caller.identity.principal),
                    peer: connection.peer(),
                    node: &admitted.node,
                });
            }
            let Admitted { poll, registration, .. } = admitted;
            let body = JsonBody::new(encoded, poll, registration);
            let body = ResponseBody::Json(Box::new(body));
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
            ("changed", response)
        }
        Err(error) => {
            let status = error.status();
            if let Some(limit) = error.limit() {
                limit_hit(limit);
            }
            let peer = connection.peer();
            if matches!(error, PollError::Access(_)) {
                debug!(%peer, %error, "poll rejected");
            } else {
                shared.fanout.log_refusal(&node, peer, &error.to_string());
            }
            let result = match status {
                StatusCode::SERVICE_UNAVAILABLE => "unavailable",
                StatusCode::INTERNAL_SERVER_ERROR => "failed",
                _ => "rejected",
            };
            (result, refuse(status, &error.to_string()))
        }
    };
    counter!("chancery_xds_polls_total", "type" => type_label(&type_url), "result" => result)
        .increment(1);
    response
}

/// Returns a response with an error for people (REST-20).
pub(crate) fn refuse(status: StatusCode, text: &str) -> Response<ResponseBody> {
    let body = format!("{{\"error\":{}}}\n", quoted(text));
    let mut response = Response::new(ResponseBody::Text(Some(Bytes::from(body))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, APPLICATION_JSON);
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        headers.insert(RETRY_AFTER, RETRY_SECONDS);
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let allow: (HeaderName, HeaderValue) = (ALLOW, HeaderValue::from_static("POST"));
        headers.extend([allow]);
    }
    response
}

/// Returns the response to a client without a valid credential.
pub(crate) fn unauthenticated(text: &str) -> Response<ResponseBody> {
    let mut response = refuse(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Checks whether a poll may run.
fn admit(
    shared: &Shared,
    connection: &Arc<Connection>,
    rate: &Mutex<Bucket>,
    request: &Request<Incoming>,
) -> Result<Admitted, PollError> {
    let config = &shared.config;
    if request.method() != Method::POST {
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        return Err(PollError::Method { path, method });
    }
    let bytes = grpc::header_list_bytes(request);
    let max = usize::try_from(config.header_list_bytes_max).unwrap_or(usize::MAX);
    if bytes > max {
        return Err(PollError::Headers { bytes, max });
    }
    if !rate.lock().take(Instant::now(), 1) {
        return Err(PollError::Rate { max: config.requests_per_second_max });
    }
    let max = usize::try_from(config.streams_per_connection_max).unwrap_or(usize::MAX);
    if connection.n_streams() >= max {
        return Err(PollError::Streams { max });
    }
    if request.headers().get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(PollError::Compressed);
    }
    let poll = shared.fanout.open_poll(connection.peer())?;
    Ok(Admitted { poll, registration: connection.begin_poll(), node: String::new() })
}

/// Reads the request and decides the response, after the wait of a long poll.
async fn decide(
    shared: &Shared,
    admitted: &mut Admitted,
    type_url: &TypeUrl,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Decision, PollError> {
    let arrived = Instant::now();
    let path = request.uri().path().to_owned();
    let read = body::read(request.into_body(), &shared.bounds).await?;
    shared.request_bytes.increment(read.bytes.len() as u64);
    let is_held = read.bytes.len() <= HELD_REQUEST_BYTES_MAX;
    let request = parse(read.bytes, &shared.config).await?;
    // A large request keeps its memory until its response, because its names stay until then.
    let _memory = read.memory;
    // REST-08: the path decides the type.
    if !request.type_url.is_empty() && request.type_url != type_url.as_str() {
        let (expected, given) = (type_url.clone(), request.type_url);
        return Err(PollError::Type { path, expected, given });
    }
    let node = request.node.ok_or(PollError::NoNode)?;
    let config = &shared.config;
    let node = node::of_poll(node, config.node_bytes_max, config.node_metadata_max)
        .map_err(PollError::Node)?;
    admitted.node.clone_from(&node.id);
    let identity = &*caller.identity;
    let seen = admitted.poll.view(identity, &node).map_err(PollError::Access)?;
    if let Some(error) = &request.error {
        // REST-16. The text may quote a secret, so only the code is kept and logged.
        counter!("chancery_xds_poll_nacks_total", "type" => type_label(type_url)).increment(1);
        let version = &request.version_info;
        let (principal, code) = (&identity.principal, error.code);
        admitted.poll.record_rejection(principal, &node, &seen, type_url, version, code);
        if shared.polls.may_log() {
            let node = &node.id;
            warn!(?node, %type_url, ?version, code, "a REST client reports that it rejected a response");
        }
    }
    admitted.poll.check_fresh(&request.version_info).await?;
    let key = repeats::key(&identity.principal, &node.id, &path, &request.version_info);
    let PollRequest { names, version_info, .. } = request;
    let names = admitted.poll.names(type_url, names).map_err(PollError::Glob)?;
    let question = Question { type_url, identity, node, names, version_info, key };
    let hold = if is_held { config.poll_hold } else { Duration::ZERO };
    let hold = caller.ends_after.map_or(hold, |after| hold.min(after));
    let until = Instant::now() + hold;
    loop {
        let Some(Changed { version, content, placed_at }) =
            change(shared, admitted, &question, until).await?
        else {
            admitted.on_answered(&question);
            return Ok(Decision::Unchanged);
        };
        let responses = &shared.polls.responses;
        let reads_constraints = question.names.has_locators();
        let since = Since { arrived, placed_at };
        let encoded = responses.encode(type_url, &version, content, since, reads_constraints);
        match encoded.await {
            Outcome::Again => {}
            Outcome::Encoded(encoded) => {
                let encoded = encoded?;
                if question.is_remembered(hold) {
                    shared.polls.repeats.record(key, &encoded.version);
                }
                admitted.on_answered(&question);
                return Ok(Decision::Changed(encoded));
            }
        }
    }
}

/// Reads the JSON of a request. A large one is read on a blocking thread.
async fn parse(bytes: Bytes, config: &Config) -> Result<PollRequest, RequestError> {
    let limits = Limits {
        names_max: config.names_per_request_max,
        name_bytes_max: config.name_bytes_max,
        node_bytes_max: config.node_bytes_max,
        node_values_max: config.node_metadata_max.saturating_mul(4),
        nack_message_bytes_max: config.nack_message_bytes_max,
    };
    if bytes.len() < LARGE_REQUEST_BYTES {
        return request::parse(&bytes, &limits);
    }
    let parsed = tokio::task::spawn_blocking(move || request::parse(&bytes, &limits)).await;
    parsed.unwrap_or_else(|_| Err(RequestError::Malformed("reading it has failed".to_owned())))
}

/// Waits for content that the client does not have (REST-13). Returns `None` if no such content
/// appears before `until`. Fails if the client loses its access meanwhile.
async fn change(
    shared: &Shared,
    admitted: &Admitted,
    question: &Question<'_>,
    until: Instant,
) -> Result<Option<Changed>, PollError> {
    let Question { type_url, identity, node, names: asked, .. } = question;
    let names = &asked.names;
    let poll = &admitted.poll;
    let is_wildcard =
        properties(type_url).wildcard && (names.is_blank() || names.wildcard().is_some());
    loop {
        // Registered before the view is resolved, so that no change is missed.
        let may_wait = Instant::now() < until && !admitted.registration.is_over();
        let view_now = || poll.view(identity, node).map_err(PollError::Access);
        let before = may_wait.then(view_now).transpose()?;
        let held = before
            .as_ref()
            .map(|view| poll.hold(view, type_url, (!is_wildcard).then(|| names.iter())));
        let view = view_now()?;
        if before.is_some_and(|before| !before.has_scopes_of(&view)) {
            continue;
        }
        let placed_at = view.placed_at();
        // REST-24, OPS-05: a node without an assignment receives no response.
        let response = match view.view {
            Some(view) if view.has_unopened(type_url) => return Err(PollError::Unopened),
            Some(view) => {
                let errors = shared.fanout.sends_resource_errors();
                let visible = EndpointLists::of(node).visible(&view, type_url);
                let visible = asked.selected(visible, node, type_url);
                respond(visible, type_url, names, &question.version_info, errors).await
            }
            None => PollResponse::Unchanged,
        };
        if let PollResponse::Changed { version, content } = response {
            let is_repeat = question.is_remembered(shared.config.poll_hold)
                && shared.polls.repeats.has(question.key, &version);
            if held.is_none() || !is_repeat {
                return Ok(Some(Changed { version, content: asked.spelled(content), placed_at }));
            }
        }
        let Some(held) = held else { return Ok(None) };
        tokio::select! {
            () = held.changed() => {}
            () = tokio::time::sleep_until(until) => {}
            () = admitted.registration.over() => {}
        }
    }
}

/// Decides the response. Many names are looked up on a blocking thread.
async fn respond(
    view: chancery_view::TypeView,
    type_url: &TypeUrl,
    names: &NameList,
    version_info: &str,
    errors: bool,
) -> PollResponse {
    let properties = properties(type_url);
    if names.len() < LARGE_NAMES {
        return PollResponse::decide(&view, properties, names, version_info, errors);
    }
    let (names, version_info) = (names.clone(), version_info.to_owned());
    let decide = move || PollResponse::decide(&view, properties, &names, &version_info, errors);
    // The lookup cannot panic. If it did, the client would keep what it has.
    tokio::task::spawn_blocking(decide).await.unwrap_or(PollResponse::Unchanged)
}

impl Question<'_> {
    /// Returns whether the version of the response is remembered. A client without a version has just
    /// started and must not wait.
    fn is_remembered(&self, hold: Duration) -> bool {
        !hold.is_zero() && !self.version_info.is_empty()
    }
}

impl Admitted {
    /// Marks the connection as established when its client has shown that it accepted a response.
    fn on_answered(&self, question: &Question<'_>) {
        if !question.version_info.is_empty() {
            self.registration.establish();
        }
    }
}

impl PollError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Access(_) => StatusCode::FORBIDDEN,
            Self::Headers { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Rate { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Compressed => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Body(body::BodyError::Slow { .. } | body::BodyError::Stalled { .. }) => {
                StatusCode::REQUEST_TIMEOUT
            }
            Self::Body(body::BodyError::TooLong { .. })
            | Self::Request(
                RequestError::TextLong { .. }
                | RequestError::Names { .. }
                | RequestError::NameLong { .. }
                | RequestError::NodeLong { .. }
                | RequestError::NodeValues { .. },
            )
            | Self::Node(NodeError::Metadata { .. } | NodeError::Paths { .. }) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::Body(body::BodyError::Gone | body::BodyError::Malformed(_))
            | Self::Request(RequestError::Malformed(_))
            | Self::NoNode
            | Self::Node(_)
            | Self::Glob(_)
            | Self::Type { .. } => StatusCode::BAD_REQUEST,
            Self::Streams { .. }
            | Self::Open(_)
            | Self::Behind(_)
            | Self::Unopened
            | Self::Encode(EncodeError::Memory { .. } | EncodeError::Busy) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Encode(EncodeError::Body { .. } | EncodeError::Failed) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Headers { .. } => Some("header_list_bytes"),
            Self::Streams { .. } => Some("streams_per_connection"),
            Self::Rate { .. } => Some("requests_per_second"),
            Self::Body(body::BodyError::TooLong { .. }) => Some("request_bytes"),
            Self::Body(body::BodyError::Slow { .. } | body::BodyError::Stalled { .. }) => {
                Some("large_request_timeout")
            }
            Self::Request(RequestError::Names { .. }) => Some("names_per_request"),
            Self::Request(RequestError::NameLong { .. }) => Some("name_bytes"),
            Self::Request(RequestError::NodeLong { .. }) | Self::Node(NodeError::Paths { .. }) => {
                Some("node_bytes")
            }
            Self::Request(RequestError::NodeValues { .. })
            | Self::Node(NodeError::Metadata { .. }) => Some("node_metadata"),
            // The fan-out and the memory of responses count their own limits.
            _ => None,
        }
    }
}
