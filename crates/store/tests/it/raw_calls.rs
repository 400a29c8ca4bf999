//! Tests of the replication port's answers to calls that no replica of this program makes, and
//! during its start.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use chancery_model::Revision;
use chancery_raft_proto::v1::{self as pb, replication_client::ReplicationClient};
use chancery_store::Replica;

use crate::{
    cluster::{DEADLINE, member_config},
    support::{commit, memory_dir, put},
};

async fn hello(address: &str) -> Option<pb::HelloResponse> {
    let mut client = ReplicationClient::connect(format!("http://{address}")).await.ok()?;
    Some(client.hello(pb::HelloRequest::default()).await.ok()?.into_inner())
}

/// Returns the header of a call from replica 2.
fn header(known: &pb::HelloResponse) -> pb::Header {
    pb::Header {
        cluster_id: known.cluster_id.clone(),
        incarnation: known.incarnation,
        from: 2,
        to: 1,
        protocol: known.protocol,
        ..pb::Header::default()
    }
}

/// A command that cannot be applied would stop every replica, at once and at each start. The leader
/// refuses such a command before it reaches the log, whoever sends it.
#[tokio::test(flavor = "multi_thread")]
async fn command_that_cannot_be_applied_is_refused() {
    let dir = memory_dir();
    let replica = Replica::open(member_config(dir.path(), 1, &[])).await.unwrap();
    commit(&replica, put("a", b"1")).await;
    let address = replica.raft_address().to_owned();
    let known = hello(&address).await.unwrap();
    let header = header(&known);
    let form = pb::command::Command::Form(pb::Form {
        cluster_id: known.cluster_id.clone(),
        incarnation: known.incarnation,
    });
    let commands = vec![
        pb::Command::default(),
        pb::Command { command: Some(form), ..pb::Command::default() },
        pb::Command {
            command: Some(pb::command::Command::Transaction(pb::Transaction {
                upserts: vec![pb::Upsert::default()],
                ..pb::Transaction::default()
            })),
            ..pb::Command::default()
        },
    ];
    let n = commands.len();
    let mut client = ReplicationClient::connect(format!("http://{address}")).await.unwrap();
    let request = pb::WriteRequest { header: Some(header), commands };
    let response = client.write(request).await.unwrap().into_inner();
    assert_eq!(response.results.len(), n);
    for result in response.results {
        let error = match result.result {
            Some(pb::write_result::Result::Error(error)) => error.message,
            other => panic!("the command was accepted: {other:?}"),
        };
        assert!(error.contains("not a transaction that can be applied"), "{error}");
    }
    commit(&replica, put("b", b"1")).await;
    assert_eq!(replica.failure(), None);
    replica.shutdown().await.unwrap();
}

/// Returns the command that publishes a cluster in the name of an author.
fn forged(name: &str, author: &str, request: u8) -> pb::Command {
    let key = pb::ResourceKey {
        type_url: chancery_model::types::CLUSTER.to_owned(),
        name: name.to_owned(),
    };
    let upsert = pb::Upsert {
        scope: "default".to_owned(),
        key: Some(key),
        content: Some(pb::Content::default()),
        sealed: None,
    };
    let meta = pb::TransactionMeta { author: author.to_owned(), ..pb::TransactionMeta::default() };
    let transaction = pb::Transaction {
        upserts: vec![upsert],
        meta: Some(Box::new(meta)),
        ..pb::Transaction::default()
    };
    // The request of another write than the first one has another digest.
    let digest = u64::from(name.as_bytes()[0]);
    let request = pb::Request { id: vec![request; 16].into(), digest, ..pb::Request::default() };
    pb::Command {
        command: Some(pb::command::Command::Transaction(transaction)),
        request: Some(request),
        retention: None,
    }
}

