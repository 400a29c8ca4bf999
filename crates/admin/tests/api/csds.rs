//! The status of clients, resource by resource (CSDS).

use std::time::Duration;

use bytes::Bytes;
use chancery_model::types::{CLUSTER, LISTENER, SECRET};
use chancery_proto::csds::{
    ClientConfig, ClientStatusRequest, ClientStatusResponse, ConfigStatus, NodeMatcher, SERVICE,
    StringMatcher, StringPattern,
};
use http::{Request, StatusCode, uri::PathAndQuery};
use serde_json::{Value, json};
use tonic::{Code, Response, Status, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{
    access,
    support::{Client, Server, clusters, eventually},
};

const PATH: &str = "/v3/discovery:client_status";

fn path(service: &str, method: &str) -> PathAndQuery {
    format!("/{service}/{method}").parse().unwrap()
}

fn client(server: &Server) -> Grpc<axum::Router> {
    Grpc::new(server.router.clone()).max_decoding_message_size(usize::MAX)
}

async fn fetch(
    server: &Server,
    request: ClientStatusRequest,
) -> Result<Response<ClientStatusResponse>, Status> {
    let mut client = client(server);
    client.ready().await.unwrap();
    let codec = ProstCodec::<ClientStatusRequest, ClientStatusResponse>::default();
    client.unary(tonic::Request::new(request), path(SERVICE, "FetchClientStatus"), codec).await
}

async fn configs(server: &Server) -> Vec<ClientConfig> {
    fetch(server, ClientStatusRequest::default()).await.unwrap().into_inner().config
}

fn by_id(id: &str) -> ClientStatusRequest {
    let pattern = Some(StringPattern::Exact(id.to_owned()));
    let node_id = Some(StringMatcher { pattern, ignore_case: false });
    let node_matchers = vec![NodeMatcher { node_id, node_metadatas: Vec::new() }];
    ClientStatusRequest { node_matchers, ..ClientStatusRequest::default() }
}

/// Returns the names and states of a client's resources.
fn states(config: &ClientConfig) -> Vec<(String, ConfigStatus)> {
    let states = config.generic_xds_configs.iter();
    states.map(|one| (one.name.clone(), one.config_status())).collect()
}

fn named(names: &[(&str, ConfigStatus)]) -> Vec<(String, ConfigStatus)> {
    names.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect()
}

async fn until(server: &Server, names: &[(&str, ConfigStatus)]) -> ClientConfig {
    let expected = named(names);
    let probe = async || {
        let found = configs(server).await;
        found.into_iter().find(|config| states(config) == expected)
    };
    eventually(probe, &format!("{expected:?}")).await
}

/// CSDS-01, -03, -05 to -09, -13, -18, -20: the resources of a client from the first response to a
/// rejection, with the name of the stream and the scope of the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_shows_each_resource_of_a_connected_client() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a", "b"], "1s")).await;
    assert_eq!(configs(&server).await, []);
    let mut client = Client::open(&server, "edge/1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    until(&server, &[("a", ConfigStatus::Stale), ("b", ConfigStatus::Stale)]).await;
    client.answer(&response, None).await;
    let config = until(&server, &[("a", ConfigStatus::Synced), ("b", ConfigStatus::Synced)]).await;
    let node = config.node.as_ref().unwrap();
    assert_eq!((node.id.as_str(), node.cluster.as_str()), ("edge/1", "edge"));
    assert!(config.client_scope.starts_with("ads delta 127.0.0.1:4242 "), "{config:?}");
    for (one, sent) in config.generic_xds_configs.iter().zip(&response.resources) {
        assert_eq!((&one.type_url, &one.name), (&CLUSTER.to_owned(), &sent.name));
        assert_eq!(one.version_info, sent.version);
        assert_eq!(one.xds_config, sent.resource);
        assert_eq!(one.error_state, None);
    }

    server.done("POST", "/v1/apply", &clusters(&["b"], "2s")).await;
    let response = client.response().await;
    client.answer(&response, Some("no such filter")).await;
    let config = until(&server, &[("a", ConfigStatus::Synced), ("b", ConfigStatus::Error)]).await;
    let rejected = &config.generic_xds_configs[1];
    assert_eq!(rejected.xds_config, response.resources[0].resource, "the rejected content");
    let error = rejected.error_state.as_ref().unwrap();
    assert_eq!(error.details, "no such filter");
    assert_eq!(error.version_info, response.resources[0].version);
    assert!(error.last_update_attempt.is_some());

    let answer = fetch(&server, by_id("edge/1")).await.unwrap();
    assert_eq!(answer.metadata().get("x-chancery-scope").unwrap(), "replica=1");
    assert_eq!(answer.into_inner().config, [config]);
    let none = fetch(&server, by_id("edge/2")).await.unwrap().into_inner();
    assert_eq!(none.config, []);
    drop(client);
    let gone = async || configs(&server).await.is_empty().then_some(());
    eventually(gone, "the ended stream is not listed").await;
    server.stop().await;
}

/// CSDS-11: without contents, everything else stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_without_contents_keeps_the_rest() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    let mut full = until(&server, &[("a", ConfigStatus::Synced)]).await;
    assert!(full.generic_xds_configs[0].xds_config.is_some());
    let request = ClientStatusRequest { exclude_resource_contents: true, ..by_id("n1") };
    let bare = fetch(&server, request).await.unwrap().into_inner().config;
    full.generic_xds_configs[0].xds_config = None;
    assert_eq!(bare, [full]);
    server.stop().await;
}

