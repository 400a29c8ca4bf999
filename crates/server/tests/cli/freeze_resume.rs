//! Clients of a frozen scope that return with the versions that they have: how many messages they receive.

use std::collections::BTreeMap;

use chancery_model::types::{CLUSTER, RUNTIME};
use chancery_proto::{
    discovery::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    },
    istio::mcp::v1alpha1 as pb,
    node::Node,
};
use http::uri::PathAndQuery;
use prost::Message;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, transport::Channel};

use crate::{
    cluster::{Replica, eventually, index, joined},
    support::{DEADLINE, clusters, http_post},
};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const MCP: &str = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";
const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";
const GATEWAYS: &str = "istio/networking/v1alpha3/gateways";
const RULES: &str =
    "assignments: [{name: each, priority: 1, match: {id: '*'}, scopes: [edge, base]}]";
/// The runtime layer that tells clients how far the writes are.
const MARKER: &str = "marker";

fn write(replica: &Replica, args: &[&str], input: &str) -> u64 {
    let done = replica.run(&[args, &["-o", "json"]].concat(), input);
    assert_eq!(done.code, 0, "{args:?}: {done:?}");
    serde_json::from_str::<Value>(&done.out).unwrap()["revision"].as_u64().unwrap()
}

fn apply(replica: &Replica, names: &[&str], timeout: &str) -> u64 {
    write(replica, &["apply", "-f", "-", "--scope", "edge"], &clusters(names, timeout))
}

/// Writes a marker to the scope that is not frozen.
fn mark(replica: &Replica, marker: usize) {
    let body = json!({"@type": RUNTIME, "name": MARKER, "layer": {"n": marker_text(marker)}});
    let manifest = json!({"resources": [body]}).to_string();
    write(replica, &["apply", "-f", "-", "--scope", "base"], &manifest);
}

fn marker_text(marker: usize) -> String {
    format!("marker {marker}.")
}

/// The two ends of a stream.
enum Ends {
    Sotw(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>),
    Delta(mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>),
}

/// A response: its type, the text of its resources, and their names and versions.
struct Received {
    type_url: String,
    bodies: String,
    versions: BTreeMap<String, String>,
}

/// A client of all clusters and of the marker, which counts the responses.
struct Client {
    id: String,
    is_delta: bool,
    ends: Option<Ends>,
    /// The accepted versions by type: of SotW, that of the type; of delta, those of the resources.
    versions: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// The number of responses of clusters since the count was last reset.
    n_clusters: usize,
    /// The number of those that had another version or other clusters than the client had.
    n_new: usize,
    /// The number of responses with the marker.
    n_markers: usize,
    /// The clusters of the last response with some.
    clusters: String,
}

async fn open<Q: Message + 'static, R: Message + Default + 'static>(
    replica: &Replica,
    path: &'static str,
    first: Vec<Q>,
) -> (mpsc::Sender<Q>, Streaming<R>) {
    let address = format!("http://{}", replica.xds());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let (requests, stream) = mpsc::channel(4);
    for request in first {
        requests.send(request).await.unwrap();
    }
    let codec = tonic_prost::ProstCodec::default();
    let stream = Request::new(ReceiverStream::new(stream));
    let path = PathAndQuery::from_static(path);
    (requests, client.streaming(stream, path, codec).await.unwrap().into_inner())
}

impl Client {
    fn new(id: &str, is_delta: bool) -> Self {
        Self {
            id: id.to_owned(),
            is_delta,
            ends: None,
            versions: BTreeMap::new(),
            n_clusters: 0,
            n_new: 0,
            n_markers: 0,
            clusters: String::new(),
        }
    }

    /// Opens a stream with the versions that the client has.
    async fn connect(&mut self, replica: &Replica) {
        let node = Node { id: self.id.clone(), user_agent_name: "envoy".into(), ..Node::default() };
        let node = Some(node.encode_to_vec().into());
        let names = |of: &str| if of == RUNTIME { vec![MARKER.to_owned()] } else { Vec::new() };
        let versions = |of: &str| self.versions.get(of).cloned().unwrap_or_default();
        self.ends = Some(if self.is_delta {
            let request = |of: &str| DeltaDiscoveryRequest {
                node: node.clone(),
                type_url: of.to_owned(),
                resource_names_subscribe: names(of),
                initial_resource_versions: versions(of).into_iter().collect(),
                ..Default::default()
            };
            let (requests, responses) =
                open(replica, DELTA, [CLUSTER, RUNTIME].map(request).to_vec()).await;
            Ends::Delta(requests, responses)
        } else {
            let request = |of: &str| DiscoveryRequest {
                node: node.clone(),
                type_url: of.to_owned(),
                resource_names: names(of),
                version_info: versions(of).into_values().next().unwrap_or_default(),
                ..Default::default()
            };
            let (requests, responses) =
                open(replica, SOTW, [CLUSTER, RUNTIME].map(request).to_vec()).await;
            Ends::Sotw(requests, responses)
        });
    }

