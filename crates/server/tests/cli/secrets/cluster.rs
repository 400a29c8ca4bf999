//! Sealed secrets in a cluster of three.

use chancery_model::types::SECRET;

use super::{FIRST, PLAIN, SECOND, capture::Capture, contains, files_with, key_file, secret};
use crate::{
    cluster::{Replica, eventually, index},
    support::{clusters, http_post},
};

/// Attack 59: neither the connections between replicas nor any of their files have a secret. That includes forwarded
/// writes and the snapshot for a replica that joins late.
#[test]
fn published_secret_is_not_in_the_traffic_between_replicas() {
    let root = tempfile::tempdir().unwrap();
    let key = key_file(root.path(), "keys", &[1]).display().to_string();
    let mut replicas = [1, 2, 3].map(|id| Replica::new(root.path(), id));
    let captures = replicas.each_ref().map(|replica| Capture::start(replica.raft.clone()));
    for replica in &mut replicas {
        replica.environment.push(("CHANCERY_SECRETS_KEY_FILE", key.clone()));
    }
    let advertise = captures.each_ref().map(|capture| capture.address.as_str());
    replicas[0].start_and_wait(&["--advertise", advertise[0]]);
    replicas[1].start(&["--advertise", advertise[1], "--join", advertise[0]]);
    replicas[1].wait_ready();
    let leader = index(&replicas[0].wait_voters(2)["leader"]);
    let follower = 1 - leader;
    // A follower forwards its write to the leader.
    for (replica, manifest) in [
        (follower, secret("one", FIRST)),
        (leader, secret("two", SECOND)),
        (follower, clusters(&[PLAIN], "1s")),
    ] {
        let done = replicas[replica].run(&["apply", "-f", "-"], &manifest);
        assert_eq!(done.code, 0, "{done:?}");
    }
    assert_eq!(replicas[leader].run(&["cluster", "snapshot"], "").code, 0);
    replicas[2].start(&["--advertise", advertise[2], "--join", advertise[0]]);
    replicas[2].wait_ready();
    replicas[2].wait_voters(3);
    for (name, value) in [("one", FIRST), ("two", SECOND)] {
        let poll = format!("{{\"node\":{{\"id\":\"n\"}},\"resource_names\":[\"{name}\"]}}");
        for replica in &replicas {
            let (status, body) = http_post(&replica.xds(), "/v3/discovery:secrets", &poll);
            assert!(status == 200 && body.contains(value), "{status}: {body}");
        }
    }
    let status = replicas[2].json(&["keys", "status"]);
    assert_eq!((&status["sealed"], &status["unopened"]), (&2.into(), &0.into()), "{status}");
    drop(replicas);
    let traffic: Vec<u8> = captures.iter().flat_map(Capture::bytes).collect();
    assert!(contains(&traffic, PLAIN), "the proxies see the traffic");
    for value in [FIRST, SECOND] {
        assert!(!contains(&traffic, value), "{value} is in the traffic");
        assert!(files_with(root.path(), value).is_empty(), "{value} is in a file");
    }
}

/// A replica without the key applies what the others seal, has the same state, and serves the rest.
#[test]
fn replica_without_the_key_stays_equal_to_the_others() {
    let root = tempfile::tempdir().unwrap();
    let key = key_file(root.path(), "keys", &[1]).display().to_string();
    let mut replicas = [1, 2, 3].map(|id| Replica::new(root.path(), id));
    let first = replicas[0].raft.clone();
    for replica in &mut replicas[..2] {
        replica.environment.push(("CHANCERY_SECRETS_KEY_FILE", key.clone()));
    }
    replicas[0].start_and_wait(&[]);
    for replica in &mut replicas[1..] {
        replica.start_and_wait(&["--join", &first]);
    }
    replicas[2].wait_voters(3);
    for manifest in [secret("one", FIRST), clusters(&["web"], "1s"), secret("one", SECOND)] {
        let done = replicas[1].run(&["apply", "-f", "-"], &manifest);
        assert_eq!(done.code, 0, "{done:?}");
    }
    // The digests of all replicas are compared; a difference stops one.
    eventually("all have the same state", || {
        let statuses = replicas.each_ref().map(|replica| replica.json(&["cluster", "status"]));
        let digests =
            |at: usize| statuses[at]["state_digests"].as_array().cloned().unwrap_or_default();
        let newest = digests(0).last().cloned()?;
        (1..3).all(|at| digests(at).contains(&newest)).then_some(())
    });
    let poll = "{\"node\":{\"id\":\"n\"}}";
    let (status, _) = http_post(&replicas[2].xds(), "/v3/discovery:clusters", poll);
    assert_eq!(status, 200);
    let named = format!(
        "{{\"node\":{{\"id\":\"n\"}},\"resource_names\":[\"one\"],\"type_url\":\"{SECRET}\"}}"
    );
    let (status, body) = http_post(&replicas[2].xds(), "/v3/discovery:secrets", &named);
    assert_eq!(status, 503, "{body}");
    let (status, body) = http_post(&replicas[1].xds(), "/v3/discovery:secrets", &named);
    assert!(status == 200 && body.contains(SECOND), "{status}: {body}");
}
