//! The rules that Envoy's code checks beyond those of the proto files. The verdicts are those of Envoy 1.40.

use serde_json::{Value as Json, json};

use crate::validate::{cluster, findings, listener};

pub(crate) fn typed(name: &str, rest: &Json) -> Json {
    let mut message = json!({"@type": format!("type.googleapis.com/envoy.{name}")});
    message.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    message
}

pub(crate) fn router() -> Json {
    let config = typed("extensions.filters.http.router.v3.Router", &json!({}));
    json!({"name": "envoy.filters.http.router", "typed_config": config})
}

pub(crate) fn buffer() -> Json {
    let rest = json!({"max_request_bytes": 5});
    let config = typed("extensions.filters.http.buffer.v3.Buffer", &rest);
    json!({"name": "buffer", "typed_config": config})
}

pub(crate) fn http_filters(filters: &[Json]) -> Json {
    listener(&json!({"stat_prefix": "a", "route_config": {}, "http_filters": filters}))
}

fn endpoint(address: &str, weight: u64) -> Json {
    let address = json!({"socket_address": {"address": address, "port_value": 80}});
    json!({"endpoint": {"address": address}, "load_balancing_weight": weight})
}

fn assignment(endpoints: &Json) -> Json {
    json!({"cluster_name": "web", "endpoints": endpoints})
}

pub(crate) fn plain_listener(rest: &Json) -> Json {
    let mut listener = json!({
        "name": "edge",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 8080}},
    });
    listener.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    typed("config.listener.v3.Listener", &listener)
}

pub(crate) fn chains(chains: &Json) -> Json {
    plain_listener(&json!({"filter_chains": chains}))
}

pub(crate) fn routes(rest: &Json) -> Json {
    let mut config = json!({"name": "r"});
    config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    typed("config.route.v3.RouteConfiguration", &config)
}

pub(crate) fn route(action: &Json, rest: &Json) -> Json {
    let mut route = json!({"match": {"prefix": "/"}, "route": action});
    route.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    routes(&json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [route]}]}))
}

pub(crate) fn header(key: &str, value: &str) -> Json {
    let option = json!({"header": {"key": key, "value": value}});
    route(&json!({"cluster": "c"}), &json!({"request_headers_to_add": [option]}))
}

pub(crate) fn tls(side: &str, common: &Json) -> Json {
    let name = format!("extensions.transport_sockets.tls.v3.{side}TlsContext");
    let config = typed(&name, &json!({"common_tls_context": common}));
    let socket = json!({"name": "tls", "typed_config": config});
    match side {
        "Upstream" => cluster(&json!({"transport_socket": socket})),
        _ => chains(&json!([{"transport_socket": socket}])),
    }
}

/// Asserts that a resource has the findings, each as `path: id`, and nothing else.
pub(crate) fn assert_findings(cases: &[(Json, &[&str])]) {
    for (resource, expected) in cases {
        assert_eq!(findings(resource), *expected, "{resource:#}");
    }
}

const ADS: &str = r#"{"ads": {}, "resource_api_version": "V3"}"#;

