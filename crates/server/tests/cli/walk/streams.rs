//! The clients of aggregated streams, SotW and delta.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use chancery_admission::draft_from_body;
use chancery_model::TypeUrl;
use chancery_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Status,
};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::content::{Held, Key, NAMED, TYPES, followed, is_bad, is_named, type_of, wanted};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// The time without a response after which a client does something else.
const IDLE: Duration = Duration::from_millis(10);

/// The maximum number of requests, or of responses, that wait.
const QUEUE: usize = 1024;

type Responses<R> = mpsc::Receiver<Result<R, tonic::Status>>;

/// The two ends of a stream.
enum Ends {
    Sotw(mpsc::Sender<DiscoveryRequest>, Responses<DiscoveryResponse>),
    Delta(mpsc::Sender<DeltaDiscoveryRequest>, Responses<DeltaDiscoveryResponse>),
}

/// The verdict on a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ack,
    Nack,
}

/// A client of an aggregated stream.
pub(super) struct Stream {
    address: String,
    is_sotw: bool,
    ends: Ends,
    /// The accepted resources.
    pub(super) held: Held,
    /// The names of the runtime that the client requests.
    included: BTreeSet<String>,
    /// The versions of the accepted resources; of delta.
    versions: BTreeMap<Key, String>,
    /// The last accepted version of each type; of SotW.
    accepted: BTreeMap<&'static str, String>,
    /// The nonce of the last response of each type.
    nonces: BTreeMap<&'static str, String>,
    /// The names that the client has requested on this stream.
    requested: BTreeMap<&'static str, BTreeSet<String>>,
    pub(super) n_nacks: usize,
}

/// Opens a stream. A task passes the responses on, because the stream opens only after its first request.
fn open<Q: Message + 'static, R: Message + Default + 'static>(
    address: &str,
    path: &'static str,
) -> (mpsc::Sender<Q>, Responses<R>) {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let (requests, receiver) = mpsc::channel(QUEUE);
    let (sender, responses) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<Q, R>::default();
        let stream = tonic::Request::new(ReceiverStream::new(receiver));
        let opened = grpc.streaming(stream, PathAndQuery::from_static(path), codec).await;
        let mut responses = opened?.into_inner();
        while let Some(response) = responses.message().await.transpose() {
            if sender.send(response).await.is_err() {
                break;
            }
        }
        Ok::<(), tonic::Status>(())
    });
    (requests, responses)
}

fn ends(address: &str, is_sotw: bool) -> Ends {
    if is_sotw {
        let (requests, responses) = open(address, SOTW);
        Ends::Sotw(requests, responses)
    } else {
        let (requests, responses) = open(address, DELTA);
        Ends::Delta(requests, responses)
    }
}

fn node() -> Option<Bytes> {
    let node = chancery_proto::node::Node { id: "n".into(), ..Default::default() };
    Some(node.encode_to_vec().into())
}

impl Stream {
    pub(super) async fn open(address: &str, is_sotw: bool) -> Self {
        let mut stream = Self {
            address: address.to_owned(),
            is_sotw,
            ends: ends(address, is_sotw),
            held: Held::new(),
            included: BTreeSet::new(),
            versions: BTreeMap::new(),
            accepted: BTreeMap::new(),
            nonces: BTreeMap::new(),
            requested: BTreeMap::new(),
            n_nacks: 0,
        };
        stream.begin().await;
        stream
    }

    /// Starts another stream. A client that restarts has no resources.
    pub(super) async fn reconnect(&mut self, is_restart: bool) {
        self.ends = ends(&self.address, self.is_sotw);
        self.nonces.clear();
        self.requested.clear();
        if is_restart {
            self.held.clear();
            self.versions.clear();
            self.accepted.clear();
        }
        self.begin().await;
    }

    /// Changes the requested names of the runtime.
    pub(super) async fn include(&mut self, included: &BTreeSet<String>) {
        self.included.clone_from(included);
        self.follow().await;
    }

    async fn begin(&mut self) {
        for type_url in TYPES.into_iter().filter(|it| !is_named(it)) {
            self.request(type_url, &BTreeSet::from(["*".to_owned()]), None).await;
        }
        self.follow().await;
    }

    /// Requests the names that the client wants now.
    async fn follow(&mut self) {
        for type_url in NAMED {
            let names = wanted(&self.held, &self.included, type_url);
            if self.requested.get(type_url).unwrap_or(&BTreeSet::new()) != &names {
                self.request(type_url, &names, None).await;
            }
        }
        self.held = followed(&self.held, &self.included);
    }

