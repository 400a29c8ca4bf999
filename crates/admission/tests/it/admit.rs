//! Valid manifests and the resources that they become.

use std::{sync::Arc, time::Duration};

use chancery_admission::{
    Manifest, Omitted, Options, Problem, Prune, Validation, ValidationMode, admit, body_to_json,
    import_bootstrap,
};
use chancery_model::{
    Assignment, AssignmentOp, Expectation, Node, Precondition, Revision, ScopeName, Transaction,
    TypeUrl, Version, types,
};

use crate::validate::warnings;

fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

fn off() -> Validation {
    Validation::of(ValidationMode::Off)
}

fn admitted_with(content: &str, options: &Options) -> Transaction {
    let manifest = Manifest { file: "a.yaml".into(), content: content.into() };
    admit(&[manifest], options).unwrap_or_else(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("{}", problems.join("\n"))
    })
}

fn admitted(content: &str) -> Transaction {
    admitted_with(content, &Options::new(scope("default")))
}

/// Describes each resource with its scope and its children.
fn summary(transaction: &Transaction) -> Vec<String> {
    transaction
        .upserts
        .iter()
        .map(|upsert| {
            let draft = &upsert.draft;
            let children: Vec<&str> =
                draft.children.iter().map(|child| child.name.as_str()).collect();
            let kind = draft.key.type_url.as_str().rsplit('.').next().unwrap();
            format!("{} {kind} {} {children:?}", upsert.scope, draft.key.name)
        })
        .collect()
}

/// Configurations that were recorded with real Envoys and gRPC clients.
#[test]
fn recorded_resources_are_admitted_with_their_children() {
    assert_eq!(
        summary(&admitted(include_str!("data/envoy.json"))),
        [
            "default Cluster ca [\"ca\"]",
            "default ClusterLoadAssignment ca []",
            "default Listener l [\"r\"]",
            "default RouteConfiguration r []",
        ]
    );
    assert_eq!(
        summary(&admitted(include_str!("data/grpc.json"))),
        [
            "default Listener svc.test [\"route.test\"]",
            "default RouteConfiguration route.test []",
            "default Cluster ca [\"ca\"]",
            "default ClusterLoadAssignment ca []",
        ]
    );
}

#[test]
fn manifest_with_all_features_is_admitted() {
    let transaction = admitted(include_str!("data/mixed.yaml"));
    assert_eq!(
        summary(&transaction),
        [
            "edge/eu Cluster web [\"web-eu\"]",
            "edge/eu ClusterLoadAssignment web-eu []",
            "edge/eu VirtualHost rc/shop.test []",
            "edge/eu Thing thing []",
            "edge/eu ScopedRouteConfiguration s [\"rc\"]",
            "default Listener in [\"a\", \"b\"]",
        ]
    );
    let wrapped = &transaction.upserts[1].draft;
    assert_eq!(wrapped.ttl, Some(Duration::from_secs(30)));
    assert_eq!(wrapped.labels.get("team").map(String::as_str), Some("shop"));
    assert_eq!(wrapped.aliases.iter().map(ToString::to_string).collect::<Vec<_>>(), ["web-old"]);
    assert_eq!(&transaction.upserts[3].draft.body[..], b"\x0a\x04test");

    let [AssignmentOp::Put(assignment)] = transaction.assignments.as_slice() else {
        panic!("{:?}", transaction.assignments)
    };
    assert_eq!((&*assignment.name, assignment.priority), ("edge", 10));
    assert_eq!(scopes_of(assignment, "edge-1", "1"), ["node/edge-1", "edge/eu", "default"]);
    assert_eq!(scopes_of(assignment, "edge-1", "2"), [""; 0]);
    assert_eq!(scopes_of(assignment, "mid-1", "1"), [""; 0]);
}