    /// Reads, counts and accepts a response.
    async fn read(&mut self) -> Received {
        let received = tokio::time::timeout(DEADLINE, async {
            match self.ends.as_mut().unwrap() {
                Ends::Sotw(requests, responses) => {
                    let response = responses.message().await.unwrap().unwrap();
                    let answer = DiscoveryRequest {
                        type_url: response.type_url.clone(),
                        version_info: response.version_info.clone(),
                        response_nonce: response.nonce.clone(),
                        resource_names: (response.type_url == RUNTIME)
                            .then(|| MARKER.to_owned())
                            .into_iter()
                            .collect(),
                        ..Default::default()
                    };
                    requests.send(answer).await.unwrap();
                    let bodies = response.resources.iter().map(|any| text(&any.value)).collect();
                    let versions = [(String::new(), response.version_info)].into();
                    Received { type_url: response.type_url, bodies, versions }
                }
                Ends::Delta(requests, responses) => {
                    let response = responses.message().await.unwrap().unwrap();
                    assert_eq!(response.removed_resources, Vec::<String>::new());
                    let answer = DeltaDiscoveryRequest {
                        type_url: response.type_url.clone(),
                        response_nonce: response.nonce.clone(),
                        ..Default::default()
                    };
                    requests.send(answer).await.unwrap();
                    let resources = response.resources.iter();
                    let bodies = resources.clone().filter_map(|one| one.resource.as_ref());
                    Received {
                        type_url: response.type_url,
                        bodies: bodies.map(|any| text(&any.value)).collect(),
                        versions: resources
                            .map(|one| (one.name.clone(), one.version.clone()))
                            .collect(),
                    }
                }
            }
        });
        let received = received.await.unwrap_or_else(|_| panic!("no response to {}", self.id));
        let is_cluster = received.type_url == CLUSTER;
        let type_url = if is_cluster { CLUSTER } else { RUNTIME };
        let known = self.versions.entry(type_url).or_default();
        let has_version = received.versions.iter().all(|(name, of)| known.get(name) == Some(of));
        known.extend(received.versions.clone());
        if is_cluster {
            let has_all = if self.is_delta {
                received.bodies.is_empty()
            } else {
                received.bodies == self.clusters
            };
            self.n_clusters += 1;
            if !(has_version && has_all) {
                self.n_new += 1;
                self.clusters.clone_from(&received.bodies);
            }
        } else {
            self.n_markers += 1;
        }
        received
    }

    fn reset(&mut self) {
        (self.n_clusters, self.n_new, self.n_markers) = (0, 0, 0);
    }

    /// Reads until the client has a marker. All responses before were sent before it was written.
    async fn read_marker(&mut self, marker: usize) {
        while !self.read().await.bodies.contains(&marker_text(marker)) {}
    }
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

/// Three replicas, and a client of each kind of each replica.
struct Fleet {
    runtime: Runtime,
    replicas: [Replica; 3],
    clients: Vec<Client>,
    marker: usize,
}

impl Fleet {
    fn start(replicas: [Replica; 3]) -> Self {
        write(&replicas[0], &["apply", "-f", "-"], RULES);
        apply(&replicas[0], &["a"], "1s");
        mark(&replicas[0], 0);
        let clients = (0..6).map(|n| Client::new(&format!("node-{n}"), n % 2 == 1)).collect();
        let mut fleet = Self { runtime: Runtime::new().unwrap(), replicas, clients, marker: 0 };
        fleet.connect(0);
        for client in &mut fleet.clients {
            fleet.runtime.block_on(async {
                while client.n_clusters == 0 || client.n_markers == 0 {
                    client.read().await;
                }
            });
        }
        fleet
    }

    /// Connects all clients, each to a replica that is `shift` replicas further.
    fn connect(&mut self, shift: usize) {
        for (n, client) in self.clients.iter_mut().enumerate() {
            client.ends = None;
            client.reset();
            let replica = &self.replicas[(n / 2 + shift) % 3];
            self.runtime.block_on(client.connect(replica));
        }
    }