    /// Sends a request for names, which may be the answer to a response.
    async fn request(
        &mut self,
        type_url: &'static str,
        names: &BTreeSet<String>,
        answer: Option<Verdict>,
    ) {
        let is_first = !self.requested.contains_key(type_url);
        let before = self.requested.insert(type_url, names.clone()).unwrap_or_default();
        let response_nonce = self.nonces.get(type_url).cloned().unwrap_or_default();
        let error_detail = (answer == Some(Verdict::Nack)).then(|| Status {
            code: 13,
            message: "bad content".to_owned(),
            ..Status::default()
        });
        let node = is_first.then(node).flatten();
        let type_url_text = type_url.to_owned();
        match &self.ends {
            Ends::Sotw(requests, _) => {
                let request = DiscoveryRequest {
                    version_info: self.accepted.get(type_url).cloned().unwrap_or_default(),
                    node,
                    resource_names: names.iter().cloned().collect(),
                    type_url: type_url_text,
                    response_nonce,
                    error_detail,
                    ..DiscoveryRequest::default()
                };
                drop(requests.send(request).await);
            }
            Ends::Delta(requests, _) => {
                let held = self.held.keys().filter(|(of, _)| is_first && *of == type_url);
                let versions = held.map(|key| (key.1.clone(), self.versions[key].clone()));
                let request = DeltaDiscoveryRequest {
                    node,
                    type_url: type_url_text,
                    resource_names_subscribe: names.difference(&before).cloned().collect(),
                    resource_names_unsubscribe: before.difference(names).cloned().collect(),
                    initial_resource_versions: versions.collect(),
                    response_nonce: answer.map(|_| response_nonce).unwrap_or_default(),
                    error_detail,
                    ..DeltaDiscoveryRequest::default()
                };
                drop(requests.send(request).await);
            }
        }
    }

    /// Takes and answers responses until none arrives for a short time.
    pub(super) async fn pump(&mut self) -> Result<(), String> {
        let ended = "the server ended a stream";
        loop {
            let (type_url, verdict) = match &mut self.ends {
                Ends::Sotw(_, responses) => {
                    match tokio::time::timeout(IDLE, responses.recv()).await {
                        Err(_) => return Ok(()),
                        Ok(response) => {
                            let response = response.ok_or(ended)?.map_err(|it| it.to_string())?;
                            self.on_sotw(response)
                        }
                    }
                }
                Ends::Delta(_, responses) => {
                    match tokio::time::timeout(IDLE, responses.recv()).await {
                        Err(_) => return Ok(()),
                        Ok(response) => {
                            let response = response.ok_or(ended)?.map_err(|it| it.to_string())?;
                            self.on_delta(response)
                        }
                    }
                }
            };
            self.n_nacks += usize::from(verdict == Verdict::Nack);
            let names = self.requested.get(type_url).cloned().unwrap_or_default();
            self.request(type_url, &names, Some(verdict)).await;
            self.follow().await;
        }
    }

    fn on_sotw(&mut self, response: DiscoveryResponse) -> (&'static str, Verdict) {
        let type_url = type_of(&response.type_url);
        let named = response.resources.into_iter().map(|any| {
            let url = TypeUrl::from_static(type_url);
            let draft = draft_from_body(&url, None, any.value.clone()).unwrap();
            (draft.key.name.as_str().to_owned(), any.value)
        });
        let named: BTreeMap<String, Bytes> = named.collect();
        if !is_named(type_url) {
            self.held.retain(|(of, name), _| *of != type_url || named.contains_key(name));
        }
        let n = named.len();
        let good: Vec<_> = named.into_iter().filter(|(_, body)| !is_bad(body)).collect();
        let verdict = if good.len() == n { Verdict::Ack } else { Verdict::Nack };
        self.held.extend(good.into_iter().map(|(name, body)| ((type_url, name), body)));
        if verdict == Verdict::Ack {
            self.accepted.insert(type_url, response.version_info);
        }
        self.nonces.insert(type_url, response.nonce);
        (type_url, verdict)
    }

    fn on_delta(&mut self, response: DeltaDiscoveryResponse) -> (&'static str, Verdict) {
        let type_url = type_of(&response.type_url);
        let mut verdict = Verdict::Ack;
        for resource in response.resources {
            let body = resource.resource.unwrap().value;
            let key = (type_url, resource.name);
            if is_bad(&body) {
                verdict = Verdict::Nack;
                continue;
            }
            self.versions.insert(key.clone(), resource.version);
            self.held.insert(key, body);
        }
        for name in response.removed_resources {
            self.held.remove(&(type_url, name));
        }
        self.nonces.insert(type_url, response.nonce);
        (type_url, verdict)
    }
}
