//! `chancery drain`, `undrain` and `disconnect` on three replicas, sent to a replica that they do not concern.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use chancery_model::types::CLUSTER;
use chancery_proto::{
    discovery::{DiscoveryRequest, DiscoveryResponse},
    node::Node,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, transport::Channel};

use crate::{
    cluster::{Replica, eventually, index, joined},
    support::http_get,
};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// The events of the clients.
#[derive(Debug, Default)]
struct Events {
    /// The ends of streams after a response: the client, the address, the time and the status.
    ends: Vec<(usize, String, Instant, Status)>,
    /// The attempts to open a stream that failed: the client and the address.
    failed: Vec<(usize, String)>,
}

/// Opens a stream and reads it to its end. Fails if there is no first response.
async fn stream(address: &str, node: &str) -> Result<Status, String> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    let mut client = tonic::client::Grpc::new(channel.map_err(|error| error.to_string())?);
    client.ready().await.map_err(|error| error.to_string())?;
    let (requests, stream) = tokio::sync::mpsc::channel(4);
    let node = Node { id: node.into(), user_agent_name: "envoy".into(), ..Node::default() };
    let request = DiscoveryRequest {
        node: Some(node.encode_to_vec().into()),
        type_url: CLUSTER.to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(request).await.unwrap();
    let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let path = http::uri::PathAndQuery::from_static(SOTW);
    let response = client.streaming(Request::new(ReceiverStream::new(stream)), path, codec).await;
    let mut responses = response.map_err(|status| status.to_string())?.into_inner();
    let first = responses.message().await.map_err(|status| status.to_string())?;
    let first = first.ok_or("the stream ended without a response")?;
    let answer = DiscoveryRequest {
        type_url: CLUSTER.to_owned(),
        version_info: first.version_info,
        response_nonce: first.nonce,
        ..DiscoveryRequest::default()
    };
    requests.send(answer).await.map_err(|error| error.to_string())?;
    loop {
        match responses.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Status::ok("")),
            Err(status) => return Ok(status),
        }
    }
}