/// CSDS-01, CSDS-13: HTTP has the same answer in proto JSON, for both spellings of fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_over_http_is_proto_json() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    until(&server, &[("a", ConfigStatus::Synced)]).await;
    for body in [
        "",
        "{}",
        r#"{"node_matchers": [{"node_id": {"prefix": "n"}}]}"#,
        r#"{"nodeMatchers": [{"nodeId": {"prefix": "n"}}], "node": {"id": "caller"}}"#,
    ] {
        let answer = server.done("POST", PATH, body).await;
        let config = &answer["config"][0];
        assert_eq!(config["node"]["id"], "n1", "{body}");
        let one = &config["generic_xds_configs"][0];
        assert_eq!((&one["name"], &one["config_status"]), (&json!("a"), &json!("SYNCED")));
        assert_eq!(one["version_info"], response.resources[0].version);
        assert_eq!(one["xds_config"]["@type"], CLUSTER);
        assert_eq!(one["xds_config"]["connect_timeout"], "1s");
    }
    let other = server.done("POST", PATH, r#"{"node_matchers": [{"node_id": {"exact": "x"}}]}"#);
    assert_eq!(other.await, json!({"config": []}));
    let request = Request::post(PATH).body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(server.router.clone(), request).await.unwrap();
    assert_eq!(response.headers()["x-chancery-scope"], "replica=1");
    server.stop().await;
}

/// CSDS-15, CSDS-16: invalid, unsupported and too large requests are rejected with their reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_rejects_what_it_cannot_answer() {
    let server = Server::start().await;
    let regex = r#"{"node_matchers": [{"node_id": {"safe_regex": {"regex": "."}}}]}"#;
    let long = format!("{{\"node\": {{\"id\": {:?}}}}}", "x".repeat(70_000));
    for (body, status, part) in [
        (regex, 400, "`node_matchers[0].node_id.safe_regex` is not supported"),
        ("[]", 400, "not a ClientStatusRequest"),
        (r#"{"matchers": []}"#, 400, "matchers"),
        ("{} {}", 400, "not a ClientStatusRequest"),
        (&long, 413, "more than 65536 bytes"),
    ] {
        let (found, _, message) = server.refused("POST", PATH, body).await;
        assert_eq!(found, status, "{message}");
        assert!(message.contains(part), "{message}");
    }
    let (status, _, _) = server.refused("GET", PATH, "").await;
    assert_eq!(status, 405);
    let pattern = Some(StringPattern::SafeRegex(Bytes::new()));
    let node_id = Some(StringMatcher { pattern, ignore_case: false });
    let node_matchers = vec![NodeMatcher { node_id, node_metadatas: Vec::new() }];
    let request = ClientStatusRequest { node_matchers, ..ClientStatusRequest::default() };
    assert_eq!(fetch(&server, request).await.unwrap_err().code(), Code::InvalidArgument);
    server.stop().await;
}

