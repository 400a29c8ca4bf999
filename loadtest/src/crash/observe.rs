//! Observation of a server over its ports. A wildcard client and the admin API must show the same
//! state.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_model::{Version, types::CLUSTER};
use chancery_proto::{
    discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource},
    node::Node,
};
use futures::stream;
use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::{Request, Streaming, client::Grpc, transport::Endpoint};
use tonic_prost::ProstCodec;
use xxhash_rust::xxh3::xxh3_64;

use super::history::{Observation, Pushed, Seen};
use crate::{author::Author, server::Server};

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// The maximum number of unsent acknowledgments. The server has one response in flight, and the
/// client waits if this queue is full.
const REQUESTS: usize = 4;

/// The decoded fields of `envoy.config.cluster.v3.Cluster`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Cluster {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "28")]
    pub(crate) alt_stat_name: String,
}

/// A client that listens until the server is killed.
#[derive(Debug)]
pub(crate) struct Watcher(JoinHandle<Result<Vec<Pushed>>>);

/// One wildcard client.
struct Client {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

/// Returns the state that the server shows, and a client that continues to listen.
pub(crate) async fn observe(server: &Server) -> Result<(Observation, Watcher)> {
    let mut author = Author::connect(server.admin).await?;
    let status = author.cluster().await.context("read the cluster's status")?;
    let mut client = Client::connect(server).await?;
    // The first response contains the whole view, which is smaller than the maximum of a response.
    let pushed = client.next().await?.context("the server ended the stream")?;
    let clusters: BTreeMap<String, Seen> =
        pushed.into_iter().map(|pushed| (pushed.name, pushed.seen)).collect();
    let listed = author.versions().await?;
    let streamed: BTreeMap<String, String> =
        clusters.iter().map(|(name, seen)| (name.clone(), seen.version.to_string())).collect();
    ensure!(
        listed == streamed,
        "a client and the admin API show different versions: {:?}",
        difference(&listed, &streamed)
    );
    let observation =
        Observation { revision: status.revision, incarnation: status.incarnation, clusters };
    Ok((observation, Watcher(tokio::spawn(client.watch()))))
}

impl Watcher {
    /// Waits until the server has ended. Returns the clusters that were pushed.
    pub(crate) async fn given(self) -> Result<Vec<Pushed>> {
        self.0.await?
    }
}

impl Client {
    async fn connect(server: &Server) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{}", server.xds))?.connect().await?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(64 << 20);
        grpc.ready().await?;
        let node = Node { id: "watcher".to_owned(), ..Node::default() };
        let first = DeltaDiscoveryRequest {
            node: Some(node.encode_to_vec().into()),
            type_url: CLUSTER.to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        let (requests, receiver) = mpsc::channel(REQUESTS);
        requests.send(first).await?;
        let messages =
            stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
        let path = PathAndQuery::from_static(METHOD);
        let responses = grpc.streaming(Request::new(messages), path, ProstCodec::default()).await?;
        Ok(Self { requests, responses: responses.into_inner() })
    }

    /// Acknowledges the next response and returns its clusters. Returns `None` if the server has
    /// ended.
    async fn next(&mut self) -> Result<Option<Vec<Pushed>>> {
        let Ok(Some(response)) = self.responses.message().await else { return Ok(None) };
        let ack = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        if self.requests.send(ack).await.is_err() {
            return Ok(None);
        }
        response.resources.into_iter().map(pushed).collect::<Result<_>>().map(Some)
    }

    async fn watch(mut self) -> Result<Vec<Pushed>> {
        let mut all = Vec::new();
        while let Some(pushed) = self.next().await? {
            all.extend(pushed);
        }
        Ok(all)
    }
}

fn pushed(resource: Resource) -> Result<Pushed> {
    let name = resource.name;
    let body = resource.resource.with_context(|| format!("{name} has no body"))?.value;
    let cluster =
        Cluster::decode(body.clone()).with_context(|| format!("{name} is not a cluster"))?;
    if cluster.name != name {
        bail!("{name} has the body of {}", cluster.name);
    }
    let version = Version::parse(&resource.version)
        .with_context(|| format!("{name} has the invalid version {:?}", resource.version))?;
    let seen = Seen { value: cluster.alt_stat_name, version, body: xxh3_64(&body) };
    Ok(Pushed { name, seen })
}

/// Returns the first names that differ, with both versions.
fn difference(
    listed: &BTreeMap<String, String>,
    streamed: &BTreeMap<String, String>,
) -> Vec<String> {
    let names = listed.keys().chain(streamed.keys());
    let differs = |name: &&String| listed.get(*name) != streamed.get(*name);
    names
        .filter(differs)
        .take(5)
        .map(|name| {
            format!("{name}: {:?} listed, {:?} pushed", listed.get(name), streamed.get(name))
        })
        .collect()
}
