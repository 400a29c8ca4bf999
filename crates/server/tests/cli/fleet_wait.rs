//! Waits and states over three replicas: what one client did on one replica is known at all.

use std::{
    thread,
    time::{Duration, Instant},
};

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_proto::{
    discovery::{DiscoveryRequest, DiscoveryResponse, Status},
    node::Node,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, transport::Channel};

use crate::{
    cluster::{Replica, eventually, joined},
    support::{DEADLINE, Done, clusters},
};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// A SotW stream that answers when the test says so.
pub(crate) struct Client {
    pub(crate) requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Client {
    /// Opens a stream that subscribes to all clusters.
    async fn open(replica: &Replica, id: &str) -> Self {
        Self::resume(replica, id, "").await
    }

    /// Opens a stream that subscribes to all clusters, of a client that has a version of them.
    pub(crate) async fn resume(replica: &Replica, id: &str, version: &str) -> Self {
        let address = format!("http://{}", replica.xds());
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let (requests, stream) = mpsc::channel(4);
        let node = Node { id: id.into(), user_agent_name: "envoy".into(), ..Node::default() };
        let request = DiscoveryRequest {
            node: Some(node.encode_to_vec().into()),
            type_url: CLUSTER.to_owned(),
            version_info: version.to_owned(),
            ..DiscoveryRequest::default()
        };
        requests.send(request).await.unwrap();
        let codec = tonic_prost::ProstCodec::default();
        let path = http::uri::PathAndQuery::from_static(SOTW);
        let stream = Request::new(ReceiverStream::new(stream));
        let responses = client.streaming(stream, path, codec).await.unwrap().into_inner();
        Self { requests, responses }
    }

    pub(crate) async fn read(&mut self) -> DiscoveryResponse {
        let response = tokio::time::timeout(DEADLINE, self.responses.message()).await;
        response.expect("a response arrives").unwrap().unwrap()
    }

    /// Accepts a response.
    pub(crate) async fn accept(&mut self, response: &DiscoveryResponse) {
        let answer = DiscoveryRequest {
            type_url: CLUSTER.to_owned(),
            response_nonce: response.nonce.clone(),
            version_info: response.version_info.clone(),
            ..DiscoveryRequest::default()
        };
        self.requests.send(answer).await.unwrap();
    }

    /// Reads a response, and accepts it, or rejects it with a message. `accepted` is the version before.
    async fn answer(&mut self, verdict: Result<(), (&str, &str)>) -> String {
        let response = self.read().await;
        let (version_info, error_detail) = match verdict {
            Ok(()) => (response.version_info.clone(), None),
            Err((message, before)) => {
                let message = message.to_owned();
                (before.to_owned(), Some(Status { code: 3, message, ..Default::default() }))
            }
        };
        let answer = DiscoveryRequest {
            type_url: CLUSTER.to_owned(),
            response_nonce: response.nonce,
            version_info: version_info.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        self.requests.send(answer).await.unwrap();
        version_info
    }
}

/// Applies a cluster through a replica while `during` runs.
fn apply(replica: &Replica, name: &str, wait: &str, during: impl FnOnce()) -> Done {
    let args = ["apply", "-f", "-", wait];
    thread::scope(|scope| {
        let applying = scope.spawn(|| replica.run(&args, &clusters(&[name], "1s")));
        during();
        applying.join().unwrap()
    })
}

fn ids(list: &Value) -> Vec<&str> {
    list["nodes"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap()).collect()
}

/// `apply --wait` ended with code 4 on every cluster, and `nodes --state nacked` said "no nodes" on two of three replicas.
#[test]
fn every_replica_knows_which_client_has_not_acknowledged() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    replicas[0].apply("web");
    let runtime = Runtime::new().unwrap();
    let mut clients: Vec<Client> = Vec::new();
    let mut version = String::new();
    for (replica, id) in replicas.iter().zip(["a", "b", "c"]) {
        // After this linearizable read, the replica has the writes of the other replicas.
        replica.json(&["get"]);
        let mut client = runtime.block_on(Client::open(replica, id));
        version = runtime.block_on(client.answer(Ok(())));
        clients.push(client);
    }

    let done = apply(&replicas[2], "second", "--wait=20s", || {
        for client in &mut clients {
            runtime.block_on(client.answer(Ok(())));
        }
    });
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.contains("3 of 3 sessions on 3 replicas acknowledged after "), "{done:?}");

