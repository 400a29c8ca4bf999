//! Guards: a write that may take down connected nodes changes nothing until it is confirmed.

use chancery_admin_proto::v1 as pb;
use serde_json::json;
use tonic::Code;

use crate::support::{Client, Server, clusters};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const EDGE: &str = "assignments: [{name: edge, match: {id: e*}, scopes: [edge]}]";

/// Starts a replica with nine clusters in the scope `edge`, and a node that has them.
async fn start() -> (Server, Client) {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", EDGE).await;
    let names: Vec<String> = (0..9).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply?scope=edge", &clusters(&names, "1s")).await;
    let mut client = Client::open(&server, "e1");
    client.subscribe(CLUSTER).await;
    let first = client.response().await;
    client.answer(&first, None).await;
    (server, client)
}

const MOVED: &str = "assignments: [{name: edge, match: {id: e*}, scopes: [empty]}]";
const REJECTED: &str = "guard `view-change` rejects the write: 1 node: edge → empty, 9 → 0 resources; nothing was \
     written; to write it anyway, pass `--confirm view-change` (HTTP: confirm=view-change)";

#[tokio::test]
async fn http_write_that_trips_a_guard_changes_nothing_until_confirmed() {
    let (server, _client) = start().await;
    let before = server.done("GET", "/v1/cluster", "").await["revision"].take();
    let (status, code, text) = server.refused("POST", "/v1/apply", MOVED).await;
    assert_eq!((status, code.as_str(), text.as_str()), (409, "FAILED_PRECONDITION", REJECTED));
    let other = "/v1/apply?confirm=mass-deletion";
    assert_eq!(server.refused("POST", other, MOVED).await.2, REJECTED);
    assert_eq!(server.done("GET", "/v1/cluster", "").await["revision"], before);

    let dry_run = server.done("POST", "/v1/apply?dry_run=true", MOVED).await;
    let finding = |confirmed| {
        json!([{
            "guard": "view-change",
            "effects": ["1 node: edge → empty, 9 → 0 resources"],
            "effects_omitted": 0,
            "confirmed": confirmed,
            "replicas_not_asked": 0,
        }])
    };
    assert_eq!(dry_run["guards"], finding(false));
    let unknown = server.refused("POST", "/v1/apply?confirm=view", MOVED).await;
    assert!(unknown.2.starts_with("\"view\" is not a guard; the guards are "), "{unknown:?}");
    let confirmed = "/v1/apply?confirm=mass-deletion,view-change";
    let written = server.done("POST", confirmed, MOVED).await;
    assert_eq!((&written["assignments"], &written["guards"]), (&json!(1), &finding(true)));
    // The history has the guards that the write tripped, and not all confirmed ones.
    let history = server.done("GET", "/v1/history", "").await;
    assert_eq!(history["entries"][0]["confirmed"], json!(["view-change"]), "{history}");
    assert_eq!(history["entries"][1]["confirmed"], json!([]), "{history}");
    server.stop().await;
}

/// Every kind of write passes the guards.
#[tokio::test]
async fn deleted_assignments_and_resources_pass_the_guards() {
    let (server, _client) = start().await;
    let mut admin = server.grpc();
    let delete = |confirm: Vec<String>| pb::DeleteAssignmentRequest {
        name: "edge".to_owned(),
        options: Some(pb::WriteOptions { confirm, ..Default::default() }),
    };
    let status = admin.delete_assignment(delete(Vec::new())).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    // The default assignment matches the node, and gives it an empty scope.
    let effect = "guard `view-change` rejects the write: 1 node: edge → default, 9 → 0 resources; ";
    assert!(status.message().starts_with(effect), "{}", status.message());

    let route = "resources: [{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: main, \
         virtual_hosts: [{name: all, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: c7}}]}]}]";
    server.done("POST", "/v1/apply?scope=edge", route).await;
    let uri = "/v1/resources?type=cds&name=c7&scope=edge";
    let rejected = server.refused("DELETE", uri, "").await.2;
    let effect = "guard `cluster-in-use` rejects the write: view edge (1 node): RouteConfiguration \"main\" still uses the \
         cluster \"c7\"; ";
    assert!(rejected.starts_with(effect), "{rejected}");
    server.done("DELETE", &format!("{uri}&confirm=cluster-in-use"), "").await;
    admin.delete_assignment(delete(vec!["all".to_owned()])).await.unwrap();
    server.stop().await;
}

/// A retry answers what the first attempt did, although a guard would reject the write now.
#[tokio::test]
async fn retry_returns_the_first_result_although_a_guard_rejects_it_now() {
    let (server, _client) = start().await;
    let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply?scope=edge", &clusters(&names, "1s")).await;
    let rest = format!("scope: edge\n{}", clusters(&names[5..], "1s"));
    let uri = format!("/v1/apply?scope=edge&prune=true&request_id={:032x}", 7);
    let first = server.done("POST", &uri, &rest).await;
    assert_eq!((&first["removed"], &first["repeated"]), (&json!(5), &json!(false)));
    let more: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply?scope=edge", &clusters(&more, "1s")).await;
    let again = server.done("POST", &uri, &rest).await;
    assert_eq!((&again["revision"], &again["removed"]), (&first["revision"], &first["removed"]));
    assert_eq!((&again["repeated"], &again["guards"]), (&json!(true), &json!([])));
    let other = uri.replace("7", "8");
    let rejected = server.refused("POST", &other, &rest).await;
    assert!(rejected.2.starts_with("guard `mass-deletion` rejects the write: "), "{rejected:?}");
    server.stop().await;
}
