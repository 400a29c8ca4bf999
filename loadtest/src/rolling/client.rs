//! A client that goes to another replica when its stream ends, with what it holds, as real clients do.
//!
//! It compares all that it is given with what it was given before. A delta client asks for all clusters,
//! and tells the next replica the version of each (`initial_resource_versions`); a SotW client asks for
//! all clusters and some endpoints by name, and tells the version of each type (`version_info`).

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

use super::board::{Board, Protocol};
use crate::{
    random::Random,
    resource,
    stream::{self, Ended, Requests, Responses, Windows},
};

const CONNECT: Duration = Duration::from_secs(10);
/// Before it goes to the next replica a client waits up to this time, so that not all do at once.
const JITTER: Duration = Duration::from_millis(200);

/// A resource that a client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// In delta only.
    pub(crate) version: Option<Version>,
    /// A hash of the bytes.
    pub(crate) body: u64,
}

/// What a client asks for, of one type, and what it has.
#[derive(Debug)]
struct Subscription {
    type_url: &'static str,
    names: Vec<String>,
    version: String,
    /// Of the version.
    revision: u64,
    held: HashMap<u32, Held>,
    /// Responses on this stream.
    responses: u64,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    id: String,
    protocol: Protocol,
    board: Arc<Board>,
    random: Random,
    /// The replica that it is at, or goes to.
    at: usize,
    streams: u64,
    subscriptions: Vec<Subscription>,
    /// The revision that all of its types have come to.
    seen: Arc<AtomicU64>,
}

/// What can be acknowledged.
enum Response {
    Delta(DeltaDiscoveryResponse),
    Sotw(DiscoveryResponse),
}

impl Client {
    /// A client that begins at one of the replicas. `seen` is where it tells how far it is.
    pub(crate) fn new(
        n: usize,
        protocol: Protocol,
        endpoints: usize,
        board: &Arc<Board>,
        seen: &Arc<AtomicU64>,
    ) -> Self {
        let subscription = |type_url, names| Subscription {
            type_url,
            names,
            version: String::new(),
            revision: 0,
            held: HashMap::new(),
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
            board: Arc::clone(board),
            random: Random::new(crate::stats::count(n)),
            at: n % board.replicas(),
            streams: 0,
            subscriptions,
            seen: Arc::clone(seen),
        }
    }

    /// Listens until all is over. Gives what it has then, by type.
    pub(crate) async fn run(mut self) -> Vec<(&'static str, HashMap<u32, Held>)> {
        let board = Arc::clone(&self.board);
        let over = board.over();
        tokio::pin!(over);
        loop {
            let ended = tokio::select! {
                () = &mut over => break,
                ended = self.stream() => ended,
            };
            if let Err(error) = ended {
                let is_unavailable =
                    error.downcast_ref::<Ended>().is_some_and(|ended| ended.is_unavailable);
                board.ended(self.protocol, self.at, is_unavailable, &error);
            }
            sleep(self.random.time(JITTER)).await;
            self.at = board.next(self.at, &mut self.random);
        }
        let subscriptions = self.subscriptions.into_iter();
        subscriptions.map(|subscription| (subscription.type_url, subscription.held)).collect()
    }

