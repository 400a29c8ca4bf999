//! The service `ResourceSink`: a source opens the stream (MCP-04).

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_net::Activity;
use chancery_proto::istio::mcp::v1alpha1::RequestResources;
use chancery_store::Replica;
use chancery_tls::PeerIdentity;
use http::{Request, Response};
use http_body::Body;
use metrics::Counter;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tonic::{
    Status, Streaming,
    server::{Grpc, NamedService, StreamingService},
};
use tower::Service;
use tracing::info;

use crate::{
    message::SinkCodec,
    remote::Remote,
    requests::{Requests, Sent},
};

const METHOD: &str = "/istio.mcp.v1alpha1.ResourceSink/EstablishResourceStream";
/// The minimum interval of log messages about refusals.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum length of the names of a certificate in a refusal, in bytes.
const NAMES_BYTES_MAX: usize = 512;

/// A stream that a source has opened.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The address of the source.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) requests: Requests,
    pub(crate) messages: Streaming<Bytes>,
}

/// Admits one stream of a source at a time, and only while the replica leads (MCP-70).
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    NotLeader,
    Waiting(oneshot::Sender<Incoming>),
    Busy,
    ShutDown,
}

/// The service on the port of one source. Cheap to clone.
///
/// A request may have its connection as an extension of the type `Arc<Activity>`. The connection is closed with its
/// stream. The extension `Arc<PeerIdentity>` has the names of the source.
#[derive(Debug, Clone)]
pub struct SinkService(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: String,
    gate: Arc<Gate>,
    replica: Replica,
    n_collections: usize,
    peer_names: Vec<String>,
    message_bytes_max: usize,
    refused: Counter,
    /// The time of the last log message about a refusal.
    logged: Mutex<Option<Instant>>,
}

// === impl Gate ===

impl Gate {
    /// Admits the next stream.
    pub(crate) fn open(&self) -> oneshot::Receiver<Incoming> {
        let (sender, receiver) = oneshot::channel();
        *self.0.lock() = State::Waiting(sender);
        receiver
    }

    /// Refuses streams until [`Self::open`], because this replica does not lead.
    pub(crate) fn close(&self) {
        *self.0.lock() = State::NotLeader;
    }

    /// Refuses all further streams.
    pub(crate) fn shut_down(&self) {
        *self.0.lock() = State::ShutDown;
    }
}

// === impl SinkService ===

impl SinkService {
    pub(crate) fn new(
        remote: &Remote,
        gate: Arc<Gate>,
        replica: Replica,
        refused: Counter,
    ) -> Self {
        Self(Arc::new(Shared {
            source: remote.sink.source.clone(),
            gate,
            replica,
            n_collections: remote.sink.collections.len(),
            peer_names: remote.peer_names.clone(),
            message_bytes_max: remote.message_bytes_max,
            refused,
            logged: Mutex::default(),
        }))
    }

    /// Hands a stream to the task of the source.
    fn admit(&self, request: tonic::Request<Streaming<Bytes>>) -> Result<Sent, Status> {
        let Shared { source, gate, replica, n_collections, .. } = &*self.0;
        let connection = request.extensions().get::<Arc<Activity>>().cloned();
        let refuse = |text: String| {
            self.note_refusal(connection.as_deref(), &text);
            Err(Status::unavailable(text))
        };
        let peer = request.extensions().get::<Arc<PeerIdentity>>();
        if !is_allowed(&self.0.peer_names, peer.map(AsRef::as_ref)) {
            let names = peer.map_or_else(|| "no names".to_owned(), |peer| shown(peer));
            let text = format!(
                "the certificate has {names}, which the source {source:?} does not allow (peer_names)"
            );
            self.note_refusal(connection.as_deref(), &text);
            return Err(Status::unauthenticated(text));
        }
        let waiting = {
            let mut state = gate.0.lock();
            match std::mem::replace(&mut *state, State::Busy) {
                State::Waiting(task) if !task.is_closed() => task,
                State::Busy => {
                    return refuse(format!("the source {source:?} already has a stream"));
                }
                State::ShutDown => {
                    *state = State::ShutDown;
                    return refuse("the replica shuts down".to_owned());
                }
                State::Waiting(_) | State::NotLeader => {
                    *state = State::NotLeader;
                    return refuse(match replica.leader() {
                        Some(id) if id != replica.status().replica_id => format!(
                            "this replica does not lead; connect to the leader, which is replica {id}"
                        ),
                        _ => "this replica does not lead yet".to_owned(),
                    });
                }
            }
        };
        let peer = connection.as_ref().map(|connection| connection.peer());
        let (requests, sent) = Requests::new(*n_collections, connection);
        let incoming = Incoming { peer, requests, messages: request.into_inner() };
        // If the task ended in this moment, the dropped half ends the stream with its status.
        drop(waiting.send(incoming));
        Ok(sent)
    }

