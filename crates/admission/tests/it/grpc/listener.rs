//! Listeners of gRPC clients and servers.

use serde_json::{Value as Json, json};

use super::{any, assert_accepted, assert_refused, found, shown, with};

pub(super) fn router() -> Json {
    let config = any("extensions.filters.http.router.v3.Router", &json!({}));
    json!({"name": "router", "typed_config": config})
}

pub(super) fn filter(name: &str, rest: &Json) -> Json {
    let config = any(&format!("extensions.filters.http.{name}"), rest);
    json!({"name": name, "typed_config": config})
}

pub(super) fn manager(rest: &Json) -> Json {
    let base = json!({
        "stat_prefix": "a",
        "rds": {"route_config_name": "r", "config_source": {"ads": {}}},
        "http_filters": [router()],
    });
    let name = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    any(name, &with(base, rest))
}

pub(super) fn without(mut object: Json, field: &str) -> Json {
    object.as_object_mut().unwrap().remove(field);
    object
}

/// Returns a listener of a gRPC client.
pub(super) fn api(config: &Json) -> Json {
    any(
        "config.listener.v3.Listener",
        &json!({"name": "web", "api_listener": {"api_listener": config}}),
    )
}

/// Returns a listener of a gRPC server.
pub(super) fn server(rest: &Json) -> Json {
    let base = json!({
        "name": "grpc/server?xds.resource.listening_address=0.0.0.0:80",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": 80}},
        "filter_chains": [chain(&json!({}))],
    });
    any("config.listener.v3.Listener", &with(base, rest))
}

pub(super) fn chain(rest: &Json) -> Json {
    with(json!({"filters": [{"name": "hcm", "typed_config": manager(&json!({}))}]}), rest)
}

pub(super) const CONFIG: &str = "api_listener.api_listener";

/// GRPCV-01, -02: a client's listener is a connection manager whose routes come from the same server.
#[test]
fn api_listener_without_routes_from_the_server_is_refused() {
    assert_accepted(&[
        api(&manager(&json!({}))),
        api(&manager(&json!({"rds": {"route_config_name": "r", "config_source": {"self": {}}}}))),
        api(&without(manager(&json!({"route_config": {"name": "r"}})), "rds")),
    ]);
    let tcp = any(
        "extensions.filters.network.tcp_proxy.v3.TcpProxy",
        &json!({"stat_prefix": "a", "cluster": "b"}),
    );
    let scoped = json!({"scoped_routes": {"name": "s"}});
    assert_refused(&[
        (api(&tcp), &[&format!("{CONFIG}: grpc.network_filter: C++, Go, Java, Node")]),
        (
            api(&manager(
                &json!({"rds": {"route_config_name": "r", "config_source": {"path": "/a"}}}),
            )),
            &[&format!("{CONFIG}.rds.config_source: grpc.route_source: C++, Go, Java, Node")],
        ),
        (
            api(&manager(&json!({"rds": {"config_source": {"ads": {}}}}))),
            &[&format!("{CONFIG}.rds.route_config_name: grpc.route_source: Go")],
        ),
        (
            api(&without(manager(&scoped), "rds")),
            &[&format!("{CONFIG}: grpc.route_source: C++, Go, Java, Node")],
        ),
        (
            any("config.listener.v3.Listener", &json!({"name": "web", "api_listener": {}})),
            &[&format!("{CONFIG}: grpc.api_listener: C++, Go, Java, Node")],
        ),
    ]);
}

/// GRPCV-06: `max_stream_duration` of the manager is the default timeout, so C-core checks it.
#[test]
fn default_timeout_that_is_not_valid_is_refused() {
    let timeout = |text: &str| {
        let options = json!({"common_http_protocol_options": {"max_stream_duration": text}});
        api(&manager(&options))
    };
    assert_accepted(&[timeout("0s"), timeout("1.5s"), timeout("9223372036s")]);
    let at = format!("{CONFIG}.common_http_protocol_options.max_stream_duration");
    let refused = format!("{at}: grpc.max_stream_duration: C++");
    assert_refused(&[(timeout("-1s"), &[&refused]), (timeout("-0.5s"), &[&refused])]);
    // Other timeouts of the manager have no effect in gRPC.
    let idle = json!({"common_http_protocol_options": {"idle_timeout": "-1s"}});
    assert_accepted(&[api(&manager(&idle))]);
}

