//! Requests with resource locators. No resource has constraints on dynamic parameters, so a locator
//! means the resource of its name.

use std::collections::BTreeMap;

use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use serde_json::json;

use crate::support::*;

fn locators(names: &[&str]) -> Vec<ResourceLocator> {
    let dynamic_parameters = BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
    let of = |name: &&str| ResourceLocator {
        name: (*name).to_owned(),
        dynamic_parameters: dynamic_parameters.clone(),
    };
    names.iter().map(of).collect()
}

/// DYN-01: a SotW request may mix names and locators. The next list replaces both.
#[tokio::test]
async fn sotw_locator_subscribes_to_its_name() {
    let server = Server::start().await;
    server.put(EDS, &[("a", "1"), ("b", "2")]);
    let mut client = server.sotw(SOTW_ADS).await;
    let request = |names: &[&str], located: &[&str], nonce: &str| DiscoveryRequest {
        node: node("n"),
        type_url: EDS.to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        resource_locators: locators(located),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    };
    client.send(request(&["a"], &["b"], "")).await;
    let first = client.next().await;
    assert_eq!(bodies(&first), ["1", "2"]);
    client.send(request(&[], &["b"], &first.nonce)).await;
    server.put(EDS, &[("a", "3")]);
    server.put(EDS, &[("b", "4")]);
    assert_eq!(bodies(&client.next().await), ["4"]);
}

/// DYN-01: a delta client subscribes and unsubscribes by locators.
#[tokio::test]
async fn delta_locator_subscribes_to_its_name() {
    let server = Server::start().await;
    server.put(EDS, &[("a", "1"), ("b", "2")]);
    let mut client = server.delta(DELTA_ADS).await;
    let request = |subscribe: &[&str], unsubscribe: &[&str], nonce: &str| DeltaDiscoveryRequest {
        node: node("n"),
        type_url: EDS.to_owned(),
        resource_locators_subscribe: locators(subscribe),
        resource_locators_unsubscribe: locators(unsubscribe),
        response_nonce: nonce.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    client.send(request(&["a", "b"], &[], "")).await;
    let first = client.next().await;
    assert_eq!(names(&first), ["a", "b"]);
    client.send(request(&[], &["a"], &first.nonce)).await;
    until("the request is taken", async || {
        let nodes = server.fanout.nodes().await;
        nodes.iter().any(|node| node.subscriptions.iter().any(|one| one.n_names == 1))
    })
    .await;
    server.put(EDS, &[("a", "3")]);
    server.put(EDS, &[("b", "4")]);
    assert_eq!(names(&client.next().await), ["b"]);
}

/// DYN-01: a poll with locators receives the resources of their names.
#[tokio::test]
async fn poll_with_locators_receives_their_names() {
    let server = Server::with(rest_config(), fanout_config()).await;
    server.put(EDS, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let body = json!({
        "node": {"id": "n"},
        "resource_names": ["a"],
        "resource_locators": [{"dynamic_parameters": {"env": "prod"}, "name": "b"}],
    });
    let reply = Http1::connect(&server).await.post(REST_EDS, &body.to_string()).await;
    assert_eq!(reply.content().1, "1 2");
}
