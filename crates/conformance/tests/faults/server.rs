//! A small SotW server on the aggregated service, with one fault of choice.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use chancery_conformance::{Adapter, Publishing, State};
use chancery_proto::{
    discovery::{Any, DiscoveryRequest, DiscoveryResponse},
    node::Node,
};
use prost::Message as _;
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, NamedService, StreamingService},
};
use tonic_prost::ProstCodec;

const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const FULL_STATE: [&str; 2] = [LISTENER, "type.googleapis.com/envoy.config.cluster.v3.Cluster"];

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Every request is answered, even an acknowledgment.
    AnswersEverything,
    /// A rejected response is sent again.
    RepeatsAfterRejection,
    /// All responses have the same nonce.
    RepeatsNonce,
    /// Responses have no version.
    EmptyVersion,
    /// Resources have the type of another service.
    ForeignType,
    /// Only the first ten names of a request count.
    ForgetsNames,
    /// A response has only the changed resources of a type whose responses have all of them.
    PartialState,
    /// Changes of one publication are sent one after the other.
    SplitsCommits,
    /// An unknown type ends the stream.
    EndsAtUnknownType,
}

/// The resources of one type and name: version and body.
type Resources = BTreeMap<(String, String), (u64, Bytes)>;
/// The resources of all nodes.
type States = BTreeMap<String, Resources>;

/// The adapter, in the same process as the server.
pub(crate) struct InProcess(watch::Sender<States>);

impl InProcess {
    pub(crate) fn states(&self) -> watch::Receiver<States> {
        self.0.subscribe()
    }
}

impl Adapter for InProcess {
    fn publish<'a>(&'a self, state: &'a State) -> Publishing<'a> {
        let line: Value = serde_json::from_str(&state.to_line()).unwrap();
        let mut resources = Resources::new();
        for kind in line["types"].as_array().unwrap() {
            for resource in kind["resources"].as_array().unwrap() {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let body = STANDARD.decode(text(&resource["bytes"])).unwrap();
                let version = text(&resource["version"]).parse().unwrap();
                let key = (text(&kind["type_url"]), text(&resource["name"]));
                resources.insert(key, (version, body.into()));
            }
        }
        self.0.send_modify(|states| drop(states.insert(state.node().to_owned(), resources)));
        Box::pin(async { Ok(()) })
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(fault: Fault) -> (Self, InProcess) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, states) = watch::channel(States::new());
        let service = Ads(Arc::new(Discovery { fault, states }));
        let serving = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move { serving.await.unwrap() });
        (Self { address, task }, InProcess(sender))
    }
}

/// The aggregated service, with its SotW method only.
#[derive(Clone)]
struct Ads(Arc<Discovery>);

impl NamedService for Ads {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Infallible>> + Send>>;

impl tower::Service<http::Request<Body>> for Ads {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let discovery = self.0.clone();
        Box::pin(async move {
            if !request.uri().path().ends_with("/StreamAggregatedResources") {
                return Ok(Status::unimplemented("not here").into_http());
            }
            let codec = ProstCodec::<DiscoveryResponse, DiscoveryRequest>::default();
            Ok(Grpc::new(codec).streaming(Handler(discovery), request).await)
        })
    }
}

struct Handler(Arc<Discovery>);

impl StreamingService<DiscoveryRequest> for Handler {
    type Response = DiscoveryResponse;
    type ResponseStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type Future =
        Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (sender, responses) = mpsc::channel(64);
        tokio::spawn(serve(self.0.clone(), request.into_inner(), sender));
        Box::pin(async { Ok(Response::new(ReceiverStream::new(responses))) })
    }
}

struct Discovery {
    fault: Fault,
    states: watch::Receiver<States>,
}

/// The subscription of one type, and what was sent.
#[derive(Default)]
struct Subscription {
    names: BTreeSet<String>,
    is_wildcard: bool,
    is_answered: bool,
    sent: BTreeMap<String, (u64, Bytes)>,
}

