//! The rules of gRPC clients. The expected clients are those that reject the resource.

use std::sync::Arc;

use chancery_admission::{
    ClientProfile, Manifest, Options, Problem, Profiles, Severity, Validation, ValidationMode, lint,
};
use chancery_model::ScopeName;
use serde_json::{Value as Json, json};

mod filters;
mod java;
mod listener;
mod plugins;
mod route;
mod server;
mod tls;

/// Returns the findings about a resource for clients.
pub(crate) fn found(clients: &str, resource: &Json) -> Vec<Problem> {
    let content = json!({"resources": [resource]}).to_string();
    let manifest = Manifest { file: "a.json".to_owned(), content };
    let call: Arc<[ClientProfile]> = clients
        .split(' ')
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().unwrap())
        .collect();
    let profiles = Profiles { call: Some(call), ..Profiles::default() };
    let validation = Validation { profiles, ..Validation::of(ValidationMode::Enforce) };
    let options = Options { validation, ..Options::new(ScopeName::new("default").unwrap()) };
    lint(&[manifest], &options)
}

const ALL: &str = "grpc-cpp grpc-go grpc-java grpc-node";

/// Returns whether a finding says what happens to calls although clients accept the resource.
fn is_effect(problem: &Problem) -> bool {
    problem.id.starts_with("grpc.effect.")
        || ["grpc.no_endpoint", "grpc.dropped_locality"].contains(&problem.id.as_str())
}

/// Returns `path: id: clients` of each refusal, and `path: id` of each warning. Effects have tests of their own.
fn shown(problems: &[Problem]) -> Vec<String> {
    let show = |problem: &Problem| {
        let path = problem.field_path.as_deref().unwrap_or_default();
        let clients = problem.rule.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
        match (problem.severity, clients) {
            (Severity::Error, Some((clients, _))) => format!("{path}: {}: {clients}", problem.id),
            _ => format!("{path}: {}", problem.id),
        }
    };
    problems.iter().filter(|problem| !is_effect(problem)).map(show).collect()
}

/// Asserts the findings of all gRPC clients.
pub(crate) fn assert_refused(cases: &[(Json, &[&str])]) {
    for (resource, expected) in cases {
        assert_eq!(shown(&found(ALL, resource)), *expected, "{resource:#}");
    }
}

/// Asserts that no gRPC client refuses the resources.
pub(crate) fn assert_accepted(resources: &[Json]) {
    for resource in resources {
        let found = found(ALL, resource);
        assert!(found.iter().all(|one| one.severity != Severity::Error), "{resource:#} {found:?}");
    }
}

/// Returns an object with the fields of two objects.
pub(crate) fn with(mut base: Json, rest: &Json) -> Json {
    base.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    base
}

/// Returns a message of Envoy's API for an `Any`.
pub(crate) fn any(name: &str, rest: &Json) -> Json {
    with(json!({"@type": format!("type.googleapis.com/envoy.{name}")}), rest)
}

fn cluster(rest: &Json) -> Json {
    let eds = json!({"type": "EDS", "eds_cluster_config": {"eds_config": {"ads": {}}}});
    with(any("config.cluster.v3.Cluster", &json!({"name": "web"})), &with(eds, rest))
}

/// Returns a cluster without the fields of an EDS cluster.
fn plain_cluster(rest: &Json) -> Json {
    with(any("config.cluster.v3.Cluster", &json!({"name": "web"})), rest)
}

fn policies(list: &Json) -> Json {
    cluster(&json!({"load_balancing_policy": {"policies": list}}))
}

fn policy(name: &str, rest: &Json) -> Json {
    let config = any(&format!("extensions.load_balancing_policies.{name}"), rest);
    json!({"typed_extension_config": {"name": "a", "typed_config": config}})
}

fn endpoint(address: &str, port: u32) -> Json {
    let address = json!({"socket_address": {"address": address, "port_value": port}});
    json!({"endpoint": {"address": address}})
}

fn locality(zone: &str, rest: &Json) -> Json {
    with(json!({"locality": {"zone": zone}, "load_balancing_weight": 1}), rest)
}

fn assignment(localities: &Json) -> Json {
    let rest = json!({"cluster_name": "web", "endpoints": localities});
    any("config.endpoint.v3.ClusterLoadAssignment", &rest)
}

