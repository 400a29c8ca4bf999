//! Requests with resource locators.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_proto::{
    discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, ResourceLocator},
    node::{ContextParams, Node},
};
use prost::Message as _;
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

/// Encodes a node with one dynamic parameter of a type.
fn node_with_env(id: &str, type_url: &str, env: &str) -> Bytes {
    let params = BTreeMap::from([("env".to_owned(), env.to_owned())]);
    let dynamic_parameters = BTreeMap::from([(type_url.to_owned(), ContextParams { params })]);
    let (id, cluster) = (id.to_owned(), "test".to_owned());
    Node { id, cluster, dynamic_parameters, ..Node::default() }.encode_to_vec().into()
}

/// DYN-03, DYN-04, DYN-11: polls receive the variant for the parameters of the locator, or for those of
/// the node. A client with locators receives the constraints.
#[tokio::test]
async fn poll_receives_the_matching_variant() {
    let server = Server::with(rest_config(), fanout_config()).await;
    server.put_variants(EDS, "a", &[("prod", "1"), ("test", "2")]);
    let poll = async |body: serde_json::Value| {
        Http1::connect(&server).await.post(REST_EDS, &body.to_string()).await
    };
    let located = |env: &str| {
        let locator = json!({"name": "a", "dynamicParameters": {"env": env, "x": "y"}});
        json!({"node": {"id": "n"}, "resource_locators": [locator]})
    };
    let text = String::from_utf8(poll(located("test")).await.body.to_vec()).unwrap();
    assert!(text.contains("envoy.service.discovery.v3.Resource"), "{text}");
    let node = json!({"id": "n", "dynamic_parameters": {EDS: {"params": {"env": "prod"}}}});
    let plain = json!({"node": node, "resource_names": ["a"]});
    assert_eq!(poll(plain).await.content().1, "1");
}

/// DYN-11: a request with a changed node replaces the variants of its type.
#[tokio::test]
async fn changed_node_parameters_replace_the_variant() {
    let server = Server::start().await;
    server.put_variants(EDS, "a", &[("prod", "1"), ("test", "2")]);
    let mut client = server.delta(DELTA_ADS).await;
    let request = |env: &str, subscribe: &[&str], nonce: &str| DeltaDiscoveryRequest {
        node: Some(node_with_env("n", EDS, env)),
        type_url: EDS.to_owned(),
        resource_names_subscribe: subscribe.iter().map(|name| (*name).to_owned()).collect(),
        response_nonce: nonce.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let bodies = |response: &DeltaDiscoveryResponse| -> Vec<String> {
        let bodies = response.resources.iter().filter_map(|resource| resource.resource.as_ref());
        bodies.map(|any| String::from_utf8(any.value.to_vec()).unwrap()).collect()
    };
    client.send(request("prod", &["a"], "")).await;
    let first = client.next().await;
    assert_eq!((names(&first), bodies(&first)), (vec!["a"], vec!["1".to_owned()]));
    client.send(request("test", &[], &first.nonce)).await;
    let second = client.next().await;
    assert_eq!(bodies(&second), ["2"]);
    assert!(second.removed_resources.is_empty() && second.removed_resource_names.is_empty());
}
