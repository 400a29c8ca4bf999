//! Two identities with one node ID at the discovery services of three replicas, with restarts.
//!
//! The random cases for all services run without a network, in the shard's tests (`shard/tests/identities.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use chancery_model::types::CLUSTER;
use chancery_proto::{
    discovery::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    },
    lrs::{ClusterStats, LoadStatsRequest, LoadStatsResponse},
};
use http::uri::PathAndQuery;
use prost::Message;
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use crate::{
    cluster::{Replica, eventually},
    support::{DEADLINE, Done, chancery, http_post_as, run},
};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

const SOTW_CLUSTERS: &str = "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters";
const DELTA_CLUSTERS: &str = "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters";
const LOAD: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// Three replicas with access rules, and the tokens of the clients.
struct Cluster {
    replicas: [Replica; 3],
    sockets: [String; 3],
    tokens: [String; 2],
}

impl Cluster {
    fn start(root: &Path) -> Self {
        let sockets = [1, 2, 3].map(|id| root.join(format!("{id}.sock")).display().to_string());
        let mut replicas = [1, 2, 3].map(|id| Replica::new(root, id));
        for (replica, socket) in replicas.iter_mut().zip(&sockets) {
            replica.environment = vec![
                ("CHANCERY_ADMIN_SOCKET", socket.clone()),
                ("CHANCERY_ACCESS_ADMINS", "unix:0".to_owned()),
            ];
        }
        let first = replicas[0].raft.clone();
        replicas[0].start_and_wait(&[]);
        for replica in &mut replicas[1..] {
            replica.start(&["--join", &first]);
        }
        replicas[1..].iter_mut().for_each(Replica::wait_ready);
        let mut cluster = Self { replicas, sockets, tokens: Default::default() };
        cluster.tokens = ["a", "b"].map(|name| {
            let file = root.join(name).display().to_string();
            cluster.done(0, &["token", "create", name, "--out", &file], "");
            fs::read_to_string(&file).unwrap().trim().to_owned()
        });
        cluster
    }

    fn run(&self, at: usize, args: &[&str], input: &str) -> Done {
        let mut command = chancery();
        command.args(args).env("CHANCERY_SERVER", format!("unix:{}", self.sockets[at]));
        run(command, input)
    }

    fn done(&self, at: usize, args: &[&str], input: &str) -> String {
        // A write may meet a replica that has just started and does not know the leader.
        eventually(&format!("{args:?} succeeds"), || {
            let done = self.run(at, args, input);
            (done.code == 0).then_some(done.out)
        })
    }

    fn apply(&self, at: usize, manifest: &Value) {
        self.done(at, &["apply", "-f", "-", "--confirm", "all"], &manifest.to_string());
    }

    /// Writes the rules and the assignment: which scopes `token:a` may read, and which scopes every node has.
    fn place(&self, at: usize, of_a: &[&str], assigned: &[&str]) {
        self.apply(
            at,
            &json!({
                "access": [
                    {"name": "a", "identity": "token:a", "read": of_a},
                    {"name": "b", "identities": ["token:b", "anonymous"], "read": ["public"]},
                ],
                "assignments": [{"name": "all", "scopes": assigned}],
            }),
        );
    }

    fn put(&self, at: usize, scope: &str, name: &str) {
        let cluster = json!({"@type": CLUSTER, "name": name, "alt_stat_name": "hush", "connect_timeout": "1s"});
        let manifest = json!({"scope": scope, "resources": [cluster]});
        self.apply(at, &manifest);
    }

    /// Waits until a replica has no stream.
    fn wait_idle(&self, at: usize) {
        eventually("the streams have ended", || {
            let nodes = self.done(at, &["nodes", "--local", "-o", "json"], "");
            let nodes: serde_json::Value = serde_json::from_str(&nodes).unwrap();
            nodes["nodes"].as_array().unwrap().is_empty().then_some(())
        });
    }
}

fn node() -> Option<Bytes> {
    let node = chancery_proto::node::Node { id: "one".into(), ..Default::default() };
    Some(node.encode_to_vec().into())
}

/// The ends of a stream.
struct Stream<Q, R> {
    requests: tokio::sync::mpsc::Sender<Q>,
    responses: Streaming<R>,
}

