//! A client that continues at another replica when its stream ends, with its state, as real clients
//! do.
//!
//! The client compares everything that it receives with its state. A delta client subscribes to all
//! clusters, and sends their versions to the next replica (`initial_resource_versions`). A SotW
//! client subscribes to all clusters and to some endpoints by name, and sends the version of each
//! type (`version_info`).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use chancery_fleet_load::stream::{self, Ended, Requests, Responses, Windows};
use chancery_model::{
    Version,
    types::{CLUSTER, ENDPOINT},
};
use chancery_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use prost::Message;
use tokio::time::{sleep, timeout};
use xxhash_rust::xxh3::xxh3_64;

use super::shared::{Effects, Protocol, SharedState};
use crate::{random::Random, resource};

const CONNECT: Duration = Duration::from_secs(10);
/// The maximum wait before a client connects to the next replica. It is random, so that clients do
/// not connect at once.
const JITTER: Duration = Duration::from_millis(200);

/// A resource that a client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientVersion {
    /// Delta only.
    pub(crate) version: Option<Version>,
    /// A hash of the bytes.
    pub(crate) body: u64,
}

/// The subscription of a client to one type, and the resources that the client has.
#[derive(Debug)]
struct Subscription {
    type_url: &'static str,
    names: Vec<String>,
    version: String,
    /// The revision of the version.
    revision: u64,
    known: HashMap<u32, ClientVersion>,
    /// 0 before the first response on this stream, 1 after it.
    responses: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    id: String,
    protocol: Protocol,
    shared: Arc<SharedState>,
    random: Random,
    /// The replica of the current or the next stream.
    at: usize,
    streams: u64,
    subscriptions: Vec<Subscription>,
    /// The revision that all types have reached.
    seen: Arc<AtomicU64>,
}

/// A response that can be acknowledged.
enum Response {
    Delta(DeltaDiscoveryResponse),
    Sotw(DiscoveryResponse),
}

impl Client {
    /// Creates a client that starts at one of the replicas. It stores its progress in `seen`.
    pub(crate) fn new(
        n: usize,
        protocol: Protocol,
        endpoints: usize,
        shared: &Arc<SharedState>,
        seen: &Arc<AtomicU64>,
    ) -> Self {
        let subscription = |type_url, names| Subscription {
            type_url,
            names,
            version: String::new(),
            revision: 0,
            known: HashMap::new(),
            responses: 0,
        };
        let mut subscriptions = vec![subscription(CLUSTER, Vec::new())];
        if protocol == Protocol::Sotw && endpoints > 0 {
            let names = (0..endpoints).map(resource::endpoints_name).collect();
            subscriptions.push(subscription(ENDPOINT, names));
        }
        Self {
            id: format!("{protocol:?}-{n}").to_lowercase(),
            protocol,
            shared: Arc::clone(shared),
            random: Random::new(crate::stats::count(n)),
            at: n % shared.replicas(),
            streams: 0,
            subscriptions,
            seen: Arc::clone(seen),
        }
    }

    /// Listens until the run is over. Returns the resources that the client has, by type.
    pub(crate) async fn run(mut self) -> Vec<(&'static str, HashMap<u32, ClientVersion>)> {
        let shared = Arc::clone(&self.shared);
        let over = shared.over();
        tokio::pin!(over);
        loop {
            let ended = tokio::select! {
                () = &mut over => break,
                ended = self.stream() => ended,
            };
            if let Err(error) = ended {
                let is_unavailable =
                    error.downcast_ref::<Ended>().is_some_and(|ended| ended.is_unavailable);
                shared.ended(self.protocol, self.at, is_unavailable, &error);
            }
            sleep(self.random.time(JITTER)).await;
            self.at = shared.next(self.at, &mut self.random);
        }
        let subscriptions = self.subscriptions.into_iter();
        subscriptions.map(|subscription| (subscription.type_url, subscription.known)).collect()
    }