/// CSDS-15: an answer over the limit is rejected before it is built, and narrower questions are
/// answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_over_the_size_limit_is_rejected() {
    let server = Server::start().await;
    let long = "x".repeat(150 << 10);
    let secret = json!({"resources": [{
        "@type": SECRET,
        "name": "large",
        "validation_context": {"trusted_ca": {"inline_string": long}},
    }]});
    server.done("POST", "/v1/apply?validation=off", &secret.to_string()).await;
    let mut open = Vec::new();
    for n in 0..112 {
        let mut client = Client::open(&server, &format!("n{n}"));
        client.subscribe_to(SECRET, &["large"]).await;
        client.response().await;
        open.push(client);
    }
    let error = fetch(&server, ClientStatusRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("`exclude_resource_contents`"), "{error}");
    let (status, code, _) = server.refused("POST", PATH, "").await;
    assert_eq!((status, code.as_str()), (413, "RESOURCE_EXHAUSTED"));
    assert_eq!(fetch(&server, by_id("n7")).await.unwrap().into_inner().config.len(), 1);
    let exclude_resource_contents = true;
    let all = ClientStatusRequest { exclude_resource_contents, ..ClientStatusRequest::default() };
    assert_eq!(fetch(&server, all).await.unwrap().into_inner().config.len(), 112);
    server.stop().await;
}

/// ERR-18, CSDS-14, OPS-19: secrets are redacted in both forms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_redacts_secrets() {
    const KEY: &str = "hunter2-private";
    let server = Server::start().await;
    let secret = json!({"resources": [{
        "@type": SECRET,
        "name": "cert",
        "tls_certificate": {
            "certificate_chain": {"inline_string": "public"},
            "private_key": {"inline_string": KEY},
        },
    }]});
    server.done("POST", "/v1/apply?validation=off", &secret.to_string()).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe_to(SECRET, &["cert", "none"]).await;
    let response = client.response().await;
    let sent = format!("{:?}", response.resources[0].resource);
    assert!(sent.contains(KEY), "the client needs the key");
    // CSDS-12: a name without a resource is listed without contents.
    let names = [("cert", ConfigStatus::Stale), ("none", ConfigStatus::Unknown)];
    let config = until(&server, &names).await;
    let [known, unknown] = config.generic_xds_configs.as_slice() else { panic!("{config:?}") };
    let shown = format!("{:?}", known.xds_config.as_ref().unwrap());
    assert!(shown.contains("public") && !shown.contains(KEY), "{shown}");
    assert_eq!((&unknown.xds_config, unknown.version_info.as_str()), (&None, ""));
    // ERR-18: the state has the error that the client was sent.
    let error = unknown.error_state.as_ref().unwrap();
    assert_eq!(error.details, "NOT_FOUND: this node has no resource of this type and name");
    assert_eq!(response.resource_errors.len(), 1);
    let (status, json) = server.call("POST", PATH, "").await;
    assert_eq!(status, StatusCode::OK);
    let certificate = |json: &Value| {
        json["config"][0]["generic_xds_configs"][0]["xds_config"]["tls_certificate"].clone()
    };
    assert_eq!(certificate(&json)["certificate_chain"]["inline_string"], "public", "{json}");
    assert_eq!(certificate(&json)["private_key"]["inline_string"], "[redacted]", "{json}");
    server.stop().await;
}

/// CSDS-02: the stream answers each request once, and sends nothing on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_stream_answers_each_request_once() {
    let server = Server::start().await;
    let mut one = Client::open(&server, "n1");
    one.subscribe(CLUSTER).await;
    one.response().await;
    until(&server, &[]).await;
    let mut grpc = client(&server);
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<ClientStatusRequest, ClientStatusResponse>::default();
    let requests =
        futures::stream::iter([by_id("n1"), by_id("n2"), ClientStatusRequest::default()]);
    let path = path(SERVICE, "StreamClientStatus");
    let answers = grpc.streaming(tonic::Request::new(requests), path, codec).await.unwrap();
    assert_eq!(answers.metadata().get("x-chancery-scope").unwrap(), "replica=1");
    let mut answers = answers.into_inner();
    let mut n_clients = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        n_clients.push(answer.config.len());
    }
    assert_eq!(n_clients, [1, 0, 1]);
    server.stop().await;
}