/// Opens a stream with its first request. `None` if it is refused.
async fn open<Q: Message + 'static, R: Message + Default + 'static>(
    address: &str,
    path: &'static str,
    token: Option<&str>,
    first: Q,
) -> Option<Stream<Q, R>> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut grpc = tonic::client::Grpc::new(channel.connect().await.unwrap());
    grpc.ready().await.unwrap();
    let (requests, receiver) = tokio::sync::mpsc::channel(4);
    requests.send(first).await.unwrap();
    let mut request = tonic::Request::new(ReceiverStream::new(receiver));
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let codec = tonic_prost::ProstCodec::<Q, R>::default();
    let opened = grpc.streaming(request, PathAndQuery::from_static(path), codec).await.ok()?;
    Some(Stream { requests, responses: opened.into_inner() })
}

async fn next<Q, R>(stream: &mut Stream<Q, R>) -> Option<R> {
    let next = tokio::time::timeout(DEADLINE, stream.responses.message()).await;
    next.expect("a response or the end in time").ok().flatten()
}

/// Subscribes to all clusters over SotW as a client that has a version. Returns the version and the text of the first
/// response.
async fn sotw(
    address: &str,
    path: &'static str,
    token: Option<&str>,
    version: &str,
) -> Option<(Stream<DiscoveryRequest, DiscoveryResponse>, String, String)> {
    let first = DiscoveryRequest {
        node: node(),
        type_url: CLUSTER.to_owned(),
        version_info: version.to_owned(),
        ..DiscoveryRequest::default()
    };
    let mut stream = open(address, path, token, first).await?;
    let response: DiscoveryResponse = next(&mut stream).await?;
    let answer = DiscoveryRequest {
        type_url: CLUSTER.to_owned(),
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        ..DiscoveryRequest::default()
    };
    stream.requests.send(answer).await.unwrap();
    let text = String::from_utf8_lossy(&response.encode_to_vec()).into_owned();
    Some((stream, response.version_info, text))
}

