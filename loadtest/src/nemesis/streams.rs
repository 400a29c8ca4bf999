//! Wildcard clients of clusters, delta and SotW, each at any replica. When a stream ends, and
//! sometimes without reason, the client continues at another replica with its state, as real
//! clients do. Everything that a client receives is compared with the [`History`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use chancery_model::{Version, types::CLUSTER};
use chancery_proto::{
    discovery::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    },
    node::Node,
};
use futures::stream;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::{
    Request, Streaming,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    history::{Guarantee, History, ReceivedCluster},
    proxy::Id,
    ready_replicas::{Ports, ReadyReplicas},
};
use crate::{crash::Cluster, random::Random};

const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The maximum number of unsent requests. When this queue is full, the client waits.
const REQUESTS: usize = 4;
const CONNECT: Duration = Duration::from_secs(2);
/// The interval of keepalive probes. A connection that does not answer within the timeout is
/// closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Delta,
    Sotw,
}

/// The values that a client has, by name.
pub(crate) type ClientValues = Arc<Mutex<BTreeMap<String, u64>>>;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: String,
    pub(crate) protocol: Protocol,
    pub(crate) random: Random,
    pub(crate) history: Arc<History>,
    pub(crate) ready: Arc<ReadyReplicas>,
    pub(crate) values: ClientValues,
    /// The mean time that the client stays at one replica.
    pub(crate) stay: Duration,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) state: State,
}

/// The state that a client keeps when its stream ends.
#[derive(Debug, Default)]
pub(crate) struct State {
    versions: BTreeMap<String, Version>,
    /// The last received value of each name, even if it was removed.
    last: HashMap<String, (u64, Option<Version>)>,
    /// SotW only.
    type_version: String,
    at: Option<Id>,
}