/// CSDS, T3: a client that has moved to another scope holds resources of the earlier one until their removal. The
/// answer contains them, so that its caller needs the right for both scopes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_needs_the_right_for_earlier_scopes() {
    let server = Server::start_enforced().await;
    let ops = access::token(&server, "ops").await;
    access::rules(
        &server,
        json!([{"name": "ops", "identity": "token:ops", "allow": [
            {"verbs": ["nodes"]}, {"verbs": ["get"], "scopes": ["public"]},
        ]}]),
    )
    .await;
    let apply = async |uri: &str, manifest: &str| {
        access::done(&server, access::Who::Admin, "POST", uri, manifest).await;
    };
    let assign =
        |scope: &str| json!({"assignments": [{"name": "all", "scopes": [scope]}]}).to_string();
    apply("/v1/apply", &assign("private")).await;
    apply("/v1/apply?scope=private", &clusters(&["hidden"], "1s")).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(LISTENER).await;
    client.subscribe(CLUSTER).await;
    for _ in 0..2 {
        let response = client.response().await;
        // A client that rejects its listeners keeps its clusters (ADS-08).
        client.answer(&response, (response.type_url == LISTENER).then_some("no")).await;
    }
    apply("/v1/apply?confirm=all", &assign("public")).await;
    let status = async || access::send(&server, access::Who::Token(&ops), "POST", PATH, "{}").await;
    let moved = async || {
        let nodes = access::done(&server, access::Who::Admin, "GET", "/v1/nodes", "").await;
        nodes.to_string().contains("\"public\"").then_some(())
    };
    eventually(moved, "the client has moved").await;
    let (code, answer) = status().await;
    assert_eq!(code, 403, "{answer}");
    access::rules(
        &server,
        json!([{"name": "ops", "identity": "token:ops", "allow": [
            {"verbs": ["nodes"]}, {"verbs": ["get"], "scopes": ["public", "private"]},
        ]}]),
    )
    .await;
    let (code, answer) = status().await;
    assert!(code == 200 && answer.to_string().contains("hidden"), "{answer}");
    server.stop().await;
}

/// The stream of an operator ends with OK when its token is deleted, also for an administrator, or when it loses the
/// right. Changes that do not concern the operator leave the stream open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_stream_ends_with_the_rights_of_its_caller() {
    let server = Server::start_enforced().await;
    let (root, ops) = (access::token(&server, "root").await, access::token(&server, "ops").await);
    let rule = |verbs: &[&str]| json!([{"name": "ops", "identity": "token:ops", "allow": [{"verbs": verbs}]}]);
    access::rules(&server, rule(&["nodes"])).await;
    let open = async |token: &str| {
        let (sender, requests) = futures::channel::mpsc::unbounded();
        sender.unbounded_send(ClientStatusRequest::default()).unwrap();
        let mut request = tonic::Request::new(requests);
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        let mut grpc = client(&server);
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<ClientStatusRequest, ClientStatusResponse>::default();
        let path = path(SERVICE, "StreamClientStatus");
        let mut answers = grpc.streaming(request, path, codec).await.unwrap().into_inner();
        assert_eq!(answers.message().await.unwrap().unwrap().config, []);
        (sender, answers)
    };
    let (mut of_admin, mut of_ops) = (open(&root).await, open(&ops).await);
    access::rules(&server, rule(&["nodes", "history"])).await;
    for (sender, answers) in [&mut of_admin, &mut of_ops] {
        sender.unbounded_send(ClientStatusRequest::default()).unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().config, []);
    }
    // The messages count for the rate of the identity.
    let slow =
        json!([{"name": "slow", "identity": "token:ops", "quota": {"requests_per_second": 2}}]);
    access::rules(&server, slow).await;
    let (sender, mut answers) = open(&ops).await;
    for _ in 0..30 {
        sender.unbounded_send(ClientStatusRequest::default()).unwrap();
    }
    let refused = loop {
        match answers.message().await {
            Ok(answer) => assert!(answer.is_some(), "the stream ends with an error"),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("more than 2 requests per second"), "{refused:?}");

    access::rules(&server, rule(&["history"])).await;
    let end = tokio::time::timeout(Duration::from_secs(20), of_ops.1.message()).await;
    assert_eq!(end.expect("the stream ends").unwrap(), None);
    access::done(&server, access::Who::Admin, "DELETE", "/v1/tokens?name=root", "").await;
    let end = tokio::time::timeout(Duration::from_secs(20), of_admin.1.message()).await;
    assert_eq!(end.expect("the stream ends").unwrap(), None);
    server.stop().await;
}

/// CSDS-17: the v2 service is not implemented.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_status_of_v2_is_unimplemented() {
    let server = Server::start().await;
    let mut client = client(&server);
    client.ready().await.unwrap();
    let codec = ProstCodec::<ClientStatusRequest, ClientStatusResponse>::default();
    let service = "envoy.service.status.v2.ClientStatusDiscoveryService";
    let request = tonic::Request::new(ClientStatusRequest::default());
    let status = client.unary(request, path(service, "FetchClientStatus"), codec).await;
    assert_eq!(status.unwrap_err().code(), Code::Unimplemented);
    let (status, _, _) = server.refused("POST", "/v2/discovery:client_status", "").await;
    assert_eq!(status, 404);
    server.stop().await;
}
