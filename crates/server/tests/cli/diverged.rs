//! A replica whose log or state differs from that of the cluster, as seen by clients and operators.

use std::{fs, path::Path};

use chancery_model::types::CLUSTER;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use chancery_raft_proto::v1::{self as pb, replication_client::ReplicationClient};
use chancery_testing::copy_directory;
use prost::Message;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, transport::Channel};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    cluster::{Replica, eventually, index, joined},
    leaderless::metric,
    support::{DEADLINE, clusters, http_get, logged},
};

const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

type Requests = tokio::sync::mpsc::Sender<DeltaDiscoveryRequest>;

async fn subscribe(xds: &str) -> Result<(Requests, Streaming<DeltaDiscoveryResponse>), Status> {
    let channel = Channel::from_shared(format!("http://{xds}")).unwrap();
    let channel = channel.connect().await.map_err(|error| Status::from_error(error.into()))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let (requests, stream) = tokio::sync::mpsc::channel(4);
    let node = chancery_proto::node::Node { id: "n".into(), ..Default::default() };
    let request = DeltaDiscoveryRequest {
        node: Some(node.encode_to_vec().into()),
        type_url: CLUSTER.to_owned(),
        ..Default::default()
    };
    requests.send(request).await.unwrap();
    let codec = tonic_prost::ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static(DELTA);
    let response = client.streaming(Request::new(ReceiverStream::new(stream)), path, codec).await?;
    Ok((requests, response.into_inner()))
}

/// Returns a blank entry in its format on disk.
fn blank_record(id: pb::LogId) -> Vec<u8> {
    const LOG_FAMILY: u8 = 4;
    const FORMAT_VERSION: u8 = 1;
    let key = id.index.to_be_bytes();
    let payload = Some(pb::log_entry::Payload::Blank(pb::Blank {}));
    let message = pb::LogEntry { id: Some(id), payload }.encode_to_vec();
    let mut hash = Xxh3::new();
    hash.update(&[LOG_FAMILY, FORMAT_VERSION]);
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(&key);
    hash.update(&message);
    [&[FORMAT_VERSION][..], &hash.digest().to_le_bytes(), &message].concat()
}

/// Sends a replica a different entry with the log ID of its last entry.
async fn send_other_entry(to: &Replica, from: u64) -> Status {
    let url = format!("http://{}", to.raft);
    let mut client = ReplicationClient::connect(url).await.unwrap();
    let known = client.hello(pb::HelloRequest::default()).await.unwrap().into_inner();
    let id = pb::LogId { term: known.term, index: known.last_log_index };
    let header = pb::Header {
        cluster_id: known.cluster_id,
        incarnation: known.incarnation,
        from,
        to: to.id,
        protocol: known.protocol,
        ..pb::Header::default()
    };
    let append = pb::AppendRequest {
        header: Some(header),
        vote: Some(pb::Vote { term: known.term, replica_id: from, committed: true }),
        previous: Some(pb::LogId { term: known.term, index: id.index - 1 }),
        entries: vec![pb::EntryRecord { index: id.index, record: blank_record(id).into() }],
        ..pb::AppendRequest::default()
    };
    client.append(append).await.unwrap_err()
}

