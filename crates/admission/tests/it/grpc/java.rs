//! Java: what each of its versions rejects. The verdicts are those of grpc-java 1.70.0, 1.78.0 and 1.85.1.

use chancery_admission::Severity;
use serde_json::{Value as Json, json};

use super::{
    any, assignment, cluster, endpoint, found,
    listener::{chain, filter, filters, manager, router, server},
    locality, plain_cluster, policies, policy,
    route::{action, host, route},
    with,
};

/// Asserts which of the versions 1.70, 1.78 and 1.85 reject the resources.
fn assert_rejected(cases: &[(&str, Json, [bool; 3])]) {
    for (label, resource, expected) in cases {
        let verdicts = ["grpc-java@1.70", "grpc-java@1.78", "grpc-java@1.85"].map(|client| {
            found(client, resource).iter().any(|problem| problem.severity == Severity::Error)
        });
        assert_eq!(verdicts, *expected, "{label}: {:?}", found("grpc-java", resource));
    }
}

const NO: [bool; 3] = [false; 3];
const ALL: [bool; 3] = [true; 3];
/// The versions before 1.78, and since then.
const OLD: [bool; 3] = [true, false, false];
const NEW: [bool; 3] = [false, true, true];

fn endpoints(list: &Json) -> Json {
    assignment(&json!([locality("a", &json!({"lb_endpoints": list}))]))
}

#[test]
fn java_reads_no_host_names_from_endpoints() {
    let pipe = json!({"endpoint": {"address": {"pipe": {"path": "/a"}}}});
    let health = |state: &str| json!({"health_status": state});
    let unhealthy = with(endpoint("web.example", 80), &health("UNHEALTHY"));
    let additional = json!({"endpoint": {
        "address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}},
        "additional_addresses": [
            {"address": {"socket_address": {"address": "web.example", "port_value": 80}}},
        ],
    }});
    let unweighted =
        json!({"locality": {"zone": "a"}, "lb_endpoints": [endpoint("web.example", 80)]});
    assert_rejected(&[
        ("host name", endpoints(&json!([endpoint("web.example", 80)])), NEW),
        ("short", endpoints(&json!([endpoint("127.1", 80)])), NEW),
        ("unhealthy", endpoints(&json!([unhealthy])), NEW),
        ("pipe", endpoints(&json!([pipe])), NEW),
        ("no address", endpoints(&json!([{"endpoint": {}}])), ALL),
        ("additional", endpoints(&json!([additional])), NO),
        ("no weight", assignment(&json!([unweighted])), NO),
        ("address", endpoints(&json!([endpoint("10.0.0.1", 80)])), NO),
    ]);
}

#[test]
fn java_reads_typed_metadata_in_all_places() {
    let address = |text: &str, port: u32| {
        let socket = json!({"socket_address": {"address": text, "port_value": port}});
        json!({"metadata": {"typed_filter_metadata": {"x": any("config.core.v3.Address", &socket)}}})
    };
    let audience = |url: &str| {
        let config = any("extensions.filters.http.gcp_authn.v3.Audience", &json!({"url": url}));
        json!({"metadata": {"typed_filter_metadata": {"x": config}}})
    };
    let of_endpoint = |rest: &Json| endpoints(&json!([with(endpoint("10.0.0.1", 80), rest)]));
    let of_locality = |rest: &Json| assignment(&json!([locality("a", rest)]));
    assert_rejected(&[
        ("cluster", cluster(&address("proxy.example", 1)), NEW),
        ("port", cluster(&address("10.0.0.1", 65536)), NEW),
        ("valid", cluster(&address("10.0.0.1", 1)), NO),
        ("endpoint", of_endpoint(&address("proxy.example", 1)), NEW),
        ("locality", of_locality(&address("proxy.example", 1)), NEW),
        ("audience of an endpoint", of_endpoint(&audience("")), NEW),
        ("audience of a locality", of_locality(&audience("")), NEW),
        ("audience of a cluster", cluster(&audience("")), ALL),
        ("valid audience", of_endpoint(&audience("https://a")), NO),
    ]);
}

