//! REST-JSON polling: requests and responses.

use std::time::Duration;

use chancery_model::{AssignmentOp, types};
use chancery_xds::Config;
use serde_json::json;
use tokio::{io::AsyncWriteExt, time::Instant};

use crate::support::*;

async fn start() -> Server {
    Server::with(rest_config(), fanout_config()).await
}

/// REST-01, -07, -10, -11, -18, -21, -23, -25: over both versions of HTTP, a poll without a version
/// receives the full state. With the version of the response it receives 304. Each request has its
/// node, and all use one connection.
#[tokio::test]
async fn poll_receives_full_state_and_then_changes() {
    let server = start().await;
    server.put(CDS, &[("a", "1"), ("b", "1")]);
    let mut one = Http1::connect(&server).await;
    let mut two = http2(&server).await;
    let first = one.post(REST_CDS, &poll("", &[])).await;
    let (version, texts) = first.content();
    assert_eq!(texts, "1 1");
    let body = first.json();
    assert_eq!(body["type_url"], CDS);
    assert_eq!(body["control_plane"], json!({"identifier": "chancery"}));
    assert_eq!(body["resources"][0]["@type"], CDS);
    one.post(REST_CDS, &poll(&version, &[])).await.expect_not_modified();
    post2(&mut two, REST_CDS, &poll(&version, &[])).await.expect_not_modified();
    server.put(CDS, &[("b", "2")]);
    let (second, texts) = one.post(REST_CDS, &poll(&version, &[])).await.content();
    assert_eq!(texts, "1 2");
    assert_ne!(version, second);
    assert_eq!(post2(&mut two, REST_CDS, &poll("", &["*"])).await.content().1, "1 2");
    server.delete(CDS, &["a", "b"]);
    let (third, texts) = post2(&mut two, REST_CDS, &poll(&second, &[])).await.content();
    assert_eq!(texts, "", "a known and empty view is an empty response");
    one.post(REST_CDS, &poll(&third, &[])).await.expect_not_modified();
    let polls = |result| {
        server.meter.counter("chancery_xds_polls_total", &[("type", "cluster"), ("result", result)])
    };
    assert_eq!((polls("changed"), polls("unchanged")), (4, 3));
    drop((one, two));
    server.until_left(0, 0).await;
}

/// REST-01, -09: each type with a REST form has its path. ADS, delta, VHDS and LEDS have none.
#[tokio::test]
async fn each_type_is_polled_by_its_path() {
    let server = start().await;
    let mut client = Http1::connect(&server).await;
    let mut served = 0;
    for known in &types::KNOWN {
        let Some(path) = known.service.as_ref().and_then(|service| service.rest) else { continue };
        server.put(known.url, &[("there", "yes")]);
        let reply = client.post(path, &poll("", &["there", "missing"])).await;
        assert_eq!(reply.content().1, "yes", "{path}");
        assert_eq!(reply.json()["type_url"], known.url);
        served += 1;
    }
    assert_eq!(served, 8);
    for path in [
        "/v3/discovery:aggregated",
        "/v3/discovery:virtual_hosts",
        "/v3/discovery:locality_endpoints",
        "/v3/delta_discovery:clusters",
        "/v3/discovery",
        "/",
    ] {
        let reply = client.post(path, &poll("", &[])).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.error().contains(path), "{reply:?}");
    }
}

/// SOTW-14, REST-11: the version begins with the one that streams receive.
#[tokio::test]
async fn version_extends_the_version_of_streams() {
    let server = start().await;
    server.put(CDS, &[("a", "1")]);
    let mut stream = server.sotw(SOTW_CDS).await;
    stream.subscribe(CDS, &[]).await;
    let of_stream = stream.next().await.version_info;
    let (version, _) = Http1::connect(&server).await.post(REST_CDS, &poll("", &[])).await.content();
    let tail = version.strip_prefix(&format!("{of_stream}-")).expect(&version);
    assert_eq!(tail.len(), 16);
}

