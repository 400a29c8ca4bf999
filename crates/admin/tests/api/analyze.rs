//! The analysis of what is stored: each rule with a case that it finds and one that it does not.

use std::time::Duration;

use chancery_model::{
    Node,
    types::{CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET},
};
use serde_json::{Value, json};

use crate::{
    access::{Who, done, rules, send, token},
    support::{Client, Server, clusters, eventually},
};

fn cluster(name: &str) -> String {
    format!("{{'@type': {CLUSTER}, name: {name}, connect_timeout: 1s}}")
}

/// Returns a cluster that requests its endpoints.
fn dynamic_cluster(name: &str) -> String {
    format!(
        "{{'@type': {CLUSTER}, name: {name}, type: EDS, eds_cluster_config: {{eds_config: {{ads: {{}}}}}}}}"
    )
}

fn endpoints(name: &str) -> String {
    format!("{{'@type': {ENDPOINT}, cluster_name: {name}}}")
}

fn secret(name: &str) -> String {
    format!("{{'@type': {SECRET}, name: {name}, generic_secret: {{secret: {{inline_string: x}}}}}}")
}

/// Returns a route table with one route for each action.
fn route(name: &str, actions: &[&str]) -> String {
    let routes: Vec<String> = (actions.iter().enumerate())
        .map(|(n, action)| format!("{{match: {{path: /{n}}}, route: {{{action}}}}}"))
        .collect();
    let routes = routes.join(", ");
    format!(
        "{{'@type': {ROUTE}, name: {name}, virtual_hosts: [{{name: all, domains: ['*'], routes: [{routes}]}}]}}"
    )
}

/// Returns a listener that requests a route table.
fn listener(name: &str, table: &str) -> String {
    format!(
        "{{'@type': {LISTENER}, name: {name}, api_listener: {{api_listener: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, \
         stat_prefix: a, rds: {{route_config_name: {table}, config_source: {{ads: {{}}}}}}, http_filters: [{{name: r, \
         typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}}}}}"
    )
}

/// Returns a manifest with the rules and resources of scopes.
fn manifest(assignments: &str, scopes: &[(&str, &[String])]) -> String {
    let mut text = format!("assignments: [{assignments}]\n");
    for (scope, resources) in scopes {
        text.push_str(&format!("---\nscope: {scope}\nresources: [{}]\n", resources.join(", ")));
    }
    text
}

/// Returns the findings as `rule scope name`.
fn brief(answer: &Value) -> Vec<String> {
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    let findings = answer["findings"].as_array().unwrap().iter();
    let brief = |one: &Value| {
        let place = [text(one, "rule_id"), text(one, "scope"), text(one, "name")];
        place.join(" ").trim_end().to_owned()
    };
    findings.map(brief).collect()
}

/// Returns the findings after a write.
async fn analyzed(server: &Server, manifest: &str, uri: &str) -> Value {
    server.done("POST", "/v1/apply?confirm=all", manifest).await;
    server.done("GET", uri, "").await
}

const EDGE: &str = "{name: default, match: {id: '*'}, scopes: [edge, base]}";