#[test]
fn java_rejects_a_route_table_because_of_one_action() {
    let other =
        |action: &Json| host(&json!({"routes": [with(json!({"match": {"prefix": "/"}}), action)]}));
    let skipped = json!({
        "match": {"prefix": "/", "query_parameters": [{"name": "a"}]},
        "redirect": {"path_redirect": "/a"},
    });
    let buffer = json!({
        "typed_per_filter_config": {
            "b": any("extensions.filters.http.buffer.v3.BufferPerRoute", &json!({"disabled": true})),
        },
    });
    let weighted = |weights: [u32; 2], rest: &Json| {
        let of = |name: &str, weight: u32| json!({"name": name, "weight": weight});
        let clusters = json!([of("a", weights[0]), with(of("b", weights[1]), rest)]);
        action(&json!({"weighted_clusters": {"clusters": clusters}}))
    };
    let none = json!({});
    assert_rejected(&[
        ("redirect", other(&json!({"redirect": {"path_redirect": "/a"}})), ALL),
        ("direct response", other(&json!({"direct_response": {"status": 200}})), ALL),
        ("no action", other(&none), ALL),
        ("query parameters", host(&json!({"routes": [skipped]})), NO),
        ("non-forwarding", other(&json!({"non_forwarding_action": {}})), NO),
        (
            "override of a route that is skipped",
            route(&with(json!({"route": {"cluster_header": "x"}}), &buffer)),
            ALL,
        ),
        ("cluster header", action(&json!({"cluster_header": "x"})), NO),
        ("override of weight 0", weighted([1, 0], &buffer), ALL),
        ("weight of 2^31", weighted([1, 2_147_483_648], &none), OLD),
        ("weight below 2^31", weighted([1, 2_147_483_647], &none), NO),
    ]);
}

#[test]
fn java_knows_few_overrides() {
    let overriding = |config: &Json| route(&json!({"typed_per_filter_config": {"f": config}}));
    let gcp = any("extensions.filters.http.gcp_authn.v3.GcpAuthnFilterConfig", &json!({}));
    let of = |name: &str, rest: &Json| {
        overriding(&any(&format!("extensions.filters.http.{name}"), rest))
    };
    let disabled = json!({"disabled": true});
    let wrapped = |config: &Json| {
        let wrapper = json!({"is_optional": true, "config": config});
        overriding(&any("config.route.v3.FilterConfig", &wrapper))
    };
    let router = || any("extensions.filters.http.router.v3.Router", &json!({}));
    assert_rejected(&[
        ("gcp", overriding(&gcp), OLD),
        ("ext_authz", of("ext_authz.v3.ExtAuthzPerRoute", &disabled), [true, true, false]),
        ("ext_proc", of("ext_proc.v3.ExtProcPerRoute", &disabled), ALL),
        ("optional router", wrapped(&router()), ALL),
        ("optional gcp", wrapped(&gcp), NO),
        (
            "gcp filter",
            filters(&json!([
                filter("gcp_authn.v3.GcpAuthnFilterConfig", &json!({})),
                self::router()
            ])),
            OLD,
        ),
    ]);
}

#[test]
fn java_ignores_the_retry_policy_of_a_host() {
    let routes = json!([{"match": {"prefix": "/"}, "route": {"cluster": "c"}}]);
    let of_host = |policy: &Json| host(&json!({"routes": routes, "retry_policy": policy}));
    let of_route = |policy: &Json| action(&json!({"cluster": "c", "retry_policy": policy}));
    let no_base = json!({"retry_back_off": {"max_interval": "1s"}});
    assert_rejected(&[
        ("host, no retries", of_host(&json!({"num_retries": 0})), NO),
        ("host, no interval", of_host(&no_base), NO),
        ("route, no interval", of_route(&no_base), ALL),
        ("route, no retries without a status", of_route(&json!({"num_retries": 0})), NO),
    ]);
}

