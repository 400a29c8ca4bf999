//! The path of a request through the resources of a node.

use chancery_admin_proto::v1::{self as pb, resolve_service_client::ResolveServiceClient};
use chancery_model::types::{CLUSTER, LISTENER, ROUTE};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    access,
    support::{Client, Server, eventually},
};

const URI: &str = "/v1/resolve?node=n1&url=http://h:8080/cart";

/// Returns a listener on port 8080, its routes and the cluster `web`. The routes send `path` to the cluster.
fn resources(path: &str) -> String {
    let filter = |name: &str| format!("type.googleapis.com/envoy.extensions.filters.{name}");
    let manager = json!({
        "@type": filter("network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "main",
        "rds": {"route_config_name": "main", "config_source": {"ads": {}}},
        "http_filters": [{"name": "router", "typed_config": {"@type": filter("http.router.v3.Router")}}],
    });
    let address =
        |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let endpoint = json!({"endpoint": {"address": address(81)}});
    let manifest = json!({"resources": [
        {
            "@type": LISTENER, "name": "main", "address": address(8080),
            "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
        },
        {"@type": ROUTE, "name": "main", "virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{"match": {"path": path}, "route": {"cluster": "web"}}],
        }]},
        {"@type": CLUSTER, "name": "web", "connect_timeout": "1s", "load_assignment": {
            "cluster_name": "web", "endpoints": [{"lb_endpoints": [endpoint]}],
        }},
    ]});
    manifest.to_string()
}

/// Returns the only path of a request.
fn path(answer: &Value) -> &Value {
    let [path] = &answer["resolutions"].as_array().unwrap()[..] else { panic!("{answer}") };
    path
}

fn reasons(path: &Value) -> Vec<&str> {
    let all = path["undecided"].as_array().unwrap().iter();
    all.map(|one| one["reason"].as_str().unwrap()).collect()
}

/// The answer uses what the node has: without its routes they are missing, and a version that the node has not
/// acknowledged, or has rejected, is named as a doubt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_uses_the_resources_that_the_node_has() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &resources("/cart")).await;
    let (status, code, message) = server.refused("GET", URI, "").await;
    assert_eq!((status, code.as_str()), (404, "NOT_FOUND"));
    assert!(message.contains("node \"n1\" is not connected; list"), "{message}");

    let mut client = Client::open(&server, "n1");
    for (type_url, names) in [(CLUSTER, None), (LISTENER, None), (ROUTE, Some(["main"]))] {
        match names {
            None => client.subscribe(type_url).await,
            Some(names) => client.subscribe_to(type_url, &names).await,
        }
        let response = client.response().await;
        if type_url == ROUTE {
            let answer = server.done("GET", URI, "").await;
            let reasons = reasons(path(&answer)).join("\n");
            assert!(
                reasons.contains("was sent, and the node has not acknowledged it"),
                "{reasons}"
            );
        }
        client.answer(&response, None).await;
        if type_url == LISTENER {
            let answer = server.done("GET", URI, "").await;
            let end = &path(&answer)["end"];
            assert_eq!(
                (&end["kind"], &end["missing_name"]),
                (&json!("missing resource"), &json!("main"))
            );
        }
    }
    let synced = async || {
        let answer = server.done("GET", URI, "").await;
        reasons(path(&answer)).is_empty().then_some(answer)
    };
    let answer = eventually(synced, "everything is acknowledged").await;
    assert_eq!((&answer["node"], &answer["replica_id"]), (&json!("n1"), &json!(1)));
    let end = &path(&answer)["end"];
    assert_eq!((&end["kind"], &end["served"]), (&json!("clusters"), &json!(true)));
    let [cluster] = &end["clusters"].as_array().unwrap()[..] else { panic!("{end}") };
    let address = &cluster["localities"][0]["endpoints"][0]["address"];
    assert_eq!((&cluster["name"], address), (&json!("web"), &json!("127.0.0.1:81")));

    server.done("POST", "/v1/apply", &resources("/other")).await;
    let response = client.response().await;
    client.answer(&response, Some("no")).await;
    let rejected = async || {
        let answer = server.done("GET", URI, "").await;
        let text = reasons(path(&answer)).join("\n");
        text.contains("the node rejected version").then_some(answer)
    };
    let answer = eventually(rejected, "the rejection is named").await;
    assert_eq!(path(&answer)["end"]["kind"], "no route");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_method_and_headers_of_the_request_are_used() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &resources("/cart")).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(LISTENER).await;
    client.response().await;
    let answer = server.done("GET", &format!("{URI}&listener=none"), "").await;
    assert_eq!(path(&answer)["end"]["missing_name"], "none");
    for (uri, part) in [
        ("/v1/resolve?url=http://h/", "the node ID is empty"),
        ("/v1/resolve?node=n1&url=h", "is not a URL"),
        ("/v1/resolve?node=n1&url=http://h/&header=x", "is not a header"),
        ("/v1/resolve?node=n1&url=http://h/&method=a%20b", "is not a method"),
    ] {
        let (status, code, message) = server.refused("GET", uri, "").await;
        assert_eq!((status, code.as_str()), (400, "INVALID_ARGUMENT"), "{message}");
        assert!(message.contains(part), "{message}");
    }
    let mut grpc = ResolveServiceClient::new(server.router.clone());
    let request = pb::ResolveRequest {
        node: "n1".to_owned(),
        url: "http://h:8080/".to_owned(),
        method: "POST".to_owned(),
        header: vec!["x-a: b".to_owned()],
        ..pb::ResolveRequest::default()
    };
    let answer = grpc.resolve(request.clone()).await.unwrap().into_inner();
    assert_eq!(answer.resolutions[0].listener, "main");
    let unknown = pb::ResolveRequest { node: "n2".to_owned(), ..request };
    assert_eq!(grpc.resolve(unknown).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

/// T3: the answer has contents of resources, so that the caller needs the right to get them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_needs_the_right_for_the_scopes_of_the_node() {
    let server = Server::start_enforced().await;
    let admin = access::Who::Admin;
    access::done(&server, admin, "POST", "/v1/apply?scope=private", &resources("/cart")).await;
    let assignments = json!({"assignments": [{"name": "all", "scopes": ["private"]}]}).to_string();
    access::done(&server, access::Who::Admin, "POST", "/v1/apply", &assignments).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(LISTENER).await;
    client.response().await;
    let token = access::token(&server, "ops").await;
    let rule = |scope: &str| {
        json!([{"name": "ops", "identity": "token:ops", "allow": [
            {"verbs": ["nodes"]}, {"verbs": ["get"], "scopes": [scope]},
        ]}])
    };
    access::rules(&server, rule("public")).await;
    let text = access::denied(&server, access::Who::Token(&token), "GET", URI, "").await;
    assert!(text.contains("get the resources of the node"), "{text}");
    access::rules(&server, rule("private")).await;
    access::done(&server, access::Who::Token(&token), "GET", URI, "").await;
    server.stop().await;
}
