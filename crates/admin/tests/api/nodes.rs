//! The information about connected nodes: state, rejections, waits and explanations.

use chancery_model::types::{CLUSTER, ENDPOINT, LISTENER};
use serde_json::{Value, json};

use crate::support::{Client, Server, clusters, eventually};

async fn in_state(server: &Server, id: &str, state: &str) -> Value {
    let uri = format!("/v1/nodes/{id}");
    eventually(
        async || {
            let (status, node) = server.call("GET", &uri, "").await;
            (status.is_success() && node["state"] == state).then_some(node)
        },
        &format!("node {id} is {state}"),
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_shown_from_pending_to_acknowledged() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let mut client = Client::open(&server, "edge/1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    in_state(&server, "edge%2F1", "pending").await;
    client.answer(&response, None).await;
    let node = in_state(&server, "edge%2F1", "synced").await;

    assert_eq!((&node["id"], &node["cluster"]), (&json!("edge/1"), &json!("edge")));
    let stream = &node["streams"][0];
    assert_eq!((&stream["protocol"], &stream["type_url"]), (&json!("delta"), &json!("")));
    assert_eq!(
        (&stream["assignment"], &stream["scopes"]),
        (&json!("default"), &json!(["default"]))
    );
    let subscription = &stream["subscriptions"][0];
    assert_eq!(subscription["type_url"], CLUSTER);
    assert_eq!(
        (&subscription["wildcard"], &subscription["state"]),
        (&json!(true), &json!("synced"))
    );
    assert_eq!(subscription["sent_version"], subscription["acked_version"]);

    let list = server.done("GET", "/v1/nodes?id=edge*&state=synced", "").await;
    assert_eq!(list["nodes"][0], node);
    let list = server.done("GET", "/v1/nodes?state=nacked", "").await;
    let empty = json!({
        "nodes": [], "disconnected": [], "next": "", "replicas": 1, "not_asked": [], "replicas_not_asked": 0,
        "clients": {}, "nodes_by_replica": {}, "counts": {}, "held": [], "problems": [],
    });
    assert_eq!(list, empty);

    let view = server.done("GET", "/v1/resources?view_of_node=edge/1", "").await;
    assert_eq!(view["resources"][0]["name"], "web");
    let described = server.done("GET", "/v1/describe?type=cds&name=web", "").await;
    assert_eq!(described["scopes"][0]["nodes"], json!(["edge/1"]));
    server.stop().await;
}

/// A rejection is shown to the author, with the text of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_ended_by_rejection_names_node_and_reason() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    in_state(&server, "n1", "synced").await;

    let changed = clusters(&["web"], "2s");
    let apply = server.done("POST", "/v1/apply?wait=10m", &changed);
    let reject = async {
        let response = client.response().await;
        client.answer(&response, Some("no such filter")).await;
    };
    let (applied, ()) = tokio::join!(apply, reject);
    assert_eq!(applied["revision"], 2);
    assert_eq!(applied["wait"]["settled"], false, "{applied}");
    let waited = applied["wait"]["waited_ms"].as_u64().unwrap();
    assert!(waited < 60_000, "the wait ends at the rejection: {applied}");
    let unsettled = &applied["wait"]["unsettled"][0];
    assert_eq!((&unsettled["node"], &unsettled["state"]), (&json!("n1"), &json!("nacked")));
    assert_eq!(
        (&unsettled["type_url"], &unsettled["message"]),
        (&json!(CLUSTER), &json!("no such filter"))
    );

    let node = in_state(&server, "n1", "nacked").await;
    assert_eq!(node["streams"][0]["subscriptions"][0]["nack_message"], "no such filter");
    assert_eq!(node["streams"][0]["nacks"][0]["code"], 13);
    let described = server.done("GET", "/v1/describe?type=cds&name=web", "").await;
    assert_eq!(described["nacks"][0]["message"], "no such filter");
    assert_eq!(described["nacks"][0]["node"], "n1");
    let explained = server.done("GET", "/v1/explain?node=n1&type=cds&name=web", "").await;
    let last = explained["conclusions"].as_array().unwrap().last().unwrap().as_str().unwrap();
    assert!(last.contains("has rejected") && last.ends_with("no such filter"), "{explained}");

    // The corrected resource settles the wait.
    let repaired = clusters(&["web"], "3s");
    let apply = server.done("POST", "/v1/apply?wait=10s", &repaired);
    let accept = async {
        let response = client.response().await;
        client.answer(&response, None).await;
    };
    let (applied, ()) = tokio::join!(apply, accept);
    assert_eq!(applied["wait"]["settled"], true, "{applied}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_for_silent_client_times_out_and_names_it() {
    let server = Server::start().await;
    let mut client = Client::open(&server, "silent");
    client.subscribe(CLUSTER).await;
    eventually(
        async || server.call("GET", "/v1/nodes/silent", "").await.0.is_success().then_some(()),
        "the node is there",
    )
    .await;
    let applied = server.done("POST", "/v1/apply?wait=100ms", &clusters(&["web"], "1s")).await;
    let wait = &applied["wait"];
    assert_eq!(
        (&wait["settled"], &wait["unsettled"][0]["node"]),
        (&json!(false), &json!("silent"))
    );
    assert_eq!(wait["unsettled"][0]["state"], "pending");
    assert!(wait["waited_ms"].as_u64().unwrap() >= 100, "{wait}");
    drop(client);
    server.stop().await;
}

/// A wait covers only sessions that the write concerns, and only the types that it concerns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_asks_only_sessions_that_the_write_concerns() {
    let server = Server::start().await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(LISTENER).await;
    client.response().await;
    // The client leaves the listeners unanswered.
    in_state(&server, "n1", "pending").await;
    let applied = server.done("POST", "/v1/apply?wait=10m", &clusters(&["web"], "1s")).await;
    let wait = &applied["wait"];
    assert_eq!((&wait["asked"], &wait["settled"]), (&json!(0), &json!(true)), "{applied}");
    assert_eq!(wait["complete"], false, "{applied}");

    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    let changed = clusters(&["web"], "2s");
    let apply = server.done("POST", "/v1/apply?wait=10m", &changed);
    let accept = async {
        let response = client.response().await;
        client.answer(&response, None).await;
    };
    let (applied, ()) = tokio::join!(apply, accept);
    let wait = &applied["wait"];
    assert_eq!((&wait["asked"], &wait["acknowledged"]), (&json!(1), &json!(1)), "{applied}");
    assert_eq!(wait["complete"], true, "{applied}");
    let again = server.done("POST", "/v1/apply?wait=10m", &changed).await;
    assert_eq!((&again["unchanged"], &again["wait"]["complete"]), (&json!(1), &json!(true)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_leaves_during_a_wait_is_reported() {
    let server = Server::start().await;
    let mut seconds = 0;
    let wait = eventually(
        async || {
            let mut client = Client::open(&server, "n1");
            client.subscribe(CLUSTER).await;
            let response = client.response().await;
            client.answer(&response, None).await;
            seconds += 1;
            let changed = clusters(&["web"], &format!("{seconds}s"));
            let apply = server.done("POST", "/v1/apply?wait=10m", &changed);
            let leave = async {
                client.response().await;
                in_state(&server, "n1", "pending").await;
                drop(client);
            };
            let (applied, ()) = tokio::join!(apply, leave);
            // The client may leave before it is asked.
            let wait = applied["wait"].clone();
            (wait["asked"] != 0).then_some(wait)
        },
        "the client leaves after it was asked",
    )
    .await;
    assert_eq!((&wait["asked"], &wait["left"]), (&json!(1), &json!(1)), "{wait}");
    assert_eq!((&wait["settled"], &wait["complete"]), (&json!(true), &json!(false)), "{wait}");
    server.stop().await;
}

/// Checks the explanation for a node that has no stream to the replica.
fn expect_only_id_is_known(explained: &Value) {
    assert_eq!(explained["connected"], false);
    assert!(explained["conclusions"].to_string().contains("is not connected."), "{explained}");
    let trials = &explained["trials"];
    assert_eq!(trials[0]["reason"], "unknown: cluster must match \"web\"", "{explained}");
    for trial in [&trials[0], &trials[1]] {
        assert_eq!((&trial["matched"], &trial["unknown"]), (&json!(false), &json!(true)));
    }
    assert_eq!(trials.as_array().unwrap().len(), 2, "the ID decides about the second: {explained}");
    assert_eq!(explained["scopes"], json!([]), "{explained}");
    assert_eq!(explained["unknown"][0], "cluster", "{explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_path_from_node_to_resource() {
    let server = Server::start().await;
    let assignments = "assignments:\n\
        - {name: others, priority: 20, match: {cluster: web}, scopes: [web]}\n\
        - {name: edge, priority: 10, match: {id: \"edge-*\"}, scopes: [\"node/{node.id}\", default, \"zone/{locality.zone}\"]}\n";
    server.done("POST", "/v1/apply", assignments).await;
    server.done("POST", "/v1/apply", &clusters(&["web", "low"], "1s")).await;
    server.done("POST", "/v1/apply?scope=node/edge-1", &clusters(&["web"], "2s")).await;
    server.done("POST", "/v1/apply?scope=elsewhere", &clusters(&["far"], "2s")).await;

    // A node that is not connected is explained by its ID alone, and the explanation says so.
    let explained = server.done("GET", "/v1/explain?node=edge-1&type=cds&name=web", "").await;
    expect_only_id_is_known(&explained);

    // For a connected node, the subscriptions of its streams count, too.
    let mut client = Client::open(&server, "edge-1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    in_state(&server, "edge-1", "synced").await;
    let conclusions = |explained: &Value| explained["conclusions"].to_string();
    let explained = server.done("GET", "/v1/explain?node=edge-1&type=cds&name=web", "").await;
    assert_eq!(explained["connected"], true);
    assert_eq!(explained["unknown"], json!([]), "{explained}");
    assert_eq!(explained["trials"][1]["matched"], true);
    assert_eq!(explained["trials"].as_array().unwrap().len(), 2, "the first match decides");
    let scopes = &explained["scopes"];
    assert_eq!((&scopes[1]["scope"], &scopes[1]["resources"]), (&json!("default"), &json!(2)));
    assert_eq!(scopes[1]["shadowed_by"], "node/edge-1");
    assert_eq!(
        (&scopes[0]["scope"], &scopes[0]["shadowed_by"]),
        (&json!("node/edge-1"), &json!(""))
    );
    assert_eq!(
        (&scopes[2]["template"], &scopes[2]["scope"]),
        (&json!("zone/{locality.zone}"), &json!(""))
    );
    let text = conclusions(&explained);
    assert!(
        text.contains("of scope node/edge-1") && text.contains("has acknowledged all"),
        "{text}"
    );
    let explained = server.done("GET", "/v1/explain?node=edge-1&type=eds&name=x", "").await;
    let text = conclusions(&explained);
    assert!(text.contains("does not exist in any scope"), "{text}");
    assert!(text.contains("No stream of the node subscribes to"), "{text}");
    let explained = server.done("GET", "/v1/explain?node=edge-1&type=cds&name=far", "").await;
    let text = conclusions(&explained);
    assert!(text.contains("is not in the node's scopes; it exists in elsewhere"), "{text}");

    // The node sees one resource per name, from the first scope that has it.
    let view = server.done("GET", "/v1/resources?view_of_node=edge-1&type=cds", "").await;
    let seen: Vec<(&str, &str)> = view["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| (resource["scope"].as_str().unwrap(), resource["name"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [("default", "low"), ("node/edge-1", "web")]);
    let described = server.done("GET", "/v1/describe?type=cds&name=web&scope=default", "").await;
    assert_eq!(described["scopes"][0]["nodes_shadowed"], 1);
    assert_eq!(described["scopes"][0]["nodes_total"], 0);

    // Without an assignment the node receives no response.
    for name in ["edge", "others", "default"] {
        server
            .done("DELETE", &format!("/v1/assignments?name={name}&confirm=view-change"), "")
            .await;
    }
    let node = in_state(&server, "edge-1", "unassigned").await;
    assert_eq!(node["streams"][0]["assignment"], "");
    let explained = server.done("GET", "/v1/explain?node=edge-1", "").await;
    assert!(conclusions(&explained).contains("No assignment matches the node"), "{explained}");
    server.stop().await;
}

/// XDSTP-08: a wildcard has no names of other nodes. The view of a node, the description of a resource and the explanation
/// follow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_other_nodes_are_not_shown_as_seen() {
    let server = Server::start().await;
    let of_node =
        |id: &str| format!("xdstp:///envoy.config.cluster.v3.Cluster/web?xds.node.id={id}");
    let (own, other) = (of_node("n2"), of_node("n1"));
    server.done("POST", "/v1/apply", &clusters(&["plain", &own, &other], "1s")).await;
    let mut client = Client::open(&server, "n2");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    in_state(&server, "n2", "synced").await;

    let view = server.done("GET", "/v1/resources?view_of_node=n2&type=cds", "").await;
    let seen: Vec<_> = view["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(seen, ["plain", &own]);
    let encoded = |name: &str| name.replace('?', "%3F").replace('=', "%3D");
    for (name, n_nodes) in [(&own, 1), (&other, 0)] {
        let uri = format!("/v1/describe?type=cds&name={}", encoded(name));
        let described = server.done("GET", &uri, "").await;
        assert_eq!(described["scopes"][0]["nodes_total"], n_nodes, "{described}");
        assert_eq!(described["scopes"][0]["nodes_shadowed"], 0, "{described}");
    }
    for (node, name, sentence) in [
        ("n2", own.as_str(), "The node sees"),
        ("n2", &other, "A wildcard of the node does not find it"),
        ("n2", "", "including shadowed ones and those of other nodes"),
        ("n3", &other, "A wildcard finds it only if the node has all these values"),
    ] {
        let uri = format!("/v1/explain?node={node}&type=cds&name={}", encoded(name));
        let explained = server.done("GET", &uri, "").await;
        let text = explained["conclusions"].to_string();
        assert!(text.contains(sentence), "{text}");
        assert_eq!(text.contains("The node sees"), sentence == "The node sees", "{text}");
    }
    server.stop().await;
}

/// OPS-05: nothing is on its way to a node without an assignment, so none of its types is pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_of_node_without_assignment_are_not_pending() {
    let server = Server::start().await;
    server.done("DELETE", "/v1/assignments?name=default", "").await;
    let mut client = Client::open(&server, "new");
    client.subscribe(CLUSTER).await;
    let node = in_state(&server, "new", "unassigned").await;
    assert_eq!(node["streams"][0]["subscriptions"][0]["state"], "idle");
    server.stop().await;
}

fn virtual_service(collection: &str) -> Value {
    let content = "type.googleapis.com/istio.networking.v1alpha3.VirtualService";
    json!({
        "@type": collection,
        "metadata": {"name": "shop/reviews"},
        "body": {"@type": content, "value": "CgdyZXZpZXdz"},
    })
}

/// istiod asks for other versions of its collections than earlier releases did. Resources in the old ones are
/// published, and never requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collection_that_no_node_asks_for_is_reported() {
    let server = Server::start().await;
    let url = |version: &str| format!("networking.istio.io/{version}/VirtualService");
    let apply = async |version: &str| {
        let one = virtual_service(&url(version));
        let manifest = json!({"resources": [one]}).to_string();
        let applied = server.done("POST", "/v1/apply", &manifest).await;
        let warnings = applied["warnings"].as_array().cloned().unwrap_or_default();
        warnings.into_iter().find(|warning| warning["message"].to_string().contains("asks for"))
    };
    assert_eq!(apply("v1alpha3").await, None, "nobody asks for another version");
    let mut client = Client::open(&server, "istiod");
    client.subscribe(&url("v1")).await;
    client.response().await;
    let warning = apply("v1alpha3").await.unwrap();
    let text = format!(
        "no connected node asks for {}, but 1 node asks for {}",
        url("v1alpha3"),
        url("v1")
    );
    assert_eq!(warning["message"], text);
    assert_eq!(warning["fix"], format!("publish the resources in {}", url("v1")));
    assert_eq!(apply("v1").await, None);

    let uri = |version: &str| format!("/v1/explain?node=istiod&type={}", url(version));
    let explained = server.done("GET", &uri("v1alpha3"), "").await;
    let explained = explained["conclusions"].to_string();
    assert!(explained.contains(&format!("Across all replicas, {text}.")), "{explained}");
    let none = format!("No stream of the node subscribes to {}.", url("v1alpha3"));
    assert!(explained.contains(&none), "{explained}");
    let explained = server.done("GET", &uri("v1"), "").await["conclusions"].to_string();
    assert!(!explained.contains("Across all replicas"), "{explained}");
    server.stop().await;
}

/// a resource of a collection gets a time of creation, and a retry of the request is the same request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_of_a_request_without_time_of_creation_takes_effect_once() {
    let server = Server::start().await;
    let collection = "networking.istio.io/v1/VirtualService";
    let body = json!({"resources": [virtual_service(collection)]}).to_string();
    let uri = "/v1/apply?request_id=0123456789abcdef0123456789abcdef";
    let first = server.done("POST", uri, &body).await;
    assert_eq!(first["changed"], 1, "{first}");
    let again = server.done("POST", uri, &body).await;
    assert_eq!(again["revision"], first["revision"], "{again}");
    let dry = server.done("POST", "/v1/apply?dry_run=true", &body).await;
    assert_eq!((&dry["changed"], &dry["unchanged"]), (&json!(0), &json!(1)), "{dry}");
    let got = server.done("GET", &format!("/v1/resources?type={collection}"), "").await;
    let mut resource = got["resources"][0]["body"].clone();
    let created = &resource["metadata"]["create_time"];
    assert!(created.is_string(), "{got}");
    resource["@type"] = json!(collection);
    let manifest = json!({"resources": [resource]}).to_string();
    assert_eq!(server.done("POST", "/v1/apply", &manifest).await["unchanged"], 1);
    server.stop().await;
}

/// `explain` names what a client waits for, and says when it has asked for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanation_names_what_a_client_waits_for() {
    let server = Server::start().await;
    let mut client = Client::open(&server, "n1");
    client.subscribe(ENDPOINT).await;
    let conclusions = async |part: &str| {
        let uri = "/v1/explain?node=n1&type=eds";
        let probe = async || {
            let text = server.done("GET", uri, "").await["conclusions"].to_string();
            text.contains(part).then_some(())
        };
        eventually(probe, part).await;
    };
    conclusions("its list is empty, which is not a wildcard for this type").await;
    client.subscribe_to(ENDPOINT, &["a", "b"]).await;
    conclusions("The stream asks for \\\"a\\\", \\\"b\\\", which the node does not see.").await;
    let waits = server.done("GET", "/v1/nodes/n1", "").await["waits"].clone();
    let message = "asks for \"a\", \"b\", which the node does not see";
    assert_eq!(waits, json!([{"type_url": ENDPOINT, "message": message}]));
    // The missing name is not on the first page of names.
    let names: Vec<String> = (0..400).map(|n| format!("n{n:03}")).collect();
    let resources = names.iter().map(|name| json!({"@type": ENDPOINT, "cluster_name": name}));
    let manifest = json!({"resources": resources.collect::<Vec<_>>()}).to_string();
    server.done("POST", "/v1/apply", &manifest).await;
    let glob = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/edge/*";
    let all = names.iter().map(String::as_str).chain(["zzz", glob]);
    client.subscribe_to(ENDPOINT, &all.collect::<Vec<_>>()).await;
    let waited_for = ["a", "b", "zzz", glob].map(|name| format!("\\\"{name}\\\"")).join(", ");
    let missing = format!("The stream asks for {waited_for}, which the node does not see.");
    conclusions(&missing).await;
    let about = async |name: &str| {
        let uri = format!("/v1/explain?node=n1&type=eds&name={name}");
        server.done("GET", &uri, "").await["conclusions"].to_string()
    };
    assert!(about("n399").await.contains("The stream asks for n399."));
    assert!(about("other").await.contains("The stream does not ask for other: it asks for"));
    server.stop().await;
}
