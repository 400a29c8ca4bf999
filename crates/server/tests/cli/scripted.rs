//! Scripted xDS clients, which record what they hold and what they have answered: the truth about a fleet. They use SotW or
//! delta.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_model::types::{CLUSTER, LISTENER};
use chancery_proto::{
    discovery::{
        Any, DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
        Status,
    },
    node::Node,
};
use chancery_testing::DEADLINE;
use prost::Message;
use tokio::{
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Streaming, transport::Channel};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// The message of each rejection.
pub(crate) const REJECTION: &str = "bad port";
/// The maximum number of orders that a client has not read yet.
const ORDERS_MAX: usize = 64;
/// The pause before a client tries the next replica.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The addresses of the discovery services by replica. A replica that restarts has a new one.
pub(crate) type Addresses = Arc<Mutex<[String; 3]>>;

/// The answer of a client to a response.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Manner {
    #[default]
    Accept,
    Reject,
    /// Does not answer.
    Silent,
    /// Accepts after a time.
    Delay(Duration),
    /// Ends the stream without an answer, and does not return.
    Leave,
    /// Ends the stream without an answer, and connects to another replica with another manner.
    Move(usize, Box<Manner>),
}

/// A response, as far as the tests read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    pub(crate) version: String,
    nonce: String,
    /// The marks of the resources by name.
    resources: BTreeMap<String, i64>,
    /// The versions of the resources, and the removed names. Only with delta.
    versions: BTreeMap<String, String>,
    removed: Vec<String>,
    pub(crate) at: Option<Instant>,
}

/// The resources that a client holds, and its actions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    pub(crate) manner: Manner,
    /// The replica to which the client has a stream.
    pub(crate) connected: Option<usize>,
    /// The replicas to which the client has had streams.
    pub(crate) visited: BTreeSet<usize>,
    /// The accepted resources by type and name, with their marks.
    pub(crate) held: BTreeMap<&'static str, BTreeMap<String, i64>>,
    /// The versions of these resources. Only with delta.
    versions: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// The accepted version of each type.
    pub(crate) accepted: BTreeMap<&'static str, String>,
    /// The types of which the client has accepted a response on its stream.
    pub(crate) accepted_here: BTreeSet<&'static str>,
    /// The responses that are not answered, by type.
    pub(crate) unanswered: BTreeMap<&'static str, Received>,
    /// The types of which the client has rejected the latest response that it has answered.
    pub(crate) rejected: BTreeMap<&'static str, String>,
    /// The times at which the client accepted marks of clusters first.
    pub(crate) marks: BTreeMap<i64, Instant>,
}

impl Record {
    /// Accepts the latest response of a type. The record is earlier than the request.
    fn accept(&mut self, type_url: &'static str, received: Received, protocol: Protocol) {
        let held = self.held.entry(type_url).or_default();
        // With SotW, a response has all clusters and listeners. Of other types it has what the client asks for.
        if protocol == Protocol::Sotw && [CLUSTER, LISTENER].contains(&type_url) {
            held.clear();
        }
        let versions = self.versions.entry(type_url).or_default();
        for name in &received.removed {
            held.remove(name);
            versions.remove(name);
        }
        versions.extend(received.versions);
        if type_url == CLUSTER {
            for mark in received.resources.values() {
                self.marks.entry(*mark).or_insert_with(Instant::now);
            }
        }
        held.extend(received.resources);
        self.accepted.insert(type_url, received.version);
        self.accepted_here.insert(type_url);
        self.rejected.remove(type_url);
    }

    /// Returns the mark of a cluster that the client holds.
    pub(crate) fn mark(&self, name: &str) -> Option<i64> {
        self.held.get(CLUSTER)?.get(name).copied()
    }
}

/// The variant of xDS that a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

/// An instruction to a running client.
#[derive(Debug)]
enum Order {
    /// Answers everything that is unanswered.
    Answer,
    /// Ends the stream, and connects to another replica.
    Move(usize),
    /// Ends the stream for good.
    Close,
}

/// A client that subscribes to all clusters, and to names of other types.
pub(crate) struct Client {
    pub(crate) id: String,
    /// The names by type. Without names, the client asks for all resources.
    pub(crate) types: Vec<(&'static str, Vec<&'static str>)>,
    /// Whether the client connects to the next replica when it loses its stream.
    pub(crate) returns: bool,
    pub(crate) protocol: Protocol,
    record: Arc<Mutex<Record>>,
    orders: Option<Sender<Order>>,
}