#[tokio::test(flavor = "multi_thread")]
async fn resources_to_which_no_view_refers_are_unused() {
    let server = Server::start().await;
    let edge = [listener("web", "main"), route("main", &["cluster: used"])];
    let base = [
        dynamic_cluster("used"),
        cluster("spare"),
        endpoints("used"),
        endpoints("spare"),
        route("spare", &["cluster: used"]),
        secret("spare"),
    ];
    let text = manifest(EDGE, &[("edge", &edge), ("base", &base)]);
    let answer = analyzed(&server, &text, "/v1/analyze").await;
    let expected = [
        "resource.unused base spare",
        "resource.unused base spare",
        "resource.unused base spare",
        "resource.unused base spare",
        "assignment.unused  default",
    ];
    assert_eq!(brief(&answer), expected, "{answer}");
    let types: Vec<&str> = answer["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["type_url"].as_str())
        .collect();
    assert_eq!(types, [CLUSTER, ENDPOINT, ROUTE, SECRET, ""]);
    let first = &answer["findings"][0];
    assert_eq!(first["severity"], "warning");
    assert_eq!(first["message"], "nothing refers to it");
    assert_eq!(first["fix"], "delete it, unless the bootstrap of the nodes refers to it");
    assert_eq!((&answer["warnings"], &answer["resources"]), (&json!(4), &json!(8)));
    let one = server.done("GET", "/v1/analyze?scope=edge", "").await;
    assert_eq!((brief(&one), &one["resources"]), (Vec::new(), &json!(2)), "{one}");
    server.stop().await;
}

/// A resource of another scope counts only if a node may have both scopes.
#[tokio::test(flavor = "multi_thread")]
async fn reference_of_another_scope_counts_if_a_node_may_have_both() {
    let server = Server::start().await;
    let each = "{name: default, match: {id: '*'}, scopes: ['node/{node.id}', base]}, \
                {name: own, priority: 1, match: {id: 'own-*'}, scopes: [alone]}";
    let to = |name: &str| [route("main", &[&format!("cluster: {name}")]), listener("web", "main")];
    let text = manifest(
        each,
        &[
            ("node/a", &to("shared")),
            ("alone", &to("other")),
            ("base", &[cluster("shared"), cluster("other")]),
            ("node/b", &[cluster("shared")]),
        ],
    );
    let answer = analyzed(&server, &text, "/v1/analyze").await;
    let warnings: Vec<&Value> = (answer["findings"].as_array().unwrap().iter())
        .filter(|one| one["rule_id"] == "resource.unused")
        .collect();
    let found: Vec<(&str, &str)> = (warnings.iter())
        .map(|one| (one["scope"].as_str().unwrap(), one["message"].as_str().unwrap()))
        .collect();
    let end = "nothing refers to it; RouteConfiguration \"main\" in scope ";
    let other = |scope: &str| format!("{end}\"{scope}\" does, but no node has both scopes");
    assert_eq!(found, [("base", other("alone").as_str()), ("node/b", &other("node/a"))]);
    server.stop().await;
}

/// A header or an unknown extension may name any cluster of the view, so that no cluster of the view is called unused.
#[tokio::test(flavor = "multi_thread")]
async fn use_of_clusters_is_unknown_where_something_else_selects_them() {
    let server = Server::start().await;
    let edge = [listener("web", "main"), route("main", &["cluster_header: x-cluster"])];
    let base = [cluster("spare"), endpoints("spare")];
    let rules = format!("{EDGE}, {{name: other, priority: 1, match: {{id: x}}, scopes: [other]}}");
    let text =
        manifest(&rules, &[("edge", &edge), ("base", &base), ("other", &[cluster("spare")])]);
    let answer = analyzed(&server, &text, "/v1/analyze").await;
    let expected = [
        "resource.unused base spare",
        "resource.unused other spare",
        "assignment.unused  default",
        "assignment.unused  other",
        "resource.use_unknown base spare",
    ];
    assert_eq!(brief(&answer), expected, "{answer}");
    let unknown = &answer["findings"][4];
    assert_eq!((&unknown["severity"], &unknown["type_url"]), (&json!("info"), &json!(CLUSTER)));
    let message = "nothing is known to refer to it, but a header selects clusters in RouteConfiguration \"main\" in \
                   scope \"edge\"";
    assert_eq!(unknown["message"], message);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_and_assignments_that_no_node_can_have_are_found() {
    let server = Server::start().await;
    let assignments = "{name: all, priority: 5, match: {id: '*'}, scopes: ['node/{node.id}', mesh]}, \
                       {name: late, priority: 4, match: {id: x}, scopes: [late]}";
    let text = manifest(
        assignments,
        &[
            ("node/a", &[listener("a", "main")]),
            ("node/a/b", &[listener("a", "main")]),
            ("mesh", &[route("main", &["cluster: web"]), cluster("web")]),
            ("late", &[listener("a", "main"), listener("b", "main")]),
        ],
    );
    let answer = analyzed(&server, &text, "/v1/analyze").await;
    let expected = [
        "scope.unassigned late",
        "scope.unassigned node/a/b",
        "assignment.unused  all",
        "assignment.unreachable  default",
        "assignment.unreachable  late",
    ];
    assert_eq!(brief(&answer), expected, "{answer}");
    let text = "no assignment gives this scope to a node, so that nobody receives its 2 resources";
    assert_eq!(answer["findings"][0]["message"], text);
    let text = "applies to no node: the assignment \"all\" matches every node and comes first";
    assert_eq!(answer["findings"][4]["message"], text);
    // A connected node has the assignment.
    let mut client = Client::open(&server, "a");
    client.subscribe(CLUSTER).await;
    client.response().await;
    let unused =
        |answer: &Value| brief(answer).iter().any(|one| one.starts_with("assignment.unused"));
    eventually(
        async || (!unused(&server.done("GET", "/v1/analyze", "").await)).then_some(()),
        "the assignment is used",
    )
    .await;
    let (status, code, text) = server.refused("GET", "/v1/analyze?scope=nowhere", "").await;
    assert_eq!((status, code.as_str()), (404, "NOT_FOUND"));
    assert!(text.starts_with("scope \"nowhere\" has no resources"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_behind_a_route_that_matches_their_requests_are_unreachable() {
    let server = Server::start().await;
    let table = format!(
        "{{'@type': {ROUTE}, name: main, virtual_hosts: [{{name: all, domains: ['*'], routes: [{}, {}, {}]}}]}}",
        "{match: {prefix: /a}, route: {cluster: web}}",
        "{match: {prefix: /}, route: {cluster: web}}",
        "{match: {path: /b}, route: {cluster: web}}"
    );
    let edge = [listener("web", "main"), table, cluster("web")];
    let answer =
        analyzed(&server, &manifest(EDGE, &[("edge", &edge)]), "/v1/analyze?scope=edge").await;
    assert_eq!(brief(&answer), ["route.unreachable edge main"], "{answer}");
    let found = &answer["findings"][0];
    assert_eq!(found["field_path"], "virtual_hosts[0].routes[2]");
    let text = "never matches: virtual_hosts[0].routes[1] matches all its requests";
    assert_eq!((&found["message"], &found["severity"]), (&json!(text), &json!("warning")));
    server.stop().await;
}

/// References count in the views of connected nodes, and in those of assignments without variables.
#[tokio::test(flavor = "multi_thread")]
async fn references_that_dangle_in_a_view_in_use_are_found() {
    let server = Server::start().await;
    let own = "{name: own, priority: 1, match: {id: 'own-*'}, scopes: ['own/{node.id}', base]}";
    let to =
        |cluster: &str| [route("main", &[&format!("cluster: {cluster}")]), listener("web", "main")];
    let scopes: [(&str, &[String]); 4] = [
        ("edge", &to("gone")),
        ("own/own-1", &to("lost")),
        ("own/own-2", &to("web")),
        ("base", &[cluster("web")]),
    ];
    let text = manifest(&format!("{EDGE}, {own}"), &scopes);
    let missing = |answer: &Value| {
        let all = answer["findings"].as_array().unwrap().iter();
        let all = all.filter(|one| one["rule_id"] == "reference.missing");
        all.map(|one| one["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let answer = analyzed(&server, &text, "/v1/analyze").await;
    let edge = "refers to Cluster \"gone\", which is missing in 1 view: edge+base (no known node)";
    assert_eq!(missing(&answer), [edge], "{answer}");
    for id in ["own-1", "own-2"] {
        let mut client = Client::open(&server, id);
        client.subscribe(CLUSTER).await;
        client.response().await;
        std::mem::forget(client);
    }
    let own = "refers to Cluster \"lost\", which is missing in 1 view: own/own-1+base (1 node)";
    let found = eventually(
        async || {
            let answer = server.done("GET", "/v1/analyze", "").await;
            (missing(&answer).len() > 1).then_some(answer)
        },
        "the node is connected",
    )
    .await;
    assert_eq!(missing(&found), [edge, own]);
    assert_eq!(found["findings"][0]["field_path"], "virtual_hosts[0].routes[0].route.cluster");
    server.stop().await;
}

/// Resources that the caller may not read decide, but are not named.
#[tokio::test(flavor = "multi_thread")]
async fn answer_names_only_what_the_caller_may_read() {
    let server = Server::start_enforced().await;
    let assignments = "{name: default, match: {id: '*'}, scopes: [team, hidden]}, \
                       {name: alone, priority: 1, match: {id: x}, scopes: [private]}";
    let chooser = [route("main", &["cluster: used", "cluster_header: x"]), listener("web", "main")];
    let team =
        [cluster("used"), cluster("spare"), route("own", &["cluster: gone"]), endpoints("other")];
    let elsewhere = [dynamic_cluster("other")];
    let text =
        manifest(assignments, &[("team", &team), ("hidden", &chooser), ("private", &elsewhere)]);
    done(&server, Who::Admin, "POST", "/v1/apply?confirm=all", &text).await;
    let author = token(&server, "author").await;
    let get = json!([{
        "name": "author", "identities": ["token:author"], "allow": [{"verbs": ["get"], "scopes": ["team"]}],
    }]);
    rules(&server, get).await;
    let answer = done(&server, Who::Token(&author), "GET", "/v1/analyze", "").await;
    let expected = [
        "resource.unused team own",
        "reference.missing team own",
        "resource.unused team other",
        "resource.use_unknown team spare",
    ];
    let mut found = brief(&answer);
    found.sort();
    let mut expected = expected.map(str::to_owned);
    expected.sort();
    assert_eq!(found, expected, "{answer}");
    let text = answer.to_string();
    for hidden in ["hidden", "private", "main"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let message = "but a header selects clusters in a resource of another scope";
    assert!(text.contains(message), "{text}");
    assert!(text.contains("missing in 1 view: team (no known node)"), "{text}");
    let (status, _) =
        send(&server, Who::Token(&author), "GET", "/v1/analyze?scope=hidden", "").await;
    assert_eq!(status, 404);
    // The administrator gets the names.
    let answer = done(&server, Who::Admin, "GET", "/v1/analyze", "").await;
    assert!(answer.to_string().contains("in scope \\\"hidden\\\""), "{answer}");
    server.stop().await;
}

/// Returns the findings of rules about nodes as `rule name`.
fn of_rules(answer: &Value, is_rule: impl Fn(&str) -> bool) -> Vec<String> {
    let all = answer["findings"].as_array().unwrap().iter();
    let brief = |one: &Value| {
        let (rule, name) = (one["rule_id"].as_str().unwrap(), one["name"].as_str().unwrap());
        is_rule(rule).then(|| format!("{rule} {name}"))
    };
    all.filter_map(brief).collect()
}

/// Returns the findings about nodes, without those about versions.
fn of_nodes(answer: &Value) -> Vec<String> {
    of_rules(answer, |rule| rule.starts_with("node.") && rule != "node.version")
}

/// Returns the message of the finding of a rule about a node.
fn message<'a>(answer: &'a Value, rule: &str, name: &str) -> &'a str {
    let mut all = answer["findings"].as_array().unwrap().iter();
    let found = all.find(|one| one["rule_id"] == rule && one["name"] == name);
    found.unwrap_or_else(|| panic!("{rule} {name}: {answer}"))["message"].as_str().unwrap()
}

/// Connects a node of a user agent from an address, and acknowledges its clusters.
async fn synced(server: &Server, id: &str, user_agent: &str, peer: &str) -> Client {
    let (id, user_agent) = (id.to_owned(), user_agent.to_owned());
    let mut client = Client::open_from(server, Node { id, user_agent, ..Node::default() }, peer);
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    client
}

async fn until_found(server: &Server, expected: &[&str]) -> Value {
    eventually(
        async || {
            let answer = server.done("GET", "/v1/analyze", "").await;
            (of_nodes(&answer) == expected).then_some(answer)
        },
        &format!("{expected:?}"),
    )
    .await
}

/// Each problem of a connected node is a finding with a rule of its own, and a node without a problem has none.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_problems_are_found() {
    let server = Server::start().await;
    let rules = "assignments: [{name: default, match: {id: 'e*'}, scopes: [default]}]\n";
    server.done("POST", "/v1/apply?confirm=all", rules).await;
    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let envoy = "envoy/1.40.2";
    let good = synced(&server, "e-good", envoy, "10.0.0.1:1").await;
    let twins = [
        synced(&server, "e-twin", envoy, "10.0.0.2:1").await,
        synced(&server, "e-twin", envoy, "10.0.0.3:1").await,
    ];
    // The channels of one process are one client.
    let channels = [
        synced(&server, "e-go", "gRPC Go/1.85.0", "10.0.0.4:1").await,
        synced(&server, "e-go", "gRPC Go/1.85.0", "10.0.0.4:2").await,
    ];
    let other = synced(&server, "e-other", "telnet/1", "10.0.0.5:1").await;
    let mut stray = Client::open(&server, "stray");
    stray.subscribe(CLUSTER).await;
    let mut bad = Client::open(&server, "e-bad");
    bad.subscribe(CLUSTER).await;
    let response = bad.response().await;
    bad.answer(&response, Some("bad port")).await;

    let expected = ["node.rejected e-bad", "node.duplicate e-twin", "node.unassigned stray"];
    let answer = until_found(&server, &expected).await;
    assert_eq!(message(&answer, "node.rejected", "e-bad"), "rejects its newest response: bad port");
    let text =
        "2 clients use this ID at the same time: 10.0.0.2:1 on replica 1, 10.0.0.3:1 on replica 1";
    assert_eq!(message(&answer, "node.duplicate", "e-twin"), text);
    let text = "no assignment matches the node, so that it receives no changes";
    assert_eq!(message(&answer, "node.unassigned", "stray"), text);
    let text = "the user agent \"telnet/1\" is that of no known client, so that its resources are checked as for Envoy";
    assert_eq!(message(&answer, "node.version", "e-other"), text);
    let versions = of_rules(&answer, |rule| rule == "node.version");
    let expected = ["node.version e-bad", "node.version e-other", "node.version stray"];
    assert_eq!(versions, expected, "{answer}");
    let severity = |rule: &str| {
        let all = answer["findings"].as_array().unwrap().iter();
        all.filter(|one| one["rule_id"] == rule).all(|one| one["severity"] == "warning")
    };
    assert!(severity("node.duplicate") && !severity("node.version"), "{answer}");

    // One scope has no nodes.
    let one = server.done("GET", "/v1/analyze?scope=default", "").await;
    assert!(brief(&one).iter().all(|one| !one.starts_with("node.")), "{one}");
    drop((twins, bad, stray));
    let answer = until_found(&server, &[]).await;
    assert_eq!(answer["not_asked"], json!([]));
    drop((good, channels, other));
    server.stop().await;
}

/// A client that leaves a response unanswered is silent. A client that is slow to answer each response is behind.
#[tokio::test(flavor = "multi_thread")]
async fn silent_nodes_and_nodes_behind_an_old_revision_are_found() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    let envoy = "envoy/1.40.2";
    let mut good = synced(&server, "good", envoy, "10.0.0.1:1").await;
    let mut slow = synced(&server, "slow", envoy, "10.0.0.2:1").await;
    let mut silent = synced(&server, "silent", envoy, "10.0.0.3:1").await;
    let mut slow_response = None;
    for timeout in ["2s", "3s"] {
        server.done("POST", "/v1/apply", &clusters(&["a"], timeout)).await;
        let response = good.response().await;
        good.answer(&response, None).await;
        if timeout == "2s" {
            silent.response().await;
            slow_response = Some(slow.response().await);
        }
    }
    // The revisions are new, and the responses may still be answered.
    let answer = server.done("GET", "/v1/analyze", "").await;
    assert_eq!(of_nodes(&answer), Vec::<String>::new(), "{answer}");
    // The slow client takes this time for an answer. Afterwards, it gets the second change.
    tokio::time::sleep(Duration::from_secs(4)).await;
    slow.acknowledge(&slow_response.unwrap()).await;
    slow.response().await;
    let answer = until_found(&server, &["node.silent silent", "node.behind slow"]).await;
    let text = "has left a response with Cluster unanswered for more than 10 seconds";
    assert_eq!(message(&answer, "node.silent", "silent"), text);
    let text = "has not acknowledged revision 3, which is more than 10 seconds old";
    assert_eq!(message(&answer, "node.behind", "slow"), text);
    let listed = server.done("GET", "/v1/nodes?behind=3", "").await;
    let listed: Vec<&str> =
        listed["nodes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(listed, ["silent", "slow"]);
    server.stop().await;
}

/// An answer names a limited number of nodes for each rule, and says how many there are.
#[tokio::test(flavor = "multi_thread")]
async fn first_nodes_of_a_rule_are_named_and_all_are_counted() {
    let server = Server::start().await;
    let rules = "assignments: [{name: default, match: {id: 'e*'}, scopes: [default]}]\n";
    server.done("POST", "/v1/apply?confirm=all", rules).await;
    let mut clients = Vec::new();
    for n in (0..25).rev() {
        let mut client = Client::open(&server, &format!("n{n:02}"));
        client.subscribe(CLUSTER).await;
        clients.push(client);
    }
    let text = "25 nodes in total, of which the first 20 are named";
    let total = |answer: &Value, rule: &str| {
        let mut all = answer["findings"].as_array().unwrap().iter();
        all.any(|one| one["rule_id"] == rule && one["name"] == "" && one["message"] == text)
    };
    let answer = eventually(
        async || {
            let answer = server.done("GET", "/v1/analyze", "").await;
            total(&answer, "node.unassigned").then_some(answer)
        },
        "all nodes are connected",
    )
    .await;
    assert!(total(&answer, "node.version"), "{answer}");
    let named: Vec<String> = (0..20).map(|n| format!("node.unassigned n{n:02}")).collect();
    assert_eq!(of_nodes(&answer)[1..], named);
    let counted = server.done("GET", "/v1/nodes?count=true", "").await;
    assert_eq!(counted["counts"], json!({"unassigned": 25}));
    let problem = &counted["problems"][0];
    assert_eq!((&problem["rule_id"], &problem["nodes"]), (&json!("node.unassigned"), &json!(25)));
    assert_eq!(problem["ids"].as_array().unwrap().len(), 20);
    server.stop().await;
}