#[test]
fn cluster_rules_accept_and_refuse() {
    let ads: Json = serde_json::from_str(ADS).unwrap();
    let eds = json!({"eds_config": ads});
    let one = assignment(&json!([{"lb_endpoints": [endpoint("10.0.0.1", 1)]}]));
    let name = assignment(&json!([{"lb_endpoints": [endpoint("a.example", 1)]}]));
    let two = json!([{"lb_endpoints": [endpoint("a.example", 1), endpoint("b.example", 1)]}]);
    let two = assignment(&two);
    let ring = json!({"minimum_ring_size": 100, "maximum_ring_size": 10});
    let address = "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: address.ip";
    let options = typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        &json!({"explicit_http_config": {"http2_protocol_options": {}}}),
    );
    let key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    assert_findings(&[
        (cluster(&json!({"type": "EDS"})), &["eds_cluster_config: cluster.eds_source"]),
        (cluster(&json!({"type": "EDS", "eds_cluster_config": eds})), &[]),
        (cluster(&json!({"eds_cluster_config": eds})), &["eds_cluster_config: cluster.eds_config"]),
        (cluster(&json!({"type": "ORIGINAL_DST"})), &["lb_policy: cluster.original_dst_lb"]),
        (cluster(&json!({"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED"})), &[]),
        (
            cluster(
                &json!({"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "load_assignment": one}),
            ),
            &["load_assignment: cluster.original_dst_endpoints"],
        ),
        (
            cluster(&json!({"lb_policy": "CLUSTER_PROVIDED"})),
            &["lb_policy: cluster.lb_not_provided"],
        ),
        (
            cluster(&json!({"lb_policy": "LOAD_BALANCING_POLICY_CONFIG"})),
            &["lb_policy: cluster.lb_policy_missing"],
        ),
        (cluster(&json!({"type": "LOGICAL_DNS", "load_assignment": name})), &[]),
        (
            cluster(&json!({"type": "LOGICAL_DNS", "load_assignment": two})),
            &["load_assignment: cluster.logical_dns"],
        ),
        (cluster(&json!({"type": "STRICT_DNS", "load_assignment": two})), &[]),
        (cluster(&json!({"load_assignment": one})), &[]),
        (cluster(&json!({"load_assignment": name})), &[address]),
        (
            cluster(&json!({"lb_policy": "RING_HASH", "ring_hash_lb_config": ring})),
            &["ring_hash_lb_config.minimum_ring_size: ring_hash.size"],
        ),
        (cluster(&json!({"ring_hash_lb_config": ring})), &[]),
        (
            cluster(&json!({"lb_policy": "MAGLEV", "maglev_lb_config": {"table_size": 100}})),
            &["maglev_lb_config.table_size: maglev.table_size"],
        ),
        (cluster(&json!({"lb_policy": "MAGLEV", "maglev_lb_config": {"table_size": 101}})), &[]),
        (
            cluster(&json!({"outlier_detection": {"max_ejection_time": "10s"}})),
            &["outlier_detection.max_ejection_time: outlier.max_ejection_time"],
        ),
        (cluster(&json!({"outlier_detection": {"base_ejection_time": "400s"}})), &[]),
        (cluster(&json!({"typed_extension_protocol_options": {key: options}})), &[]),
        (
            cluster(&json!({"typed_extension_protocol_options": {"http": options}})),
            &["typed_extension_protocol_options[\"http\"]: cluster.protocol_options_key"],
        ),
    ]);
}

#[test]
fn endpoint_rules_accept_and_refuse() {
    let resource = |endpoints: Json| {
        typed("config.endpoint.v3.ClusterLoadAssignment", &assignment(&endpoints))
    };
    let max = u64::from(u32::MAX);
    let locality = |priority: u64, weight: u64| {
        let endpoints = json!([endpoint("10.0.0.1", 1)]);
        let place = json!({"region": format!("r{weight}")});
        json!({"locality": place, "priority": priority, "load_balancing_weight": weight, "lb_endpoints": endpoints})
    };
    let share = json!({"drop_overloads": [
        {"category": "a", "drop_percentage": {"numerator": 500}},
    ]});
    let mut drops = resource(json!([]));
    drops.as_object_mut().unwrap().insert("policy".to_owned(), share);
    assert_findings(&[
        (resource(json!([locality(0, 1), locality(1, 2)])), &[]),
        (resource(json!([locality(0, 1), locality(2, 2)])), &["endpoints: priority.gap"]),
        (resource(json!([locality(0, 1), locality(0, 1)])), &["endpoints[1]: locality.duplicate"]),
        (resource(json!([locality(0, max), locality(1, 1)])), &[]),
        (resource(json!([locality(0, max), locality(0, 1)])), &["endpoints: locality.weights"]),
        (
            resource(
                json!([{"lb_endpoints": [endpoint("10.0.0.1", max), endpoint("10.0.0.2", 1)]}]),
            ),
            &["endpoints[0]: endpoint.weights"],
        ),
        (
            resource(json!([{"lb_endpoints": [endpoint("a.example", 1)]}])),
            &["endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: address.ip"],
        ),
        (drops, &["policy.drop_overloads[0]: drop_overload.share"]),
    ]);
}

#[test]
fn listener_rules_accept_and_refuse() {
    let echo = json!({"name": "e", "typed_config": typed("extensions.filters.network.echo.v3.Echo", &json!({}))});
    let limit = typed(
        "extensions.filters.network.connection_limit.v3.ConnectionLimit",
        &json!({"stat_prefix": "x", "max_connections": 5}),
    );
    let limit = json!({"name": "limit", "typed_config": limit});
    let mut disabled = router();
    disabled.as_object_mut().unwrap().insert("disabled".to_owned(), json!(true));
    let hcm = "filter_chains[0].filters[0].typed_config";
    let at = |path: &str, id: &str| format!("{hcm}.{path}: {id}");
    let upgrades = json!([{"upgrade_type": "websocket"}, {"upgrade_type": "WebSocket"}]);
    let names = |name: &str| chains(&json!([{"filter_chain_match": {"server_names": [name]}}]));
    let mut host = plain_listener(&json!({"filter_chains": [{}]}));
    host["address"]["socket_address"]["address"] = json!("localhost");
    assert_findings(&[
        (http_filters(&[buffer(), router()]), &[]),
        (http_filters(&[]), &[]),
        (http_filters(&[buffer(), buffer(), router()]), &[]),
        (
            http_filters(&[router(), buffer()]),
            &[
                &at("http_filters[0]", "filter.terminal_not_last"),
                &at("http_filters[1]", "filter.not_terminal"),
            ],
        ),
        (
            http_filters(&[disabled]),
            &[&at("http_filters[0].disabled", "http_filter.router_disabled")],
        ),
        (
            http_filters(&[json!({"name": "envoy.filters.http.router"})]),
            &[&at("http_filters[0].typed_config", "filter.typed_config")],
        ),
        (http_filters(&[json!({"name": "x", "is_optional": true}), router()]), &[]),
        (
            listener(&json!({"stat_prefix": "a", "route_config": {}, "upgrade_configs": upgrades})),
            &[&at("upgrade_configs[1]", "http.duplicate_upgrade")],
        ),
        (chains(&json!([{"filters": [limit, echo]}])), &[]),
        (
            chains(&json!([{"filters": [limit]}])),
            &["filter_chains[0].filters[0]: filter.not_terminal"],
        ),
        (
            chains(&json!([{"filters": [echo, echo]}])),
            &["filter_chains[0].filters[0]: filter.terminal_not_last"],
        ),
        (plain_listener(&json!({})), &["filter_chains: listener.filter_chains"]),
        (host, &["address.socket_address.address: address.ip"]),
        (names("*.example.com"), &[]),
        (
            names("*"),
            &["filter_chains[0].filter_chain_match.server_names[0]: filter_chain.server_name"],
        ),
    ]);
}

#[test]
fn matches_of_filter_chains_are_compared() {
    assert_findings(&[
        (chains(&json!([{}])), &[]),
        (chains(&json!([{}, {}])), &["filter_chains[1]: filter_chain.duplicate_match"]),
        (
            chains(&json!([
                {"filter_chain_match": {"server_names": ["a", "b"]}},
                {"filter_chain_match": {"server_names": ["b", "c"]}},
                {"filter_chain_match": {"server_names": ["b"], "transport_protocol": "tls"}},
                {},
            ])),
            &["filter_chains[1]: filter_chain.duplicate_match"],
        ),
        (
            chains(&json!([
                {"filter_chain_match": {"server_names": ["*.a.example", "a.example"]}},
                {"filter_chain_match": {"server_names": ["*.b.example", ".B.example"]}},
                {"filter_chain_match": {"source_ports": [80, 80]}},
            ])),
            &[
                "filter_chains[1]: filter_chain.duplicate_match",
                "filter_chains[2]: filter_chain.duplicate_match",
            ],
        ),
    ]);
}

#[test]
fn runtime_has_neither_null_nor_lists() {
    let layer = |layer: Json| json!({"@type": "type.googleapis.com/envoy.service.runtime.v3.Runtime", "name": "r", "layer": layer});
    assert_findings(&[
        (layer(json!({"a": 1, "b": "x", "c": true, "d": {}, "e": ""})), &[]),
        (layer(json!({})), &[]),
        (layer(json!({"numerator": null})), &["layer: runtime.value"]),
        (layer(json!({"a": {"numerator": 1, "x": null}, "b": {"denominator": [1]}})), &[]),
        (layer(json!({"a": null})), &["layer: runtime.value"]),
        (layer(json!({"a": {"b": [1]}})), &["layer: runtime.value"]),
    ]);
}

#[test]
fn route_rules_accept_and_refuse() {
    let host = |name: &str, domain: &str| json!({"name": name, "domains": [domain]});
    let action = "virtual_hosts[0].routes[0].route";
    let at = |path: &str, id: &str| format!("{action}{path}: {id}");
    let weighted =
        |clusters: Json| route(&json!({"weighted_clusters": {"clusters": clusters}}), &json!({}));
    let regex = json!({"pattern": {"regex": "a"}, "substitution": "b"});
    let removal = json!({"response_headers_to_remove": ["Host"]});
    let backoff = json!({"retry_back_off": {"base_interval": "1s", "max_interval": "0.5s"}});
    let look = json!({"match": {"safe_regex": {"regex": "(?=a)"}}, "route": {"cluster": "c"}});
    assert_findings(&[
        (routes(&json!({"virtual_hosts": [host("a", "*"), host("b", "a.b")]})), &[]),
        (
            routes(&json!({"virtual_hosts": [host("a", "a.b"), host("b", "A.b")]})),
            &["virtual_hosts[1].domains[0]: route.duplicate_domain"],
        ),
        (
            route(
                &json!({"cluster": "c", "prefix_rewrite": "/", "regex_rewrite": regex}),
                &json!({}),
            ),
            &[&at(".regex_rewrite", "route.rewrites")],
        ),
        (weighted(json!([{"name": "a", "weight": 1}])), &[]),
        (
            weighted(json!([{"name": "a", "weight": 0}])),
            &[&at(".weighted_clusters.clusters", "weighted_cluster.weights")],
        ),
        (
            weighted(json!([{"weight": 1}])),
            &[&at(".weighted_clusters.clusters[0]", "weighted_cluster.name")],
        ),
        (
            route(&json!({"cluster": "c", "retry_policy": backoff}), &json!({})),
            &[&at(".retry_policy.retry_back_off.max_interval", "retry.max_interval")],
        ),
        (
            route(&json!({"cluster": "c", "timeout": "-1s"}), &json!({})),
            &[&at(".timeout", "duration.negative")],
        ),
        (
            route(&json!({"cluster": "c"}), &removal),
            &["virtual_hosts[0].routes[0].response_headers_to_remove[0]: header.fixed"],
        ),
        (
            routes(&json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [look]}]})),
            &["virtual_hosts[0].routes[0].match.safe_regex.regex: regex.syntax"],
        ),
    ]);
}