    /// Changes the frozen scope through each replica. No client receives new clusters. `n_answers` is the number of responses
    /// with clusters that the protocol requires: one on a new stream, with what the client has (SOTW-100, DELTA-58).
    fn changes_reach_nobody(&mut self, n_answers: usize, what: &str) {
        let first = self.marker;
        for _ in 0..3 {
            self.marker += 1;
            for (n, replica) in self.replicas.iter().enumerate() {
                let timeout = format!("{}s", 10 * self.marker + n);
                apply(replica, &["a", "b", "c"], &timeout);
            }
            mark(&self.replicas[self.marker % 3], self.marker);
        }
        let n_written = self.marker - first;
        for client in &mut self.clients {
            self.runtime.block_on(client.read_marker(self.marker));
            assert_eq!(
                (client.n_new, client.n_clusters),
                (0, n_answers),
                "{what}: {} has {}",
                client.id,
                client.clusters
            );
            let n = client.n_markers;
            // A new stream also receives the marker of before.
            assert!(
                (1..=n_written + n_answers).contains(&n),
                "{what}: {} received {n} markers",
                client.id
            );
        }
    }

    /// The clients receive what was held, which shows that they would have received it before.
    fn thaw(&mut self, replica: usize) {
        write(&self.replicas[replica], &["thaw", "edge"], "");
        for client in &mut self.clients {
            self.runtime.block_on(async {
                while client.n_new == 0 {
                    client.read().await;
                }
            });
            assert!(["a", "b", "c"].iter().all(|name| client.clusters.contains(name)));
        }
    }
}

fn wait_for_leader(replicas: &[Replica; 3]) -> usize {
    eventually("there is a leader", || {
        let done = replicas[0].run(&["cluster", "status", "-o", "json"], "");
        let status: Value = serde_json::from_str(&done.out).ok()?;
        (status["voters_up"] == 3 && status["leader"].is_u64()).then(|| index(&status["leader"]))
    })
}

/// SOTW-14, DELTA-58: SotW and delta clients that return with their versions receive nothing new on each replica under write
/// load: after a move, after kills of all replicas, and under a new leader. The only response on a new stream is the answer to
/// its request: with the same version and bytes, or without resources. Clients that stay connected receive no response.
#[test]
fn resumed_clients_of_a_frozen_scope_receive_nothing_new() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(joined(root.path()));
    write(&fleet.replicas[1], &["freeze", "edge"], "");
    fleet.clients.iter_mut().for_each(Client::reset);
    fleet.changes_reach_nobody(0, "connected clients");
    for shift in 1..=3 {
        fleet.connect(shift);
        fleet.changes_reach_nobody(1, "clients that moved");
    }
    for at in 0..3 {
        fleet.replicas[at].kill();
        fleet.replicas[at].start_and_wait(&[]);
    }
    wait_for_leader(&fleet.replicas);
    fleet.connect(1);
    fleet.changes_reach_nobody(1, "clients after a restart");
    let leading = wait_for_leader(&fleet.replicas);
    let next = ((leading + 1) % 3 + 1).to_string();
    let moved = fleet.replicas[leading].run(&["cluster", "transfer-leader", &next], "");
    assert_eq!(moved.code, 0, "{moved:?}");
    fleet.clients.iter_mut().for_each(Client::reset);
    fleet.changes_reach_nobody(0, "clients while the leader changes");
    fleet.connect(2);
    fleet.changes_reach_nobody(1, "clients under a new leader");
    // The leader is killed, so that its clients move.
    let leading = wait_for_leader(&fleet.replicas);
    fleet.replicas[leading].kill();
    fleet.replicas[leading].start_and_wait(&[]);
    wait_for_leader(&fleet.replicas);
    fleet.connect(0);
    fleet.changes_reach_nobody(1, "clients after the loss of the leader");
    fleet.thaw(2);
}