    let done = apply(&replicas[2], "third", "--wait=20s", || {
        for (at, client) in clients.iter_mut().enumerate() {
            let verdict = if at == 1 { Err(("bad port", version.as_str())) } else { Ok(()) };
            runtime.block_on(client.answer(verdict));
        }
    });
    assert_eq!(done.code, 1, "{done:?}");
    assert!(
        done.err.contains("node \"b\" on replica 2 has rejected cluster: bad port"),
        "{done:?}"
    );
    for replica in &replicas {
        for state in ["rejected", "nacked"] {
            let list = replica.json(&["nodes", "--state", state]);
            assert_eq!(ids(&list), ["b"], "{list}");
            assert_eq!(list["nodes"][0]["state"], "nacked");
            let condition = &list["nodes"][0]["condition"];
            assert_eq!(
                (&condition["state"], &condition["message"]),
                (&json!("rejected"), &json!("bad port"))
            );
            assert!(condition["since_ms"].as_u64() > Some(0), "{condition}");
        }
        let text = replica.run(&["nodes"], "");
        assert!(
            text.out.contains("b: rejected for ") && text.out.contains(": bad port\n"),
            "{text:?}"
        );
    }
    for replica in &replicas {
        check_explained(replica);
        let done = replica.run(&["doctor"], "");
        assert!(done.code == 1 && done.out.contains("1 node rejected (b)"), "{done:?}");
    }
    check_rejection_ends_no_wait(&replicas, &runtime);
    check_pending(&replicas, &runtime, &mut clients);
    check_duplicate(&replicas, &runtime);
    check_missing_name(&replicas, &runtime, &mut clients);
    replicas[2].kill();
    let done = replicas[0].run(&["apply", "-f", "-", "--wait=10s"], &clusters(&["web"], "9s"));
    // The other clients do not answer either.
    assert!(done.code == 1 && done.err.contains("replica 3 cannot be reached"), "{done:?}");
    for args in [&["nodes"][..], &["node", "e"], &["get", "--node", "e"]] {
        let done = replicas[0].run(args, "");
        assert!(done.code == 4 && done.err.contains("replica 3 cannot be reached"), "{done:?}");
    }
    let lost = replicas[0].run(&["node", "e", "-o", "json"], "");
    let error: Value = serde_json::from_str(&lost.out).unwrap();
    assert_eq!(error["error"]["code"], "NOT_FOUND", "{error}");
    assert_eq!(error["error"]["not_asked"][0]["replica_id"], 3, "{error}");
}

/// The client `b` has rejected a full state with a new cluster. It has accepted the other clusters before.
fn check_explained(replica: &Replica) {
    let explain = |node: &str, name: &str| {
        replica.json(&["explain", node, "cluster", name])["conclusions"].clone()
    };
    let rejected = explain("b", "third");
    let first = rejected[0].as_str().unwrap();
    assert!(
        first.starts_with("The client rejects third ") && first.ends_with(": bad port"),
        "{rejected}"
    );
    let unchanged = explain("b", "second");
    let text = unchanged.to_string();
    assert!(text.contains("second has not changed since version "), "{unchanged}");
    assert!(!text.contains("The client rejects second"), "{unchanged}");
    let accepted = explain("a", "third");
    assert!(accepted.to_string().contains("The client has acknowledged third"), "{accepted}");
}

/// While one of three sessions rejects, a wait for three of them goes on, because others may come.
fn check_rejection_ends_no_wait(replicas: &[Replica; 3], runtime: &Runtime) {
    let revision = replicas[0].json(&["cluster", "status"])["revision"].to_string();
    let (wait, time) = (["wait", &revision, "--for", "3", "--timeout"], Duration::from_millis(500));
    let start = Instant::now();
    let early = replicas[0].run(&[&wait[..], &["500ms"]].concat(), "");
    assert!(early.code == 1 && early.err.contains("has rejected cluster"), "{early:?}");
    assert!(start.elapsed() >= time, "the rejection ended the wait: {early:?}");
    let done = thread::scope(|scope| {
        let waiting = scope.spawn(|| replicas[0].run(&[&wait[..], &["30s"]].concat(), ""));
        let mut later = runtime.block_on(Client::open(&replicas[1], "later"));
        runtime.block_on(later.answer(Ok(())));
        waiting.join().unwrap()
    });
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.starts_with("3 of 4 sessions on 3 replicas acknowledged"), "{done:?}");
    eventually("the later client has left", || {
        let list = replicas[0].json(&["nodes"]);
        (!ids(&list).contains(&"later")).then_some(())
    });
}