fn scopes_of(assignment: &Assignment, id: &str, b: &str) -> Vec<String> {
    let mut node = Node { id: id.into(), cluster: "edge".into(), ..Node::default() };
    node.locality.region = "eu".into();
    node.metadata = [("mesh", "m1"), ("a.b", b)].map(|(k, v)| (k.into(), v.into())).into();
    match assignment.matcher.mismatch(&node) {
        None => assignment.scopes_for(&node).iter().map(ToString::to_string).collect(),
        Some(_) => Vec::new(),
    }
}

#[test]
fn document_scope_overrides_command_scope() {
    let options = Options::new(scope("mine"));
    let cluster = "resources:\n- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, \
                   name: a}\n";
    let content = format!("{cluster}---\nscope: theirs\n{cluster}");
    let transaction = admitted_with(&content, &options);
    assert_eq!(summary(&transaction), ["mine Cluster a []", "theirs Cluster a []"]);
    assert_eq!(transaction.prune, []);
}

/// A manifest with assignments alone must not delete the resources of a fleet.
#[test]
fn prune_covers_only_scopes_named_in_the_input() {
    let options = Options { prune: Prune::Prune, ..Options::new(scope("default")) };
    let pruned = |content: &str| admitted_with(content, &options).prune;
    let assignments = "assignments: [{name: a, scopes: [x]}]";
    assert_eq!(pruned(assignments), []);
    assert_eq!(pruned("resources: []"), [scope("default")]);
    assert_eq!(pruned("scope: b"), [scope("b")]);
    let content = format!("scope: b\nresources: []\n---\nscope: a\n---\n{assignments}\n");
    assert_eq!(pruned(&content), [scope("a"), scope("b")]);
}

#[test]
fn expected_revision_becomes_a_precondition() {
    let options = Options { if_revision: Some(Revision(7)), ..Options::new(scope("default")) };
    let transaction = admitted_with("resources: []", &options);
    assert_eq!(transaction.preconditions, [Precondition::Revision(Revision(7))]);
}

/// The key `expect` of a wrapped resource applies to its scope.
#[test]
fn resource_expectation_becomes_a_precondition() {
    let content = "scope: edge
resources:
- resource: {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a}
  expect: absent
- resource: {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: b}
  expect: present
- resource: {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: c}
  expect: 1-5e99b8ee
- resource: {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: d}
";
    let transaction = admitted(content);
    let version = Version { revision: Revision(1), tag: 0x5e99_b8ee };
    let expected = [Expectation::Absent, Expectation::Present, Expectation::Version(version)];
    let expected: Vec<Precondition> = transaction
        .upserts
        .iter()
        .zip(expected)
        .map(|(upsert, expectation)| Precondition::Resource {
            scope: scope("edge"),
            key: upsert.draft.key.clone(),
            expectation,
        })
        .collect();
    assert_eq!(transaction.preconditions, expected);
    assert_eq!(transaction.upserts.len(), 4);
}

#[test]
fn files_form_one_transaction_and_duplicate_resource_is_rejected() {
    let cluster = |name: &str| {
        format!(
            "resources:\n- {{\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: \
             {name}}}\n"
        )
    };
    let file = |file: &str, name| Manifest { file: file.into(), content: cluster(name) };
    let options = Options::new(scope("default"));
    let transaction = admit(&[file("a.yaml", "a"), file("b.yaml", "b")], &options).unwrap();
    assert_eq!(summary(&transaction), ["default Cluster a []", "default Cluster b []"]);
    let problems = admit(&[file("a.yaml", "a"), file("b.yaml", "a")], &options).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(
        problems[0].to_string(),
        "b.yaml:2:3: document 1: resources[0] Cluster \"a\": duplicate resource in scope \"default\", first \
         defined in a.yaml: document 1: resources[0]"
    );
}