/// GRPCV-03: addresses of clients come from the connection.
#[test]
fn remote_address_from_headers_is_refused() {
    assert_accepted(&[api(&manager(&json!({"xff_num_trusted_hops": 0})))]);
    let extension = json!([{"name": "a", "typed_config": any("extensions.http.original_ip_detection.xff.v3.XffConfig", &json!({}))}]);
    let id = "grpc.remote_address: C++, Go, Java";
    assert_refused(&[
        (
            api(&manager(&json!({"xff_num_trusted_hops": 1}))),
            &[&format!("{CONFIG}.xff_num_trusted_hops: {id}")],
        ),
        (
            api(&manager(&json!({"original_ip_detection_extensions": extension}))),
            &[&format!("{CONFIG}.original_ip_detection_extensions: {id}")],
        ),
    ]);
}

pub(super) fn filters(list: &Json) -> Json {
    api(&manager(&json!({"http_filters": list})))
}

/// GRPCV-04, -05, -70: each client has a few filters. A composite filter is unknown.
#[test]
fn filter_that_a_client_does_not_have_is_refused() {
    let optional = |filter: Json| with(filter, &json!({"is_optional": true}));
    let lua = || filter("lua.v3.Lua", &json!({}));
    let composite = || filter("composite.v3.Composite", &json!({}));
    let custom = || {
        let config = json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "x/my.Filter", "value": {}});
        json!({"name": "a", "typed_config": config})
    };
    let session = || filter("stateful_session.v3.StatefulSession", &json!({}));
    assert_accepted(&[
        filters(&json!([optional(lua()), router()])),
        filters(&json!([optional(custom()), router()])),
        filters(&json!([filter("fault.v3.HTTPFault", &json!({})), router()])),
    ]);
    let at = format!("{CONFIG}.http_filters");
    let id = "grpc.http_filter: C++, Go, Java, Node";
    assert_refused(&[
        (filters(&json!([lua(), router()])), &[&format!("{at}[0].typed_config: {id}")]),
        (filters(&json!([custom(), router()])), &[&format!("{at}[0].typed_config: {id}")]),
        (filters(&json!([composite(), router()])), &[&format!("{at}[0].typed_config: {id}")]),
        (
            filters(&json!([session(), router()])),
            &[&format!("{at}[0].typed_config: grpc.http_filter: Go, Java, Node")],
        ),
        (
            filters(&json!([filter("rbac.v3.RBAC", &json!({})), router()])),
            &[
                &format!("{at}[0].typed_config: grpc.http_filter: Node"),
                &format!("{at}[0].typed_config: grpc.http_filter: C++, Go, Java"),
            ],
        ),
        (
            filters(&json!([with(router(), &json!({"name": ""}))])),
            &[&format!("{at}[0].name: grpc.http_filter: C++, Go")],
        ),
        (
            filters(&json!([
                filter("fault.v3.HTTPFault", &json!({})),
                filter("fault.v3.HTTPFault", &json!({})),
                router()
            ])),
            &[&format!("{at}[1].name: {id}")],
        ),
    ]);
    let text =
        shown(&found("grpc-cpp grpc-go grpc-java grpc-node", &filters(&json!([])))).join(" ");
    assert!(text.contains("C++") && text.contains("Go") && !text.contains("Node"), "{text}");
    let last = |list: &Json, clients: &str| shown(&found(clients, &filters(list)));
    let fault = || filter("fault.v3.HTTPFault", &json!({}));
    assert_eq!(last(&json!([fault()]), "grpc-go"), [format!("{at}[0]: grpc.router: Go")]);
    assert_eq!(
        last(&json!([router(), fault()]), "grpc-cpp")[0],
        format!("{at}[0]: grpc.router: C++")
    );
    // Node keeps an optional filter that it does not have.
    let list = json!([router(), optional(lua())]);
    assert_eq!(last(&list, "grpc-go"), Vec::<String>::new());
    assert!(!last(&list, "grpc-node").is_empty());
}