#[test]
fn header_rules_accept_and_refuse() {
    let option = "virtual_hosts[0].routes[0].request_headers_to_add[0].header";
    let (key, value) =
        (format!("{option}.key: header.fixed"), format!("{option}.value: format.command"));
    assert_findings(&[
        (header("host", "x"), &[&key]),
        (header(":path", "x"), &[&key]),
        (header("a", "%REQ(x?y):5% 100%% %PROTOCOL% %START_TIME(%Y)%"), &[]),
        (header("a", "%START_TIME%%DYNAMIC_METADATA(a:b)%%PATH(WQ)%"), &[]),
        (header("a", "100%"), &[&value]),
        (header("a", "%req(x)%"), &[&value]),
        (header("a", "%REQ(x)"), &[&value]),
        (header("a", "%REQ%"), &[&value]),
        (header("a", "%REQ(x):y%"), &[&value]),
        (header("a", "%PROTOCOL(x)%"), &[&value]),
        (header("a", "%PROTOCOL:5%"), &[&value]),
        (header("a", "%PROTOCOLL%"), &[&value]),
    ]);
}

#[test]
fn tls_rules_accept_and_refuse() {
    let pair = json!({"certificate_chain": {"filename": "/c"}, "private_key": {"filename": "/k"}});
    let server = "filter_chains[0].transport_socket.typed_config.common_tls_context";
    let client = "transport_socket.typed_config.common_tls_context";
    let context = |context: Json| tls("Upstream", &json!({"validation_context": context}));
    let names = json!([{"san_type": "DNS", "matcher": {"exact": "a"}}]);
    assert_findings(&[
        (tls("Downstream", &json!({"tls_certificates": [pair]})), &[]),
        (tls("Downstream", &json!({})), &[&format!("{server}: tls.no_certificate")]),
        (tls("Upstream", &json!({})), &[]),
        (
            context(json!({"trusted_ca": {"inline_string": "garbage"}})),
            &[&format!("{client}.validation_context.trusted_ca.inline_string: tls.pem")],
        ),
        (
            context(json!({"trusted_ca": {
                "inline_string": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            }})),
            &[&format!("{client}.validation_context.trusted_ca.inline_string: tls.pem")],
        ),
        (
            tls("Upstream", &json!({"tls_certificates": [pair, pair]})),
            &[&format!("{client}.tls_certificates: tls.client_certificates")],
        ),
        (
            tls(
                "Upstream",
                &json!({"tls_certificates": [{"certificate_chain": {"filename": "/c"}}]}),
            ),
            &[&format!("{client}.tls_certificates[0].private_key: tls.private_key")],
        ),
        (
            context(json!({"match_typed_subject_alt_names": names})),
            &[&format!(
                "{client}.validation_context.match_typed_subject_alt_names: tls.unverified_names"
            )],
        ),
        (
            context(json!({"verify_certificate_hash": ["ab"]})),
            &[&format!("{client}.validation_context.verify_certificate_hash[0]: string.min_len")],
        ),
    ]);
}

/// A virtual host can be a resource of its own (VHDS).
#[test]
fn virtual_host_with_a_repeated_domain_is_refused() {
    let host = |domains: &[&str]| {
        let host =
            typed("config.route.v3.VirtualHost", &json!({"name": "t/v", "domains": domains}));
        json!({"name": "t/v", "resource": host})
    };
    assert_findings(&[
        (host(&["a.test", "b.test"]), &[]),
        (host(&["a.test", "A.test"]), &["domains[1]: route.duplicate_domain"]),
    ]);
}

/// Envoy ignores an empty certificate in a context, but not in a secret.
#[test]
fn secret_with_an_empty_certificate_is_refused() {
    let secret = |content: Json| {
        let mut secret = typed("extensions.transport_sockets.tls.v3.Secret", &content);
        secret["name"] = json!("s");
        secret
    };
    assert_findings(&[
        (secret(json!({"tls_certificate": {}})), &["tls_certificate: tls.no_certificate"]),
        (secret(json!({"generic_secret": {}})), &[]),
        (tls("Upstream", &json!({"tls_certificates": [{}]})), &[]),
    ]);
}