    /// Runs one stream to its end. A failed connection is not an error.
    async fn stream(&mut self) -> Result<()> {
        let xds = self.shared.xds(self.at);
        let connected = timeout(CONNECT, stream::connect(xds, Windows::ENVOY)).await;
        let Ok(Ok((sender, connection))) = connected else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let listen = async {
            let (_sender, requests, responses) = match self.protocol {
                Protocol::Delta => {
                    let first = self.first_delta();
                    stream::open_with(sender, xds, stream::DELTA, &first).await?
                }
                Protocol::Sotw => {
                    let first = self.first_sotw();
                    stream::open_with(sender, xds, stream::SOTW, &first).await?
                }
            };
            shared.opened(self.protocol, self.streams > 0);
            self.streams += 1;
            self.listen(requests, responses).await
        };
        tokio::pin!(connection);
        tokio::pin!(listen);
        tokio::select! {
            biased;
            ended = &mut listen => ended,
            // Data that arrived before the connection ended count.
            broken = &mut connection => match timeout(CONNECT, listen).await {
                Ok(ended) => ended,
                Err(_) => bail!("the connection ended: {broken:?}"),
            },
        }
    }

    fn first_delta(&self) -> Vec<DeltaDiscoveryRequest> {
        let first = |subscription: &Subscription| {
            let versions = subscription.known.iter().filter_map(|(n, known)| {
                let name = resource::name(usize::try_from(*n).ok()?);
                Some((name, known.version?.to_string()))
            });
            DeltaDiscoveryRequest {
                node: Some(stream::node(self.id.clone())),
                type_url: subscription.type_url.to_owned(),
                initial_resource_versions: versions.collect(),
                ..DeltaDiscoveryRequest::default()
            }
        };
        self.subscriptions.iter().map(first).collect()
    }

    fn first_sotw(&self) -> Vec<DiscoveryRequest> {
        let first = |subscription: &Subscription| DiscoveryRequest {
            node: Some(stream::node(self.id.clone())),
            type_url: subscription.type_url.to_owned(),
            version_info: subscription.version.clone(),
            resource_names: subscription.names.clone(),
            ..DiscoveryRequest::default()
        };
        self.subscriptions.iter().map(first).collect()
    }

    async fn listen(&mut self, mut requests: Requests, responses: Responses) -> Result<()> {
        for subscription in &mut self.subscriptions {
            subscription.responses = 0;
        }
        let mut frames = BytesMut::new();
        let read = responses.read(|chunk| {
            frames.extend_from_slice(chunk);
            while let Some(message) = next_message(&mut frames)? {
                match self.protocol {
                    Protocol::Delta => {
                        let response = DeltaDiscoveryResponse::decode(message)?;
                        self.take(Response::Delta(response), &mut requests)?;
                    }
                    Protocol::Sotw => {
                        let response = DiscoveryResponse::decode(message)?;
                        self.take(Response::Sotw(response), &mut requests)?;
                    }
                }
            }
            Ok(())
        });
        read.await
    }

