//! The behavior of every client: subscribe, receive a response, acknowledge, receive changes.

use chancery_model::types::LISTENER as LDS;
use chancery_proto::discovery::{self, DeltaDiscoveryRequest, DiscoveryRequest};
use prost::Message;
use tonic::Code;

use crate::support::*;

/// DELTA-05, SVC-02: a wildcard client receives everything, and then only changes.
#[tokio::test]
async fn delta_client_receives_everything_once_and_then_changes() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    assert_eq!(names(&first), ["a", "b", "c"]);
    assert_eq!(first.type_url, CDS);
    client.ack(&first).await;

    server.put(CDS, &[("b", "2"), ("c", "1")]);
    let second = client.next().await;
    assert_eq!(names(&second), ["b"]);
    assert_eq!(second.resources[0].resource.as_ref().unwrap().value, "2");
    assert_ne!(second.nonce, first.nonce);
    client.ack(&second).await;

    server.delete(CDS, &["a"]);
    let third = client.next().await;
    assert_eq!((names(&third), &third.removed_resources[..]), (vec![], &["a".to_owned()][..]));
}

/// SOTW-70, -84: a response of a full-state type has the whole state, in which deleted resources are
/// absent.
#[tokio::test]
async fn a_sotw_client_gets_the_whole_state_of_a_full_state_type() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "a1"), ("b", "b1")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    assert_eq!(bodies(&first), ["a1", "b1"]);
    client.ack(&first, &[]).await;
    server.put(CDS, &[("a", "a2")]);
    let second = client.next().await;
    assert_eq!(bodies(&second), ["a2", "b1"]);
    assert_ne!(second.version_info, first.version_info);
}

/// SVC-02, DELTA-21, -22: one stream has several types, each with its own subscription.
#[tokio::test]
async fn an_aggregated_stream_carries_several_types() {
    let server = Server::start().await;
    server.put(CDS, &[("c", "1")]);
    server.put(EDS, &[("x", "1"), ("y", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let clusters = client.next().await;
    assert_eq!((clusters.type_url.as_str(), names(&clusters)), (CDS, vec!["c"]));
    client.ack(&clusters).await;
    client.subscribe(EDS, &["x"]).await;
    let endpoints = client.next().await;
    assert_eq!((endpoints.type_url.as_str(), names(&endpoints)), (EDS, vec!["x"]));
    client.ack(&endpoints).await;
    client.subscribe(EDS, &["y"]).await;
    assert_eq!(names(&client.next().await), ["y"]);
}

/// SVC-01, SVC-07, SVC-17: on a stream of one type, requests may omit the type, and responses have it.
#[tokio::test]
async fn a_stream_of_one_type_implies_the_type() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "a1")]);
    let mut delta = server.delta(DELTA_CDS).await;
    delta.subscribe("", &[]).await;
    let response = delta.next().await;
    assert_eq!((response.type_url.as_str(), names(&response)), (CDS, vec!["a"]));
    let mut sotw = server.sotw(SOTW_CDS).await;
    sotw.subscribe("", &[]).await;
    let response = sotw.next().await;
    assert_eq!((response.type_url.as_str(), bodies(&response)), (CDS, vec!["a1"]));
    assert_eq!(response.control_plane.unwrap().identifier, "chancery");
}

/// SVC-08: a stream of one type rejects requests for another type.
#[tokio::test]
async fn a_stream_of_one_type_refuses_another() {
    let server = Server::start().await;
    let mut client = server.delta(DELTA_CDS).await;
    client.subscribe(EDS, &[]).await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains(CDS) && status.message().contains(EDS), "{status}");
}

/// SVC-09: an aggregated stream rejects a request without a type.
#[tokio::test]
async fn an_aggregated_stream_refuses_a_request_without_type() {
    let server = Server::start().await;
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe("", &[]).await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("type_url is empty"), "{status}");
}

