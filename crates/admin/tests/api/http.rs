//! The HTTP API with JSON.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use axum::body::Body;
use http::Request;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::{REQUEST_BYTES_MAX, Server, clusters};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applied_resources_can_be_read_changed_pruned_and_deleted() {
    let server = Server::start().await;
    let applied = server
        .done(
            "POST",
            "/v1/apply?label=4fe1&labels=git=4fe1,env=prod&author=ann&reason=why",
            &clusters(&["a", "b"], "1s"),
        )
        .await;
    assert_eq!(applied["revision"], 1);
    assert_eq!(applied["changed"], 2);
    assert_eq!(applied["changes"][0]["name"], "a");
    assert_eq!(applied["changes"][0]["kind"], "added");
    assert!(applied.get("wait").is_none(), "{applied}");

    let list = server.done("GET", "/v1/resources?type=cds", "").await;
    assert_eq!(list["revision"], 1);
    assert_eq!(list["resources"].as_array().unwrap().len(), 2);
    let a = &list["resources"][0];
    assert_eq!(a["scope"], "default");
    assert_eq!(a["type_url"], "type.googleapis.com/envoy.config.cluster.v3.Cluster");
    assert_eq!(a["version"], applied["changes"][0]["version"]);
    assert_eq!(a["body"]["connect_timeout"], "1s");
    let list = server.done("GET", "/v1/resources?without_body=true", "").await;
    assert!(list["resources"][0].get("body").is_none(), "{list}");

    // The same manifest again changes nothing.
    let again = server.done("POST", "/v1/apply", &clusters(&["a", "b"], "1s")).await;
    assert_eq!((&again["revision"], &again["unchanged"]), (&json!(1), &json!(2)));

    let dry =
        server.done("POST", "/v1/apply?dry_run=true&prune", &clusters(&["a", "c"], "2s")).await;
    assert_eq!((&dry["revision"], &dry["dry_run"]), (&json!(1), &json!(true)));
    assert_eq!((&dry["changed"], &dry["removed"]), (&json!(2), &json!(1)));
    let kinds: Vec<&str> = dry["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["updated", "removed", "added"]);
    let expected = json!([
        {"path": "connect_timeout", "before": "\"1s\"", "after": "\"2s\"", "kind": "changed"},
    ]);
    assert_eq!(dry["changes"][0]["differences"], expected);
    assert_eq!(dry["changes"][0]["unified"], "- connect_timeout: 1s\n+ connect_timeout: 2s\n");
    for (n, line) in [(1, "- connect_timeout: 1s\n"), (2, "+ connect_timeout: 2s\n")] {
        assert!(dry["changes"][n]["unified"].as_str().unwrap().contains(line), "{dry}");
    }
    let list = server.done("GET", "/v1/resources?type=cds&name=a", "").await;
    assert_eq!(list["revision"], 1, "a dry run writes nothing");

    let pruned =
        server.done("POST", "/v1/apply?prune=true&wait=true", &clusters(&["a"], "2s")).await;
    assert_eq!((&pruned["revision"], &pruned["removed"]), (&json!(2), &json!(1)));
    assert_eq!(pruned["wait"]["settled"], true);

    let old = applied["changes"][0]["version"].as_str().unwrap();
    let uri = format!("/v1/resources?type=cds&name=a&if_version={old}");
    let (status, _, message) = server.refused("DELETE", &uri, "").await;
    assert_eq!(status, 409);
    assert!(message.contains(&format!("not the expected {old}")), "{message}");
    let now = pruned["changes"][0]["version"].as_str().unwrap();
    let uri = format!("/v1/resources?type=cds&name=a&if_version={now}");
    let deleted = server.done("DELETE", &format!("{uri}&dry_run"), "").await;
    assert_eq!(deleted["removed"], 1);
    let (status, _, message) = server.refused("DELETE", &format!("{uri}&name=b"), "").await;
    assert_eq!((status, message.contains("2 are named")), (400, true), "{message}");
    let (status, _, message) = server.refused("DELETE", &format!("{uri}x"), "").await;
    assert_eq!((status, message.contains("is not a version")), (400, true), "{message}");
    let deleted = server.done("DELETE", &uri, "").await;
    assert_eq!((&deleted["revision"], &deleted["removed"]), (&json!(3), &json!(1)));
    let list = server.done("GET", "/v1/resources", "").await;
    assert_eq!(list, json!({"revision": 3, "next": "", "resources": []}));

    check_history(&server).await;
    server.stop().await;
}

async fn check_history(server: &Server) {
    let history = server.done("GET", "/v1/history?limit=10", "").await;
    let entries = history["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[2]["label"], "4fe1");
    assert_eq!(entries[2]["labels"], json!({"env": "prod", "git": "4fe1"}));
    let found = server.done("GET", "/v1/history?label=env=prod", "").await;
    assert_eq!(found["entries"], json!([entries[2]]));
    assert_eq!((&entries[2]["author"], &entries[2]["reason"]), (&json!("ann"), &json!("why")));
}

/// Requests that the server rejects: method, URI, status, code, and a part of the message.
const REFUSALS: &[(&str, &str, u16, &str, &str)] = &[
    ("POST", "/v1/apply?labels=git", 400, "INVALID_ARGUMENT", "labels: \"git\" has no `=`"),
    ("POST", "/v1/apply?labels=a=1,a=2", 400, "INVALID_ARGUMENT", "the key \"a\" is there twice"),
    ("POST", "/v1/apply?labels=a%20b=1", 400, "INVALID_ARGUMENT", "the label key \"a b\""),
    (
        "POST",
        "/v1/apply?if_revision=1",
        409,
        "FAILED_PRECONDITION",
        "scope \"default\" has changed",
    ),
    ("POST", "/v1/apply?if_revision=9", 409, "FAILED_PRECONDITION", "revision 9 was expected"),
    ("POST", "/v1/apply?prun=true", 400, "INVALID_ARGUMENT", "unknown parameter \"prun\""),
    ("POST", "/v1/apply?scope=a%20b", 400, "INVALID_ARGUMENT", "the scope name \"a b\""),
    ("POST", "/v1/apply?label=a%20b", 400, "INVALID_ARGUMENT", "the label \"a b\""),
    ("POST", "/v1/apply?dry_run&wait=true", 400, "INVALID_ARGUMENT", "a dry run"),
    ("POST", "/v1/apply?wait=2h", 400, "INVALID_ARGUMENT", "of 2h exceeds the maximum of 1h"),
    (
        "DELETE",
        "/v1/resources?type=cds&name=zz",
        404,
        "NOT_FOUND",
        "\"zz\" in scope \"default\" does not exist",
    ),
    (
        "DELETE",
        "/v1/resources?type=cds",
        400,
        "INVALID_ARGUMENT",
        "needs the parameters type and name",
    ),
    ("DELETE", "/v1/assignments?name=zz", 404, "NOT_FOUND", "there is no assignment \"zz\""),
    ("GET", "/v1/resources?type=nope", 400, "INVALID_ARGUMENT", "unknown resource type \"nope\""),
    ("GET", "/v1/resources?name=a", 400, "INVALID_ARGUMENT", "a name needs a type"),
    ("GET", "/v1/resources?view_of_node=n", 404, "NOT_FOUND", "node \"n\" is not connected"),
    ("GET", "/v1/describe?type=cds&name=zz", 404, "NOT_FOUND", "does not exist in any scope"),
    ("GET", "/v1/nodes/a%2Fb/c", 404, "NOT_FOUND", "node \"a/b/c\" is not connected"),
    ("GET", "/v1/nodes?id=a%ff", 400, "INVALID_ARGUMENT", "the parameter \"id=a%ff\" is not UTF-8"),
    ("GET", "/v1/resources?scope=", 400, "INVALID_ARGUMENT", "the parameter scope is empty"),
    ("POST", "/v1/freeze?scope=", 400, "INVALID_ARGUMENT", "give it a value or omit it"),
    ("GET", "/v1/wait", 400, "INVALID_ARGUMENT", "the required parameter `revision` is missing"),
    ("GET", "/v1/nodes?state=good", 400, "INVALID_ARGUMENT", "is not a state of a node"),
    (
        "GET",
        "/v1/describe?name=a",
        400,
        "INVALID_ARGUMENT",
        "the required parameter `type` is missing",
    ),
    (
        "GET",
        "/v1/blame?name=a",
        400,
        "INVALID_ARGUMENT",
        "the required parameter `type` is missing",
    ),
    ("GET", "/v1/blame?type=&name=a", 400, "INVALID_ARGUMENT", "give an alias such as cds"),
    ("POST", "/v1/drain", 400, "INVALID_ARGUMENT", "the required parameter `id` is missing"),
    ("POST", "/v1/undrain", 400, "INVALID_ARGUMENT", "the required parameter `id` is missing"),
    ("POST", "/v1/drain?id=0", 400, "INVALID_ARGUMENT", "the ID of the replica is 0"),
    ("POST", "/v1/drain?id=9", 404, "NOT_FOUND", "replica 9 is not a member"),
    (
        "POST",
        "/v1/drain?id=1&over=2h",
        400,
        "INVALID_ARGUMENT",
        "invalid `over`: 2h exceeds the maximum of 1h",
    ),
    ("POST", "/v1/freeze?scope=a&for=0s", 400, "INVALID_ARGUMENT", "0s is outside the range of 1s"),
    ("GET", "/v1/explain", 400, "INVALID_ARGUMENT", "the node ID is empty"),
    ("GET", "/v1/history?limit=99999", 400, "INVALID_ARGUMENT", "at most 10000"),
    ("GET", "/v1/nothing", 404, "NOT_FOUND", "there is no route for GET /v1/nothing"),
    ("PUT", "/v1/cluster", 405, "UNIMPLEMENTED", "/v1/cluster does not support PUT"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_has_the_status_the_code_and_all_problems() {
    let server = Server::start().await;
    let bad = "resources:\n- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, nam: x}\n\
               - {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: y, type: 77x}\n";
    let (status, json) = server.call("POST", "/v1/apply", bad).await;
    assert_eq!(status, 400);
    let problems = json["error"]["problems"].as_array().unwrap();
    assert!(problems.len() >= 2, "{json}");
    assert_eq!(problems[0]["file"], "request body");
    assert_eq!(problems[0]["document"], 1);
    let nam = problems.iter().find(|problem| problem["field_path"] == "nam").unwrap();
    assert!(nam["resource"].as_str().unwrap().starts_with("resources[0]"), "{json}");

    let one = clusters(&["a"], "1s");
    server.done("POST", "/v1/apply", &one).await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "2s")).await;
    for (method, uri, status, code, message) in REFUSALS {
        let body = if *method == "POST" { one.as_str() } else { "" };
        let (got_status, got_code, got_message) = server.refused(method, uri, body).await;
        assert_eq!(
            (got_status, got_code.as_str()),
            (*status, *code),
            "{method} {uri}: {got_message}"
        );
        assert!(got_message.contains(*message), "{method} {uri}: {got_message}");
    }
    server.stop().await;
}

/// OPS-11: the error of a request over the limit names the limit, however the request is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_limit_is_refused_with_the_limit() {
    let server = Server::start().await;
    let large = "#".repeat(usize::try_from(REQUEST_BYTES_MAX).unwrap() + 1);
    let (status, code, message) = server.refused("POST", "/v1/apply", &large).await;
    assert_eq!((status, code.as_str()), (413, "RESOURCE_EXHAUSTED"));
    assert!(message.contains("262144 bytes"), "{message}");
    let cluster = clusters(&[&"n".repeat(4000)], "1s");
    let (head, entry) = cluster.split_at(cluster.find('-').unwrap());
    let many: String = (0..60).map(|n| entry.replacen("nn", &format!("n{n}"), 1)).collect();
    let (status, _, message) =
        server.refused("POST", "/v1/apply", &(head.to_owned() + &many)).await;
    assert_eq!(status, 413, "{message}");
    assert!(message.contains("store.transaction_bytes_max"), "{message}");
    let (status, _, message) = server.refused("POST", "/v1/apply", "\u{1}").await;
    assert_eq!(status, 400, "{message}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_cannot_read_or_change_anything() {
    let server = Server::start().await;
    let request = |method: &str, uri: &str| {
        let builder =
            Request::builder().method(method).uri(uri).header("origin", "http://evil.example");
        builder.body(Body::from(clusters(&["a"], "1s"))).unwrap()
    };
    let (status, body) = server.send(request("POST", "/v1/apply")).await;
    assert_eq!(status, 403, "{body}");
    let (status, _) = server.send(request("GET", "/v1/resources")).await;
    assert_eq!(status, 403);
    assert_eq!(server.done("GET", "/v1/resources", "").await["revision"], 0);
    let with = |uri: &str, name: &str, value: &str| {
        Request::builder().uri(uri).header(name, value).body(Body::empty()).unwrap()
    };
    for (uri, name, value, expected) in [
        ("/v1/resources", "host", "evil.example:18001", 403),
        ("/v1/nope", "host", "evil.example:18001", 403),
        ("/v1/resources", "sec-fetch-site", "cross-site", 403),
        ("/v1/resources", "host", "chancery.example:18001", 200),
        ("/v1/resources", "host", "127.0.0.1:18001", 200),
        ("/metrics", "host", "evil.example:18001", 200),
        ("/healthz", "host", "evil.example:18001", 200),
        ("/readyz", "host", "evil.example:18001", 200),
    ] {
        let (status, body) = server.send(with(uri, name, value)).await;
        assert_eq!(status, expected, "{uri} with {name} {value}: {body}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_without_asked_sessions_is_not_complete() {
    let server = Server::start().await;
    let done = server.done("POST", "/v1/apply?wait=1s", &clusters(&["a"], "1s")).await;
    let wait = &done["wait"];
    assert_eq!((&wait["settled"], &wait["complete"]), (&json!(true), &json!(false)), "{wait}");
    assert_eq!((&wait["asked"], &wait["acknowledged"]), (&json!(0), &json!(0)), "{wait}");
    assert_eq!(wait["replicas_not_asked"], 0, "{wait}");
    server.stop().await;
}

/// CSDS-14, OPS-19: the API does not show secrets of the store, and a redacted secret cannot be
/// applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_is_never_shown_and_its_mark_is_rejected() {
    let server = Server::start().await;
    let secret = |key: &str, certificate: &str| {
        json!({"resources": [{
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            "name": "cert",
            "tls_certificate": {
                "private_key": {"inline_string": key},
                "certificate_chain": {"inline_string": certificate},
            },
        }]})
        .to_string()
    };
    server.done("POST", "/v1/apply?validation=off", &secret("very-secret", "one")).await;
    let mut shown = String::new();
    for uri in [
        "/v1/resources",
        "/v1/describe?type=sds&name=cert",
        "/v1/explain?node=n&type=sds&name=cert",
    ] {
        shown.push_str(&server.done("GET", uri, "").await.to_string());
    }
    let dry = server
        .done("POST", "/v1/apply?dry_run&validation=off", &secret("another-secret", "two"))
        .await;
    assert_eq!(dry["changed"], 1);
    shown.push_str(&dry.to_string());
    let dry = server
        .done("POST", "/v1/apply?dry_run&validation=off", &secret("another-secret", "one"))
        .await;
    assert_eq!(dry["changes"][0]["differences"][0]["path"], "body", "{dry}");
    shown.push_str(&dry.to_string());
    assert!(shown.contains("[redacted]") && !shown.contains("-secret"), "{shown}");

    let (status, _, message) =
        server.refused("POST", "/v1/apply?validation=off", &secret("[redacted]", "one")).await;
    assert_eq!(status, 400);
    assert!(message.contains("\"[redacted]\""), "{message}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_sent_in_many_chunks_is_one_json_document() {
    let server = Server::start().await;
    let names: Vec<String> = (0..1500).map(|n| format!("c{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply", &clusters(&names, "1s")).await;
    let list = server.done("GET", "/v1/resources", "").await;
    let listed: Vec<&str> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| resource["name"].as_str().unwrap())
        .collect();
    assert_eq!(listed, names);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assignments_and_cluster_and_version_are_shown() {
    let server = Server::start().await;
    let manifest = "assignments:\n- name: edge\n  priority: 10\n  match: {id: \"edge-*\", locality: {region: eu}}\n  \
                    scopes: [\"node/{node.id}\", default]\n";
    let applied = server.done("POST", "/v1/apply", manifest).await;
    assert_eq!((&applied["revision"], &applied["assignments"]), (&json!(1), &json!(1)));
    let list = server.done("GET", "/v1/assignments", "").await;
    assert_eq!(
        list["assignments"][0],
        json!({
            "name": "edge",
            "priority": 10,
            "match": {"id": "edge-*", "locality": {"region": "eu"}, "metadata": {}},
            "scopes": ["node/{node.id}", "default"],
        })
    );
    let kinds = |json: &serde_json::Value| {
        let changes = json["assignment_changes"].as_array().unwrap().iter();
        changes.map(|c| format!("{} {}", c["kind"], c["name"])).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(kinds(&applied), "\"added\" \"edge\"");
    let changed = manifest.replace("10", "7").replace("eu", "us")
        + "- {name: all, match: {}, scopes: [default]}\n";
    let dry = server.done("POST", "/v1/apply?dry_run", &changed).await;
    assert_eq!((&dry["revision"], &dry["assignments"]), (&json!(1), &json!(2)));
    assert_eq!(kinds(&dry), "\"added\" \"all\", \"updated\" \"edge\"");
    assert_eq!(
        dry["assignment_changes"][1]["differences"],
        json!([
            {"path": "match.locality.region", "before": "\"eu\"", "after": "\"us\"", "kind": "changed"},
            {"path": "priority", "before": "10", "after": "7", "kind": "changed"},
        ])
    );
    let dry = server.done("DELETE", "/v1/assignments?name=edge&dry_run", "").await;
    assert_eq!(kinds(&dry), "\"deleted\" \"edge\"");
    server.done("DELETE", "/v1/assignments?name=edge", "").await;
    let list = server.done("GET", "/v1/assignments", "").await;
    assert_eq!(list["assignments"].as_array().unwrap().len(), 1);

    let cluster = server.done("GET", "/v1/cluster", "").await;
    assert_eq!((&cluster["replica_id"], &cluster["leader"]), (&json!(1), &json!(1)));
    assert_eq!((&cluster["revision"], &cluster["ready"]), (&json!(2), &json!(true)));
    assert_eq!(cluster["voters"], json!([1]));
    let version = server.done("GET", "/v1/version", "").await;
    assert_eq!(version, json!({"version": "0.0.0-test"}));
    server.stop().await;
}

/// `/healthz` is answered while the only thread has requests for metrics that take long.
#[tokio::test]
async fn slow_metrics_pages_do_not_delay_health() {
    let (release, released) = mpsc::sync_channel(1);
    let released = Mutex::new(released);
    let page = move || {
        let released = released.lock().unwrap().recv_timeout(Duration::from_secs(5));
        released.map_or("late", |()| "released").to_owned()
    };
    let server = Server::start_with(CancellationToken::new(), Arc::new(page)).await;
    let get = |uri: &str| Request::builder().uri(uri).body(Body::empty()).unwrap();
    let health = async {
        tokio::task::yield_now().await;
        let (status, _) = server.send(get("/healthz")).await;
        release.send(()).unwrap();
        status
    };
    let ((_, page), health) = tokio::join!(server.send(get("/metrics")), health);
    assert_eq!((page.as_str(), health.as_u16()), ("released", 200));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitoring_is_answered_and_a_draining_replica_is_not_ready() {
    let server = Server::start().await;
    let get = |uri: &str| Request::builder().uri(uri).body(Body::empty()).unwrap();
    assert_eq!(server.send(get("/metrics")).await.1, "chancery_test 1\n");
    assert_eq!(server.send(get("/healthz")).await.0, 200);
    assert_eq!(server.send(get("/readyz")).await, (http::StatusCode::OK, "ready\n".to_owned()));
    let json = server.done("GET", "/readyz?format=json", "").await;
    assert_eq!(json, json!({"ready": true}));
    let mut accepting = get("/healthz");
    accepting.headers_mut().insert("accept", "application/json".parse().unwrap());
    assert_eq!(server.send(accepting).await.1, "{\"healthy\":true}\n");
    server.drain.cancel();
    assert_eq!(server.send(get("/healthz")).await.0, 200);
    let (status, body) = server.call("GET", "/readyz", "").await;
    let message = "the replica is shutting down";
    let expected = json!({"ready": false, "reason": "draining", "message": message});
    assert_eq!((status.as_u16(), body), (503, expected));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_is_imported() {
    let server = Server::start().await;
    let bootstrap = "static_resources:\n  clusters:\n  - name: web\n    connect_timeout: 1s\n";
    let imported = server.done("POST", "/v1/import?scope=mesh", bootstrap).await;
    assert_eq!((&imported["revision"], &imported["changed"]), (&json!(1), &json!(1)));
    let list = server.done("GET", "/v1/resources?scope=mesh", "").await;
    assert_eq!(list["resources"][0]["name"], "web");
    assert_eq!(imported["left_out"], json!([]));

    let bootstrap = "node: {id: a}\nstatic_resources:\n  clusters:\n  - connect_timeout: 1s\n";
    let imported = server.done("POST", "/v1/import?scope=mesh&name=cart", bootstrap).await;
    assert_eq!(imported["changes"][0]["name"], "cart");
    assert_eq!(
        imported["left_out"],
        json!([{
            "file": "request body", "line": 1, "column": 1, "field_path": "node", "entries": 1,
            "reason": "it identifies one Envoy"
        }])
    );
    server.stop().await;
}
