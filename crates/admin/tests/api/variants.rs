//! Variants of resources in the answers of the admin API.

use std::collections::BTreeMap;

use chancery_model::{Node, types::CLUSTER};
use serde_json::{Value, json};

use crate::support::{Client, Server};

fn variant(constraints: Value) -> Value {
    let cluster = json!({"@type": CLUSTER, "name": "web", "connect_timeout": "1s"});
    json!({"dynamic_parameter_constraints": constraints, "resource": cluster})
}

fn env(value: &str) -> Value {
    json!({"constraint": {"key": "env", "value": value}})
}

/// DYN-11: the parameters of the node decide which variant it sees. Other variants have no nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn view_of_a_node_has_the_variants_for_its_parameters() {
    let server = Server::start().await;
    let all = [variant(env("prod")), variant(env("test"))];
    server.done("POST", "/v1/apply", &json!({"resources": all}).to_string()).await;
    let parameters = BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
    let dynamic_parameters = BTreeMap::from([(CLUSTER.to_owned(), parameters)]);
    let node = Node { id: "np".into(), dynamic_parameters, ..Node::default() };
    let mut client = Client::open_as(&server, node);
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;

    let uri = "/v1/resources?type=cds&view_of_node=np";
    for (query, variant) in [
        (uri.to_owned(), "env=\"prod\""),
        (format!("{uri}&name=web"), "env=\"prod\""),
        (format!("{uri}&name=web&parameter=env=test"), "env=\"test\""),
    ] {
        let view = server.done("GET", &query, "").await;
        assert_eq!(view["resources"].as_array().unwrap().len(), 1, "{query}: {view}");
        assert_eq!(view["resources"][0]["variant"], variant, "{query}");
    }
    let described = server.done("GET", "/v1/describe?type=cds&name=web", "").await;
    let nodes = |at: usize| described["scopes"][at]["nodes"].clone();
    assert_eq!((nodes(0), nodes(1)), (json!(["np"]), json!([])), "{described}");
    for path in ["resources", "describe"] {
        let uri = format!("/v1/{path}?type=cds&name=web&parameter=env=qa");
        let (status, body) = server.call("GET", &uri, "").await;
        assert_eq!(status, 404, "{body}");
        let text = body.to_string();
        assert!(text.contains("has 2 variants, but none matches env="), "{text}");
    }
    server.stop().await;
}

/// A resource without constraints is for all parameters, also in a deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_select_a_resource_without_constraints() {
    let server = Server::start().await;
    let cluster = json!({"@type": CLUSTER, "name": "web", "connect_timeout": "1s"});
    server.done("POST", "/v1/apply", &json!({"resources": [cluster]}).to_string()).await;
    let uri = "/v1/resources?type=cds&name=web&parameter=env=prod";
    let deleted = server.done("DELETE", uri, "").await;
    assert_eq!(deleted["removed"], 1, "{deleted}");
    server.stop().await;
}

/// A retry of the deletion would match another variant, or none. It still returns the result of the first attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_deletion_of_a_variant_returns_the_first_result() {
    let server = Server::start().await;
    let all = [variant(env("prod")), variant(env("test"))];
    server.done("POST", "/v1/apply", &json!({"resources": all}).to_string()).await;
    let uri = |env: &str, id: u32| {
        format!("/v1/resources?type=cds&name=web&parameter=env={env}&request_id={id:032x}")
    };
    let first = server.done("DELETE", &uri("prod", 7), "").await;
    let result = |json: &Value| [&json["revision"], &json["removed"]].map(Clone::clone);
    for other_id in [Some(8), None] {
        let again = server.done("DELETE", &uri("prod", 7), "").await;
        assert_eq!((result(&again), &again["repeated"]), (result(&first), &json!(true)));
        if let Some(id) = other_id {
            server.done("DELETE", &uri("test", id), "").await;
        }
    }
    // The same request in another spelling.
    let spelled = uri("prod", 7).replace("type=cds", &format!("scope=default&type={CLUSTER}"));
    let again = server.done("DELETE", &spelled, "").await;
    assert_eq!(result(&again), result(&first));
    let (status, _, reused) = server.refused("DELETE", &uri("test", 7), "").await;
    assert!(reused.contains("belongs to another write"), "{status}: {reused}");
    server.stop().await;
}
