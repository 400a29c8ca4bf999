//! A shard that does not end its turn: nobody waits for it, and the replica says so.

use std::{future::poll_fn, sync::mpsc, time::Duration};

use chancery_fanout::{
    Config as FanoutConfig, Delivery, RequestSink, ResponseSource, SecretFinder, StreamInfo,
};
use chancery_model::{Identity, Node};
use chancery_proto::discovery::DiscoveryResponse;
use chancery_protocol::{ErrorDetail, Protocol, Request, SotwRequest, StreamKind};
use futures::StreamExt as _;
use prost::Message as _;
use tokio::{runtime::Builder, time::timeout};

use super::*;
use crate::{NotReadyReason, operations};

/// The time after which a wait counts as endless.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream of one client.
struct Client {
    sink: RequestSink,
    responses: ResponseSource,
    node: Arc<Node>,
}

impl Client {
    fn open(fanout: &Fanout, id: &str) -> Self {
        let type_url = Some(TypeUrl::from_static(types::CLUSTER));
        let kind = StreamKind { protocol: Protocol::Sotw, type_url };
        let info = StreamInfo { kind, peer: ([127, 0, 0, 1], 1).into(), identity: None };
        let (sink, responses) = fanout.open(info).unwrap();
        Self { sink, responses, node: Arc::new(Node { id: id.to_owned(), ..Node::default() }) }
    }

    async fn send(&mut self, response_nonce: &str, error: Option<&str>) {
        let error_detail = error.map(|text| ErrorDetail { code: 3, message: text.to_owned() });
        let response_nonce = response_nonce.to_owned();
        let request = SotwRequest { response_nonce, error_detail, ..SotwRequest::default() };
        let node = Some(Arc::clone(&self.node));
        self.sink.request(Request::Sotw(request), node, None).await.unwrap();
    }

    /// Returns the next response.
    async fn read(&mut self) -> DiscoveryResponse {
        let next = timeout(PATIENCE, poll_fn(|cx| self.responses.poll_next(cx)));
        let Delivery::Message(message) = next.await.unwrap() else {
            panic!("the stream has ended")
        };
        let bytes: Vec<u8> = message.flat_map(|chunk| chunk.to_vec()).collect();
        DiscoveryResponse::decode(&bytes[..]).unwrap()
    }
}