/// Checks the status, the metrics and the transfer of leadership while the replica `wrong` has
/// diverged.
fn check_divergence_reports(replicas: &[Replica], leader: usize, wrong: usize) {
    let id = replicas[wrong].id;
    for replica in replicas {
        // A replica that answers late counts as down meanwhile.
        eventually("one replica is shown as diverged and the others as up", || {
            let text = replica.run(&["cluster", "status"], "").out;
            let answers = if replica.id == id { ", which answers," } else { "" };
            let said = format!("warning: replica {id}{answers} has diverged: the log holds");
            assert!(text.contains(&said) && text.contains("empty its data directory"), "{text}");
            assert!(text.contains("DIVERGED") && !text.contains("still served"), "{text}");
            text.contains("2 of 3 voters answer").then_some(())
        });
        eventually("one replica is shown as diverged and the others as up", || {
            let status = replica.json(&["cluster", "status"]);
            let members = status["members"].as_array().unwrap();
            let states: Vec<_> = members.iter().map(|member| member["state"].as_str()).collect();
            let mut expected = [Some("up"); 3];
            expected[wrong] = Some("diverged");
            (states == expected).then_some(())
        });
        let (_, answer) = http_get(&replica.admin, "/v1/cluster");
        assert!(answer.contains("diverged"), "{answer}");
        let done = replica.run(&["cluster", "status", "--check"], "");
        let said = format!("error: replica {id} has diverged: the log holds");
        assert!(done.code == 1 && done.err.contains(&said), "{done:?}");
    }
    let done = replicas[leader].run(&["cluster", "transfer-leader", &id.to_string()], "");
    let said = format!("cannot transfer leadership to replica {id}: it has diverged: the log");
    assert!(done.code == 1 && done.err.contains(&said), "{done:?}");
    let metric = |name: &str| metric(&replicas[wrong], name);
    // The store updates these until Raft has stopped.
    eventually("the metrics show a diverged replica without a leader", || {
        let [diverged, has_leader, is_leader] = ["diverged", "has_leader", "is_leader"]
            .map(|it| metric(&format!("chancery_raft_{it}")));
        (diverged > 0.5 && has_leader < 0.5 && is_leader < 0.5).then_some(())
    });
}

fn backup_needs_a_flag(root: &Path, stopped: &Replica) {
    let (file, directory) = (root.join("backup"), stopped.directory.to_str().unwrap());
    let backup = ["backup", file.to_str().unwrap(), "--data-dir", directory];
    let refused = stopped.run(&backup, "");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("its replica has diverged, so its state may be"), "{refused:?}");
    assert!(refused.err.contains("--allow-diverged") && !file.exists(), "{refused:?}");
    let made = stopped.run(&[&backup[..], ["--allow-diverged"].as_slice()].concat(), "");
    let id = stopped.id;
    let warning = format!("warning: replica {id} had diverged when the backup was made");
    assert!(made.code == 0 && made.out.contains(&warning), "{made:?}");
    let to = root.join("restored");
    let arguments = ["restore", file.to_str().unwrap(), "--data-dir", to.to_str().unwrap()];
    let restored = stopped.run(&arguments, "");
    assert!(restored.code == 0 && restored.out.contains(&warning), "{restored:?}");
}

/// L13: the replica is not ready and ends its streams with `UNAVAILABLE`. It accepts no streams,
/// reads (even stale ones) or writes, and says what to do. The other replicas continue. Every
/// replica reports it.
#[tokio::test(flavor = "multi_thread")]
async fn replica_with_another_entry_stops_serving_and_says_why() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let wrong = (leader + 1) % 3;
    replicas[leader].apply("a");
    replicas[wrong].json(&["get"]);
    let ready = replicas[wrong].output("out");
    let xds = ready.split_whitespace().find_map(|word| word.strip_prefix("xds=")).unwrap();
    let (_requests, mut responses) = subscribe(xds).await.unwrap();
    let first = responses.message().await.unwrap().unwrap();
    assert_eq!(first.resources.len(), 1);

    let refused = send_other_entry(&replicas[wrong], replicas[leader].id).await;
    assert_eq!(refused.code(), Code::DataLoss, "{refused}");
    let ended = tokio::time::timeout(DEADLINE, responses.message()).await.expect("in time");
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    assert!(subscribe(xds).await.is_err(), "the replica accepts no stream");
    let (status, text) = http_get(&replicas[wrong].admin, "/readyz");
    assert_eq!(status, 503);
    assert!(text.contains("the log holds a different entry"), "{text}");
    assert!(text.contains("empty its data directory"), "{text}");
    for command in [&["get"][..], &["get", "--stale"], &["delete", "cluster", "a"]] {
        let done = replicas[wrong].run(command, "");
        assert_eq!(done.code, 1, "{command:?}: {done:?}");
        assert!(done.err.contains("the log holds a different entry"), "{command:?}: {done:?}");
    }
    for command in [&["delete", "cluster", "a"][..], &["apply", "-f", "-"]] {
        let done = replicas[wrong].run(command, &clusters(&["c"], "1s"));
        let said = "nothing has been written: the replica has failed";
        assert!(done.code == 1 && done.err.contains(said), "{command:?}: {done:?}");
        assert!(!done.err.contains("may have taken effect"), "{command:?}: {done:?}");
    }

    // A command with a list of servers reads from the next one.
    let servers = format!("{},{}", replicas[wrong].admin, replicas[leader].admin);
    // The nodes of the stopped replica are not known.
    for (command, code) in [(&["get"][..], 0), (&["describe", "cluster", "a"], 4)] {
        let command = [command, &["--server", &servers]].concat();
        let done = replicas[wrong].run(&command, "");
        assert!(done.code == code && done.out.contains('a'), "{command:?}: {done:?}");
    }
    let only = format!("{0},{0}", replicas[wrong].admin);
    let done = replicas[wrong].run(&["get", "--server", &only], "");
    assert!(done.code == 1 && done.err.contains("the log holds a different entry"), "{done:?}");

    replicas[leader].apply("b");
    check_divergence_reports(&replicas, leader, wrong);
    replicas[wrong].terminate();
    backup_needs_a_flag(root.path(), &replicas[wrong]);
    replicas[wrong].start(&[]);
    let mut child = replicas[wrong].child.take().unwrap();
    let status = eventually("the replica does not start", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    let log = replicas[wrong].output("log");
    assert!(log.contains("its state or log differs from that of its cluster"), "{log}");

    fs::remove_dir_all(&replicas[wrong].directory).unwrap();
    let join = replicas[leader].raft.clone();
    replicas[wrong].start_and_wait(&["--join", &join]);
    replicas[wrong].wait_voters(3);
    assert_eq!(http_get(&replicas[wrong].admin, "/readyz"), (200, "ready\n".to_owned()));
}