/// Repeats [`sotw`] until the replica serves the client. After a restart, it may not know the leader yet.
async fn served(
    address: &str,
    token: Option<&str>,
    version: &str,
) -> (Stream<DiscoveryRequest, DiscoveryResponse>, String, String) {
    let start = std::time::Instant::now();
    loop {
        if let Some(served) = sotw(address, SOTW, token, version).await {
            return served;
        }
        assert!(start.elapsed() < DEADLINE, "the replica serves no stream");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Subscribes to all clusters over delta as a client that has one of them. Returns the text of the first response.
async fn delta(
    address: &str,
    path: &'static str,
    token: Option<&str>,
    version: &str,
    held: &str,
) -> Option<String> {
    let first = DeltaDiscoveryRequest {
        node: node(),
        type_url: CLUSTER.to_owned(),
        initial_resource_versions: [(held.to_owned(), version.to_owned())].into(),
        ..DeltaDiscoveryRequest::default()
    };
    let mut stream = open(address, path, token, first).await?;
    let mut response: DeltaDiscoveryResponse = next(&mut stream).await?;
    // The names that it claims to have are its own text.
    response.removed_resources.clear();
    Some(String::from_utf8_lossy(&response.encode_to_vec()).into_owned())
}

/// The versions and names that an attacker may have guessed or seen.
struct Guesses {
    versions: Vec<String>,
    names: Vec<String>,
}

/// The services that an attacker asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Service {
    Ads,
    DeltaAds,
    Clusters,
    DeltaClusters,
    Rest,
    Load,
}

const SERVICES: [Service; 6] = [
    Service::Ads,
    Service::DeltaAds,
    Service::Clusters,
    Service::DeltaClusters,
    Service::Rest,
    Service::Load,
];

impl Service {
    /// Asks once, as a client that may read only `public`. Returns everything that it receives. `None` if it is refused.
    async fn ask(
        self,
        address: &str,
        token: Option<&str>,
        guesses: &Guesses,
        random: &mut fastrand::Rng,
    ) -> Option<String> {
        let version = random.choice(&guesses.versions).map_or("", String::as_str);
        let held = random.choice(&guesses.names).map_or("", String::as_str);
        match self {
            Self::Ads => sotw(address, SOTW, token, version).await.map(|(.., text)| text),
            Self::Clusters => {
                sotw(address, SOTW_CLUSTERS, token, version).await.map(|(.., text)| text)
            }
            Self::DeltaAds => delta(address, DELTA, token, version, held).await,
            Self::DeltaClusters => delta(address, DELTA_CLUSTERS, token, version, held).await,
            Self::Rest => {
                let poll = json!({"node": {"id": "one"}, "version_info": version}).to_string();
                let (status, text) = http_post_as(address, "/v3/discovery:clusters", token, &poll);
                [200, 304].contains(&status).then_some(text)
            }
            Self::Load => {
                let cluster_name = held.to_owned();
                let stats = ClusterStats { cluster_name, ..ClusterStats::default() };
                let first = LoadStatsRequest { node: node(), cluster_stats: vec![stats] };
                let mut stream = open(address, LOAD, token, first).await?;
                let response: LoadStatsResponse = next(&mut stream).await?;
                Some(response.clusters.join(" "))
            }
        }
    }
}

/// T3: 0 bytes of another identity's resources, whatever the replica, the service, the version that the attacker
/// guesses, and the restarts. The client itself gets its removed cluster again (ADS-08), if its replica has not
/// restarted and it may still read the scope. With `CHANCERY_TEST_LONG`, the attackers ask 10,000 times.
#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_send_no_client_what_belongs_to_another_identity() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(root.path());
    cluster.put(0, "public", "web");
    let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
    let (n_cases, n_attacks) = if is_long { (50, 200) } else { (18, 20) };
    let mut random = fastrand::Rng::with_seed(32);
    let mut guesses = Guesses { versions: vec![String::new()], names: Vec::new() };
    let (mut seen, mut answers) = (BTreeSet::new(), BTreeMap::<_, u32>::new());
    for case in 0..n_cases {
        let (home, writer) = (random.usize(..3), random.usize(..3));
        let (restarts, narrows) = (case % 6 == 5, random.bool());
        let name = format!("private-{case}");
        cluster.place(writer, &["private", "public"], &["private", "public"]);
        cluster.put(writer, "private", &name);
        let [a, b] = [0, 1].map(|at| Some(cluster.tokens[at].clone()));
        let address = cluster.replicas[home].xds();
        let (stream, version, text) = served(&address, a.as_deref(), "").await;
        assert!(text.contains(&name), "{text}");
        drop(stream);
        guesses.versions.push(version.clone());
        guesses.names.push(name.clone());
        cluster.wait_idle(home);
        let delete = ["delete", "cluster", &name, "--scope", "private", "--confirm", "all"];
        cluster.done(writer, &delete, "");
        let of_a: &[&str] = if narrows { &["public"] } else { &["private", "public"] };
        cluster.place(writer, of_a, &["public"]);
        if restarts {
            cluster.replicas[home].terminate();
            cluster.replicas[home].start_and_wait(&[]);
        }
        let address = cluster.replicas[home].xds();
        let (_stream, _, text) = served(&address, b.as_deref(), &version).await;
        assert!(!text.contains("private-"), "case {case} at {home}: {text}");
        for _ in 0..n_attacks {
            let at = if random.bool() { home } else { random.usize(..3) };
            let token = if random.bool() { b.as_deref() } else { None };
            let (service, address) =
                (SERVICES[random.usize(..SERVICES.len())], cluster.replicas[at].xds());
            let Some(text) = service.ask(&address, token, &guesses, &mut random).await else {
                continue;
            };
            assert!(!text.contains("private-"), "case {case}, {service:?} at {at}: {text}");
            *answers.entry(service).or_default() += 1;
        }
        let (_stream, _, text) = served(&address, a.as_deref(), &version).await;
        let keeps = !restarts && !narrows;
        assert_eq!(text.contains(&name), keeps, "case {case}, {restarts} {narrows}: {text}");
        seen.insert((restarts, narrows));
    }
    println!("{answers:?}");
    assert!(seen.len() > 2, "{seen:?}");
    // A service that refuses everyone would prove nothing.
    assert!(answers.values().sum::<u32>() * 10 > n_cases * n_attacks * 9, "{answers:?}");
    assert_eq!(answers.len(), SERVICES.len(), "{answers:?}");
}