/// Returns the first value that `find` returns.
async fn wait_until<T>(find: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(found) = find() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Applies a cluster, and returns the answer.
async fn apply(call: &Call, name: &str, wait_ms: Option<u64>) -> pb::WriteResponse {
    let content = format!(
        "resources: [{{'@type': {}, name: {name}, load_assignment: {{cluster_name: {name}}}}}]",
        types::CLUSTER
    );
    let files = vec![pb::File { name: "a.yaml".to_owned(), content }];
    let options = Some(pb::WriteOptions { wait_ms, ..pb::WriteOptions::default() });
    let request = pb::ApplyRequest { files, options, ..pb::ApplyRequest::default() };
    // The future is large for the stack of a test.
    let written = timeout(PATIENCE, Box::pin(operations::apply(call, request))).await;
    written.expect("the write ends").unwrap()
}

/// L12: a shard that does not turn gets no new streams and fails readiness. Writes do not wait for it, and say that
/// they did not ask it. When it turns again, all is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_a_shard_that_does_not_turn() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let config = Config { data_dir, free_bytes_min: 0, ..Config::default() };
    let replica = Replica::open(config).await.unwrap();
    let end = CancellationToken::new();
    let (release, gate) = mpsc::sync_channel::<()>(1);
    let gate = std::sync::Mutex::new(gate);
    // The shard searches for the secrets of a short rejection itself, and hangs until the test releases it.
    let secrets = SecretFinder::new(move |_, _, _| {
        let _is_open = gate.lock().unwrap().recv();
    });
    let config = FanoutConfig { shards: 2, secrets, ..FanoutConfig::default() };
    // As in a replica, shards have threads of their own. A task that a shard wakes may wait for the end of its turn, and
    // the waits for clients are such tasks.
    let shards = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let fanout = {
        let _on_its_threads = shards.enter();
        Fanout::spawn(config, replica.watch(), &TaskTracker::new(), end.clone())
    };
    for shard in 0..2 {
        let (fanout, end) = (fanout.clone(), end.clone());
        let watch = async move {
            loop {
                fanout.turn(shard).await;
            }
        };
        tokio::spawn(async move { end.run_until_cancelled(watch).await });
    }
    let call = call_of(&replica, fanout.clone(), Caller::unrestricted(Identity::anonymous()), &end);
    assert_eq!(apply(&call, "a", Some(1_000)).await.warnings, []);
    let mut bad = Client::open(&fanout, "bad");
    bad.send("", None).await;
    let first = bad.read().await;
    assert_eq!((fanout.stalled(), call.deps().readiness.check()), (Vec::new(), Ok(())));

    bad.send(&first.nonce, Some("no")).await;
    let stalled = "shard 0 does not turn, and serves none of its 1 streams";
    let fails = wait_until(|| call.deps().readiness.check().err());
    let not_ready = timeout(PATIENCE, fails).await.expect("readiness fails");
    assert_eq!(not_ready.reason, NotReadyReason::Stalled);
    assert_eq!(not_ready.message, stalled);
    // New streams are served, though the other shard has more of them.
    let mut good = Vec::new();
    for n in 0..5 {
        let mut client = Client::open(&fanout, &format!("good-{n}"));
        client.send("", None).await;
        let response = client.read().await;
        client.send(&response.nonce, None).await;
        good.push(client);
    }
    // A write ends, also if it waits for clients, and names the shard.
    let written = apply(&call, "b", Some(100)).await;
    let [warning] = written.warnings.as_slice() else { panic!("{:?}", written.warnings) };
    assert!(warning.message.starts_with(stalled), "{}", warning.message);
    let unsettled = written.wait.unwrap().unsettled;
    assert!(unsettled.iter().any(|one| one.message == stalled), "{unsettled:?}");
    for client in &mut good {
        assert_eq!(client.read().await.resources.len(), 2);
    }
    // An answer that needs all streams is refused instead of incomplete.
    let refused =
        operations::list_nodes(&call, pb::ListNodesRequest::default()).await.err().unwrap();
    assert!(matches!(refused, AdminError::Unavailable(_)), "{refused:?}");
    assert!(refused.to_string().starts_with(stalled), "{refused}");

    drop(release);
    assert_eq!(bad.read().await.resources.len(), 2);
    // The shard may not have ended the turn yet.
    let is_ready = wait_until(|| call.deps().readiness.check().is_ok().then_some(()));
    timeout(PATIENCE, is_ready).await.expect("the replica is ready again");
    assert_eq!(fanout.stalled(), []);
    let nodes = operations::list_nodes(&call, pb::ListNodesRequest::default());
    let nodes = timeout(PATIENCE, nodes).await.unwrap().unwrap();
    let pieces: Vec<pb::ListNodesResponse> = nodes.0.map(Result::unwrap).collect().await;
    assert_eq!(pieces.iter().map(|piece| piece.nodes.len()).sum::<usize>(), 6);
    end.cancel();
    replica.shutdown().await.unwrap();
    shards.shutdown_background();
}

/// L12: a shard whose task panics fails readiness at once, until the replica restarts. Its streams end, new ones are
/// served by the other shard, and an answer that needs all streams is refused instead of incomplete.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn end_of_a_shard_ends_readiness_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let config = Config { data_dir, free_bytes_min: 0, ..Config::default() };
    let replica = Replica::open(config).await.unwrap();
    let end = CancellationToken::new();
    let secrets = SecretFinder::new(|_, _, _| panic!("on purpose"));
    let config = FanoutConfig { shards: 2, secrets, ..FanoutConfig::default() };
    let fanout = Fanout::spawn(config, replica.watch(), &TaskTracker::new(), end.clone());
    let call = call_of(&replica, fanout.clone(), Caller::unrestricted(Identity::anonymous()), &end);
    assert_eq!(apply(&call, "a", None).await.warnings, []);
    let mut bad = Client::open(&fanout, "bad");
    bad.send("", None).await;
    let first = bad.read().await;
    assert_eq!(call.deps().readiness.check(), Ok(()));

    bad.send(&first.nonce, Some("no")).await;
    let over = timeout(PATIENCE, poll_fn(|cx| bad.responses.poll_next(cx))).await.unwrap();
    assert!(matches!(over, Delivery::End(_)), "{over:?}");
    let reason =
        "shard 0 has ended because of a defect, and serves no streams until the replica restarts";
    let not_ready = call.deps().readiness.check().unwrap_err();
    assert_eq!((not_ready.reason, &*not_ready.message), (NotReadyReason::Stalled, reason));
    for n in 0..3 {
        let mut client = Client::open(&fanout, &format!("good-{n}"));
        client.send("", None).await;
        client.read().await;
    }
    let refused =
        operations::list_nodes(&call, pb::ListNodesRequest::default()).await.err().unwrap();
    assert!(refused.to_string().starts_with(reason), "{refused}");
    let written = apply(&call, "b", Some(100)).await;
    assert!(written.warnings.iter().any(|one| one.message.starts_with(reason)), "{written:?}");
    replica.shutdown().await.unwrap();
}