/// L1, L11: a follower that starts with an older copy of its directory is not ready and says why.
/// The leader stays ready, accepts writes and reports the follower. An empty directory repairs it.
#[test]
fn replica_with_rolled_back_directory_stops_and_leader_stays_ready() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let old = (leader + 1) % 3;
    replicas[leader].apply("a");
    replicas[old].terminate();
    let (present, copied) = (replicas[old].directory.clone(), root.path().join("copied"));
    copy_directory(&present, &copied).unwrap();
    replicas[old].start_and_wait(&[]);
    replicas[leader].wait_voters(3);
    for name in ["b", "c", "d"] {
        replicas[leader].apply(name);
    }
    // The follower has acknowledged all these writes.
    replicas[old].json(&["get"]);
    replicas[old].terminate();
    fs::remove_dir_all(&present).unwrap();
    fs::rename(&copied, &present).unwrap();
    replicas[old].start(&[]);
    let id = replicas[old].id;
    eventually("the leader reports it", || {
        let status = replicas[leader].run(&["cluster", "status"], "").out;
        status.contains(&format!("replica {id} has diverged: it lacks log entry")).then_some(())
    });
    // The replica detects the divergence before its store is open.
    let text = eventually("the replica reports it", || {
        let (status, text) = http_get(&replicas[old].admin, "/readyz");
        assert_eq!(status, 503, "{text}");
        text.contains("its data directory is an older copy").then_some(text)
    });
    assert!(text.contains("\"reason\":\"diverged\""), "{text}");
    assert!(text.contains("empty its data directory"), "{text}");
    assert!(
        replicas[old].child.as_mut().unwrap().try_wait().unwrap().is_none(),
        "the process continues"
    );
    replicas[leader].apply("e");
    assert_eq!(http_get(&replicas[leader].admin, "/readyz"), (200, "ready\n".to_owned()));
    let lines = logged(&replicas[leader].directory.with_extension("log"), "an older copy");
    let n_told = lines.lines().filter(|line| line.contains("an older copy")).count();
    assert!((1..5).contains(&n_told), "{n_told} lines: {lines}");

    replicas[old].terminate();
    fs::remove_dir_all(&present).unwrap();
    let join = replicas[leader].raft.clone();
    replicas[old].start_and_wait(&["--join", &join]);
    replicas[leader].wait_voters(3);
}