/// A freeze with an end, which comes while there is no leader: the next leader ends the freeze once, and clients receive the
/// held content.
#[test]
fn freeze_ends_once_although_the_leader_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(joined(root.path()));
    let leading = wait_for_leader(&fleet.replicas);
    let other = (leading + 1) % 3;
    let frozen = write(&fleet.replicas[other], &["freeze", "edge", "--for", "5s"], "");
    apply(&fleet.replicas[other], &["a", "b", "c"], "9s");
    let freezes = fleet.replicas[other].json(&["freezes"]);
    assert_eq!(freezes["freezes"].as_array().map(Vec::len), Some(1), "{freezes}");
    fleet.replicas[leading].kill();
    let has_ended = |replica: &Replica| {
        let done = replica.run(&["freezes", "-o", "json"], "");
        // A replica without a leader does not answer.
        let freezes: Option<Value> =
            serde_json::from_str(&done.out).ok().filter(|_| done.code == 0);
        freezes.filter(|freezes| freezes["freezes"].as_array().is_none_or(Vec::is_empty)).map(drop)
    };
    eventually("the freeze ends", || has_ended(&fleet.replicas[other]));
    fleet.replicas[leading].start_and_wait(&[]);
    wait_for_leader(&fleet.replicas);
    for replica in &fleet.replicas {
        eventually("the freeze has ended everywhere", || has_ended(replica));
        let history = replica.json(&["history"]);
        let entries = history["entries"].as_array().unwrap().iter();
        let thaws: Vec<&Value> = entries
            .filter(|entry| entry["revision"].as_u64() > Some(frozen))
            .map(|entry| &entry["reason"])
            .filter(|reason| **reason != "")
            .collect();
        assert_eq!(thaws, ["thaw of scope \"edge\": its time has ended"], "{history}");
    }
    fleet.connect(0);
    for client in &mut fleet.clients {
        fleet.runtime.block_on(async {
            while client.n_new == 0 {
                client.read().await;
            }
        });
        assert!(client.clusters.contains("b"), "{}", client.clusters);
    }
}

/// Polls the clusters of a node. Returns the version and the names, or `None` if nothing is new.
fn poll(replica: &Replica, version: &str) -> Option<(String, Vec<String>)> {
    let request = json!({"node": {"id": "poller"}, "version_info": version}).to_string();
    let (status, body) = http_post(&replica.xds(), "/v3/discovery:clusters", &request);
    if status == 304 {
        return None;
    }
    assert_eq!(status, 200, "{body}");
    let response: Value = serde_json::from_str(&body).unwrap();
    let resources = response["resources"].as_array().unwrap().iter();
    let shown = resources.map(|one| format!("{} {}", one["name"], one["connect_timeout"]));
    Some((response["version_info"].as_str().unwrap().to_owned(), shown.collect()))
}

/// REST polls of a frozen scope get the held content on each replica, and nothing new if they have it.
#[test]
fn polls_of_a_frozen_scope_get_the_held_content() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    write(&replicas[0], &["apply", "-f", "-"], RULES);
    apply(&replicas[0], &["a"], "1s");
    let held = poll(&replicas[0], "").unwrap();
    assert_eq!(held.1, ["\"a\" \"1s\""]);
    write(&replicas[0], &["freeze", "edge"], "");
    for round in 2..5 {
        for (n, replica) in replicas.iter().enumerate() {
            let timeout = format!("{}s", 10 * round + n);
            apply(replica, &["a", "b"], &timeout);
            assert_eq!(poll(replica, &held.0), None, "replica {}", n + 1);
            assert_eq!(poll(replica, "").as_ref(), Some(&held), "replica {}", n + 1);
        }
        if round == 3 {
            for replica in &mut replicas {
                replica.kill();
                replica.start_and_wait(&[]);
            }
            wait_for_leader(&replicas);
        }
    }
    write(&replicas[2], &["thaw", "edge"], "");
    for replica in &replicas {
        let (version, resources) =
            eventually("the held content arrives", || poll(replica, &held.0));
        assert_ne!(version, held.0);
        assert_eq!(resources, ["\"a\" \"42s\"", "\"b\" \"42s\""]);
    }
}

fn entry(collection: &str, name: &str, seconds: usize) -> Value {
    json!({"@type": collection, "metadata": {"name": name}, "body": {
        "@type": "type.googleapis.com/google.protobuf.Duration", "value": format!("{seconds}s")}})
}

/// Opens the stream of a sink for the services, with the versions that it has, and for the marker.
async fn open_sink(
    replica: &Replica,
    versions: &BTreeMap<String, String>,
) -> (mpsc::Sender<pb::RequestResources>, Streaming<pb::Resources>) {
    let first = |collection: &str, versions: BTreeMap<String, String>| pb::RequestResources {
        sink_node: Some(pb::SinkNode { id: "sink".to_owned(), ..Default::default() }),
        collection: collection.to_owned(),
        initial_resource_versions: versions.into_iter().collect(),
        incremental: true,
        ..Default::default()
    };
    let requests = vec![first(SERVICES, versions.clone()), first(GATEWAYS, BTreeMap::new())];
    open(replica, MCP, requests).await
}