#[test]
fn java_needs_the_router_at_the_end_of_all_filters() {
    let optional = with(filter("lua.v3.Lua", &json!({})), &json!({"is_optional": true}));
    let typed = json!({
        "name": "r",
        "typed_config": {
            "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
            "type_url": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        },
    });
    let abort = |rest: &Json| {
        let share = json!({"percentage": {"numerator": 0}});
        filters(&json!([
            filter("fault.v3.HTTPFault", &json!({"abort": with(share, rest)})),
            router()
        ]))
    };
    assert_rejected(&[
        ("optional filter at the end", filters(&json!([router(), optional])), ALL),
        ("optional filter before the end", filters(&json!([optional, router()])), NO),
        ("typed struct", filters(&json!([typed])), NO),
        ("no filter", filters(&json!([])), ALL),
        ("abort without error", abort(&json!({})), ALL),
        ("abort", abort(&json!({"http_status": 503})), NO),
    ]);
}

#[test]
fn java_checks_the_listener_of_a_server() {
    let address = |socket: &Json| server(&json!({"address": {"socket_address": socket}}));
    let named = |first: &str, second: &str| {
        let of = |name: &str, port: u32| {
            chain(&json!({"name": name, "filter_chain_match": {"source_ports": [port]}}))
        };
        server(&json!({"filter_chains": [of(first, 1), of(second, 2)]}))
    };
    let matching = |criteria: [Json; 2]| {
        let chains = criteria.map(|one| chain(&json!({"filter_chain_match": one})));
        server(&json!({"filter_chains": chains, "default_filter_chain": chain(&json!({}))}))
    };
    let prefix = |text: &str, len: u32| json!({"prefix_ranges": [{"address_prefix": text, "prefix_len": len}]});
    assert_rejected(&[
        ("outbound", server(&json!({"traffic_direction": "OUTBOUND"})), ALL),
        ("inbound", server(&json!({"traffic_direction": "INBOUND"})), NO),
        ("empty address", address(&json!({"address": "", "port_value": 80})), NEW),
        ("named port", address(&json!({"address": "10.0.0.1", "named_port": "http"})), NEW),
        ("equal names", named("a", "a"), NEW),
        ("generated name", named("chain_1", ""), NEW),
        ("names", named("a", ""), NO),
        (
            "server names",
            matching([json!({"server_names": ["a"]}), json!({"server_names": ["a"]})]),
            ALL,
        ),
        (
            "destination port",
            matching([json!({"destination_port": 80}), json!({"destination_port": 80})]),
            ALL,
        ),
        ("unmasked", matching([prefix("10.0.0.1", 8), prefix("10.0.0.2", 8)]), NO),
        ("equal", matching([prefix("10.0.0.1", 8), prefix("10.0.0.1", 8)]), ALL),
        ("prefix of 33 bits", matching([prefix("10.0.0.1", 33), prefix("10.0.0.2", 8)]), NO),
    ]);
}

fn rbac(permission: &Json, principal: &Json) -> Json {
    let policy = json!({"permissions": [permission], "principals": [principal]});
    let rules = json!({"rules": {"action": "ALLOW", "policies": {"p": policy}}});
    let manager = manager(&json!({"http_filters": [filter("rbac.v3.RBAC", &rules), router()]}));
    let chains = json!([chain(&json!({"filters": [{"name": "hcm", "typed_config": manager}]}))]);
    server(&json!({"filter_chains": chains}))
}

#[test]
fn java_reads_access_rules_in_its_own_way() {
    let any = json!({"any": true});
    let permission = |one: &Json| rbac(one, &any);
    let principal = |one: &Json| rbac(&any, one);
    let header = |name: &str| permission(&json!({"header": {"name": name, "exact_match": "a"}}));
    let ip = |text: &str| {
        permission(&json!({"destination_ip": {"address_prefix": text, "prefix_len": 40}}))
    };
    assert_rejected(&[
        ("address", ip("10.0.0.1"), NO),
        ("no address", ip("host.invalid"), ALL),
        ("name of the loopback", ip("localhost"), NO),
        ("path without a rule", permission(&json!({"url_path": {}})), ALL),
        ("principal without a name", principal(&json!({"authenticated": {}})), ALL),
        (
            "principal with a name",
            principal(&json!({"authenticated": {"principal_name": {"exact": "a"}}})),
            NO,
        ),
        ("port range", permission(&json!({"destination_port_range": {"start": 1, "end": 9}})), NO),
        ("header grpc-a", header("grpc-a"), ALL),
        ("header Grpc-A", header("Grpc-A"), NO),
        ("header :scheme", header(":scheme"), ALL),
        ("header :Scheme", header(":Scheme"), NO),
    ]);
}