    /// One stream, to its end. Not to be able to connect is no stream, and fine.
    async fn stream(&mut self) -> Result<()> {
        let xds = self.board.xds(self.at);
        let connected = timeout(CONNECT, stream::connect(xds, Windows::ENVOY)).await;
        let Ok(Ok((sender, connection))) = connected else { return Ok(()) };
        let board = Arc::clone(&self.board);
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
            board.opened(self.protocol, self.streams > 0);
            self.streams += 1;
            self.listen(requests, responses).await
        };
        tokio::pin!(connection);
        tokio::pin!(listen);
        tokio::select! {
            biased;
            ended = &mut listen => ended,
            // What has come before the connection ended counts.
            broken = &mut connection => match timeout(CONNECT, listen).await {
                Ok(ended) => ended,
                Err(_) => bail!("the connection ended: {broken:?}"),
            },
        }
    }

    fn first_delta(&self) -> Vec<DeltaDiscoveryRequest> {
        let first = |subscription: &Subscription| {
            let versions = subscription.held.iter().filter_map(|(n, held)| {
                let name = resource::name(usize::try_from(*n).ok()?);
                Some((name, held.version?.to_string()))
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

    /// Keeps what a response brings, says what was wrong with it, and acknowledges it.
    fn take(&mut self, response: Response, requests: &mut Requests) -> Result<()> {
        let is_resumed = self.streams > 1;
        let type_url = match &response {
            Response::Delta(response) => &response.type_url,
            Response::Sotw(response) => &response.type_url,
        };
        let subscription = self.subscriptions.iter_mut().find(|it| it.type_url == type_url);
        let subscription =
            subscription.with_context(|| format!("a response of type {type_url}"))?;
        let is_first = std::mem::replace(&mut subscription.responses, 1) == 0;
        let mut taken = Taken::default();
        match response {
            Response::Delta(response) => {
                subscription.take_delta(&response, &mut taken)?;
                subscription.comes_to(response.system_version_info, &mut taken)?;
                requests.send(&DeltaDiscoveryRequest {
                    type_url: response.type_url,
                    response_nonce: response.nonce,
                    ..DeltaDiscoveryRequest::default()
                })?;
            }
            Response::Sotw(response) => {
                subscription.take_sotw(&response, &mut taken)?;
                subscription.comes_to(response.version_info, &mut taken)?;
                requests.send(&DiscoveryRequest {
                    type_url: response.type_url,
                    version_info: subscription.version.clone(),
                    response_nonce: response.nonce,
                    resource_names: subscription.names.clone(),
                    ..DiscoveryRequest::default()
                })?;
            }
        }
        // Later SotW responses bring all clusters again whatever has changed: that is the protocol.
        let counts = is_resumed && (is_first || self.protocol == Protocol::Delta);
        if !counts {
            taken.again = 0;
        }
        self.board.took(self.protocol, subscription.type_url, &taken);
        let seen = self.subscriptions.iter().map(|subscription| subscription.revision).min();
        self.seen.store(seen.unwrap_or(0), Ordering::Relaxed);
        self.board.progress();
        Ok(())
    }
}

/// What one response came to.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) resources: u64,
    /// Resources that the client had as they are.
    pub(crate) again: u64,
    /// Versions older than what the client had.
    pub(crate) backwards: u64,
    /// Resources with other bytes than the client had under the same version.
    pub(crate) other_bytes: u64,
}

impl Subscription {
    fn take_delta(&mut self, response: &DeltaDiscoveryResponse, taken: &mut Taken) -> Result<()> {
        for resource in &response.resources {
            let n = number(&resource.name)?;
            let version = Version::parse(&resource.version);
            let version = version
                .with_context(|| format!("{} has version {:?}", resource.name, resource.version))?;
            let body = resource.resource.as_ref().context("a resource without a body")?;
            let held = Held { version: Some(version), body: xxh3_64(&body.value) };
            self.keep(n, held, taken);
        }
        for name in &response.removed_resources {
            self.held.remove(&number(name)?);
        }
        Ok(())
    }

    fn take_sotw(&mut self, response: &DiscoveryResponse, taken: &mut Taken) -> Result<()> {
        let mut given = Vec::with_capacity(response.resources.len());
        for resource in &response.resources {
            let n = number(&resource::name_of(&resource.value)?)?;
            self.keep(n, Held { version: None, body: xxh3_64(&resource.value) }, taken);
            given.push(n);
        }
        // All that is not there is gone. Endpoints may be sent alone.
        if self.names.is_empty() {
            given.sort_unstable();
            self.held.retain(|n, _| given.binary_search(n).is_ok());
        }
        Ok(())
    }

    fn keep(&mut self, n: u32, held: Held, taken: &mut Taken) {
        taken.resources += 1;
        let Some(before) = self.held.insert(n, held) else { return };
        if before == held {
            taken.again += 1;
        }
        if let (Some(old), Some(new)) = (before.version, held.version) {
            taken.backwards += u64::from(new.revision < old.revision);
            taken.other_bytes += u64::from(new == old && before.body != held.body);
        }
    }

    fn comes_to(&mut self, version: String, taken: &mut Taken) -> Result<()> {
        let revision = version.split('-').next().unwrap_or_default();
        let revision = u64::from_str_radix(revision, 36);
        let revision = revision.with_context(|| format!("the type version is {version:?}"))?;
        if revision < self.revision {
            taken.backwards += 1;
        }
        (self.version, self.revision) = (version, revision);
        Ok(())
    }
}

fn number(name: &str) -> Result<u32> {
    resource::number(name).with_context(|| format!("{name} is no name of ours"))
}

/// The next whole gRPC message of what has come.
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