impl Client {
    /// Listens until `stop` is set.
    pub(crate) async fn run(mut self) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            if let Some((id, ports)) = self.ready.any(&mut self.random, self.state.at) {
                self.state.at = Some(id);
                let stay = self.stay / 2 + self.random.time(self.stay);
                let listened = match self.protocol {
                    Protocol::Delta => timeout(stay, self.listen_delta(ports)).await,
                    Protocol::Sotw => timeout(stay, self.listen_sotw(ports)).await,
                };
                // An error means that the client could not connect, or that its server has ended.
                drop(listened);
                self.history.count(|counts| counts.resumes += 1);
            }
            sleep(self.random.time(Duration::from_millis(300))).await;
        }
        Ok(())
    }

    fn node(&self) -> Option<bytes::Bytes> {
        let node = Node { id: self.id.clone(), ..Node::default() };
        Some(node.encode_to_vec().into())
    }

    async fn listen_delta(&mut self, ports: Ports) -> Result<()> {
        let versions = self.state.versions.iter();
        let first = DeltaDiscoveryRequest {
            node: self.node(),
            type_url: CLUSTER.to_owned(),
            initial_resource_versions: versions
                .map(|(name, version)| (name.clone(), version.to_string()))
                .collect(),
            ..DeltaDiscoveryRequest::default()
        };
        let (requests, mut responses) = open(ports, DELTA, first).await?;
        while let Some(response) = responses.message().await? {
            let response: DeltaDiscoveryResponse = response;
            let ack = DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..DeltaDiscoveryRequest::default()
            };
            self.take_delta(response)?;
            requests.send(ack).await?;
        }
        Ok(())
    }

    fn take_delta(&mut self, response: DeltaDiscoveryResponse) -> Result<()> {
        for resource in response.resources {
            let body = resource.resource.context("a resource has no body")?.value;
            let version = Version::parse(&resource.version);
            if version.is_none() {
                let what =
                    format!("{} received the invalid version {:?}", self.id, resource.version);
                self.history.report(Guarantee::Phantom, what);
            }
            let is_resent =
                version.is_some() && self.state.versions.get(&resource.name) == version.as_ref();
            if is_resent {
                self.history.count(|counts| counts.resent_delta += 1);
                let what = format!(
                    "{} received {} {} again from replica {:?}",
                    self.id, resource.name, resource.version, self.state.at
                );
                self.history.report(Guarantee::Resent, what);
            }
            self.take(&resource.name, &body, version)?;
        }
        let mut values = self.values.lock();
        for name in &response.removed_resources {
            self.state.versions.remove(name);
            values.remove(name);
        }
        Ok(())
    }

    async fn listen_sotw(&mut self, ports: Ports) -> Result<()> {
        let first = DiscoveryRequest {
            node: self.node(),
            type_url: CLUSTER.to_owned(),
            version_info: self.state.type_version.clone(),
            ..DiscoveryRequest::default()
        };
        let (requests, mut responses) = open(ports, SOTW, first).await?;
        let mut is_first = true;
        while let Some(response) = responses.message().await? {
            let response: DiscoveryResponse = response;
            let ack = DiscoveryRequest {
                type_url: response.type_url.clone(),
                version_info: response.version_info.clone(),
                response_nonce: response.nonce.clone(),
                ..DiscoveryRequest::default()
            };
            if std::mem::take(&mut is_first) && response.version_info == self.state.type_version {
                self.history.count(|counts| counts.resent_sotw += 1);
            }
            self.take_sotw(response)?;
            requests.send(ack).await?;
        }
        Ok(())
    }

    fn take_sotw(&mut self, response: DiscoveryResponse) -> Result<()> {
        let mut names = Vec::new();
        for resource in response.resources {
            let cluster = Cluster::decode(&*resource.value)?;
            self.take(&cluster.name, &resource.value, None)?;
            names.push(cluster.name);
        }
        names.sort_unstable();
        self.values.lock().retain(|name, _| names.binary_search(name).is_ok());
        self.state.type_version = response.version_info;
        Ok(())
    }

    /// Checks a received cluster and stores it.
    fn take(&mut self, name: &str, body: &[u8], version: Option<Version>) -> Result<()> {
        let cluster = Cluster::decode(body).with_context(|| format!("{name} is not a cluster"))?;
        ensure!(cluster.name == name, "{name} has the body of {}", cluster.name);
        let received = ReceivedCluster {
            name: name.to_owned(),
            value: cluster.alt_stat_name,
            version,
            body: xxh3_64(body),
        };
        let Some(value) = self.history.received(&self.id, &received) else { return Ok(()) };
        match self.state.last.insert(name.to_owned(), (value, version)) {
            Some((_, Some(old))) if version.is_some_and(|new| new.revision < old.revision) => {
                let what = format!(
                    "{} received {received:?} from replica {:?} after version {old} of {name}",
                    self.id, self.state.at
                );
                self.history.report(Guarantee::Backwards, what);
            }
            Some((before, None)) if before != value => {
                self.history.followed(&self.id, before, value);
            }
            _ => {}
        }
        if let Some(version) = version {
            self.state.versions.insert(name.to_owned(), version);
        }
        self.values.lock().insert(name.to_owned(), value);
        Ok(())
    }
}

/// Opens a stream with its first request.
async fn open<Q, R>(
    ports: Ports,
    path: &'static str,
    first: Q,
) -> Result<(mpsc::Sender<Q>, Streaming<R>)>
where
    Q: Message + Send + Sync + 'static,
    R: Message + Default + Send + Sync + 'static,
{
    let endpoint = Endpoint::from_shared(format!("http://{}", ports.xds))?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .tcp_nodelay(true);
    let channel: Channel = timeout(CONNECT, endpoint.connect()).await.context("connect")??;
    let mut grpc = Grpc::new(channel).max_decoding_message_size(64 << 20);
    grpc.ready().await?;
    let (requests, receiver) = mpsc::channel(REQUESTS);
    requests.send(first).await?;
    let messages =
        stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let path = PathAndQuery::from_static(path);
    let responses = grpc.streaming(Request::new(messages), path, ProstCodec::default()).await?;
    Ok((requests, responses.into_inner()))
}

#[cfg(test)]
mod tests;