#[test]
fn java_has_no_random_subsetting_and_signed_sizes() {
    let child = json!({"policies": [policy("round_robin.v3.RoundRobin", &json!({}))]});
    let subsetting = json!({"subset_size": 3, "child_policy": child});
    let ring = |config: &Json| policies(&json!([policy("ring_hash.v3.RingHash", config)]));
    let legacy =
        |config: &Json| cluster(&json!({"lb_policy": "RING_HASH", "ring_hash_lb_config": config}));
    let choices = |count: u32| {
        policies(&json!([policy("least_request.v3.LeastRequest", &json!({"choice_count": count}))]))
    };
    let weighted = json!({"error_utilization_penalty": -1});
    let weighted = policies(&json!([policy(
        "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
        &weighted
    )]));
    assert_rejected(&[
        (
            "subsetting",
            policies(&json!([policy("random_subsetting.v3.RandomSubsetting", &subsetting)])),
            ALL,
        ),
        ("choices", choices(2_147_483_648), ALL),
        ("fewer choices", choices(2_147_483_647), NO),
        ("legacy maximum of 512", legacy(&json!({"maximum_ring_size": 512})), ALL),
        ("legacy maximum of 1024", legacy(&json!({"maximum_ring_size": 1024})), NO),
        ("legacy minimum", legacy(&json!({"minimum_ring_size": 9_000_000})), NO),
        ("minimum", ring(&json!({"hash_function": "XX_HASH", "minimum_ring_size": 9_000_000})), NO),
        ("negative penalty", weighted, NO),
        ("legacy least request", cluster(&json!({"lb_policy": "LEAST_REQUEST"})), OLD),
    ]);
}

fn aggregate(rest: &Json) -> Json {
    let config = any("extensions.clusters.aggregate.v3.ClusterConfig", &json!({"clusters": ["a"]}));
    let custom = json!({"name": "envoy.clusters.aggregate", "typed_config": config});
    plain_cluster(&with(json!({"cluster_type": custom}), rest))
}

#[test]
fn java_reads_few_fields_of_an_aggregate_cluster() {
    let detection = json!({"outlier_detection": {"max_ejection_percent": 150}});
    let sockets = json!({"transport_socket_matches": [{"name": "a", "match": {}}]});
    let empty = json!({"cluster_type": {
        "name": "envoy.clusters.aggregate",
        "typed_config": any("extensions.clusters.aggregate.v3.ClusterConfig", &json!({})),
    }});
    assert_rejected(&[
        ("load reports", aggregate(&json!({"lrs_server": {"ads": {}}})), NO),
        ("load reports of EDS", cluster(&json!({"lrs_server": {"ads": {}}})), ALL),
        ("socket matches", aggregate(&sockets), NO),
        ("socket matches of EDS", cluster(&sockets), ALL),
        ("outliers", aggregate(&detection), NO),
        ("outliers of EDS", cluster(&detection), ALL),
        ("socket", aggregate(&json!({"transport_socket": {"name": "a"}})), NO),
        ("no clusters", plain_cluster(&empty), NEW),
    ]);
}

fn tls(common: &Json, rest: &Json) -> Json {
    let config = with(json!({"common_tls_context": common}), rest);
    let config = any("extensions.transport_sockets.tls.v3.UpstreamTlsContext", &config);
    let socket = json!({"name": "envoy.transport_sockets.tls", "typed_config": config});
    cluster(&json!({"transport_socket": socket}))
}

fn server_tls(common: &Json, rest: &Json) -> Json {
    let own = json!({"tls_certificate_provider_instance": {"instance_name": "a"}});
    let config = with(json!({"common_tls_context": with(own, common)}), rest);
    let config = any("extensions.transport_sockets.tls.v3.DownstreamTlsContext", &config);
    let socket = json!({"name": "envoy.transport_sockets.tls", "typed_config": config});
    server(&json!({"filter_chains": [chain(&json!({"transport_socket": socket}))]}))
}

