//! The cluster over HTTP, repeated writes, and stale reads.

use http::StatusCode;
use serde_json::json;

use crate::support::{Server, clusters};

const ID: &str = "00112233445566778899aabbccddeeff";

#[tokio::test]
async fn write_sent_twice_takes_effect_once() {
    let server = Server::start().await;
    let uri = format!("/v1/apply?request_id={ID}");
    let first = server.done("POST", &uri, &clusters(&["a"], "1s")).await;
    assert_eq!((&first["revision"], &first["changed"]), (&json!(1), &json!(1)));
    server.done("POST", "/v1/apply", &clusters(&["a"], "2s")).await;
    assert_eq!(first["repeated"], false);
    // Later writes do not change the result of the first one.
    let again = server.done("POST", &uri, &clusters(&["a"], "1s")).await;
    assert_eq!((&again["revision"], &again["changed"]), (&json!(1), &json!(1)));
    assert_eq!(again["repeated"], true);
    // A different write needs a different request ID.
    let other = server.refused("POST", &uri, &clusters(&["a", "b"], "1s")).await;
    let text = format!(
        "the request ID {ID} belongs to another write, which became revision 1; nothing has been written; use a new \
         ID for each write, and the same ID only to retry that write"
    );
    assert_eq!(other, (409, "FAILED_PRECONDITION".to_owned(), text));
    let list = server.done("GET", "/v1/resources", "").await;
    assert_eq!(list["revision"], 2);
    assert_eq!(list["resources"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["resources"][0]["body"]["connect_timeout"], "2s");

    let deleted = format!("/v1/resources?type=cds&name=a&request_id={}", ID.replace('0', "1"));
    for repeated in [false, true] {
        let done = server.done("DELETE", &deleted, "").await;
        assert_eq!((&done["revision"], &done["removed"]), (&json!(3), &json!(1)));
        assert_eq!(done["repeated"], repeated);
    }
    let refused = server.refused("POST", "/v1/apply?request_id=x", &clusters(&["a"], "1s")).await;
    let text = "request_id is \"x\": it must be 32 hexadecimal digits";
    assert_eq!(refused, (400, "INVALID_ARGUMENT".to_owned(), text.to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn every_read_succeeds_without_a_leader() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    for uri in [
        "/v1/resources",
        "/v1/describe?type=cds&name=a",
        "/v1/explain?node=n",
        "/v1/assignments",
        "/v1/history",
    ] {
        let stale = format!("{uri}{}stale=true", if uri.contains('?') { '&' } else { '?' });
        assert_eq!(server.done("GET", uri, "").await, server.done("GET", &stale, "").await);
    }
    let body = clusters(&["b"], "1s");
    let dry = server.done("POST", "/v1/apply?dry_run=true&stale=true", &body).await;
    assert_eq!((&dry["dry_run"], &dry["changed"]), (&json!(true), &json!(1)));
    let (status, _, text) = server.refused("POST", "/v1/apply?stale=true", &body).await;
    assert_eq!((status, text.as_str()), (400, "only a dry run can start from a stale state"));
    server.stop().await;
}

#[tokio::test]
async fn members_can_be_listed_and_changed() {
    let server = Server::start().await;
    let status = server.done("GET", "/v1/cluster", "").await;
    assert_eq!((&status["voters_up"], &status["quorum"]), (&json!(1), &json!(1)));
    assert_eq!(status["warnings"], json!([]));
    let member = &status["members"][0];
    assert_eq!((&member["role"], &member["up"]), (&json!("leader"), &json!(true)));
    assert_eq!((&member["lag"], &member["leader"]), (&json!(0), &json!(1)));

    let added = "/v1/cluster/members?id=2&address=127.0.0.1:1&learner=true";
    let added = server.done("POST", added, "").await;
    assert!(added["message"].as_str().unwrap().contains("as a learner"), "{added}");
    let status = server.done("GET", "/v1/cluster", "").await;
    assert_eq!((&status["learners"], &status["voters_up"]), (&json!([2]), &json!(1)));
    let silent = &status["members"][1];
    assert_eq!((&silent["role"], &silent["up"]), (&json!("learner"), &json!(false)));
    assert!(silent.get("lag").is_none(), "{silent}");
    let text = "replica 2 (learner) does not answer at \"127.0.0.1:1\": connection refused";
    assert_eq!(status["warnings"], json!([text]));
    server.done("DELETE", "/v1/cluster/members?id=2", "").await;

    let taken = server.done("POST", "/v1/cluster/snapshot", "").await;
    assert!(taken["snapshot_index"].as_u64().unwrap() > 0, "{taken}");

    for (method, uri, status, text) in [
        ("POST", "/v1/cluster/members?address=a:1", 400, "the required parameter `id` is missing"),
        ("POST", "/v1/cluster/members?id=2&address=a", 400, "HOST:PORT"),
        ("POST", "/v1/cluster/members?id=1&address=a:1", 409, "is the leader itself"),
        ("DELETE", "/v1/cluster/members?id=1", 409, "is the only voter"),
        ("DELETE", "/v1/cluster/members?id=2", 409, "replica 2 is not a member"),
        ("POST", "/v1/cluster/promote?id=2", 409, "add it first"),
        ("POST", "/v1/cluster/transfer-leader", 409, "no other voter answers"),
        ("POST", "/v1/cluster/transfer-leader?id=0", 400, "the ID of the replica is 0"),
        ("GET", "/v1/cluster/promote", 405, "does not support GET"),
        ("POST", "/v1/cluster/snapshot?now=1", 400, "unknown parameter"),
    ] {
        let (got, _, message) = server.refused(method, uri, "").await;
        assert_eq!(got, status, "{method} {uri}: {message}");
        assert!(message.contains(text), "{method} {uri}: {message}");
    }
    server.stop().await;
}

/// A replica that has not caught up reports that, and shows its state on request.
#[tokio::test]
async fn a_replica_that_starts_is_not_ready() {
    let server = Server::start_unready().await;
    let request = http::Request::get("/readyz").body(axum::body::Body::empty()).unwrap();
    let (status, text) = server.send(request).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("it has not caught up"), "{text}");
    assert_eq!(server.done("GET", "/v1/cluster", "").await["ready"], false);
    server.stop().await;
}