/// Attack 48: a member of another cluster, or of this cluster before a restore, cannot write in the name of an author.
/// A forward that is replayed, also by a member, has no second effect, and its request ID permits no other write.
#[tokio::test(flavor = "multi_thread")]
async fn forged_forward_is_refused_and_replayed_one_has_no_second_effect() {
    let dir = memory_dir();
    let replica = Replica::open(member_config(dir.path(), 1, &[])).await.unwrap();
    commit(&replica, put("a", b"1")).await;
    let address = replica.raft_address().to_owned();
    let known = hello(&address).await.unwrap();
    let header = header(&known);
    let mut client = ReplicationClient::connect(format!("http://{address}")).await.unwrap();
    let before = replica.state().revision;
    for foreign in [
        pb::Header { cluster_id: vec![8; 16].into(), ..header.clone() },
        pb::Header { cluster_id: Default::default(), ..header.clone() },
        pb::Header { incarnation: known.incarnation ^ 1, ..header.clone() },
        pb::Header { to: 3, ..header.clone() },
        pb::Header { to_instance: known.instance ^ 1, ..header.clone() },
    ] {
        let commands = vec![forged("b", "unix:0", 7)];
        let request = pb::WriteRequest { header: Some(foreign.clone()), commands };
        let refused = client.write(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{foreign:?}: {refused}");
    }
    let commands = vec![forged("b", "unix:0", 7)];
    let refused = client.write(pb::WriteRequest { header: None, commands }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    assert_eq!(replica.state().revision, before);

    let mut write = async |command| {
        let request = pb::WriteRequest { header: Some(header.clone()), commands: vec![command] };
        let mut results = client.write(request).await.unwrap().into_inner().results;
        match results.remove(0).result {
            Some(pb::write_result::Result::Written(written)) => {
                written.outcome.unwrap().outcome.unwrap()
            }
            other => panic!("{other:?}"),
        }
    };
    let first = write(forged("b", "unix:0", 7)).await;
    let written = Revision(before.0 + 1);
    assert_eq!(replica.state().revision, written);
    commit(&replica, put("a", b"2")).await;
    assert_eq!(write(forged("b", "unix:0", 7)).await, first, "the answer to the first attempt");
    let other = write(forged("c", "token:other", 7)).await;
    let reused = pb::outcome::Outcome::Reused(pb::ReusedRequest { revision: written.0 });
    assert_eq!(other, reused);
    assert_eq!(replica.state().revision, Revision(written.0 + 1));
    replica.shutdown().await.unwrap();
}

/// A replica with an impossible ID or address is not admitted. An unreachable member would count
/// towards the majority.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_replica_id_or_address_is_rejected() {
    let dir = memory_dir();
    let replica = Replica::open(member_config(dir.path(), 1, &[])).await.unwrap();
    let address = replica.raft_address().to_owned();
    commit(&replica, put("a", b"1")).await;
    let protocol = hello(&address).await.unwrap().protocol;
    let mut client = ReplicationClient::connect(format!("http://{address}")).await.unwrap();
    let long = format!("{}:1", "a".repeat(260));
    for (replica_id, address, why) in [
        (0, "b:1", "from 1 to 9223372036854775807, not 0"),
        (1 << 63, "b:1", "from 1 to 9223372036854775807, not 9223372036854775808"),
        (2, &long, "has 262 bytes, at most 261 are allowed"),
        (2, "0.0.0.0:1", "other replicas cannot reach it at 0.0.0.0"),
        (2, "[::]:1", "other replicas cannot reach it at [::]"),
        (2, "", "expected HOST:PORT"),
    ] {
        let at = address.to_owned();
        let peer = pb::Peer { replica_id, address: at, learner: true, instance: 0 };
        let request = pb::JoinRequest { peer: Some(peer), protocol };
        let answer = client.join(request).await.unwrap().into_inner();
        match answer.result {
            Some(pb::join_response::Result::Refused(text)) => assert!(text.contains(why), "{text}"),
            other => panic!("{replica_id} at {address:?}: {other:?}"),
        }
    }
    assert_eq!(replica.members().await.len(), 1);
    replica.shutdown().await.unwrap();
}

/// A replica with data names its cluster while it starts. If it reported no cluster, another
/// replica would form a second one.
#[tokio::test(flavor = "multi_thread")]
async fn starting_replica_reports_its_cluster() {
    let dir = memory_dir();
    let mut config = member_config(dir.path(), 1, &[]);
    let replica = Replica::open(config.clone()).await.unwrap();
    let address = replica.raft_address().to_owned();
    let cluster_id = hello(&address).await.unwrap().cluster_id;
    config.listen = Some(address.parse().unwrap());
    replica.shutdown().await.unwrap();
    drop(replica);

    let stop = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn({
        let (stop, address) = (Arc::clone(&stop), address.clone());
        async move {
            let mut answers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                answers.extend(hello(&address).await);
            }
            answers
        }
    });
    for _ in 0..10 {
        let open = Replica::open(config.clone());
        let replica = tokio::time::timeout(DEADLINE, open).await.unwrap().unwrap();
        replica.shutdown().await.unwrap();
        drop(replica);
    }
    stop.store(true, Ordering::Relaxed);
    let answers = asking.await.unwrap();
    assert!(!answers.is_empty());
    for answer in answers {
        assert_eq!(answer.cluster_id, cluster_id, "{answer:?}");
    }
}