    /// Stores the resources of a response, records its faults, and acknowledges it.
    fn take(&mut self, response: Response, requests: &mut Requests) -> Result<()> {
        let is_resumed = self.streams > 1;
        let type_url = match &response {
            Response::Delta(response) => &response.type_url,
            Response::Sotw(response) => &response.type_url,
        };
        let subscription = self.subscriptions.iter_mut().find(|it| it.type_url == type_url);
        let subscription = subscription
            .with_context(|| format!("a response has the unexpected type {type_url}"))?;
        let is_first = std::mem::replace(&mut subscription.responses, 1) == 0;
        let mut effects = Effects::default();
        match response {
            Response::Delta(response) => {
                subscription.take_delta(&response, &mut effects)?;
                subscription.advance_to(response.system_version_info, &mut effects)?;
                requests.send(&DeltaDiscoveryRequest {
                    type_url: response.type_url,
                    response_nonce: response.nonce,
                    ..DeltaDiscoveryRequest::default()
                })?;
            }
            Response::Sotw(response) => {
                subscription.take_sotw(&response, &mut effects)?;
                subscription.advance_to(response.version_info, &mut effects)?;
                requests.send(&DiscoveryRequest {
                    type_url: response.type_url,
                    version_info: subscription.version.clone(),
                    response_nonce: response.nonce,
                    resource_names: subscription.names.clone(),
                    ..DiscoveryRequest::default()
                })?;
            }
        }
        // Later SotW responses contain all clusters again, whatever has changed, as the protocol
        // requires.
        let counts = is_resumed && (is_first || self.protocol == Protocol::Delta);
        if !counts {
            effects.again = 0;
        }
        self.shared.record(self.protocol, subscription.type_url, &effects);
        let seen = self.subscriptions.iter().map(|subscription| subscription.revision).min();
        self.seen.store(seen.unwrap_or(0), Ordering::Relaxed);
        self.shared.progress();
        Ok(())
    }
}

impl Subscription {
    fn take_delta(
        &mut self,
        response: &DeltaDiscoveryResponse,
        effects: &mut Effects,
    ) -> Result<()> {
        for resource in &response.resources {
            let n = number(&resource.name)?;
            let version = Version::parse(&resource.version);
            let version = version.with_context(|| {
                format!("{} has the invalid version {:?}", resource.name, resource.version)
            })?;
            let body = resource.resource.as_ref().context("a resource has no body")?;
            let known = ClientVersion { version: Some(version), body: xxh3_64(&body.value) };
            self.keep(n, known, effects);
        }
        for name in &response.removed_resources {
            self.known.remove(&number(name)?);
        }
        Ok(())
    }

    fn take_sotw(&mut self, response: &DiscoveryResponse, effects: &mut Effects) -> Result<()> {
        let mut given = Vec::with_capacity(response.resources.len());
        for resource in &response.resources {
            let n = number(&resource::name_of(&resource.value)?)?;
            self.keep(n, ClientVersion { version: None, body: xxh3_64(&resource.value) }, effects);
            given.push(n);
        }
        // Clusters that are missing were removed. Endpoints may be sent individually.
        if self.names.is_empty() {
            given.sort_unstable();
            self.known.retain(|n, _| given.binary_search(n).is_ok());
        }
        Ok(())
    }

    fn keep(&mut self, n: u32, known: ClientVersion, effects: &mut Effects) {
        effects.resources += 1;
        let Some(before) = self.known.insert(n, known) else { return };
        if before == known {
            effects.again += 1;
        }
        if let (Some(old), Some(new)) = (before.version, known.version) {
            effects.backwards += u64::from(new.revision < old.revision);
            effects.other_bytes += u64::from(new == old && before.body != known.body);
        }
    }

    fn advance_to(&mut self, version: String, effects: &mut Effects) -> Result<()> {
        let revision = version.split('-').next().unwrap_or_default();
        let revision = u64::from_str_radix(revision, 36);
        let revision =
            revision.with_context(|| format!("the type version {version:?} is invalid"))?;
        if revision < self.revision {
            effects.backwards += 1;
        }
        (self.version, self.revision) = (version, revision);
        Ok(())
    }
}

fn number(name: &str) -> Result<u32> {
    resource::number(name).with_context(|| format!("{name} is not a name of this test"))
}

/// Returns the next complete gRPC message.
fn next_message(frames: &mut BytesMut) -> Result<Option<Bytes>> {
    let Some(&[flag, a, b, c, d]) = frames.first_chunk::<5>() else { return Ok(None) };
    ensure!(flag == 0, "a message is compressed (flag {flag})");
    let len = usize::try_from(u32::from_be_bytes([a, b, c, d]))?;
    if frames.len() - 5 < len {
        frames.reserve(len + 5 - frames.len());
        return Ok(None);
    }
    frames.advance(5);
    Ok(Some(frames.split_to(len).freeze()))
}