/// Problems name empty files. An unreadable file does not hide the problems of others.
#[test]
fn empty_and_unreadable_files_are_named() {
    let said = |files: &[(&str, &str)]| {
        let file = |(file, content): &(&str, &str)| Manifest {
            file: (*file).to_owned(),
            content: (*content).to_owned(),
        };
        let files: Vec<Manifest> = files.iter().map(file).collect();
        let problems = admit(&files, &Options::new(scope("default"))).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let empty = "a.yaml: has neither resources nor assignments nor access rules nor quotas\n\
                 b.yaml: has neither resources nor assignments nor access rules nor quotas\n\
                 c.json: has neither resources nor assignments nor access rules nor quotas";
    assert_eq!(said(&[("a.yaml", ""), ("b.yaml", "---\n---\n# x\n"), ("c.json", "null")]), empty);
    assert_eq!(said(&[]), "the input has no files");
    assert_eq!(
        said(&[("a.yaml", "\0ELF"), ("b.yaml", "resuorces: []"), ("c.json", "")]),
        "a.yaml: the file is not text\n\
         b.yaml:1:1: document 1: resuorces: unknown key; did you mean \"resources\"?\n\
         c.json:1:0: not JSON: EOF while parsing a value"
    );
}

/// The same document as YAML, as JSON, and as YAML that looks like JSON.
#[test]
fn json_and_yaml_admit_equal_resources() {
    let url = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let contents = [
        format!("resources:\n- \"@type\": {url}\n  name: 'a'\n  connect_timeout: 1.50s\n"),
        format!(
            "%YAML 1.2\n---\nresources: [{{'@type': {url}, name: a, connectTimeout: 1.5s}}]\n...\n"
        ),
        format!("{{resources: [{{\"@type\": \"{url}\", name: a, connect_timeout: 1.500s}}]}} # x"),
        format!(
            "\u{feff}{{\"resources\":[{{\"@type\":\"{url}\",\"name\":\"a\",\"connectTimeout\":\"1.5s\"}}]}}"
        ),
    ];
    let first = admitted(&contents[0]);
    for content in &contents {
        assert_eq!(admitted(content), first, "{content}");
    }
    assert_eq!(
        &first.upserts[0].draft.body[..],
        b"\x0a\x01a\x22\x08\x08\x01\x10\x80\xca\xb5\xee\x01"
    );
}

#[test]
fn the_static_resources_of_a_bootstrap_are_imported() {
    let bootstrap = "
node: {id: e}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  clusters:
  - name: web
    type: STRICT_DNS
    load_assignment: {cluster_name: web}
  listeners:
  - name: in
    filter_chains:
    - filters:
      - name: tcp
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: in
          cluster: web
  secrets:
  - name: cert
    tls_certificate: {certificate_chain: {filename: a}, private_key: {filename: b}}
";
    let imported =
        import_bootstrap("envoy.yaml", bootstrap, &scope("edge"), None, &off(), &Arc::default())
            .unwrap()
            .drafts;
    let names: Vec<String> =
        imported.iter().map(|(scope, draft)| format!("{scope} {}", draft.key)).collect();
    assert_eq!(
        names,
        [
            "edge envoy.config.cluster.v3.Cluster \"web\"",
            "edge envoy.config.listener.v3.Listener \"in\"",
            "edge envoy.extensions.transport_sockets.tls.v3.Secret \"cert\"",
        ]
    );
}

/// `import` says what it left out: without it, an author takes the whole bootstrap for stored.
#[test]
fn parts_of_a_bootstrap_that_are_not_stored_are_listed_with_a_reason() {
    let bootstrap = "\
node: {id: a}
admin: {}
statsSinks: [{name: a}, {name: b}]
static_resources:
  clusters: [{name: web}]
layeredRuntime: {layers: [{name: a, static_layer: {}}]}
flags_path: null
overload_manager: {resource_monitors: [{name: a}]}
header_prefix: x-my
cluster_manager: {}
";
    let omitted = |content: &str| {
        let imported =
            import_bootstrap("envoy.yaml", content, &scope("edge"), None, &off(), &Arc::default());
        let omitted = imported.unwrap().omitted.into_iter();
        let show = |part: Omitted| {
            let (line, column) = part.position.unwrap();
            let Omitted { key, n_entries, reason, .. } = part;
            format!("{line}:{column} {key} {n_entries}: {reason}")
        };
        omitted.map(show).collect::<Vec<_>>()
    };
    assert_eq!(
        omitted(bootstrap),
        [
            "1:1 node 1: it identifies one Envoy",
            "3:1 statsSinks 2: only the bootstrap of an Envoy can have it",
            "6:1 layeredRuntime 1: each Envoy needs its layers at startup; publish Runtime resources for RTDS",
            "8:1 overload_manager 1: only the bootstrap of an Envoy can have it",
            "9:1 header_prefix 1: only the bootstrap of an Envoy can have it",
        ]
    );
    assert_eq!(omitted("staticResources: {clusters: []}"), [""; 0]);
}

#[test]
fn problems_of_a_bootstrap_are_reported() {
    for (content, said) in [
        (
            "node: {id: a}",
            "e.yaml: static_resources: there are no static_resources: this is not an Envoy bootstrap",
        ),
        ("", "e.yaml: a bootstrap is one document, found 0"),
        ("a: 1\n---\nb: 1", "e.yaml: a bootstrap is one document, found 2"),
        (
            "static_resources: {clusters: [{name: a, typ: EDS}, {name: b}, {name: b}], routes: [], listeners: 3}",
            "e.yaml: static_resources.clusters[0] Cluster \"a\": typ: Cluster has no such field; did you mean \"type\"?\n\
             e.yaml: static_resources.clusters[2] Cluster \"b\": duplicate resource\n\
             e.yaml: static_resources.routes: unknown key; known keys are clusters, listeners, secrets\n\
             e.yaml: static_resources.listeners: expected a list, found the number 3",
        ),
        // Unknown keys and values of a wrong type were ignored.
        (
            "{nod: {id: a}, admin: 5, stats_sinks: 4, flags_path: 1, static_resources: {clusters: []}}",
            "e.yaml: nod: Bootstrap has no such field; did you mean \"node\"?\n\
             e.yaml: flags_path: expected text, found the number 1; put it in quotes\n\
             e.yaml: stats_sinks[0]: expected a map (StatsSink), found the number 4\n\
             e.yaml: admin: expected a map (Admin), found the number 5",
        ),
        ("[]", "e.yaml: expected a map (Bootstrap), found a list"),
        (
            "{static_resources: {}, staticResources: {}}",
            "e.yaml: \"static_resources\" and \"staticResources\" are the same field",
        ),
    ] {
        let problems =
            import_bootstrap("e.yaml", content, &scope("edge"), None, &off(), &Arc::default())
                .unwrap_err();
        // The order is that of the positions, which other tests check.
        let problems = problems.into_iter().map(|problem| Problem { position: None, ..problem });
        let mut problems: Vec<String> = problems.map(|problem| problem.to_string()).collect();
        let mut said: Vec<&str> = said.lines().collect();
        problems.sort();
        said.sort_unstable();
        assert_eq!(problems, said);
    }
}

/// 64-bit integers are exact as numbers and as text, as in the JSON mapping of protobuf.
#[test]
fn large_integers_are_stored_exactly() {
    for (written, stored) in [
        ("18446744073709551615", u64::MAX),
        ("'18446744073709551615'", u64::MAX),
        ("9007199254740993", 9_007_199_254_740_993),
        ("9007199254740991.0", 9_007_199_254_740_991),
    ] {
        let content = format!(
            "resources: [{{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a, \
             maglev_lb_config: {{table_size: {written}}}}}]"
        );
        let body = admitted(&content).upserts[0].draft.body.clone();
        let url = TypeUrl::new(types::CLUSTER).unwrap();
        let shown = body_to_json(&url, &body)["maglev_lb_config"]["table_size"].to_string();
        assert_eq!(shown, format!("\"{stored}\""), "{written}");
    }
    for written in ["9007199254740993.0", "'9007199254740993.0'", "1e18"] {
        let content = format!(
            "resources: [{{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a, \
             maglev_lb_config: {{table_size: {written}}}}}]"
        );
        let manifest = Manifest { file: "a.yaml".into(), content };
        let problems = admit(&[manifest], &Options::new(scope("default"))).unwrap_err();
        let problem = problems[0].to_string();
        assert!(problem.contains("expected a non-negative 64-bit integer"), "{problem}");
    }
}

/// `{"@type": …, "value": <base64>}` is an encoded body, also of a known type.
#[test]
fn encoded_body_of_known_type_provides_resource_name() {
    let content = "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, value: CgF3EAM=}]";
    let transaction = admitted(content);
    assert_eq!(summary(&transaction), ["default Cluster w [\"w\"]"]);
    assert_eq!(&transaction.upserts[0].draft.body[..], b"\x0a\x01w\x10\x03");
}

#[test]
fn only_eds_clusters_have_endpoints_as_children() {
    for (rest, children) in [
        ("type: STATIC", "[]"),
        ("type: STRICT_DNS, eds_cluster_config: {service_name: s}", "[]"),
        ("type: EDS, eds_cluster_config: {service_name: s}", "[\"s\"]"),
        ("cluster_type: {name: envoy.cluster.eds}", "[\"w\"]"),
        ("cluster_type: {name: envoy.clusters.redis}", "[]"),
    ] {
        let url = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        let content = format!("resources: [{{'@type': {url}, name: w, {rest}}}]");
        assert_eq!(summary(&admitted(&content)), [format!("default Cluster w {children}")]);
    }
}

/// ADS-11, ADS-19: secrets and filter configurations that clients request by name.
#[test]
fn secrets_and_filter_configs_are_children_of_referring_resources() {
    let package = "type.googleapis.com/envoy";
    let sds = |name: &str| format!("{{name: {name}, sds_config: {{ads: {{}}}}}}");
    let (x, y) = (sds("x"), sds("y"));
    let ecds = |name: &str| {
        format!(
            "{{name: {name}, config_discovery: {{config_source: {{ads: {{}}}}, type_urls: [t]}}}}"
        )
    };
    let socket = |context: &str, common: &str| {
        let context = format!("{package}.extensions.transport_sockets.tls.v3.{context}");
        let config = format!("{{'@type': {context}, common_tls_context: {{{common}}}}}");
        format!("transport_socket: {{name: tls, typed_config: {config}}}")
    };
    let both = format!(
        "tls_certificate_sds_secret_configs: [{y}], combined_validation_context: \
         {{default_validation_context: {{}}, validation_context_sds_secret_config: {x}}}"
    );
    let manager = format!("{package}.extensions.filters.network.http_connection_manager.v3");
    let router = format!("{package}.extensions.filters.http.router.v3.Router");
    let manager = format!(
        "{{name: m, typed_config: {{'@type': {manager}.HttpConnectionManager, stat_prefix: s, \
         rds: {{route_config_name: r, config_source: {{ads: {{}}}}}}, http_filters: [{}, \
         {{name: router, typed_config: {{'@type': {router}}}}}]}}}}",
        ecds("http")
    );
    let listener = format!(
        "{{'@type': {package}.config.listener.v3.Listener, name: l, listener_filters: [{}], \
         filter_chains: [{{filters: [{}, {manager}], {}}}]}}",
        ecds("listener"),
        ecds("network"),
        socket("DownstreamTlsContext", &both),
    );
    let cluster = format!(
        "{{'@type': {package}.config.cluster.v3.Cluster, name: w, type: EDS, {}}}",
        socket("UpstreamTlsContext", &both),
    );
    assert_eq!(
        summary(&admitted(&format!("resources: [{cluster}, {listener}]"))),
        [
            "default Cluster w [\"w\", \"x\", \"y\"]",
            "default Listener l [\"r\", \"x\", \"y\", \"http\", \"listener\", \"network\"]",
        ]
    );
}

/// XDSTP-02, XDSTP-03, XDSTP-11: a structured name outside a body is stored in its canonical form, beside plain
/// names. The references to other resources are canonical, too.
#[test]
fn structured_name_is_stored_in_canonical_form() {
    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let written = "xdstp:///envoy.config.cluster.v3.Cluster/web:80?b=2&a=1";
    let canonical = "xdstp:///envoy.config.cluster.v3.Cluster/web%3A80?a=1&b=2";
    let endpoints = "xdstp://e/envoy.config.endpoint.v3.ClusterLoadAssignment/web:80";
    let resource = serde_json::json!({
        "@type": cluster, "name": canonical, "type": "EDS",
        "eds_cluster_config": { "service_name": endpoints, "eds_config": { "self": {} } },
    });
    let plain = serde_json::json!({ "@type": cluster, "name": "web:80?b=2&a=1" });
    let content = serde_json::json!({
        "resources": [{ "resource": resource, "name": written, "aliases": [format!("{written}&c=")] }, plain],
    });
    let transaction = admitted(&content.to_string());
    let drafts: Vec<_> = transaction.upserts.iter().map(|upsert| &upsert.draft).collect();
    assert_eq!(drafts[0].key.name.as_str(), canonical);
    assert_eq!(drafts[0].aliases[0].as_str(), format!("{canonical}&c="));
    assert_eq!(drafts[0].children[0].name.as_str(), endpoints.replace("b:", "b%3A"));
    assert_eq!(drafts[1].key.name.as_str(), "web:80?b=2&a=1");
}

/// XDSTP-03: Envoy 1.40 rejects the endpoints of a cluster whose `service_name` has another spelling than their body:
/// "Unexpected EDS cluster".
#[test]
fn reference_by_another_spelling_is_a_warning() {
    let found = |id: &str| {
        let service_name = format!("xdstp://m/envoy.config.endpoint.v3.ClusterLoadAssignment/{id}");
        let cluster = serde_json::json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": "web",
            "type": "EDS",
            "eds_cluster_config": {"service_name": service_name, "eds_config": {"ads": {}}},
        });
        warnings(&serde_json::json!({"resources": [cluster]}).to_string())
    };
    assert_eq!(found("web%3A80?a=2&b=1"), Vec::<String>::new());
    for id in ["web%3A80?b=1&a=2", "web:80?a=2&b=1"] {
        let found = found(id);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("eds_cluster_config.service_name"), "{found:?}");
        assert!(found[0].contains("ClusterLoadAssignment/web%3A80?a=2&b=1\""), "{found:?}");
    }
}

