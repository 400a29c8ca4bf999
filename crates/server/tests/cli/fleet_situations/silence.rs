//! A client that does not answer is silent after ten seconds, in every answer that has a state.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually},
    support::http_get,
};

use super::World;

/// The time after which a client that owes an answer is silent.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// Waits until a client is silent, and checks that every replica says so, whatever the question.
pub(super) fn until_silent(world: &World, key: &str) {
    let client = world.client(key);
    let received = client.record().unanswered.values().filter_map(|one| one.at).min().unwrap();
    eventually("the client is silent", || {
        let done = world.fleet.replicas[0].run(&["nodes", "--state", "silent", "-o", "json"], "");
        let list: Value = serde_json::from_str(&done.out).ok()?;
        (list["nodes"][0]["id"] == *client.id).then_some(())
    });
    // The replica sent the response a moment before the client received it.
    let elapsed = received.elapsed() + Duration::from_secs(1);
    assert!(elapsed >= SILENT_AFTER, "silent after {elapsed:?}");
    for replica in &world.fleet.replicas {
        check(replica, &client.id);
    }
}

fn check(replica: &Replica, id: &str) {
    let state = |node: &Value| node["condition"]["state"].clone();
    let of = |list: &Value| {
        let mut nodes = list["nodes"].as_array().unwrap().iter();
        state(nodes.find(|node| node["id"] == id).unwrap())
    };
    let http = |path: &str| -> Value {
        let (status, body) = http_get(&replica.admin, path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    let silent = json!("silent");
    assert_eq!(of(&replica.json(&["nodes"])), silent);
    assert_eq!(of(&http("/v1/nodes?state=silent")), silent);
    assert_eq!(state(&replica.json(&["node", id])), silent);
    assert_eq!(state(&http(&format!("/v1/nodes/{id}"))), silent);
    let pending = http("/v1/nodes?state=pending");
    assert_eq!(pending["nodes"], json!([]));
    let text = replica.run(&["nodes"], "").out;
    let row = text.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(row.contains(" silent "), "{text}");

    let doctor = replica.run(&["doctor", "-o", "json"], "");
    assert_eq!(doctor.code, 1, "{doctor:?}");
    let report: Value = serde_json::from_str(&doctor.out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let nodes = checks.iter().find(|check| check["name"] == "nodes").unwrap();
    let detail = nodes["detail"].as_str().unwrap();
    assert_eq!(nodes["status"], "failed", "{nodes}");
    assert!(detail.contains(&format!("1 node silent ({id})")), "{nodes}");
}