/// GRPCV-40, -41, -43: gRPC has three types of clusters, whose endpoints come from the same server.
#[test]
fn cluster_of_another_type_is_refused() {
    let aggregate = |name: &str, config: &Json| {
        let config = any("extensions.clusters.aggregate.v3.ClusterConfig", config);
        plain_cluster(&json!({"cluster_type": {"name": name, "typed_config": config}}))
    };
    let own = "envoy.clusters.aggregate";
    assert_accepted(&[
        cluster(&json!({})),
        cluster(&json!({"eds_cluster_config": {"eds_config": {"self": {}}}})),
        aggregate(own, &json!({"clusters": ["a"]})),
        cluster(&json!({
            "name": "xdstp:///envoy.config.cluster.v3.Cluster/web",
            "eds_cluster_config": {"eds_config": {"ads": {}}, "service_name": "a"},
        })),
    ]);
    let path_source = json!({"eds_config": {"path_config_source": {"path": "/a"}}});
    let id = "grpc.cluster_type: C++, Go, Java, Node";
    assert_refused(&[
        (plain_cluster(&json!({"type": "STRICT_DNS"})), &[&format!("type: {id}")]),
        (plain_cluster(&json!({})), &[&format!("type: {id}")]),
        (
            cluster(&json!({"eds_cluster_config": path_source})),
            &["eds_cluster_config.eds_config: grpc.eds_config: C++, Go, Java, Node"],
        ),
        (
            cluster(&json!({"name": "xdstp:///envoy.config.cluster.v3.Cluster/web"})),
            &["eds_cluster_config.service_name: grpc.service_name: Go, Java, Node"],
        ),
        (
            aggregate(own, &json!({})),
            &[
                "cluster_type.typed_config.clusters: grpc.aggregate_empty: C++, Go, Java 1.75 and later, Node",
            ],
        ),
        (
            aggregate("mine", &json!({"clusters": ["a"]})),
            &["cluster_type.name: grpc.cluster_type: Go, Java"],
        ),
        (
            plain_cluster(&json!({"cluster_type": {"name": own}})),
            &[&format!("cluster_type.typed_config: {id}")],
        ),
    ]);
}

/// GRPCV-42: a cluster of type LOGICAL_DNS has exactly one name to resolve.
#[test]
fn logical_dns_cluster_without_exactly_one_name_is_refused() {
    let dns = |endpoints: &Json| {
        let assignment = json!({"cluster_name": "web", "endpoints": [{"lb_endpoints": endpoints}]});
        plain_cluster(&json!({"type": "LOGICAL_DNS", "load_assignment": assignment}))
    };
    assert_accepted(&[dns(&json!([endpoint("web.example", 80)]))]);
    let at = "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address";
    let socket =
        |socket: &Json| dns(&json!([{"endpoint": {"address": {"socket_address": socket}}}]));
    let list = "load_assignment.endpoints: grpc.logical_dns: C++, Go, Java, Node";
    assert_refused(&[
        (dns(&json!([])), &[list]),
        (dns(&json!([endpoint("a", 1), endpoint("b", 1)])), &[list]),
        (plain_cluster(&json!({"type": "LOGICAL_DNS"})), &[list]),
        (
            dns(&json!([{"endpoint": {"address": {"pipe": {"path": "/a"}}}}])),
            &[&format!("{at}: grpc.logical_dns: C++, Go, Java, Node")],
        ),
        (
            socket(&json!({"address": "a", "port_value": 1, "resolver_name": "r"})),
            &[&format!("{at}.resolver_name: grpc.logical_dns: C++, Go, Java")],
        ),
        (
            socket(&json!({"port_value": 1})),
            &[&format!("{at}.address: grpc.logical_dns: C++, Go, Node")],
        ),
        (
            socket(&json!({"address": "a", "named_port": "http"})),
            &[&format!("{at}.port_value: grpc.logical_dns: C++, Go, Java, Node")],
        ),
        (
            socket(&json!({"address": "a", "port_value": 0})),
            &[&format!("{at}.port_value: grpc.logical_dns: Go")],
        ),
    ]);
}