#[test]
fn java_checks_tls_only_beside_a_provider() {
    let roots =
        |rest: &Json| json!({"validation_context": with(json!({"system_root_certs": {}}), rest)});
    let provider = |rest: &Json| {
        let own = json!({"ca_certificate_provider_instance": {"instance_name": "a"}});
        json!({"validation_context": with(own, rest)})
    };
    let none = json!({});
    let old = json!({"validation_context_certificate_provider_instance": {"instance_name": "a"}});
    let pin = json!({"verify_certificate_hash": ["aa"]});
    let required = json!({"require_client_certificate": true});
    let names = json!({"match_subject_alt_names": [{"exact": "a"}]});
    assert_rejected(&[
        ("roots of the system", tls(&roots(&none), &none), OLD),
        ("deprecated provider", tls(&old, &none), ALL),
        ("long sni", tls(&provider(&none), &json!({"sni": "a".repeat(256)})), NO),
        ("sni flag", server_tls(&none, &json!({"require_sni": false})), ALL),
        ("roots in a server", server_tls(&roots(&none), &none), NO),
        ("required certificate", server_tls(&none, &required), NO),
        ("names without a provider", server_tls(&json!({"validation_context": names}), &none), NO),
        ("names with a provider", server_tls(&provider(&names), &none), ALL),
        ("pin beside a provider", tls(&provider(&pin), &none), ALL),
    ]);
    // The refusal of a pin that Java ignores says so.
    for field in [pin, json!({"crl": {"inline_string": "x"}})] {
        let problems = found("grpc-java", &tls(&roots(&field), &none));
        let name = field.as_object().unwrap().keys().next().unwrap();
        let expected = format!(
            "a gRPC client (Java) would accept this cluster, but ignore {name}, because no certificate provider \
             verifies the other side"
        );
        assert!(problems.iter().any(|problem| problem.rule == expected), "{problems:?}");
    }
    let problems = found("grpc-java", &server_tls(&none, &required));
    assert!(
        problems.iter().any(|one| one.rule.contains("accept clients without a certificate")),
        "{problems:?}"
    );
}

/// The weights of localities have no bound in Java.
#[test]
fn java_sums_no_weights_of_localities() {
    let of = |zone: &str, address: &str| {
        let weight = json!({"load_balancing_weight": 2_147_483_647, "lb_endpoints": [endpoint(address, 80)]});
        locality(zone, &weight)
    };
    let list = json!([of("a", "10.0.0.1"), of("b", "10.0.0.2"), of("c", "10.0.0.3")]);
    assert_rejected(&[("sum", assignment(&list), NO)]);
    assert!(found("grpc-go", &assignment(&list))[0].id == "grpc.locality_weights");
}

#[test]
fn profile_without_a_version_is_the_newest() {
    let resource = endpoints(&json!([endpoint("web.example", 80)]));
    assert_eq!(
        found("grpc-java", &resource)[0].rule,
        "a gRPC client (Java 1.74 and later) would reject this assignment, because \"web.example\" is not an IP \
         address"
    );
}

fn effects(client: &str, resource: &Json) -> Vec<String> {
    let found = found(client, resource);
    let effects = found.into_iter().filter(|problem| problem.severity == Severity::Effect);
    effects.map(|problem| problem.id).collect()
}