/// XDSTP-03: Envoy identifies a listener or cluster by the name in its body. With another spelling than the stored one,
/// the resource would stay in Envoy after its removal.
#[test]
fn structured_name_of_a_body_in_another_spelling_is_refused() {
    let named = |package: &str, kind: &str, field: &str, id: &str| {
        let name = format!("xdstp://m/envoy.{package}.v3.{kind}/{id}");
        let type_url = format!("type.googleapis.com/envoy.{package}.v3.{kind}");
        serde_json::json!({"@type": type_url, field: name})
    };
    for (package, kind, field) in [
        ("config.listener", "Listener", "name"),
        ("config.cluster", "Cluster", "name"),
        ("config.endpoint", "ClusterLoadAssignment", "cluster_name"),
        ("config.route", "RouteConfiguration", "name"),
        ("extensions.transport_sockets.tls", "Secret", "name"),
    ] {
        let canonical = named(package, kind, field, "web%3A80?a=2&b=1");
        admitted(&serde_json::json!({"resources": [canonical]}).to_string());
        for id in ["web%3A80?b=1&a=2", "web:80?a=2&b=1", "%77eb%3A80?a=2&b=1"] {
            let resource = named(package, kind, field, id);
            let wrapped = serde_json::json!({"resource": resource, "name": resource[field]});
            for entry in [&resource, &wrapped] {
                let content = serde_json::json!({"resources": [entry]}).to_string();
                let manifest = Manifest { file: "a.json".into(), content };
                let problems = admit(&[manifest], &Options::new(scope("default"))).unwrap_err();
                let problem = problems[0].to_string();
                assert_eq!(problems[0].field_path.as_deref(), Some(field), "{problem}");
                let fix = format!("write \"xdstp://m/envoy.{package}.v3.{kind}/web%3A80?a=2&b=1\"");
                assert_eq!(problems[0].fix, fix, "{problem}");
            }
        }
    }
}