type Sink = (mpsc::Sender<pb::RequestResources>, Streaming<pb::Resources>);

/// Reads and accepts messages until one has this resource with a content. Returns the messages with services before.
async fn read_until(
    (requests, messages): &mut Sink,
    name: &str,
    content: &[u8],
) -> Vec<pb::Resources> {
    let mut services = Vec::new();
    loop {
        let message = tokio::time::timeout(DEADLINE, messages.message()).await;
        let message = message.expect("a message arrives").unwrap().unwrap();
        let answer = pb::RequestResources {
            collection: message.collection.clone(),
            response_nonce: message.nonce.clone(),
            ..Default::default()
        };
        requests.send(answer).await.unwrap();
        let has = message.resources.iter().any(|one| {
            let body = one.body.as_ref().map(|body| &body.value[..]);
            one.metadata.as_ref().unwrap().name == name && body == Some(content)
        });
        if message.collection == SERVICES {
            services.push(message);
        }
        if has {
            return services;
        }
    }
}

fn encoded(seconds: usize) -> Vec<u8> {
    prost_types::Duration { seconds: i64::try_from(seconds).unwrap(), nanos: 0 }.encode_to_vec()
}

/// MCP sinks of a frozen scope receive the held content on each replica, and nothing if they return with its versions.
#[test]
fn sinks_of_a_frozen_scope_receive_the_held_content() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let publish = |replica: &Replica, scope: &str, resources: &[Value]| {
        let manifest = json!({"resources": resources}).to_string();
        write(replica, &["apply", "-f", "-", "--scope", scope], &manifest)
    };
    let marker = |seconds: usize| [entry(GATEWAYS, MARKER, seconds)];
    write(&replicas[0], &["apply", "-f", "-"], RULES);
    publish(&replicas[0], "edge", &[entry(SERVICES, "a", 1)]);
    publish(&replicas[0], "base", &marker(1));
    let runtime = Runtime::new().unwrap();
    let none = BTreeMap::new();
    let mut sinks: Vec<Sink> =
        replicas.iter().map(|replica| runtime.block_on(open_sink(replica, &none))).collect();
    let mut versions = BTreeMap::new();
    for sink in &mut sinks {
        let received = runtime.block_on(read_until(sink, "a", &encoded(1)));
        let metadata = received.last().unwrap().resources[0].metadata.clone().unwrap();
        versions.insert(metadata.name, metadata.version);
    }
    write(&replicas[1], &["freeze", "edge"], "");
    for round in 2..5 {
        for (n, replica) in replicas.iter().enumerate() {
            let seconds = 10 * round + n;
            let changed = [entry(SERVICES, "a", seconds), entry(SERVICES, "b", seconds)];
            publish(replica, "edge", &changed);
        }
        publish(&replicas[0], "base", &marker(round));
        for (n, sink) in sinks.iter_mut().enumerate() {
            let received = runtime.block_on(read_until(sink, MARKER, &encoded(round)));
            // The answer to the request of a new stream has no resources.
            let n_answers = usize::from(round > 2);
            let is_empty = |one: &pb::Resources| {
                one.resources.is_empty() && one.removed_resources.is_empty() && one.incremental
            };
            let what = format!("round {round}, replica {}: {received:?}", n + 1);
            assert!(received.len() == n_answers && received.iter().all(is_empty), "{what}");
        }
        // A new sink receives what was held.
        for replica in &replicas {
            let mut new = runtime.block_on(open_sink(replica, &none));
            let received = runtime.block_on(read_until(&mut new, "a", &encoded(1)));
            assert_eq!(received.last().unwrap().resources.len(), 1);
        }
        if round == 3 {
            for replica in &mut replicas {
                replica.kill();
                replica.start_and_wait(&[]);
            }
            wait_for_leader(&replicas);
        }
        sinks = (0..3)
            .map(|n| runtime.block_on(open_sink(&replicas[(n + 1) % 3], &versions)))
            .collect();
    }
    write(&replicas[2], &["thaw", "edge"], "");
    for sink in &mut sinks {
        runtime.block_on(read_until(sink, "b", &encoded(42)));
    }
}
