//! A server with a real state on a real socket, and its clients.

mod child;
mod frames;
mod good;
mod meter;
mod polls;
mod raw;

pub(crate) use child::*;
pub(crate) use frames::*;
pub(crate) use good::Good;
pub(crate) use meter::Meter;
pub(crate) use polls::*;
pub(crate) use raw::*;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_fanout::Fanout;
use chancery_model::{
    AssignmentOp, Constraints, Incarnation, Outcome, ResourceDraft, ResourceKey, ResourceName,
    Revision, ScopeName, State, Transaction, TypeUrl, Upsert,
    types::{CLUSTER, ENDPOINT},
};
use chancery_proto::{
    discovery::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    },
    node::Node,
};
use prost::Message;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status, Streaming, client::GrpcService, codegen::StdError, transport::Channel};

pub(crate) const CDS: &str = CLUSTER;
pub(crate) const EDS: &str = ENDPOINT;
pub(crate) const ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService";
pub(crate) const SOTW_ADS: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
pub(crate) const DELTA_ADS: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
pub(crate) const DELTA_CDS: &str =
    "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters";
pub(crate) const SOTW_CDS: &str =
    "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters";

/// The maximum time that a test waits for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) fanout: Fanout,
    pub(crate) drain: CancellationToken,
    pub(crate) task: JoinHandle<std::io::Result<()>>,
    /// The metrics of the server. Each test has its own.
    pub(crate) meter: Meter,
    state: watch::Sender<Arc<State>>,
    cancel: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(chancery_xds::Config::default(), fanout_config()).await
    }

    pub(crate) async fn with(
        config: chancery_xds::Config,
        fanout: chancery_fanout::Config,
    ) -> Self {
        Self::measured_with(Meter::start(), config, fanout).await
    }

    /// Starts a server whose configuration has metrics of this meter.
    pub(crate) async fn measured_with(
        meter: Meter,
        config: chancery_xds::Config,
        fanout: chancery_fanout::Config,
    ) -> Self {
        let (state, watch) = watch::channel(Arc::new(State::new(Incarnation(7))));
        let cancel = CancellationToken::new();
        let fanout = Fanout::spawn(fanout, watch, &TaskTracker::new(), cancel.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let drain = CancellationToken::new();
        let serve = chancery_xds::serve(listener, fanout.clone(), config, drain.clone());
        let task = tokio::spawn(serve);
        Self { address, fanout, drain, task, meter, state, cancel }
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn sotw(&self, path: &'static str) -> Sotw {
        Client::open(self.channel().await, path).await.unwrap()
    }

    pub(crate) async fn delta(&self, path: &'static str) -> Delta {
        Client::open(self.channel().await, path).await.unwrap()
    }

    pub(crate) fn apply(&self, transaction: &Transaction) -> Revision {
        let applied = self.state.borrow().apply(transaction);
        let Outcome::Committed(summary) = applied.outcome else {
            panic!("rejected: {:?}", applied.outcome)
        };
        self.state.send_replace(Arc::new(applied.state));
        summary.revision
    }

    /// Returns the revision of the replicated state.
    pub(crate) fn revision(&self) -> Revision {
        self.state.borrow().revision
    }

    /// Publishes resources in the scope `default`.
    pub(crate) fn put(&self, type_url: &str, resources: &[(&str, &str)]) -> Revision {
        self.apply(&Transaction {
            upserts: resources
                .iter()
                .map(|(name, body)| upsert("default", type_url, name, body))
                .collect(),
            ..Transaction::default()
        })
    }

    /// Publishes the variants of a name, each for a value of the parameter `env`.
    pub(crate) fn put_variants(&self, type_url: &str, name: &str, bodies: &[(&str, &str)]) {
        let variant = |(env, body): &(&str, &str)| {
            let constraints = Constraints::Value { key: "env".into(), value: (*env).into() };
            let mut upsert = upsert("default", type_url, name, body);
            upsert.draft.key.name = upsert.draft.key.name.variant(&constraints);
            upsert
        };
        let upserts = bodies.iter().map(variant).collect();
        self.apply(&Transaction { upserts, ..Transaction::default() });
    }

    pub(crate) fn delete(&self, type_url: &str, names: &[&str]) -> Revision {
        let deletes = names.iter().map(|name| (scope("default"), key(type_url, name))).collect();
        self.apply(&Transaction { deletes, ..Transaction::default() })
    }

    pub(crate) fn assign(&self, op: AssignmentOp) -> Revision {
        self.apply(&Transaction { assignments: vec![op], ..Transaction::default() })
    }

    /// Waits until all counts of connections and streams have these values.
    pub(crate) async fn until_left(&self, connections: usize, streams: usize) {
        let counted = || {
            let f64 = |n: usize| f64::from(u32::try_from(n).unwrap());
            self.fanout.n_streams() == streams
                && self.meter.gauge("chancery_xds_connections") == f64(connections)
                && self.meter.gauge("chancery_xds_streams") == f64(streams)
        };
        let what = format!("{connections} connections and {streams} streams are left");
        until(&what, async || counted() && self.fanout.nodes().await.len() == streams).await;
    }

    /// Returns the number of times that a limit was exceeded.
    pub(crate) fn hits(&self, limit: &str) -> u64 {
        self.meter.counter("chancery_xds_limits_hit_total", &[("limit", limit)])
    }

    /// Returns the number of connections that ended for a reason.
    pub(crate) fn ends(&self, reason: &str) -> u64 {
        self.meter.counter("chancery_xds_connection_ends_total", &[("reason", reason)])
    }

    /// Waits until no stream is left.
    pub(crate) async fn until_no_stream(&self) {
        until("all streams are freed", async || {
            self.fanout.n_streams() == 0 && self.fanout.nodes().await.is_empty()
        })
        .await;
    }
}

/// Returns a configuration with two shards on any machine.
pub(crate) fn fanout_config() -> chancery_fanout::Config {
    chancery_fanout::Config { shards: 2, ..chancery_fanout::Config::default() }
}

pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

pub(crate) fn key(type_url: &str, name: &str) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::new(type_url).unwrap(),
        name: ResourceName::new(name).unwrap(),
    }
}