/// Keeps a stream to one of the addresses. After each end or failure, the client tries the next address.
async fn client(number: usize, addresses: Vec<String>, events: Arc<Mutex<Events>>) {
    for address in addresses.iter().cycle() {
        match stream(address, &format!("node-{number}")).await {
            Ok(status) => {
                let end = (number, address.clone(), Instant::now(), status);
                events.lock().unwrap().ends.push(end);
            }
            Err(_) => {
                events.lock().unwrap().failed.push((number, address.clone()));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Returns the number of streams of a replica.
fn streams(replica: &Replica) -> u64 {
    replica.json(&["cluster", "status"])["streams"].as_u64().unwrap()
}

fn wait_streams(replicas: &[Replica; 3], expected: impl Fn([u64; 3]) -> bool, what: &str) {
    eventually(what, || expected(replicas.each_ref().map(streams)).then_some(()));
}

/// A drain moves all clients to the other replicas, spread over its time, and no client is refused twice. The replica
/// still votes, and answers at its admin port.
#[test]
fn drain_moves_all_streams_to_the_other_replicas() {
    const CLIENTS: usize = 12;
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let (drained, asked) = ((leader + 1) % 3, (leader + 2) % 3);
    let id = (drained + 1).to_string();
    replicas[asked].apply("a");
    let order = [drained, asked, leader];
    let addresses: Vec<String> = order.iter().map(|at| replicas[*at].xds()).collect();
    let runtime = Runtime::new().unwrap();
    let events: Arc<Mutex<Events>> = Arc::default();
    for number in 0..CLIENTS {
        runtime.spawn(client(number, addresses.clone(), Arc::clone(&events)));
    }
    let all = CLIENTS as u64;
    wait_streams(&replicas, |n| n[drained] == all, "all clients are connected to one replica");

    let begun = Instant::now();
    let done = replicas[asked].run(&["drain", &id, "--over", "3s"], "");
    let text = format!("replica {id} accepts no streams, and ends {all} streams within 3s\n");
    assert_eq!((done.code, done.out), (0, text), "{}", done.err);
    let refused = http_get(&replicas[drained].admin, "/readyz");
    let body: Value = serde_json::from_str(&refused.1).unwrap();
    assert_eq!((refused.0, &body["reason"]), (503, &json!("drained")), "{body}");
    assert_eq!(body["message"], warning(&id), "{body}");
    wait_streams(&replicas, |n| n[drained] == 0 && n[asked] + n[leader] == all, "all have moved");
    {
        let events = events.lock().unwrap();
        let mut ends: Vec<Duration> = Vec::new();
        for (number, address, time, status) in &events.ends {
            assert_eq!(*address, addresses[0], "client {number}: {status:?}");
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            assert!(status.message().starts_with("draining: an operator drains"), "{status:?}");
            ends.push(*time - begun);
        }
        ends.sort();
        assert_eq!(ends.len(), CLIENTS);
        // The last of 12 turns is at 2.75 s.
        assert!(ends[CLIENTS - 1] >= Duration::from_secs(2), "{ends:?}");
        assert!(ends[CLIENTS / 2] <= ends[CLIENTS - 1] - Duration::from_millis(500), "{ends:?}");
        for number in 0..CLIENTS {
            let n_failed = events.failed.iter().filter(|(one, _)| *one == number).count();
            assert!(n_failed <= 1, "client {number}: {:?}", events.failed);
        }
    }

    check_drained(&replicas, drained, asked);
    let done = replicas[leader].run(&["undrain", &id], "");
    assert_eq!((done.code, done.out), (0, format!("replica {id} accepts streams\n")));
    for replica in &replicas {
        assert_eq!(readiness(replica).0, "ok");
    }
    assert_eq!(http_get(&replicas[drained].admin, "/readyz").0, 200);
    let back = Arc::<Mutex<Events>>::default();
    runtime.spawn(client(100, vec![addresses[0].clone()], Arc::clone(&back)));
    wait_streams(&replicas, |n| n[drained] == 1, "a client connects after the drain");
    check_disconnect(&replicas, drained, asked, &back);

    // The drain is a state of the process.
    let done = replicas[asked].run(&["drain", &id, "--over", "0s"], "");
    assert_eq!(done.code, 0, "{done:?}");
    replicas[drained].terminate();
    replicas[drained].start_and_wait(&[]);
    assert_eq!(http_get(&replicas[drained].admin, "/readyz").0, 200);
}

/// Returns the warning about a drained replica.
fn warning(id: &str) -> String {
    format!(
        "replica {id} is drained: it accepts no streams; `chancery undrain {id}` ends the drain"
    )
}

/// Returns the outcome and the detail of the check `readiness` of `doctor`.
fn readiness(replica: &Replica) -> (String, String) {
    let done = replica.run(&["doctor", "-o", "json"], "");
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    let mut checks = report["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["name"] == "readiness").unwrap();
    let text = |field: &str| check[field].as_str().unwrap().to_owned();
    (text("status"), text("detail"))
}

/// The drained replica still replicates, takes writes and votes. Every replica shows the drain.
fn check_drained(replicas: &[Replica; 3], drained: usize, asked: usize) {
    let refused = Runtime::new().unwrap().block_on(stream(&replicas[drained].xds(), "late"));
    assert!(refused.is_err(), "{refused:?}");
    replicas[drained].apply("b");
    for replica in replicas {
        let status = replica.wait_voters(3);
        let shown: Vec<&Value> =
            status["members"].as_array().unwrap().iter().map(|one| &one["drained"]).collect();
        let expected: Vec<Value> = (0..3).map(|at| json!(at == drained)).collect();
        assert_eq!(shown, expected.iter().collect::<Vec<_>>(), "{status}");
        let text = replica.run(&["cluster", "status"], "").out;
        assert_eq!(text.matches(" drained ").count(), 1, "{text}");
        let warning = warning(&(drained + 1).to_string());
        assert_eq!(status["warnings"], json!([warning]));
        assert!(text.contains(&format!("\nwarning: {warning}\n")), "{text}");
        let is_own = replica.id == replicas[drained].id;
        assert_eq!(text.contains(", not ready: drained\n"), is_own, "{text}");
        assert_eq!(readiness(replica), ("warning".to_owned(), warning));
    }
    let metrics = http_get(&replicas[drained].admin, "/metrics").1;
    assert!(metrics.contains("chancery_xds_drained 1\n"), "{metrics}");
    let metrics = http_get(&replicas[asked].admin, "/metrics").1;
    assert!(metrics.contains("chancery_xds_drained 0\n"), "{metrics}");
    let done = replicas[asked].run(&["drain", "9"], "");
    assert_eq!((done.code, done.err.as_str()), (1, "error: replica 9 is not a member\n"));
    let done = replicas[asked].run(&["drain", "1", "--over", "2h"], "");
    assert!(done.code == 2 && done.err.contains("must be at most 1h"), "{done:?}");
}

/// The streams of a node end, although the replica that receives the command does not serve the node.
fn check_disconnect(replicas: &[Replica; 3], serving: usize, asked: usize, events: &Mutex<Events>) {
    let answer = replicas[asked].json(&["disconnect", "node-100"]);
    let expected = json!({
        "replicas": [{"replica_id": serving + 1, "streams": 1}], "not_asked": [],
    });
    assert_eq!(answer, expected);
    let status = eventually("the stream ends", || {
        events.lock().unwrap().ends.first().map(|(.., status)| status.clone())
    });
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "an operator disconnected this node; reconnect");
    wait_streams(replicas, |n| n[serving] == 1, "the client reconnects");
    let done = replicas[asked].run(&["disconnect", "nobody"], "");
    let error = "error: node \"nobody\" is not connected to any replica\n";
    assert_eq!((done.code, done.err.as_str()), (1, error), "{done:?}");
}