/// A bootstrap has the same rule for structured names.
#[test]
fn import_refuses_a_structured_name_in_another_spelling() {
    let cluster = "xdstp://m/envoy.config.cluster.v3.Cluster/web?b=1&a=2";
    let content = format!("static_resources: {{clusters: [{{name: \"{cluster}\"}}]}}");
    let problems = import_bootstrap("e.yaml", &content, &scope("s"), None, &off(), &Arc::default())
        .unwrap_err();
    assert!(problems[0].fix.ends_with("/web?a=2&b=1\""), "{}", problems[0]);
}

/// XDSTP-13, P-68: list collections are ordinary resources whose entries are checked. Endpoints that refer to
/// a list have it as a child, but not a glob.
#[test]
fn list_collections_are_admitted() {
    let list = |name: &str, id: &str| {
        serde_json::json!({
            "name": format!("xdstp://m/envoy.config.endpoint.v3.LbEndpointCollection/{id}"),
            "resource": {
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.LbEndpointCollection",
                "entries": [{ "inline_entry": { "name": name, "version": "1", "resource": {
                    "@type": "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint",
                } } }],
            },
        })
    };
    let locality = |name: &str| {
        serde_json::json!({"leds_cluster_locality_config": {
            "leds_config": { "self": {} }, "leds_collection_name": name,
        }})
    };
    let endpoints = serde_json::json!({
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "web",
        "endpoints": [
            locality("xdstp://m/envoy.config.endpoint.v3.LbEndpointCollection/web"),
            locality("xdstp://m/envoy.config.endpoint.v3.LbEndpoint/web/*?k=/"),
        ],
    });
    let entry = |name: &str| serde_json::json!({ "inline_entry": { "name": name } });
    let listeners = |entries: &[serde_json::Value]| {
        serde_json::json!({
            "name": "xdstp://m/envoy.config.listener.v3.ListenerCollection/all",
            "resource": {
                "@type": "type.googleapis.com/envoy.config.listener.v3.ListenerCollection",
                "entries": entries,
            },
        })
    };
    let locator = serde_json::json!({ "locator": {
        "authority": "m", "resource_type": "envoy.config.listener.v3.Listener", "id": "x",
    } });
    let good = listeners(&[entry("a.b-c_d~e:1"), entry(""), entry(""), locator]);
    let content = serde_json::json!({ "resources": [list("a", "web"), endpoints, good] });
    let transaction = admitted(&content.to_string());
    let children = &transaction.upserts[1].draft.children;
    assert_eq!(children.len(), 1, "{children:?}");
    assert_eq!(children[0].name, transaction.upserts[0].draft.key.name);
    assert_eq!(children[0].type_url, transaction.upserts[0].draft.key.type_url);
    for (wrong, rule) in [
        (listeners(&[entry("a"), entry("a")]), "two entries have the name \"a\""),
        (listeners(&[entry("a/b")]), "the entry \"a/b\" has the character '/'"),
    ] {
        let content = serde_json::json!({ "resources": [wrong] }).to_string();
        let options = Options::new(ScopeName::new("default").unwrap());
        let problems = admit(&[Manifest { file: "a.json".into(), content }], &options).unwrap_err();
        assert!(problems[0].to_string().contains(rule), "{}", problems[0]);
    }
}