/// GRPCV-71, -72: the configurations of filters.
#[test]
fn configuration_of_a_filter_is_checked() {
    let rbac = |policy: &Json| {
        let rest = json!({"rules": {"policies": {"p": policy}}});
        let filters = json!({"http_filters": [filter("rbac.v3.RBAC", &rest), router()]});
        let chain = json!({"filters": [{"name": "hcm", "typed_config": manager(&filters)}]});
        server(&json!({"filter_chains": [chain]}))
    };
    let all = || json!({"permissions": [{"any": true}], "principals": [{"any": true}]});
    let of = |resource: &Json| shown(&found("grpc-cpp grpc-go", resource));
    let at = "filter_chains[0].filters[0].typed_config.http_filters[0].typed_config.rules.policies[\"p\"]";
    assert_eq!(of(&rbac(&all())), Vec::<String>::new());
    for (rest, path) in [
        (json!({"condition": {}}), "condition"),
        (
            json!({"permissions": [{"destination_port_range": {"start": 1, "end": 2}}]}),
            "permissions[0]",
        ),
        (
            json!({"permissions": [{"and_rules": {"rules": [{}]}}]}),
            "permissions[0].and_rules.rules[0]",
        ),
        (json!({"principals": [{"not_id": {}}]}), "principals[0].not_id"),
        (
            json!({"principals": [{"header": {"name": "grpc-status", "present_match": true}}]}),
            "principals[0].header.name",
        ),
    ] {
        let found = of(&rbac(&with(all(), &rest)));
        // A long path is cut in the middle.
        let last = path.rsplit('.').next().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&format!("{last}: grpc.rbac: C++, Go")), "{found:?} {at}");
    }
    let cache = |size: u32| {
        let rest = json!({"cache_config": {"cache_size": size}});
        filters(&json!([filter("gcp_authn.v3.GcpAuthnFilterConfig", &rest), router()]))
    };
    let of = |size| shown(&found("grpc-cpp", &cache(size)));
    assert_eq!(of(1), Vec::<String>::new());
    let at = format!("{CONFIG}.http_filters[0].typed_config.cache_config.cache_size");
    assert_eq!(of(0), [format!("{at}: grpc.gcp_authn: C++")]);
}

/// GRPCV-10, -11: a server's listener has an address, and chains with a connection manager alone.
#[test]
fn server_listener_with_other_parts_is_refused() {
    let tcp = any(
        "extensions.filters.network.tcp_proxy.v3.TcpProxy",
        &json!({"stat_prefix": "a", "cluster": "b"}),
    );
    let inspector = any("extensions.filters.listener.tls_inspector.v3.TlsInspector", &json!({}));
    let two = json!([
        {"name": "a", "typed_config": manager(&json!({}))},
        {"name": "b", "typed_config": manager(&json!({}))},
    ]);
    assert_accepted(&[
        server(&json!({})),
        server(&json!({"filter_chains": [], "default_filter_chain": chain(&json!({}))})),
    ]);
    assert_refused(&[
        (
            server(&json!({"listener_filters": [{"name": "a", "typed_config": inspector}]})),
            &["listener_filters: grpc.listener_filters: Go, Java, Node"],
        ),
        (
            server(&json!({"use_original_dst": true})),
            &["use_original_dst: grpc.use_original_dst: C++, Go, Java, Node"],
        ),
        (
            server(&json!({"address": {"pipe": {"path": "/a"}}})),
            &["address: grpc.listener_address: C++, Go"],
        ),
        (
            server(
                &json!({"filter_chains": [{"filters": [{"name": "tcp", "typed_config": tcp}]}]}),
            ),
            &["filter_chains[0].filters[0].typed_config: grpc.network_filter: C++, Go, Java, Node"],
        ),
        (
            server(&json!({"filter_chains": [{"filters": two}]})),
            &["filter_chains[0].filters: grpc.network_filter: C++, Java, Node"],
        ),
        (
            server(&json!({"filter_chains": []})),
            &["filter_chains: grpc.filter_chains: C++, Go, Node"],
        ),
    ]);
}