impl Client {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            types: vec![(CLUSTER, Vec::new())],
            returns: false,
            protocol: Protocol::Sotw,
            record: Arc::default(),
            orders: None,
        }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    /// Connects to a replica, with the versions that the client has.
    pub(crate) fn connect(&mut self, runtime: &Handle, addresses: &Addresses, at: usize) {
        let (orders, inbox) = channel(ORDERS_MAX);
        let task = Task {
            id: self.id.clone(),
            types: self.types.clone(),
            returns: self.returns,
            protocol: self.protocol,
            record: Arc::clone(&self.record),
            addresses: Arc::clone(addresses),
            orders: orders.clone(),
            inbox,
        };
        self.close();
        self.orders = Some(orders);
        runtime.spawn(task.run(at));
    }

    fn order(&self, order: Order) {
        // A client that has left reads no orders.
        if let Some(orders) = &self.orders {
            assert!(!matches!(orders.try_send(order), Err(TrySendError::Full(_))), "{}", self.id);
        }
    }

    /// Answers the responses that are not answered.
    pub(crate) fn answer(&self, manner: Manner) {
        self.record().manner = manner;
        self.order(Order::Answer);
    }

    pub(crate) fn move_to(&self, at: usize) {
        self.order(Order::Move(at));
    }

    pub(crate) fn close(&mut self) {
        self.order(Order::Close);
        self.orders = None;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

/// The reason why a stream has ended.
enum End {
    Lost,
    Closed,
    Moved(usize),
}

struct Task {
    id: String,
    types: Vec<(&'static str, Vec<&'static str>)>,
    returns: bool,
    protocol: Protocol,
    record: Arc<Mutex<Record>>,
    addresses: Addresses,
    orders: Sender<Order>,
    inbox: Receiver<Order>,
}

impl Task {
    async fn run(mut self, mut at: usize) {
        loop {
            let end = self.stream(at).await;
            self.record.lock().unwrap().connected = None;
            match end {
                End::Closed => return,
                End::Moved(to) => at = to,
                End::Lost if self.returns => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    at = (at + 1) % 3;
                }
                End::Lost => return,
            }
        }
    }

    /// Keeps a stream to a replica until it ends.
    async fn stream(&mut self, at: usize) -> End {
        let address = self.addresses.lock().unwrap()[at].clone();
        let opened = open(&address, self.protocol, self.first());
        // A replica that hangs accepts connections, and does not answer. A client that returns then tries the next replica.
        let limit = if self.returns { Duration::from_secs(1) } else { DEADLINE };
        let opened = tokio::time::timeout(limit, opened).await;
        let Ok(Some((requests, mut responses))) = opened else { return End::Lost };
        {
            let mut record = self.record.lock().unwrap();
            record.connected = Some(at);
            record.visited.insert(at);
            record.unanswered.clear();
            record.accepted_here.clear();
        }
        loop {
            let order = tokio::select! {
                order = self.inbox.recv() => order,
                response = responses.next() => match response {
                    Some((type_url, received)) => self.receive(&type_url, received),
                    None => return End::Lost,
                },
            };
            match order {
                Some(Order::Answer) => {
                    for request in self.answers() {
                        if requests.send(request).await.is_err() {
                            return End::Lost;
                        }
                    }
                }
                Some(Order::Move(to)) => return End::Moved(to),
                Some(Order::Close) => return End::Closed,
                None => {}
            }
        }
    }

    /// Returns the first request of each type. They have the versions that the client has accepted.
    fn first(&self) -> Vec<AnyRequest> {
        let node = Node { id: self.id.clone(), user_agent_name: "envoy".into(), ..Node::default() };
        let record = self.record.lock().unwrap();
        let request = |(type_url, names): &(&'static str, Vec<&'static str>)| AnyRequest {
            node: Some(node.encode_to_vec().into()),
            type_url,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            version: record.accepted.get(type_url).cloned().unwrap_or_default(),
            versions: record.versions.get(type_url).cloned().unwrap_or_default(),
            ..AnyRequest::default()
        };
        self.types.iter().map(request).collect()
    }

    /// Notes a response. Returns what to do with it.
    fn receive(&self, type_url: &str, received: Received) -> Option<Order> {
        let (type_url, _) = *self.types.iter().find(|(url, _)| *url == type_url)?;
        let mut record = self.record.lock().unwrap();
        record.unanswered.insert(type_url, received);
        match record.manner.clone() {
            Manner::Accept | Manner::Reject => Some(Order::Answer),
            Manner::Silent => None,
            Manner::Delay(time) => {
                let orders = self.orders.clone();
                tokio::spawn(async move {
                    // A client that is slow to accept.
                    tokio::time::sleep(time).await;
                    drop(orders.send(Order::Answer).await);
                });
                None
            }
            Manner::Leave => Some(Order::Close),
            Manner::Move(to, manner) => {
                record.manner = *manner;
                Some(Order::Move(to))
            }
        }
    }

    /// Answers everything that is unanswered, in the records first.
    fn answers(&self) -> Vec<AnyRequest> {
        let mut record = self.record.lock().unwrap();
        let rejects = record.manner == Manner::Reject;
        let mut requests = Vec::new();
        for (type_url, received) in mem::take(&mut record.unanswered) {
            let nonce = received.nonce.clone();
            if rejects {
                record.rejected.insert(type_url, received.version);
            } else {
                record.accept(type_url, received, self.protocol);
            }
            let of_type = self.types.iter().find(|(url, _)| *url == type_url);
            let names = of_type.into_iter().flat_map(|(_, names)| names);
            requests.push(AnyRequest {
                type_url,
                names: names.map(|name| (*name).to_owned()).collect(),
                version: record.accepted.get(type_url).cloned().unwrap_or_default(),
                nonce,
                rejects,
                ..AnyRequest::default()
            });
        }
        requests
    }
}

