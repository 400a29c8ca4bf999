//! A client of all clusters, SotW or delta, which moves to another replica when its stream ends.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_model::types::CLUSTER;
use chancery_proto::{
    discovery::{
        Any, DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    },
    node::Node,
};
use http::uri::PathAndQuery;
use prost::Message;
use serde_json::Value;
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, transport::Channel};

use crate::{scripted::marks, support::DEADLINE};

// Removals on an aggregated stream wait for other types, which the client does not request.
const SOTW: &str = "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters";
const DELTA: &str = "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters";

/// The pause before the client connects again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The two ends of a stream.
enum Ends {
    Sotw(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>),
    Delta(mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>),
}

/// The client, and all that it has ever received.
pub(super) struct Client {
    runtime: Runtime,
    is_delta: bool,
    ends: Option<Ends>,
    /// The accepted clusters.
    held: BTreeMap<String, Any>,
    /// The versions of the accepted clusters; of delta.
    versions: BTreeMap<String, String>,
    /// The last accepted version; of SotW.
    version: String,
    /// The bytes of each cluster and version, or of all clusters of a version.
    received: BTreeMap<(String, String), Vec<Bytes>>,
    /// The bytes of each body.
    bytes: BTreeMap<String, Bytes>,
    pub(super) n_streams: usize,
}

async fn open<Q: Message + 'static, R: Message + Default + 'static>(
    address: &str,
    path: &'static str,
    first: Q,
) -> Result<(mpsc::Sender<Q>, Streaming<R>), Status> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.map_err(|error| Status::from_error(error.into()))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let (requests, stream) = mpsc::channel(4);
    requests.send(first).await.unwrap();
    let codec = tonic_prost::ProstCodec::default();
    let stream = Request::new(ReceiverStream::new(stream));
    let streaming = client.streaming(stream, PathAndQuery::from_static(path), codec).await?;
    Ok((requests, streaming.into_inner()))
}

impl Client {
    pub(super) fn new(is_delta: bool) -> Self {
        Self {
            runtime: Runtime::new().unwrap(),
            is_delta,
            ends: None,
            held: BTreeMap::new(),
            versions: BTreeMap::new(),
            version: String::new(),
            received: BTreeMap::new(),
            bytes: BTreeMap::new(),
            n_streams: 0,
        }
    }

    /// Ends the stream. The next one lists what the client has.
    pub(super) fn disconnect(&mut self) {
        self.ends = None;
    }

    /// Reads responses until the client has exactly these clusters, with their marks and bodies. `address` is that of a
    /// replica to which the client moves if its stream has ended.
    pub(super) fn converge(
        &mut self,
        address: &str,
        expected: &BTreeMap<String, (i64, Value)>,
        what: &str,
    ) {
        let wanted: BTreeMap<String, i64> =
            expected.iter().map(|(name, (mark, _))| (name.clone(), *mark)).collect();
        let has_all = |client: &Self| {
            let resources = client.held.values().cloned().collect();
            marks(&DiscoveryResponse { resources, ..Default::default() }) == wanted
        };
        let start = Instant::now();
        while !has_all(self) {
            assert!(start.elapsed() < DEADLINE, "{what}: no {wanted:?}");
            if self.read(address).is_none() {
                self.ends = None;
                thread::sleep(RETRY_PAUSE);
            }
        }
        for (name, (_, body)) in expected {
            let received = &self.held[name].value;
            let first = self.bytes.entry(body.to_string()).or_insert_with(|| received.clone());
            assert_eq!(first, received, "{what}: the bytes of {name} differ for equal bodies");
        }
    }

    /// Reads and accepts a response. Returns `None` if the stream has ended.
    fn read(&mut self, address: &str) -> Option<()> {
        if self.ends.is_none() {
            self.connect(address)?;
        }
        let ends = self.ends.as_mut().unwrap();
        let response = self.runtime.block_on(async {
            tokio::time::timeout(DEADLINE, async {
                match ends {
                    Ends::Sotw(_, responses) => responses.message().await.ok().flatten().map(Ok),
                    Ends::Delta(_, responses) => responses.message().await.ok().flatten().map(Err),
                }
            })
            .await
        });
        let held: Vec<&String> = self.held.keys().collect();
        match response.unwrap_or_else(|_| panic!("no response; the client has {held:?}"))? {
            Ok(response) => self.on_sotw(response),
            Err(response) => self.on_delta(response),
        }
    }

    fn connect(&mut self, address: &str) -> Option<()> {
        let node = Node { id: "n".into(), user_agent_name: "envoy".into(), ..Node::default() };
        let node = Some(Bytes::from(node.encode_to_vec()));
        let type_url = CLUSTER.to_owned();
        let opened = if self.is_delta {
            let first = DeltaDiscoveryRequest {
                node,
                type_url,
                initial_resource_versions: self.versions.clone().into_iter().collect(),
                ..Default::default()
            };
            let opened = self.runtime.block_on(open(address, DELTA, first));
            opened.map(|(requests, responses)| Ends::Delta(requests, responses))
        } else {
            let version_info = self.version.clone();
            let first = DiscoveryRequest { node, type_url, version_info, ..Default::default() };
            let opened = self.runtime.block_on(open(address, SOTW, first));
            opened.map(|(requests, responses)| Ends::Sotw(requests, responses))
        };
        self.ends = Some(opened.ok()?);
        self.n_streams += 1;
        Some(())
    }

    fn on_sotw(&mut self, response: DiscoveryResponse) -> Option<()> {
        let bytes: Vec<Bytes> = response.resources.iter().map(|any| any.value.clone()).collect();
        let key = (String::new(), response.version_info.clone());
        let first = self.received.entry(key).or_insert_with(|| bytes.clone());
        assert_eq!(*first, bytes, "version {} has other content", response.version_info);
        let names = marks(&response).into_keys();
        let mut named = BTreeMap::new();
        // The order of the response may differ from that of the names.
        for any in &response.resources {
            let one = DiscoveryResponse { resources: vec![any.clone()], ..Default::default() };
            named.extend(marks(&one).into_keys().map(|name| (name, any.clone())));
        }
        assert!(names.eq(named.keys().cloned()));
        self.held = named;
        self.version.clone_from(&response.version_info);
        let Some(Ends::Sotw(requests, _)) = &self.ends else { unreachable!() };
        let answer = DiscoveryRequest {
            type_url: CLUSTER.to_owned(),
            version_info: response.version_info,
            response_nonce: response.nonce,
            ..Default::default()
        };
        self.runtime.block_on(requests.send(answer)).ok()
    }

    fn on_delta(&mut self, response: DeltaDiscoveryResponse) -> Option<()> {
        for resource in response.resources {
            // A heartbeat has no body.
            let Some(any) = resource.resource else { continue };
            let key = (resource.name.clone(), resource.version.clone());
            let first = self.received.entry(key).or_insert_with(|| vec![any.value.clone()]);
            assert_eq!(first[0], any.value, "version {} has other content", resource.version);
            self.versions.insert(resource.name.clone(), resource.version);
            self.held.insert(resource.name, any);
        }
        for name in response.removed_resources {
            self.held.remove(&name);
            self.versions.remove(&name);
        }
        let Some(Ends::Delta(requests, _)) = &self.ends else { unreachable!() };
        let answer = DeltaDiscoveryRequest {
            type_url: CLUSTER.to_owned(),
            response_nonce: response.nonce,
            ..Default::default()
        };
        self.runtime.block_on(requests.send(answer)).ok()
    }
}