/// GRPCV-12: chains that gRPC cannot use are dropped, and the others match different connections.
#[test]
fn chains_that_match_the_same_connections_are_refused() {
    let matching = |criteria: &Json| chain(&json!({"filter_chain_match": criteria}));
    let chains = |list: &Json| server(&json!({"filter_chains": list}));
    let range = |prefix: &str, len: u32| json!({"prefix_ranges": [{"address_prefix": prefix, "prefix_len": len}]});
    assert_accepted(&[
        chains(&json!([matching(&range("10.0.0.0", 8)), matching(&range("10.0.0.0", 16))])),
        chains(&json!([chain(&json!({})), matching(&json!({"destination_port": 80}))])),
    ]);
    let id = "grpc.filter_chain_match: C++, Go, Java";
    assert_refused(&[
        (
            chains(&json!([chain(&json!({})), chain(&json!({}))])),
            &[&format!("filter_chains[1]: {id}")],
        ),
        (
            chains(&json!([matching(&range("10.0.0.0", 8)), matching(&range("10.1.0.0", 8))])),
            &["filter_chains[1]: grpc.filter_chain_match: C++, Go, Node"],
        ),
        (
            chains(&json!([matching(&range("ten", 8))])),
            &[
                "filter_chains[0].filter_chain_match.prefix_ranges[0].address_prefix: grpc.address_range: C++, Go, Java, Node",
            ],
        ),
        (
            chains(&json!([matching(&json!({"server_names": ["a"]}))])),
            &["filter_chains: grpc.filter_chains: Go"],
        ),
    ]);
}

/// GRPCV-13, -20: a server's TLS context has a provider of its certificate, and a few options.
#[test]
fn server_tls_without_a_provider_is_refused() {
    let tls = |context: &Json| {
        let config = any("extensions.transport_sockets.tls.v3.DownstreamTlsContext", context);
        let socket = json!({"name": "envoy.transport_sockets.tls", "typed_config": config});
        server(&json!({"filter_chains": [chain(&json!({"transport_socket": socket}))]}))
    };
    let provider = || json!({"tls_certificate_provider_instance": {"instance_name": "a"}});
    let refusals = |context: &Json| {
        let found = shown(&found("grpc-cpp grpc-go grpc-java grpc-node", &tls(context)));
        let at = "filter_chains[0].transport_socket.typed_config.";
        let refusals = found.into_iter().filter(|text| text.matches(": ").count() > 1);
        refusals.map(|text| text.replace(at, "")).collect::<Vec<_>>()
    };
    let good = json!({"common_tls_context": provider()});
    assert_eq!(refusals(&good), Vec::<String>::new());
    let all = "grpc.tls: C++, Go, Java, Node";
    assert_eq!(
        refusals(&json!({"common_tls_context": {}})),
        [format!("common_tls_context: {all}")]
    );
    assert_eq!(
        refusals(&with(good.clone(), &json!({"require_sni": true}))),
        [format!("require_sni: {all}")]
    );
    assert_eq!(
        refusals(&with(good.clone(), &json!({"ocsp_staple_policy": "MUST_STAPLE"}))),
        [format!("ocsp_staple_policy: {all}")]
    );
    assert_eq!(
        refusals(&with(good, &json!({"require_client_certificate": true}))),
        ["require_client_certificate: grpc.tls: C++, Go, Node"]
    );
    let system = json!({"validation_context": {"system_root_certs": {}}});
    assert_eq!(
        refusals(&json!({"common_tls_context": with(provider(), &system)})),
        ["common_tls_context.validation_context.system_root_certs: grpc.tls: C++, Go"]
    );
}

/// Without a known client, only a listener that cannot be for Envoy has warnings of gRPC clients.
#[test]
fn unknown_clients_are_warned_about_an_api_listener() {
    use chancery_admission::{Manifest, Options, Severity, Validation, ValidationMode, lint};
    let scope = chancery_model::ScopeName::new("default").unwrap();
    let validation = Validation::of(ValidationMode::Enforce);
    let options = Options { validation, ..Options::new(scope) };
    let of = |resource: &Json| {
        let content = json!({"resources": [resource]}).to_string();
        lint(&[Manifest { file: "a.json".to_owned(), content }], &options)
    };
    let found = of(&filters(&json!([filter("lua.v3.Lua", &json!({})), router()])));
    let grpc: Vec<_> = found.iter().filter(|one| one.id.starts_with("grpc.")).collect();
    assert!(grpc.len() == 1 && grpc[0].severity == Severity::Warning, "{found:?}");
    let plain = any("config.cluster.v3.Cluster", &json!({"name": "a", "type": "STRICT_DNS"}));
    assert!(of(&plain).is_empty());
}