pub(crate) fn upsert(in_scope: &str, type_url: &str, name: &str, body: &str) -> Upsert {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Upsert { scope: scope(in_scope), draft: ResourceDraft::new(key(type_url, name), body) }
}

pub(crate) fn node(id: &str) -> Option<Bytes> {
    let node = Node { id: id.into(), cluster: "test".into(), ..Node::default() };
    Some(node.encode_to_vec().into())
}

/// Encodes a node with metadata.
pub(crate) fn large_node(id: &str, metadata: impl IntoIterator<Item = (String, String)>) -> Bytes {
    use prost_types::{Struct, Value, value::Kind};
    let value = |text| Value { kind: Some(Kind::StringValue(text)) };
    let fields = metadata.into_iter().map(|(key, text)| (key, value(text))).collect();
    let node = Node {
        id: id.into(),
        cluster: "test".into(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    };
    node.encode_to_vec().into()
}

pub(crate) type Sotw = Client<DiscoveryRequest, DiscoveryResponse>;
pub(crate) type Delta = Client<DeltaDiscoveryRequest, DeltaDiscoveryResponse>;

/// A gRPC stream.
pub(crate) struct Client<Q, R> {
    pub(crate) requests: Option<mpsc::Sender<Q>>,
    pub(crate) responses: Streaming<R>,
}

impl<Q, R> Client<Q, R>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    pub(crate) async fn open(channel: Channel, path: &'static str) -> Result<Self, Status> {
        Self::open_on(channel, path).await
    }

    /// Opens a stream on a channel that may change the requests.
    pub(crate) async fn open_on<C>(channel: C, path: &'static str) -> Result<Self, Status>
    where
        C: GrpcService<tonic::body::Body>,
        C::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
        <C::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
        C::Error: Into<StdError>,
    {
        let (requests, receiver) = mpsc::channel(64);
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::unavailable(format!("{:?}", error.into())))?;
        let response = grpc
            .streaming(
                tonic::Request::new(ReceiverStream::new(receiver)),
                http::uri::PathAndQuery::from_static(path),
                tonic_prost::ProstCodec::<Q, R>::default(),
            )
            .await?;
        Ok(Self { requests: Some(requests), responses: response.into_inner() })
    }

    /// Sends a request. Ignores a failure: the server may have ended the stream, even if responses are still unread. The
    /// caller sees the end of the stream when it reads the responses.
    pub(crate) async fn send(&self, request: Q) {
        drop(self.requests.as_ref().unwrap().send(request).await);
    }

    pub(crate) async fn next(&mut self) -> R {
        let next = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        next.expect("no response in time").unwrap().expect("the stream has ended")
    }

    /// Returns the status that ends the stream. Skips the responses before it.
    pub(crate) async fn end(&mut self) -> Status {
        tokio::time::timeout(PATIENCE, async {
            loop {
                match self.responses.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        let trailers = self.responses.trailers().await.ok().flatten();
                        let status =
                            Status::from_header_map(&trailers.unwrap_or_default().into_headers());
                        return status.unwrap_or_else(|| Status::new(Code::Ok, ""));
                    }
                    Err(status) => return status,
                }
            }
        })
        .await
        .expect("the stream has not ended")
    }
}

impl Sotw {
    pub(crate) async fn subscribe(&self, type_url: &str, names: &[&str]) {
        self.send(DiscoveryRequest {
            type_url: type_url.into(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            node: node("n1"),
            ..DiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn ack(&self, response: &DiscoveryResponse, names: &[&str]) {
        self.send(DiscoveryRequest {
            type_url: response.type_url.clone(),
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..DiscoveryRequest::default()
        })
        .await;
    }
}

impl Delta {
    pub(crate) async fn subscribe(&self, type_url: &str, names: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            type_url: type_url.into(),
            resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
            node: node("n1"),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn ack(&self, response: &DeltaDiscoveryResponse) {
        self.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }
}

/// Returns the names in a response, sorted.
pub(crate) fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    let mut names: Vec<&str> = response.resources.iter().map(|r| r.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Returns the bodies in a response, sorted.
pub(crate) fn bodies(response: &DiscoveryResponse) -> Vec<&str> {
    let mut all: Vec<&str> =
        response.resources.iter().map(|any| std::str::from_utf8(&any.value).unwrap()).collect();
    all.sort_unstable();
    all
}