/// Clients accept these resources, and then calls fail.
#[test]
fn resource_after_which_calls_fail_has_an_effect() {
    let legacy =
        |config: &Json| cluster(&json!({"lb_policy": "RING_HASH", "ring_hash_lb_config": config}));
    let weighted = |name: &str, weight: u32| {
        let clusters = json!([{"name": name, "weight": weight}, {"name": "b", "weight": 1}]);
        action(&json!({"weighted_clusters": {"clusters": clusters}}))
    };
    let retries = |n: u32, retry_on: &str| {
        action(&json!({"cluster": "c", "retry_policy": {"num_retries": n, "retry_on": retry_on}}))
    };
    let of_weight = |weight: u32| {
        let rest =
            json!({"load_balancing_weight": weight, "lb_endpoints": [endpoint("10.0.0.1", 80)]});
        assignment(&json!([locality("a", &rest)]))
    };
    let looping = |name: &str| with(aggregate(&json!({})), &json!({"name": name}));
    let rds = |name: &str| {
        let rds = json!({"route_config_name": name, "config_source": {"ads": {}}});
        super::listener::api(&manager(&json!({"rds": rds})))
    };
    let dns = |port: u32| {
        let endpoints = json!([{"lb_endpoints": [endpoint("web.example", port)]}]);
        let assignment = json!({"cluster_name": "web", "endpoints": endpoints});
        plain_cluster(&json!({"type": "LOGICAL_DNS", "load_assignment": assignment}))
    };
    let (go, java) = ("grpc-go", "grpc-java");
    for (resource, id, clients) in [
        (legacy(&json!({"minimum_ring_size": 9_000_000})), "ring_size", &[go][..]),
        (legacy(&json!({"minimum_ring_size": 10, "maximum_ring_size": 5})), "ring_size", &[go]),
        (legacy(&json!({"maximum_ring_size": 512})), "ring_size", &[go]),
        (legacy(&json!({"minimum_ring_size": 5, "maximum_ring_size": 10})), "ring_size", &[]),
        (action(&json!({"cluster": ""})), "cluster_name", &[go, java]),
        (weighted("", 1), "cluster_name", &[go, java]),
        (weighted("", 0), "cluster_name", &[java]),
        (weighted("a", 1), "cluster_name", &[]),
        (retries(0, "unavailable"), "retries", &[java]),
        (retries(4_294_967_295, "5xx,unavailable"), "retries", &[java]),
        (retries(0, "5xx"), "retries", &[]),
        (retries(1, "unavailable"), "retries", &[]),
        (of_weight(2_147_483_648), "locality_weight", &[java]),
        (of_weight(2_147_483_647), "locality_weight", &[]),
        (looping("a"), "aggregate_loop", &[go, java]),
        (looping("b"), "aggregate_loop", &[]),
        (rds(""), "route_name", &[java]),
        (rds("r"), "route_name", &[]),
        (endpoints(&json!([endpoint("10.0.0.1", 0)])), "port", &[go, java]),
        (endpoints(&json!([endpoint("10.0.0.1", 1)])), "port", &[]),
        (dns(0), "port", &[java]),
        (dns(80), "port", &[]),
    ] {
        for client in [go, java] {
            let expected = clients.contains(&client).then(|| format!("grpc.effect.{id}"));
            let found = effects(client, &resource);
            assert_eq!(found, Vec::from_iter(expected), "{client} {resource:#}");
        }
    }
}

/// Java keeps the endpoints of the previous assignment. The bootstrap of a client decides about its authorities.
#[test]
fn assignment_without_a_usable_endpoint_is_a_warning() {
    let health = |state: &str| {
        let endpoint = with(endpoint("10.0.0.1", 80), &json!({"health_status": state}));
        endpoints(&json!([endpoint]))
    };
    let of = |resource: &Json| {
        let found = found("grpc-java", resource);
        assert!(found.iter().all(|problem| problem.severity == Severity::Warning), "{found:?}");
        found.into_iter().map(|problem| problem.id).collect::<Vec<_>>()
    };
    for state in ["UNHEALTHY", "DRAINING"] {
        assert_eq!(of(&health(state)), ["grpc.no_endpoint"], "{state}");
    }
    assert_eq!(of(&health("HEALTHY")), [""; 0]);
    assert_eq!(of(&assignment(&json!([]))), ["grpc.no_endpoint"]);
    let weighted = |zone: &str, address: &str, weight: u32| {
        let rest =
            json!({"load_balancing_weight": weight, "lb_endpoints": [endpoint(address, 80)]});
        locality(zone, &rest)
    };
    let both = json!([weighted("a", "10.0.0.1", 2_147_483_648), weighted("b", "10.0.0.2", 1)]);
    assert_eq!(of(&assignment(&both)), ["grpc.dropped_locality"]);
    let named = |service_name: &str| {
        cluster(
            &json!({"eds_cluster_config": {"eds_config": {"ads": {}}, "service_name": service_name}}),
        )
    };
    let name = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/b";
    assert_eq!(of(&named(name)), ["grpc.authority"]);
    assert_eq!(of(&named("b")), [""; 0]);
}