/// A client that does not answer is named by every form of a wait.
fn check_pending(replicas: &[Replica; 3], runtime: &Runtime, clients: &mut [Client]) {
    let done = apply(&replicas[0], "fourth", "--wait=2s", || {
        for at in [0, 2] {
            runtime.block_on(clients[at].answer(Ok(())));
        }
    });
    assert_eq!(done.code, 1, "{done:?}");
    assert!(
        done.err.contains("node \"b\" on replica 2 has not acknowledged cluster within"),
        "{done:?}"
    );
    let revision = replicas[0].json(&["cluster", "status"])["revision"].to_string();
    for replica in replicas {
        let list = replica.json(&["nodes", "--behind", &revision]);
        assert_eq!(ids(&list), ["b"], "{list}");
        let some = replica.run(&["wait", &revision, "--for", "66%", "--timeout", "5s"], "");
        assert_eq!(some.code, 0, "{some:?}");
        assert!(some.out.starts_with("2 of 3 sessions on 3 replicas acknowledged"), "{some:?}");
        let all = replica.run(&["wait", &revision, "--timeout", "500ms"], "");
        assert!(all.code == 1 && all.err.contains("node \"b\" on replica 2 has not"), "{all:?}");
        let none = replica.run(&["wait", &revision, "--scope", "nobody", "--timeout", "1s"], "");
        assert_eq!(none.code, 3, "{none:?}");
    }
    check_later(replicas, &revision);
    runtime.block_on(clients[1].answer(Ok(())));
    let all = replicas[2].run(&["wait", &revision, "--timeout", "10s"], "");
    assert_eq!(all.code, 0, "{all:?}");
    // All sessions have acknowledged, but more are needed.
    let more = replicas[1].run(&["wait", &revision, "--for", "4", "--timeout", "300ms"], "");
    let text = format!(
        "`--for 4` needs 4 sessions that acknowledged revision {revision}: 3 of 3 sessions on 3 "
    );
    assert!(more.code == 1 && more.err.contains(&text), "{more:?}");
    let wrong = replicas[1].run(&["wait", &revision, "--for", "101%"], "");
    assert!(wrong.code == 2 && wrong.err.contains("\"101%\" is not a number"), "{wrong:?}");
    eventually("nobody is behind", || {
        let list = replicas[2].json(&["nodes", "--behind", &revision]);
        ids(&list).is_empty().then_some(())
    });
}

/// A later revision that concerns no client does not hide that one has not acknowledged an earlier one. A revision
/// that does not exist is refused.
fn check_later(replicas: &[Replica; 3], revision: &str) {
    let nobody = format!("scope: nobody\n{}", clusters(&["web"], "1s"));
    let done = replicas[1].run(&["apply", "-f", "-", "-o", "json"], &nobody);
    let written: Value = serde_json::from_str(&done.out).unwrap();
    let later = written["revision"].as_u64().unwrap();
    assert_ne!(later.to_string(), revision);
    for replica in replicas {
        let list = replica.json(&["nodes", "--behind", &later.to_string()]);
        assert_eq!(ids(&list), ["b"], "{list}");
        let all = replica.run(&["wait", &later.to_string(), "--timeout", "500ms"], "");
        assert!(all.code == 1 && all.err.contains("node \"b\" on replica 2 has not"), "{all:?}");
        let future = (later + 1).to_string();
        let text = format!("revision {future} does not exist; the newest revision is {later}");
        for args in [&["nodes", "--behind", &future][..], &["wait", &future]] {
            let done = replica.run(args, "");
            assert!(done.code == 1 && done.err.contains(&text), "{done:?}");
        }
    }
}

/// A client that waits for endpoints does not acknowledge. The waits name the endpoints, and the cluster that needs them.
fn check_missing_name(replicas: &[Replica; 3], runtime: &Runtime, clients: &mut [Client]) {
    let endpoints = DiscoveryRequest {
        type_url: ENDPOINT.to_owned(),
        resource_names: vec!["nowhere".to_owned()],
        ..DiscoveryRequest::default()
    };
    runtime.block_on(clients[1].requests.send(endpoints)).unwrap();
    let needing = "resources:\n- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: needing\n  \
         type: EDS\n  eds_cluster_config: {eds_config: {ads: {}}, service_name: nowhere}\n";
    let args = ["apply", "-f", "-", "--wait=2s"];
    let done = thread::scope(|scope| {
        let applying = scope.spawn(|| replicas[0].run(&args, needing));
        for at in [0, 2] {
            runtime.block_on(clients[at].answer(Ok(())));
        }
        applying.join().unwrap()
    });
    let waits = "it waits for ClusterLoadAssignment \"nowhere\" (Cluster \"needing\" refers to it), which no scope of the node has";
    assert!(done.code == 1 && done.err.contains(waits), "{done:?}");
    let revision = replicas[0].json(&["cluster", "status"])["revision"].to_string();
    for replica in replicas {
        let all = replica.run(&["wait", &revision, "--timeout", "500ms"], "");
        assert!(all.code == 1 && all.err.contains(waits), "{all:?}");
    }
    runtime.block_on(clients[1].answer(Ok(())));
}

/// Two Envoys with one node ID were one row.
fn check_duplicate(replicas: &[Replica; 3], runtime: &Runtime) {
    let mut twin = runtime.block_on(Client::open(&replicas[1], "a"));
    runtime.block_on(twin.answer(Ok(())));
    for replica in replicas {
        let list = replica.json(&["nodes", "--id", "a"]);
        assert_eq!((ids(&list), &list["nodes"][0]["duplicates"]), (vec!["a"], &json!(2)), "{list}");
        let text = replica.run(&["nodes", "--id", "a"], "");
        assert_eq!(text.out.lines().filter(|line| line.starts_with("a ")).count(), 2, "{text:?}");
        assert!(text.out.contains("several clients use the same node ID"), "{text:?}");
    }
    drop(twin);
}
