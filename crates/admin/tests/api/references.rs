//! References between resources: findings of writes, and both directions in `describe` and `explain`.

use chancery_admin::ReferenceSettings;
use chancery_admission::{Validation, ValidationMode};
use serde_json::{Value, json};

use crate::support::{Client, Server, clusters};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub(crate) const ROUTE: &str = "resources: [{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: main, \
     virtual_hosts: [{name: all, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: web}}]}]}]";
const FIELD: &str = "virtual_hosts[0].routes[0].route.cluster";

/// Starts a replica with a node that has the scope `default`.
async fn start() -> (Server, Client) {
    start_with(ReferenceSettings::default()).await
}

async fn start_with(settings: ReferenceSettings) -> (Server, Client) {
    let server = Server::start_with_references(settings).await;
    let mut client = Client::open(&server, "edge-1");
    client.subscribe(CLUSTER).await;
    client.response().await;
    (server, client)
}

#[tokio::test]
async fn write_and_dry_run_report_dangling_references() {
    let (server, _client) = start().await;
    for uri in ["/v1/apply?dry_run=true", "/v1/apply"] {
        let written = server.done("POST", uri, ROUTE).await;
        let warning = &written["warnings"][0];
        assert_eq!(warning["rule_id"], "reference.missing", "{written}");
        assert_eq!(warning["resource"], "resources[0] RouteConfiguration \"main\"");
        assert_eq!((&warning["file"], &warning["line"]), (&json!("request body"), &json!(1)));
        assert_eq!(&warning["column"], &json!(ROUTE.find("cluster: web").unwrap() + 1));
        assert_eq!(warning["field_path"], FIELD);
        let message = "refers to Cluster \"web\", which is missing in 1 view: default (1 node)";
        assert_eq!(warning["message"], message);
    }
    let published = server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    assert_eq!(published["warnings"], json!([]));

    let delete = "/v1/resources?type=cds&name=web&confirm=all";
    let deleted = server.done("DELETE", delete, "").await;
    let warning = &deleted["warnings"][0];
    assert_eq!(warning["rule_id"], "reference.removed", "{deleted}");
    let message = "its removal leaves 1 dangling reference from RouteConfiguration \"main\", in 1 view: default (1 node)";
    assert_eq!(warning["message"], message);
    assert_eq!((&warning["file"], &warning["line"]), (&json!(""), &json!(0)));
    server.stop().await;
}

/// The findings of admission and those about references are one list, also in a large input.
#[tokio::test]
async fn warnings_of_a_write_are_in_the_order_of_their_positions() {
    let (server, _client) = start().await;
    let unnamed = "resources: [{'@type': type.googleapis.com/envoy.config.listener.v3.Listener, \
         address: {socket_address: {address: 127.0.0.1, port_value: 80}}, filter_chains: [{}]}]";
    let filler = "#\n".repeat(40 << 10);
    let input =
        format!("{ROUTE}\n---\n{filler}{unnamed}\n---\n{}", ROUTE.replace("name: main", "name: b"));
    let written = server.done("POST", "/v1/apply", &input).await;
    let place =
        |one: &Value| (one["document"].clone(), one["line"].clone(), one["rule_id"].clone());
    let places: Vec<_> = written["warnings"].as_array().unwrap().iter().map(place).collect();
    let place = |document: u32, line: u32, rule: &str| (json!(document), json!(line), json!(rule));
    assert_eq!(
        places,
        [
            place(1, 1, "reference.missing"),
            place(2, 3 + (40 << 10), "listener.generated_name"),
            place(3, 5 + (40 << 10), "reference.missing"),
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn enforced_scope_refuses_dangling_references() {
    let modes = Validation::of(ValidationMode::Enforce);
    let (server, _client) =
        start_with(ReferenceSettings { modes, ..ReferenceSettings::default() }).await;
    let revision = server.done("GET", "/v1/cluster", "").await["revision"].take();
    for uri in ["/v1/apply?dry_run=true", "/v1/apply"] {
        let (status, code, text) = server.refused("POST", uri, ROUTE).await;
        assert_eq!((status, code.as_str()), (400, "INVALID_ARGUMENT"), "{text}");
        assert!(text.contains("refers to Cluster \"web\", which is missing in 1 view"), "{text}");
        assert!(text.starts_with("request body:1:"), "{text}");
    }
    assert_eq!(server.done("GET", "/v1/cluster", "").await["revision"], revision);
    let cluster = clusters(&["web"], "1s");
    let both = format!("{cluster}---\n{ROUTE}\n");
    assert_eq!(server.done("POST", "/v1/apply", &both).await["changed"], 2);
    server.stop().await;
}

#[tokio::test]
async fn describe_and_explain_show_both_directions() {
    let (server, _client) = start().await;
    server.done("POST", "/v1/apply", ROUTE).await;
    let reference = |type_name: &str, name: &str, scope: &str, state: &str| {
        json!([{
            "type_url": format!("type.googleapis.com/{type_name}"),
            "name": name,
            "variant": "",
            "field_path": FIELD,
            "scope": scope,
            "state": state,
        }])
    };
    let web = |scope, state| reference("envoy.config.cluster.v3.Cluster", "web", scope, state);
    let main = reference("envoy.config.route.v3.RouteConfiguration", "main", "default", "present");
    let none: Value = json!([]);
    let both = |answer: &Value| (answer["referents"].clone(), answer["referrers"].clone());

    let route = server.done("GET", "/v1/describe?type=rds&name=main", "").await;
    assert_eq!(both(&route["scopes"][0]), (web("", "missing"), none.clone()));
    let explain = "/v1/explain?node=edge-1&type=";
    let missing = server.done("GET", &format!("{explain}cds&name=web"), "").await;
    assert_eq!(both(&missing), (none.clone(), main.clone()));

    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let route = server.done("GET", &format!("{explain}rds&name=main"), "").await;
    assert_eq!(both(&route), (web("default", "present"), none.clone()));
    let cluster = server.done("GET", "/v1/describe?type=cds&name=web", "").await;
    assert_eq!(both(&cluster["scopes"][0]), (none, main));
    server.stop().await;
}

/// A retry answers what the first attempt did, although its references are missing now.
#[tokio::test]
async fn retry_returns_the_first_result_although_a_reference_is_missing_now() {
    let modes = Validation::of(ValidationMode::Enforce);
    let (server, _client) =
        start_with(ReferenceSettings { modes, ..ReferenceSettings::default() }).await;
    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let uri = format!("/v1/apply?request_id={:032x}", 7);
    let first = server.done("POST", &uri, ROUTE).await;
    let empty = "/v1/apply?prune=true&confirm=all";
    server.done("POST", empty, "scope: default\nresources: []").await;
    let again = server.done("POST", &uri, ROUTE).await;
    assert_eq!((&again["revision"], &again["repeated"]), (&first["revision"], &json!(true)));
    let rejected = server.refused("POST", &uri.replace("7", "8"), ROUTE).await;
    assert!(rejected.2.contains("refers to Cluster \"web\""), "{rejected:?}");
    server.stop().await;
}