    fn note_refusal(&self, connection: Option<&Activity>, reason: &str) {
        let Shared { source, refused, logged, .. } = &*self.0;
        refused.increment(1);
        let mut logged = logged.lock();
        if logged.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            *logged = Some(Instant::now());
            let peer = connection.map(Activity::peer);
            info!(source, ?peer, reason, "refused a stream of an MCP source");
        }
        // Clients repeat a call on the same connection, which a load balancer cannot move.
        if let Some(connection) = connection {
            connection.evict();
        }
    }
}

/// Returns whether a source with this certificate may open a stream (MCP-67).
fn is_allowed(allowed: &[String], peer: Option<&PeerIdentity>) -> bool {
    let has_name = |peer: &PeerIdentity| {
        let mut names = peer.spiffe_id.iter().chain(&peer.dns);
        names.any(|name| allowed.contains(name))
    };
    allowed.is_empty() || peer.is_some_and(has_name)
}

/// Returns the names in a certificate, for people.
fn shown(peer: &PeerIdentity) -> String {
    let names: Vec<&str> = peer.spiffe_id.iter().chain(&peer.dns).map(String::as_str).collect();
    if names.is_empty() {
        "no SPIFFE ID and no DNS name".to_owned()
    } else {
        let text = format!("the names {names:?}");
        text[..text.floor_char_boundary(NAMES_BYTES_MAX)].to_owned()
    }
}

impl NamedService for SinkService {
    const NAME: &'static str = "istio.mcp.v1alpha1.ResourceSink";
}

impl<B> Service<Request<B>> for SinkService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let path = request.uri().path();
            if path != METHOD {
                let text = format!("the method {path:?} does not exist");
                return Ok(Status::unimplemented(text).into_http());
            }
            let max = service.0.message_bytes_max;
            let mut grpc = Grpc::new(SinkCodec).max_decoding_message_size(max);
            Ok(grpc.streaming(Establish(service), request).await)
        })
    }
}

/// The method `EstablishResourceStream`.
struct Establish(SinkService);

impl StreamingService<Bytes> for Establish {
    type Response = RequestResources;
    type ResponseStream = Sent;
    type Future = std::future::Ready<Result<tonic::Response<Sent>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        std::future::ready(self.0.admit(request).map(tonic::Response::new))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// MCP-67: the certificate of a source needs an allowed SPIFFE ID or DNS name. Its common name does not count.
    #[test]
    fn certificate_needs_an_allowed_name() {
        let peer = |spiffe_id: Option<&str>, dns: &[&str]| PeerIdentity {
            spiffe_id: spiffe_id.map(str::to_owned),
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            common_name: Some("galley.mesh".to_owned()),
            by_common_name: true,
            not_after: SystemTime::UNIX_EPOCH,
            serial: String::new(),
            ca: "clients".into(),
        };
        let allowed = ["spiffe://mesh/galley".to_owned(), "galley.mesh".to_owned()];
        let allows = |peer: PeerIdentity| is_allowed(&allowed, Some(&peer));
        assert!(allows(peer(Some("spiffe://mesh/galley"), &[])));
        assert!(allows(peer(Some("spiffe://mesh/other"), &["a.mesh", "galley.mesh"])));
        assert!(!allows(peer(Some("spiffe://mesh/galley2"), &["galley.mesh.evil", "mesh"])));
        assert!(!allows(peer(None, &[])) && !is_allowed(&allowed, None));
        assert!(is_allowed(&[], None) && is_allowed(&[], Some(&peer(None, &[]))));
        let many = vec!["x.mesh"; 1000];
        assert!(shown(&peer(None, &many)).len() <= NAMES_BYTES_MAX);
    }
}