/// SVC-10: a request for an unknown type opens an ordinary subscription.
#[tokio::test]
async fn unknown_type_is_served_like_a_known_type() {
    let server = Server::start().await;
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe("type.googleapis.com/example.Widget", &["w"]).await;
    let absent = client.next().await;
    assert_eq!(absent.removed_resources, ["w"]);
    client.ack(&absent).await;
    server.put("type.googleapis.com/example.Widget", &[("w", "1")]);
    assert_eq!(names(&client.next().await), ["w"]);
}

/// SOTW-20, -23, -24, SOTW-28: rejected content is recorded, and not sent again until it changes.
#[tokio::test]
async fn a_rejected_response_is_recorded_and_not_repeated() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "bad")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    client
        .send(DiscoveryRequest {
            type_url: CDS.into(),
            response_nonce: first.nonce.clone(),
            error_detail: Some(discovery::Status {
                code: 13,
                message: "no such filter".into(),
                details: vec![],
            }),
            ..DiscoveryRequest::default()
        })
        .await;
    until("the rejection is recorded", async || {
        let nodes = server.fanout.nodes().await;
        nodes.iter().any(|node| {
            node.node.id == "n1"
                && node.nacks.iter().any(|nack| nack.code == 13 && nack.message == "no such filter")
        })
    })
    .await;
    // Clusters go before listeners.
    server.put(LDS, &[("l", "1")]);
    client.subscribe(LDS, &[]).await;
    let next = client.next().await;
    assert_eq!(next.type_url, LDS, "the rejected response is sent again");
    client.ack(&next, &[]).await;
    let revision = server.put(CDS, &[("a", "good")]);
    let second = client.next().await;
    assert_eq!(bodies(&second), ["good"]);
    client.ack(&second, &[]).await;
    until("everything is acknowledged", async || {
        server.fanout.unsettled(revision).await.is_empty()
    })
    .await;
}

/// DELTA-70, -72: a client that reconnects with its resource versions receives only the difference.
#[tokio::test]
async fn reconnected_client_receives_only_the_difference() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    client.ack(&first).await;
    drop(client);
    server.until_no_stream().await;
    server.put(CDS, &[("b", "2")]);
    let mut client = server.delta(DELTA_ADS).await;
    let held = first.resources.iter().map(|r| (r.name.clone(), r.version.clone())).collect();
    client
        .send(DeltaDiscoveryRequest {
            type_url: CDS.into(),
            node: node("n1"),
            initial_resource_versions: held,
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    assert_eq!(names(&client.next().await), ["b"]);
}

/// DELTA-71, OPS-12: a request far above gRPC's usual limit of 4 MiB is accepted.
#[tokio::test]
async fn client_may_reconnect_with_many_names() {
    let server = Server::start().await;
    server.put(CDS, &[("last", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    let held = (0..100_000)
        .map(|n| (format!("a-cluster-with-a-name-of-some-length-{n}"), "1-00000000".to_owned()))
        .collect();
    let request = DeltaDiscoveryRequest {
        type_url: CDS.into(),
        node: node("n1"),
        initial_resource_versions: held,
        ..DeltaDiscoveryRequest::default()
    };
    assert!(request.encoded_len() > 5 << 20);
    client.send(request).await;
    assert_eq!(names(&client.next().await), ["last"]);
}

/// OPS-12: a large delta response is split into parts that every gRPC client accepts, and a large
/// resource arrives whole.
#[tokio::test]
async fn large_delta_response_is_split() {
    let server = Server::start().await;
    let body = "x".repeat(100_000);
    let all: Vec<String> = (0..100).map(|n| format!("c{n:03}")).collect();
    let all: Vec<(&str, &str)> = all.iter().map(|name| (name.as_str(), body.as_str())).collect();
    server.put(CDS, &all);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let mut seen = 0;
    while seen < 100 {
        let part = client.next().await;
        assert!(part.encoded_len() < 4 << 20, "{} bytes", part.encoded_len());
        assert!(part.resources.iter().all(|r| r.resource.as_ref().unwrap().value == body));
        seen += part.resources.len();
        client.ack(&part).await;
    }
    assert_eq!(seen, 100);
}
