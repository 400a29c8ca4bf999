//! Resource errors on the wire, for streams and polls.

use chancery_proto::discovery::ResourceError;
use serde_json::json;

use crate::support::*;

async fn start() -> Server {
    let mut fanout = fanout_config();
    fanout.session.resource_errors = true;
    Server::with(rest_config(), fanout).await
}

/// Returns the names and the codes of errors.
fn codes(errors: &[ResourceError]) -> Vec<(&str, i32)> {
    let name = errors.iter().map(|error| error.resource_name.as_ref().unwrap().name.as_str());
    let code = errors.iter().map(|error| error.error_detail.as_ref().unwrap().code);
    name.zip(code).collect()
}

/// ERR-01, ERR-04, ERR-11, ERR-12, ERR-16: a SotW client receives the error of a missing name at once,
/// with the resources that exist, and later the resource on the same stream.
#[tokio::test]
async fn sotw_client_receives_error_and_later_the_resource() {
    let server = start().await;
    server.put(CDS, &[("a", "1")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(CDS, &["a", "b"]).await;
    let first = client.next().await;
    assert_eq!(bodies(&first), ["1"]);
    assert_eq!(codes(&first.resource_errors), [("b", 5)]);
    client.ack(&first, &["a", "b"]).await;
    client.subscribe(EDS, &["e"]).await;
    let endpoints = client.next().await;
    assert_eq!((endpoints.type_url.as_str(), bodies(&endpoints).len()), (EDS, 0));
    assert_eq!(codes(&endpoints.resource_errors), [("e", 5)]);
    client.ack(&endpoints, &["e"]).await;
    server.put(CDS, &[("b", "1")]);
    let second = client.next().await;
    assert_eq!(bodies(&second), ["1", "1"]);
    assert_eq!(codes(&second.resource_errors), []);
}

/// ERR-09: a delta client receives the removal and the error.
#[tokio::test]
async fn delta_client_receives_removal_and_error() {
    let server = start().await;
    server.put(CDS, &[("a", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &["a", "b"]).await;
    let first = client.next().await;
    assert_eq!(names(&first), ["a"]);
    assert_eq!(first.removed_resources, ["b"]);
    assert_eq!(codes(&first.resource_errors), [("b", 5)]);
    client.ack(&first).await;
    server.delete(CDS, &["a"]);
    let second = client.next().await;
    assert_eq!(second.removed_resources, ["a"]);
    assert_eq!(codes(&second.resource_errors), [("a", 5)]);
}

/// ERR-01, ERR-04, REST-17: a poll receives the error in JSON, and 304 while nothing changes.
#[tokio::test]
async fn poll_receives_error_once() {
    let server = start().await;
    server.put(EDS, &[("a", "1")]);
    let mut client = Http1::connect(&server).await;
    let reply = client.post(REST_EDS, &poll("", &["a", "b"])).await;
    let (version, texts) = reply.content();
    assert_eq!(texts, "1");
    let error = json!({
        "resource_name": {"name": "b"},
        "error_detail": {"code": 5, "message": "this node has no resource of this type and name"},
    });
    assert_eq!(reply.json()["resource_errors"], json!([error]));
    client.post(REST_EDS, &poll(&version, &["a", "b"])).await.expect_not_modified();
    server.put(EDS, &[("b", "2")]);
    let reply = client.post(REST_EDS, &poll(&version, &["a", "b"])).await;
    assert_eq!(reply.content().1, "1 2");
    assert!(reply.json().get("resource_errors").is_none());
}

/// ERR-07, ERR-08, OPS-05: a node without an assignment receives neither resources nor errors, so it
/// keeps what it has.
#[tokio::test]
async fn unknown_view_has_no_errors() {
    let server = start().await;
    server.put(EDS, &[("a", "1")]);
    server.assign(chancery_model::AssignmentOp::Delete("default".into()));
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(EDS, &["a", "b"]).await;
    until("the request is taken", async || server.fanout.nodes().await.len() == 1).await;
    server.assign(chancery_model::AssignmentOp::Put(chancery_model::default_assignment()));
    let first = client.next().await;
    assert_eq!(bodies(&first), ["1"]);
    assert_eq!(codes(&first.resource_errors), [("b", 5)]);
}