/// A request in either variant.
#[derive(Debug, Clone, Default)]
struct AnyRequest {
    /// The encoded node. Only in the first request.
    node: Option<Bytes>,
    type_url: &'static str,
    names: Vec<String>,
    version: String,
    /// The versions of the resources. Only in the first request.
    versions: BTreeMap<String, String>,
    nonce: String,
    rejects: bool,
}

impl AnyRequest {
    fn error(&self) -> Option<Status> {
        let status = Status { code: 3, message: REJECTION.to_owned(), details: Vec::new() };
        self.rejects.then_some(status)
    }
}

impl From<AnyRequest> for DiscoveryRequest {
    fn from(request: AnyRequest) -> Self {
        Self {
            error_detail: request.error(),
            node: request.node,
            type_url: request.type_url.to_owned(),
            resource_names: request.names,
            version_info: request.version,
            response_nonce: request.nonce,
            ..Self::default()
        }
    }
}

impl From<AnyRequest> for DeltaDiscoveryRequest {
    fn from(request: AnyRequest) -> Self {
        let is_first = request.node.is_some();
        Self {
            error_detail: request.error(),
            node: request.node,
            type_url: request.type_url.to_owned(),
            // The names do not change.
            resource_names_subscribe: if is_first { request.names } else { Vec::new() },
            initial_resource_versions: request.versions,
            response_nonce: request.nonce,
            ..Self::default()
        }
    }
}

/// The responses of either variant.
enum Responses {
    Sotw(Streaming<DiscoveryResponse>),
    Delta(Streaming<DeltaDiscoveryResponse>),
}

impl Responses {
    /// Returns the type and the content of the next response; `None` when the stream has ended.
    async fn next(&mut self) -> Option<(String, Received)> {
        match self {
            Self::Sotw(stream) => {
                let response = stream.message().await.ok()??;
                let received = Received {
                    resources: marks_of(&response.resources, &response.type_url),
                    version: response.version_info,
                    nonce: response.nonce,
                    at: Some(Instant::now()),
                    ..Received::default()
                };
                Some((response.type_url, received))
            }
            Self::Delta(stream) => {
                let response = stream.message().await.ok()??;
                let bodies = response.resources.iter().filter_map(|one| one.resource.as_ref());
                let versions = response.resources.iter();
                let received = Received {
                    resources: marks_of(bodies, &response.type_url),
                    versions: versions.map(|one| (one.name.clone(), one.version.clone())).collect(),
                    removed: response.removed_resources,
                    version: response.system_version_info,
                    nonce: response.nonce,
                    at: Some(Instant::now()),
                };
                Some((response.type_url, received))
            }
        }
    }
}

/// Opens a stream, and sends the first requests.
async fn open(
    address: &str,
    protocol: Protocol,
    first: Vec<AnyRequest>,
) -> Option<(Sender<AnyRequest>, Responses)> {
    let transport =
        Channel::from_shared(format!("http://{address}")).unwrap().connect().await.ok()?;
    let mut client = tonic::client::Grpc::new(transport);
    client.ready().await.ok()?;
    let (requests, stream) = channel(16);
    for request in first {
        requests.send(request).await.ok()?;
    }
    let stream = ReceiverStream::new(stream);
    let responses = match protocol {
        Protocol::Sotw => {
            let path = http::uri::PathAndQuery::from_static(SOTW);
            let stream = Request::new(stream.map(DiscoveryRequest::from));
            let codec = tonic_prost::ProstCodec::default();
            Responses::Sotw(client.streaming(stream, path, codec).await.ok()?.into_inner())
        }
        Protocol::Delta => {
            let path = http::uri::PathAndQuery::from_static(DELTA);
            let stream = Request::new(stream.map(DeltaDiscoveryRequest::from));
            let codec = tonic_prost::ProstCodec::default();
            Responses::Delta(client.streaming(stream, path, codec).await.ok()?.into_inner())
        }
    };
    Some((requests, responses))
}

/// A cluster, of which only the name and the timeout are read.
#[derive(Message)]
struct NamedCluster {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "4")]
    connect_timeout: Option<prost_types::Duration>,
}

/// Another resource, of which only the name is read.
#[derive(Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

/// Returns the names and marks of the clusters of a response.
pub(crate) fn marks(response: &DiscoveryResponse) -> BTreeMap<String, i64> {
    marks_of(&response.resources, CLUSTER)
}

/// Returns the names and marks of resources.
fn marks_of<'a>(
    resources: impl IntoIterator<Item = &'a Any>,
    type_url: &str,
) -> BTreeMap<String, i64> {
    resources.into_iter().map(|any| named(any, type_url)).collect()
}

/// Returns the name of a resource, and its mark: the seconds of the timeout of a cluster.
fn named(any: &Any, type_url: &str) -> (String, i64) {
    if type_url == CLUSTER {
        let cluster = NamedCluster::decode(any.value.clone()).unwrap();
        (cluster.name, cluster.connect_timeout.map_or(0, |timeout| timeout.seconds))
    } else {
        (Named::decode(any.value.clone()).unwrap().name, 0)
    }
}