/// GRPCV-48, LB-13: the policy converts for each client.
#[test]
fn policy_that_a_client_cannot_convert_is_refused() {
    let round_robin = || policy("round_robin.v3.RoundRobin", &json!({}));
    let least_request = || policy("least_request.v3.LeastRequest", &json!({}));
    let ring = |rest: &Json| policy("ring_hash.v3.RingHash", rest);
    let custom = |value: &Json| {
        let config = with(
            json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "x/my.Lb"}),
            value,
        );
        json!({"typed_extension_config": {"name": "a", "typed_config": config}})
    };
    assert_accepted(&[
        policies(&json!([round_robin()])),
        policies(&json!([least_request(), round_robin()])),
        policies(&json!([custom(&json!({"value": {}})), round_robin()])),
        policies(&json!([ring(&json!({"hash_function": "XX_HASH"}))])),
        cluster(
            &json!({"lb_policy": "RING_HASH", "ring_hash_lb_config": {"maximum_ring_size": 2048}}),
        ),
    ]);
    let at = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    assert_refused(&[
        (
            policies(&json!([least_request()])),
            &["load_balancing_policy: grpc.lb_policy: C++, Node"],
        ),
        (
            policies(&json!([ring(&json!({"hash_function": "MURMUR_HASH_2"})), round_robin()])),
            &[
                &format!("{at}.hash_function: grpc.lb_policy: C++, Go, Java"),
                &format!("{at}.hash_function: grpc.lb_policy: Node"),
            ],
        ),
        (
            policies(&json!([ring(&json!({"hash_function": "XX_HASH", "minimum_ring_size": 8}))])),
            &[&format!("{at}.minimum_ring_size: grpc.lb_policy: Node")],
        ),
        (
            policies(&json!([custom(&json!({})), round_robin()])),
            &[&format!("{at}.value: grpc.lb_policy: Node")],
        ),
        (
            policies(&json!([policy(
                "wrr_locality.v3.WrrLocality",
                &json!({"endpoint_picking_policy": {}})
            )])),
            &[&format!("{at}.endpoint_picking_policy: grpc.lb_policy: C++, Go, Java, Node")],
        ),
    ]);
}