/// REST-12, -17, -19: a named poll receives exactly the named resources. A further name is a change.
/// Changes of other resources do not count. Without names there is nothing to send.
#[tokio::test]
async fn named_poll_receives_exactly_its_names() {
    let server = start().await;
    server.put(EDS, &[("a", "a1"), ("b", "b1"), ("c", "c1")]);
    let mut client = Http1::connect(&server).await;
    let (version, texts) = client.post(REST_EDS, &poll("", &["a"])).await.content();
    assert_eq!(texts, "a1");
    server.put(EDS, &[("c", "c2")]);
    client.post(REST_EDS, &poll(&version, &["a"])).await.expect_not_modified();
    let (both, texts) = client.post(REST_EDS, &poll(&version, &["b", "a"])).await.content();
    assert_eq!(texts, "a1 b1");
    server.put(EDS, &[("b", "b2")]);
    assert_eq!(client.post(REST_EDS, &poll(&both, &["a", "b"])).await.content().1, "a1 b2");
    client.post(REST_EDS, &poll("", &[])).await.expect_not_modified();
    client.post(REST_EDS, &poll("", &["missing"])).await.expect_not_modified();
}

/// XDSTP-03, XDSTP-15: a poll finds structured names in any spelling. It cannot request a collection.
#[tokio::test]
async fn poll_finds_structured_names_in_any_spelling() {
    let server = start().await;
    let name =
        |rest: &str| format!("xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/{rest}");
    server.put(EDS, &[(&name("x?k=1&l=2"), "1"), ("y", "2")]);
    let mut client = Http1::connect(&server).await;
    let asked = name("%78?l=2&k=1#entry=e");
    let (version, texts) = client.post(REST_EDS, &poll("", &[&asked, "y"])).await.content();
    assert_eq!(texts, "1 2");
    client.post(REST_EDS, &poll(&version, &[&asked, "y"])).await.expect_not_modified();
    let reply = client.post(REST_EDS, &poll("", &["y", &name("*")])).await;
    assert_eq!(reply.status, 400);
    assert!(reply.error().contains("is a collection, which polls cannot request"), "{reply:?}");
}

/// XDSTP-08, XDSTP-09: a poll finds a name with parameters of a node. A wildcard returns those of its own node.
#[tokio::test]
async fn poll_finds_names_with_parameters_of_nodes() {
    let server = start().await;
    let name = |id: &str| format!("xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id={id}");
    server.put(CDS, &[("web", "1"), (&name("n1"), "own"), (&name("n2"), "other")]);
    let mut client = Http1::connect(&server).await;
    let named = client.post(REST_CDS, &poll("", &[&name("n2")])).await;
    assert_eq!(named.content().1, "other");
    let (version, texts) = client.post(REST_CDS, &poll("", &[])).await.content();
    assert_eq!(texts, "1 own");
    server.put(CDS, &[("web", "2")]);
    assert_eq!(client.post(REST_CDS, &poll(&version, &[])).await.content().1, "2 own");
}

/// REST-03, -06, -08, -21: both spellings are accepted, unknown fields are ignored, and a content type is
/// optional. A type that contradicts the path is an error.
#[tokio::test]
async fn request_is_read_in_both_spellings() {
    let server = start().await;
    server.put(EDS, &[("a", "1")]);
    let mut client = http2(&server).await;
    for names in ["resource_names", "resourceNames"] {
        let body = json!({
            "node": {"id": "n1", "userAgentName": "x", "extensions": [{"name": "y"}]},
            "typeUrl": EDS, "response_nonce": "ignored", "added_later": {"a": [1]},
            names: ["a"],
        });
        assert_eq!(post2(&mut client, REST_EDS, &body.to_string()).await.content().1, "1");
    }
    let body = json!({"node": {"id": "n1"}, "type_url": CDS});
    let reply = post2(&mut client, REST_EDS, &body.to_string()).await;
    assert_eq!(reply.status, 400);
    let text = reply.error();
    assert!(text.contains(REST_EDS) && text.contains(EDS) && text.contains(CDS), "{text}");
}