async fn serve(
    discovery: Arc<Discovery>,
    mut requests: Streaming<DiscoveryRequest>,
    responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
) {
    let mut session = Session {
        fault: discovery.fault,
        node: String::new(),
        subscriptions: BTreeMap::new(),
        n_sent: 0,
    };
    let mut states = discovery.states.clone();
    loop {
        let mut messages = Vec::new();
        tokio::select! {
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                if session.fault == Fault::EndsAtUnknownType && !request.type_url.contains("envoy") {
                    drop(responses.send(Err(Status::invalid_argument("unknown type"))).await);
                    return;
                }
                let state = states.borrow().clone();
                messages.extend(session.on_request(&request, &state));
            }
            changed = states.changed() => {
                if changed.is_err() {
                    return;
                }
                let state = states.borrow_and_update().clone();
                let urls: Vec<String> = session.subscriptions.keys().cloned().collect();
                for url in urls {
                    messages.extend(session.responses(&url, &state, false));
                }
            }
        }
        for message in messages {
            if responses.send(Ok(message)).await.is_err() {
                return;
            }
        }
    }
}

struct Session {
    fault: Fault,
    node: String,
    subscriptions: BTreeMap<String, Subscription>,
    n_sent: u64,
}

impl Session {
    fn on_request(
        &mut self,
        request: &DiscoveryRequest,
        states: &States,
    ) -> Vec<DiscoveryResponse> {
        if let Some(node) = &request.node {
            self.node = Node::decode(node.clone()).unwrap().id;
        }
        let n_names = if self.fault == Fault::ForgetsNames { 10 } else { usize::MAX };
        let names: BTreeSet<String> =
            request.resource_names.iter().take(n_names).cloned().collect();
        let subscription = self.subscriptions.entry(request.type_url.clone()).or_default();
        let is_first = !subscription.is_answered;
        subscription.is_answered = true;
        subscription.is_wildcard = is_first && names.is_empty();
        subscription.sent.retain(|name, _| names.contains(name));
        subscription.names = names;
        let is_rejected = request.error_detail.is_some();
        let repeats = self.fault == Fault::AnswersEverything
            || (is_rejected && self.fault == Fault::RepeatsAfterRejection);
        self.responses(&request.type_url, states, repeats)
    }

    /// Returns what the client does not have, or everything.
    fn responses(
        &mut self,
        url: &str,
        states: &States,
        everything: bool,
    ) -> Vec<DiscoveryResponse> {
        let Some(subscription) = self.subscriptions.get_mut(url) else { return Vec::new() };
        let all = states.get(&self.node).into_iter().flatten();
        let current: BTreeMap<String, (u64, Bytes)> = all
            .filter(|((of, name), _)| {
                of == url && (subscription.is_wildcard || subscription.names.contains(name))
            })
            .map(|((_, name), resource)| (name.clone(), resource.clone()))
            .collect();
        let sends_all = FULL_STATE.contains(&url) && self.fault != Fault::PartialState;
        if current == subscription.sent && !everything {
            return Vec::new();
        }
        let is_new = |name: &String| subscription.sent.get(name) != current.get(name);
        let bodies: Vec<Bytes> = current
            .iter()
            .filter(|(name, _)| sends_all || everything || is_new(name))
            .map(|(_, (_, body))| body.clone())
            .collect();
        let version = current.values().map(|(version, _)| *version).max().unwrap_or_default();
        subscription.sent = current;
        if bodies.is_empty() && !sends_all {
            return Vec::new();
        }
        let parts = if self.fault == Fault::SplitsCommits && self.n_sent > 0 {
            1
        } else {
            bodies.len().max(1)
        };
        let chunks: Vec<&[Bytes]> =
            if bodies.is_empty() { vec![&[]] } else { bodies.chunks(parts).collect() };
        chunks.into_iter().map(|bodies| self.response(url, version, bodies)).collect()
    }

    fn response(&mut self, url: &str, version: u64, bodies: &[Bytes]) -> DiscoveryResponse {
        self.n_sent += 1;
        let type_url = if self.fault == Fault::ForeignType { LISTENER } else { url };
        let any = |body: &Bytes| Any { type_url: type_url.to_owned(), value: body.clone() };
        let is_empty = self.fault == Fault::EmptyVersion;
        DiscoveryResponse {
            version_info: if is_empty { String::new() } else { version.to_string() },
            resources: bodies.iter().map(any).collect(),
            type_url: url.to_owned(),
            nonce: match self.fault {
                Fault::RepeatsNonce => "n".to_owned(),
                _ => self.n_sent.to_string(),
            },
            ..DiscoveryResponse::default()
        }
    }
}