/// LB-46: the legacy policy is one that each client supports. Go checks it even if another policy overrides it.
#[test]
fn legacy_policy_that_a_client_does_not_support_is_refused() {
    let round_robin = || policy("round_robin.v3.RoundRobin", &json!({}));
    let legacy = |rest: &Json| cluster(rest);
    assert_refused(&[
        (
            with(policies(&json!([round_robin()])), &json!({"lb_policy": "MAGLEV"})),
            &["lb_policy: grpc.lb_policy: Go"],
        ),
        (
            legacy(&json!({"lb_policy": "MAGLEV"})),
            &["lb_policy: grpc.lb_policy: C++, Go, Java, Node"],
        ),
        (
            legacy(
                &json!({"lb_policy": "LEAST_REQUEST", "least_request_lb_config": {"choice_count": 1}}),
            ),
            &[
                "lb_policy: grpc.lb_policy: C++, Node",
                "least_request_lb_config.choice_count: grpc.lb_policy: Go, Java",
            ],
        ),
        (
            legacy(
                &json!({"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 0, "maximum_ring_size": 8_388_609}}),
            ),
            &[
                "ring_hash_lb_config.maximum_ring_size: grpc.lb_policy: C++, Node",
                "ring_hash_lb_config.minimum_ring_size: grpc.lb_policy: C++, Java",
            ],
        ),
    ]);
}

/// GRPCV-18 to -22, -44: certificates come from the providers of the client's bootstrap.
#[test]
fn tls_without_certificate_providers_is_refused() {
    let tls = |name: &str, common: &Json| {
        let config = any(
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            &json!({"common_tls_context": common}),
        );
        cluster(&json!({"transport_socket": {"name": name, "typed_config": config}}))
    };
    let socket = "envoy.transport_sockets.tls";
    let provider = json!({"instance_name": "a"});
    let validation = |rest: &Json| {
        let context = with(json!({"ca_certificate_provider_instance": provider}), rest);
        tls(socket, &json!({"validation_context": context}))
    };
    assert_eq!(
        shown(&found(ALL, &validation(&json!({})))),
        [
            "transport_socket.typed_config.common_tls_context.validation_context.ca_certificate_provider_instance.instance_name: grpc.tls_provider"
        ]
    );
    let at = "transport_socket.typed_config.common_tls_context";
    let system = json!({"validation_context": {"system_root_certs": {}}});
    assert_refused(&[
        (tls(socket, &json!({})), &[&format!("{at}: grpc.tls: C++, Go, Java, Node")]),
        (tls(socket, &system), &[&format!("{at}: grpc.tls: Go, Node")]),
        (
            cluster(&json!({"transport_socket_matches": [{"name": "a"}]})),
            &["transport_socket_matches: grpc.socket_matches: Go, Java"],
        ),
        (
            cluster(&json!({"transport_socket": {"name": socket}})),
            &["transport_socket.typed_config: grpc.transport_socket: C++, Go, Java, Node"],
        ),
    ]);
    let refused = |resource: &Json| shown(&found(ALL, resource)).join("\n");
    let of_all = "grpc.tls: C++, Go, Java, Node";
    for field in ["verify_certificate_spki", "verify_certificate_hash"] {
        let text = refused(&validation(&json!({field: ["a"]})));
        assert!(text.contains(&format!("{at}.validation_context.{field}: {of_all}")), "{text}");
    }
    for field in ["tls_params", "custom_handshaker"] {
        let text = refused(&tls(socket, &json!({field: {}})));
        assert!(text.contains(&format!("{at}.{field}: {of_all}")), "{text}");
    }
    let text = refused(&validation(&json!({"crl": {"inline_string": "a"}})));
    assert!(text.contains(&format!("{at}.validation_context.crl: {of_all}")), "{text}");
    let text = refused(&tls(socket, &json!({"tls_certificates": [{}]})));
    assert!(text.contains(&format!("{at}.tls_certificates: {of_all}")), "{text}");
    let text = refused(&tls(
        "tls",
        &json!({"validation_context": {"trusted_ca": {"inline_string": "a"}}}),
    ));
    assert!(text.contains("transport_socket.name: grpc.transport_socket: Go, Java"), "{text}");
    let config = any(
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        &json!({"sni": "a".repeat(256)}),
    );
    let text =
        refused(&cluster(&json!({"transport_socket": {"name": socket, "typed_config": config}})));
    assert!(text.contains("transport_socket.typed_config.sni: grpc.tls"), "{text}");
}

/// GRPCV-45, -47, -50, -63: load reports, outlier detection, protocol options and metadata of a cluster.
#[test]
fn other_parts_of_a_cluster_are_checked() {
    let upstream = |name: &str, rest: &Json| {
        let config = any(name, rest);
        cluster(&json!({"upstream_config": {"name": "a", "typed_config": config}}))
    };
    let options = "extensions.upstreams.http.v3.HttpProtocolOptions";
    let explicit = json!({"explicit_http_config": {"http2_protocol_options": {}}});
    let audience = |url: &str| {
        let config = any("extensions.filters.http.gcp_authn.v3.Audience", &json!({"url": url}));
        cluster(&json!({"metadata": {"typed_filter_metadata": {"a": config}}}))
    };
    assert_accepted(&[
        cluster(&json!({"lrs_server": {"self": {}}})),
        cluster(&json!({"outlier_detection": {"max_ejection_percent": 100, "interval": "0s"}})),
        upstream(options, &explicit),
        audience("https://a"),
    ]);
    let detection = |rest: &Json| cluster(&json!({"outlier_detection": rest}));
    let id = "grpc.outlier_detection";
    assert_refused(&[
        (
            cluster(&json!({"lrs_server": {"ads": {}}})),
            &["lrs_server: grpc.lrs_server: C++, Go, Java, Node"],
        ),
        (
            detection(&json!({"interval": "-1s"})),
            &[&format!("outlier_detection.interval: {id}: C++, Go, Java, Node")],
        ),
        (
            detection(&json!({"max_ejection_percent": 101})),
            &[&format!("outlier_detection.max_ejection_percent: {id}: C++, Go, Java, Node")],
        ),
        (
            detection(&json!({"failure_percentage_threshold": 101})),
            &[&format!("outlier_detection.failure_percentage_threshold: {id}: Go, Java, Node")],
        ),
        (
            upstream("config.core.v3.HttpProtocolOptions", &json!({})),
            &["upstream_config.typed_config: grpc.upstream_config: C++"],
        ),
        (
            upstream(
                options,
                &with(explicit, &json!({"common_http_protocol_options": {"idle_timeout": "-1s"}})),
            ),
            &[
                "upstream_config.typed_config.common_http_protocol_options.idle_timeout: grpc.upstream_config: C++",
            ],
        ),
        (audience(""), &["metadata.typed_filter_metadata[\"a\"].url: grpc.metadata: C++, Java"]),
    ]);
}

/// GRPCV-55, -57 to -59, -64: localities have names, priorities have no gaps, and weights fit.
#[test]
fn localities_with_gaps_duplicates_or_large_sums_are_refused() {
    assert_accepted(&[
        assignment(&json!([])),
        assignment(&json!([locality("a", &json!({"priority": 1})), locality("a", &json!({}))])),
    ]);
    let large = json!({"load_balancing_weight": 4_294_967_295_u32});
    assert_refused(&[
        (
            assignment(&json!([{"load_balancing_weight": 1}])),
            &["endpoints[0].locality: grpc.locality: C++, Go, Node"],
        ),
        (
            assignment(&json!([locality("a", &json!({"priority": 1}))])),
            &["endpoints: priority.gap: Node", "endpoints: priority.gap: C++, Go, Java"],
        ),
        (
            assignment(&json!([locality("a", &json!({})), locality("a", &json!({}))])),
            &["endpoints[1]: locality.duplicate: C++, Go, Java, Node"],
        ),
        (
            assignment(&json!([locality("a", &large), locality("b", &json!({}))])),
            &[
                "endpoints: grpc.locality_weights: Node",
                "endpoints: grpc.locality_weights: C++, Go",
            ],
        ),
    ]);
}

/// GRPCV-56: clients other than Node skip a locality without a weight, with all that is wrong in it.
#[test]
fn locality_without_weight_is_read_only_by_node() {
    let zero = json!({"load_balancing_weight": 0, "priority": 1});
    assert_refused(&[
        (assignment(&json!([locality("a", &zero)])), &["endpoints: priority.gap: Node"]),
        (
            assignment(&json!([locality("a", &json!({})), {"locality": {"zone": "a"}}])),
            &["endpoints[1]: locality.duplicate: Node"],
        ),
    ]);
}

/// GRPCV-60 to -62, -66: endpoints have literal addresses that occur once, weights above 0, and known shares.
#[test]
fn endpoint_without_a_usable_address_is_refused() {
    let of =
        |endpoints: &Json| assignment(&json!([locality("a", &json!({"lb_endpoints": endpoints}))]));
    let two = json!({"endpoint": {
        "address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}},
        "additional_addresses": [{"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}],
    }});
    let unhealthy = |rest: &Json| with(endpoint("web.example", 80), rest);
    assert_accepted(&[
        of(&json!([endpoint("10.0.0.1", 80), endpoint("10.0.0.1", 81), endpoint("::1", 80)])),
        with(
            assignment(&json!([])),
            &json!({"policy": {"drop_overloads": [
                {"category": "a", "drop_percentage": {"numerator": 1, "denominator": "MILLION"}},
            ]}}),
        ),
    ]);
    let at = "endpoints[0].lb_endpoints[0]";
    let (socket, java) = ("endpoint.address.socket_address", "Java 1.74 and later");
    assert_refused(&[
        (
            of(&json!([endpoint("web.example", 80)])),
            &[&format!("{at}.{socket}.address: grpc.address: C++, {java}, Node")],
        ),
        // C-core skips an endpoint that it would not use.
        (
            of(&json!([unhealthy(&json!({"health_status": "UNHEALTHY"}))])),
            &[&format!("{at}.{socket}.address: grpc.address: {java}, Node")],
        ),
        (
            of(&json!([endpoint("10.0.0.1", 70000)])),
            &[&format!("{at}.{socket}.port_value: grpc.address: C++, Java")],
        ),
        (
            of(&json!([{"endpoint": {"address": {"pipe": {"path": "/a"}}}}])),
            &[&format!("{at}.{socket}: grpc.address: C++, {java}, Node")],
        ),
        (
            of(&json!([{"endpoint_name": "a"}])),
            &[&format!("{at}.endpoint: grpc.address: C++, Java, Node")],
        ),
        (
            of(&json!([endpoint("10.0.0.1", 80), endpoint("10.0.0.1", 80)])),
            &[&format!(
                "endpoints[0].lb_endpoints[1].{socket}: grpc.duplicate_address: C++, Go, Node"
            )],
        ),
        (
            of(&json!([endpoint("::1", 80), endpoint("0:0::1", 80)])),
            &[&format!("endpoints[0].lb_endpoints[1].{socket}: grpc.duplicate_address: C++")],
        ),
        (
            of(&json!([two])),
            &[&format!(
                "{at}.endpoint.additional_addresses[0].address.socket_address: grpc.duplicate_address: C++, Go, Node"
            )],
        ),
        (
            of(&json!([with(endpoint("10.0.0.1", 80), &json!({"load_balancing_weight": 0}))])),
            &[&format!("{at}.load_balancing_weight: grpc.endpoint_weight: C++, Go")],
        ),
        (
            with(assignment(&json!([])), &json!({"policy": {"drop_overloads": [{}]}})),
            &[
                "policy.drop_overloads[0].category: grpc.drop_overload: C++",
                "policy.drop_overloads[0].drop_percentage: grpc.drop_overload: C++",
            ],
        ),
    ]);
}

/// GRPCV-57: Go 1.76 and later bound the sum of the weights in a locality. An older one accepts it.
#[test]
fn rule_of_recent_go_does_not_concern_an_older_one() {
    let heavy =
        |address| with(endpoint(address, 80), &json!({"load_balancing_weight": 4_294_967_295_u32}));
    let endpoints = json!({"lb_endpoints": [heavy("10.0.0.1"), heavy("10.0.0.2")]});
    let resource = assignment(&json!([locality("a", &endpoints)]));
    for (client, expected) in [
        ("grpc-go", 1),
        ("grpc-go@1.85", 1),
        ("grpc-go@1.75", 0),
        ("grpc-cpp", 0),
        ("grpc-node", 0),
    ] {
        assert_eq!(found(client, &resource).len(), expected, "{client}");
    }
}

/// GRPCV-65: clients with gRFC A95 take a collection of endpoints only from the same server, by name.
#[test]
fn foreign_source_of_an_endpoint_collection_is_a_warning() {
    let of = |source: &Json, name: &str| {
        let leds = json!({"leds_config": source, "leds_collection_name": name});
        let found = found(
            ALL,
            &assignment(&json!([locality("a", &json!({"leds_cluster_locality_config": leds}))])),
        );
        shown(&found)
    };
    let at = "endpoints[0].leds_cluster_locality_config";
    assert_eq!(of(&json!({"self": {}}), "a"), Vec::<String>::new());
    assert_eq!(of(&json!({"ads": {}}), "a"), [format!("{at}.leds_config: grpc.leds")]);
    assert_eq!(of(&json!({"self": {}}), "a/*"), [format!("{at}.leds_collection_name: grpc.leds")]);
}

/// A message names the clients of the scope that reject the resource, the reason, and the fix.
#[test]
fn finding_names_the_clients_and_the_reason() {
    let text =
        |clients: &str| found(clients, &cluster(&json!({"lb_policy": "MAGLEV"})))[0].to_string();
    let reason = "because gRPC supports only the policies ROUND_ROBIN, RING_HASH and LEAST_REQUEST; remove lb_policy, and set \
                  load_balancing_policy [grpc.lb_policy]";
    let place = "a.json:1:105: document 1: resources[0] Cluster \"web\": lb_policy";
    let of = |clients: &str| text(clients).split_once(": lb_policy: ").unwrap().1.to_owned();
    assert_eq!(of("grpc-go"), format!("a gRPC client (Go) would reject this cluster, {reason}"));
    assert_eq!(
        of("grpc-go grpc-java"),
        format!("gRPC clients (Go, Java) would reject this cluster, {reason}")
    );
    assert!(text("grpc-go").starts_with(place.split_once(":1:").unwrap().0), "{}", text("grpc-go"));
}

/// Envoy sees all resources of a view, and a gRPC client those that it asks for. Rules of Envoy do not
/// concern a scope that only gRPC clients see.
#[test]
fn clients_of_a_scope_decide_which_rules_apply() {
    let of = |clients: &str, resource: &Json| shown(&found(clients, resource));
    let for_envoy = plain_cluster(&json!({"type": "STRICT_DNS"}));
    assert_eq!(of("envoy", &for_envoy), Vec::<String>::new());
    assert_eq!(of("envoy grpc-go", &for_envoy), ["type: grpc.cluster_type"], "a warning");
    let for_both = cluster(&json!({"lrs_server": {"ads": {}}}));
    assert_eq!(of("envoy grpc-go", &for_both), ["lrs_server: grpc.lrs_server: Go"]);
    let bad_for_envoy = cluster(&json!({"connect_timeout": "0s"}));
    assert_eq!(of("envoy", &bad_for_envoy), ["connect_timeout: duration.gt"]);
    assert_eq!(of("grpc-go", &bad_for_envoy), Vec::<String>::new());
}