/// REST-20: each error has its status and a text for people. The connection continues.
#[tokio::test]
async fn errors_have_their_own_status() {
    let config = Config { request_bytes_max: 9000, names_per_request_max: 10, ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let mut client = Http1::connect(&server).await;
    let many: Vec<String> = (0..11).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (body, status, text) in [
        (String::new(), 400, "the body is not a DiscoveryRequest in JSON: EOF"),
        ("{".into(), 400, "the body is not a DiscoveryRequest in JSON: EOF"),
        ("{}".into(), 400, "the request has no node"),
        (r#"{"node": {}}"#.into(), 400, "node.id is empty"),
        (r#"{"node": {"id": 1}}"#.into(), 400, "node.id: expected a string"),
        (poll("", &many), 413, "more than 10 names (names_per_request_max)"),
        ("x".repeat(9001), 413, "more than 9000 bytes (request_bytes_max)"),
        (poll(&"7".repeat(4097), &[]), 413, "version_info has 4097 bytes, at most 4096"),
    ] {
        let reply = client.post(REST_CDS, &body).await;
        assert_eq!(reply.status, status, "{body}");
        assert!(reply.error().contains(text), "{body}: {reply:?}");
        if reply.headers.get("connection").is_some_and(|value| value == "close") {
            client = Http1::connect(&server).await;
        }
    }
    for method in ["GET", "PUT", "DELETE"] {
        let head = format!("{method} {REST_CDS} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        client.0.write_all(head.as_bytes()).await.unwrap();
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.headers["allow"].as_str()), (405, "POST"));
    }
    let head = format!(
        "POST {REST_CDS} HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n"
    );
    client.0.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(client.reply().await.status, 415);
    // gRPC needs HTTP/2.
    let head = format!(
        "POST {SOTW_ADS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc\r\ncontent-length: 0\r\n\r\n"
    );
    client.0.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(client.reply().await.status, 505);
    client.post(REST_CDS, &poll("", &[])).await.content();
    assert_eq!((server.hits("names_per_request"), server.hits("request_bytes")), (1, 1));
}

/// REST-20: a connection that polls too fast, and a replica with too many streams, say when to retry.
#[tokio::test]
async fn overload_says_when_to_retry() {
    let config = Config { requests_per_second_max: 1, requests_burst_max: 2, ..rest_config() };
    let fanout = chancery_fanout::Config { streams_max: 1, ..fanout_config() };
    let server = Server::with(config, fanout).await;
    server.put(CDS, &[("a", "1")]);
    let mut client = Http1::connect(&server).await;
    // Each second permits a further poll, so a slow machine sends a few more.
    let mut n_served = 0;
    let refused = loop {
        let reply = client.post(REST_CDS, &poll("", &[])).await;
        if reply.status != 200 {
            break reply;
        }
        assert!(!reply.headers.contains_key("retry-after"));
        n_served += 1;
        assert!(n_served < 1000, "polls are not limited");
    };
    assert!(n_served >= 2, "only {n_served} polls are served");
    assert_eq!((refused.status, refused.headers.contains_key("retry-after")), (429, true));
    let stream = server.sotw(SOTW_CDS).await;
    let reply = Http1::connect(&server).await.post(REST_CDS, &poll("", &[])).await;
    assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (503, "1"));
    assert!(reply.error().contains("streams_max"), "{reply:?}");
    drop(stream);
    assert_eq!((server.hits("requests_per_second"), server.hits("streams")), (1, 1));
}

/// REST-05, REST-20: a resource without a JSON form fails the polls that ask for it, and names it. Other
/// polls and streams are not affected.
#[tokio::test]
async fn resource_without_json_form_fails_its_polls_only() {
    let server = start().await;
    server.put(EDS, &[("good", "1"), ("odd", "bad")]);
    let mut client = Http1::connect(&server).await;
    let reply = client.post(REST_EDS, &poll("", &["good", "odd"])).await;
    assert_eq!(reply.status, 500);
    let text = reply.error();
    assert!(text.contains("\"odd\"") && text.contains("there is no descriptor"), "{text}");
    assert_eq!(client.post(REST_EDS, &poll("", &["good"])).await.content().1, "1");
    server.put(CDS, &[("odd", "bad")]);
    assert_eq!(client.post(REST_CDS, &poll("", &[])).await.status, 500);
    let mut stream = server.sotw(SOTW_ADS).await;
    stream.subscribe(EDS, &["odd"]).await;
    assert_eq!(bodies(&stream.next().await), ["bad"]);
}

/// REST-24, OPS-05: a node without an assignment receives 304, never an empty full state.
#[tokio::test]
async fn unknown_node_receives_nothing() {
    let server = start().await;
    server.put(CDS, &[("a", "1")]);
    let mut client = Http1::connect(&server).await;
    let (version, _) = client.post(REST_CDS, &poll("", &[])).await.content();
    server.assign(AssignmentOp::Delete("default".into()));
    client.post(REST_CDS, &poll("", &[])).await.expect_not_modified();
    client.post(REST_CDS, &poll(&version, &[])).await.expect_not_modified();
    client.post(REST_EDS, &poll("", &["a"])).await.expect_not_modified();
}

/// REST-14, REST-15: by default nothing waits. A client that repeats its version forever receives the
/// response at its own rate.
#[tokio::test]
async fn repeated_version_is_tolerated() {
    let server = start().await;
    server.put(CDS, &[("a", "1")]);
    let mut client = Http1::connect(&server).await;
    let (version, _) = client.post(REST_CDS, &poll("", &[])).await.content();
    server.put(CDS, &[("a", "2")]);
    let since = Instant::now();
    for _ in 0..20 {
        assert_eq!(client.post(REST_CDS, &poll(&version, &[])).await.content().1, "2");
    }
    assert!(since.elapsed() < PATIENCE / 2);
    server.until_left(1, 0).await;
}

/// REST-16, SOTW-28: a client may report that it rejected a response. The report is counted, and kept with
/// the node, the type, the version, the code and the time.
#[tokio::test]
async fn reported_rejection_is_counted() {
    let server = start().await;
    server.put(CDS, &[("a", "1")]);
    let body = json!({
        "node": {"id": "n1"}, "versionInfo": "7-x", "errorDetail": {"code": 3, "message": "no"}
    });
    Http1::connect(&server).await.post(REST_CDS, &body.to_string()).await.content();
    let labels = [("type", "cluster")];
    assert_eq!(server.meter.counter("chancery_xds_poll_nacks_total", &labels), 1);
    let kept = server.fanout.poll_rejections();
    let kept: Vec<_> = kept
        .iter()
        .map(|one| (one.node.as_str(), one.type_url.as_str(), one.version.as_str(), one.code))
        .collect();
    assert_eq!(kept, [("n1", types::CLUSTER, "7-x", 3)]);
    assert_eq!(server.fanout.poll_rejections()[0].scopes.len(), 1);
}

fn holding(hold: Duration) -> Config {
    Config { poll_hold: hold, ..rest_config() }
}

/// REST-13, -14: a long poll waits for a change of what it asks for, and receives 304 at the limit.
#[tokio::test]
async fn long_poll_waits_for_a_change() {
    const HOLD: Duration = Duration::from_millis(500);
    let server = Server::with(holding(HOLD), fanout_config()).await;
    server.put(EDS, &[("a", "1"), ("b", "1")]);
    let mut client = Http1::connect(&server).await;
    let (version, _) = client.post(REST_EDS, &poll("", &["a"])).await.content();
    let since = Instant::now();
    client.post(REST_EDS, &poll(&version, &["a"])).await.expect_not_modified();
    assert!(since.elapsed() >= HOLD);

    let server = Server::with(holding(PATIENCE), fanout_config()).await;
    server.put(EDS, &[("a", "1"), ("b", "1")]);
    let mut client = Http1::connect(&server).await;
    let (version, _) = client.post(REST_EDS, &poll("", &["a"])).await.content();
    let since = Instant::now();
    client.send(REST_EDS, &poll(&version, &["a"])).await;
    let is_held = async || server.meter.gauge("chancery_xds_held_polls") > 0.5;
    until("the poll waits", is_held).await;
    server.put(EDS, &[("b", "2")]);
    // REST-22: another poll of the same client does not wait for the first one.
    let mut other = Http1::connect(&server).await;
    assert_eq!(other.post(REST_EDS, &poll(&version, &["b"])).await.content().1, "2");
    server.put(EDS, &[("a", "2")]);
    assert_eq!(client.reply().await.content().1, "2");
    assert!(since.elapsed() < PATIENCE / 2);
    server.until_left(2, 0).await;
    assert!(!is_held().await);
}

/// REST-13, OPS-05: a held poll follows a change of its node's assignment.
#[tokio::test]
async fn held_poll_follows_its_assignment() {
    let server = Server::with(holding(PATIENCE), fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let rule = chancery_model::default_assignment();
    server.assign(AssignmentOp::Delete(rule.name.clone()));
    let mut client = Http1::connect(&server).await;
    client.send(REST_CDS, &poll("", &[])).await;
    until_held(&server).await;
    server.assign(AssignmentOp::Put(rule));
    assert_eq!(client.reply().await.content().1, "1");
}

/// REST-22, -23: polls on one HTTP/2 connection are independent of each other.
#[tokio::test]
async fn polls_of_one_connection_are_independent() {
    let server = Server::with(holding(PATIENCE), fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let client = http2(&server).await;
    let (version, _) = post2(&mut client.clone(), REST_CDS, &poll("", &[])).await.content();
    let mut first = client.clone();
    let held = tokio::spawn(async move { post2(&mut first, REST_CDS, &poll(&version, &[])).await });
    until_held(&server).await;
    for _ in 0..3 {
        assert_eq!(post2(&mut client.clone(), REST_CDS, &poll("", &[])).await.content().1, "1");
    }
    server.put(CDS, &[("a", "2")]);
    assert_eq!(held.await.unwrap().content().1, "2");
}

/// Returns when the server holds a poll.
async fn until_held(server: &Server) {
    until("the server holds the poll", async || {
        server.meter.gauge("chancery_xds_held_polls") > 0.5
    })
    .await;
}

/// Returns a client that has rejected the response with "2", and its next poll.
async fn rejecting_client(server: &Server) -> (Http1, String) {
    server.put(CDS, &[("a", "1")]);
    let mut client = Http1::connect(server).await;
    let (version, _) = client.post(REST_CDS, &poll("", &[])).await.content();
    server.put(CDS, &[("a", "2")]);
    let old = poll(&version, &[]);
    assert_eq!(client.post(REST_CDS, &old).await.content().1, "2");
    (client, old)
}

/// REST-15: with long polling, a client that repeats the version before a rejected response waits as if
/// nothing had changed. At the end of the wait it receives the response again.
#[tokio::test]
async fn rejecting_client_does_not_spin() {
    const HOLD: Duration = Duration::from_millis(300);
    let server = Server::with(holding(HOLD), fanout_config()).await;
    let (mut client, old) = rejecting_client(&server).await;
    for _ in 0..2 {
        let since = Instant::now();
        assert_eq!(client.post(REST_CDS, &old).await.content().1, "2");
        assert!(since.elapsed() >= HOLD);
    }
    // A change ends the wait.
    let server = Server::with(holding(PATIENCE), fanout_config()).await;
    let (mut client, old) = rejecting_client(&server).await;
    client.send(REST_CDS, &old).await;
    until_held(&server).await;
    server.put(CDS, &[("a", "3")]);
    assert_eq!(client.reply().await.content().1, "3");
    // A client without a version has just started, and does not wait.
    for _ in 0..3 {
        client.post(REST_CDS, &poll("", &[])).await.content();
    }
}
