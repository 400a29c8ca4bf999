//! Rules of Envoy about extensions, listeners, routes and filters. The verdicts are those of Envoy 1.40.

use chancery_admission::Severity;
use serde_json::{Value as Json, json};

use crate::{
    semantic::{
        assert_findings, buffer, chains, http_filters, plain_listener, route, router, routes, typed,
    },
    validate::{findings, listener, severities},
};

const CONFIG: &str = "filter_chains[0].filters[0].typed_config";

fn filter(name: &str, rest: &Json) -> Json {
    let config = typed(&format!("extensions.filters.http.{name}"), rest);
    json!({"name": "f", "typed_config": config})
}

/// Returns a listener with one HTTP filter before the router.
fn with_filter(name: &str, rest: &Json) -> Json {
    http_filters(&[filter(name, rest), router()])
}

fn at_filter(path: &str) -> String {
    format!("{CONFIG}.http_filters[0].{path}")
}

fn typed_struct(kind: &str, value: &Json) -> Json {
    json!({
        "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": format!("type.googleapis.com/{kind}"),
        "value": value,
    })
}

/// Envoy finds an extension by the type of its configuration, also inside a `TypedStruct`.
#[test]
fn extension_of_an_unknown_type_or_another_category_is_refused() {
    let one =
        |config: &Json| http_filters(&[json!({"name": "f", "typed_config": config}), router()]);
    let optional = json!({
        "name": "f", "is_optional": true,
        "typed_config": typed("config.cluster.v3.Cluster", &json!({"name": "a"})),
    });
    let config = at_filter("typed_config");
    let buffer_kind = "envoy.extensions.filters.http.buffer.v3.Buffer";
    let predicate = |predicate: Json| {
        let policy = json!({"retry_on": "5xx", "retry_host_predicate": [predicate]});
        route(&json!({"cluster": "c", "retry_policy": policy}), &json!({}))
    };
    let retry =
        "virtual_hosts[0].routes[0].route.retry_policy.retry_host_predicate[0].typed_config";
    let unknown = json!({"@type": "type.googleapis.com/acme.Filter", "value": ""});
    assert_findings(&[
        (one(&unknown), &[&format!("{config}: extension.unknown")]),
        (
            one(&typed("config.cluster.v3.Cluster", &json!({"name": "a"}))),
            &[&format!("{config}: extension.category")],
        ),
        (one(&typed_struct(buffer_kind, &json!({"max_request_bytes": 5}))), &[]),
        (one(&typed_struct("acme.Filter", &json!({}))), &[&format!("{config}: extension.unknown")]),
        (http_filters(&[optional, router()]), &[]),
        (predicate(json!({"name": "acme"})), &[&format!("{retry}: filter.typed_config")]),
        (
            predicate(json!({
                "name": "previous",
                "typed_config": typed("extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate", &json!({})),
            })),
            &[],
        ),
    ]);
}

/// The content of a `TypedStruct` is read as the type that it names.
#[test]
fn content_of_a_typed_struct_is_checked() {
    let one = |value: Json| {
        let config = typed_struct("envoy.extensions.filters.http.buffer.v3.Buffer", &value);
        http_filters(&[json!({"name": "f", "typed_config": config}), router()])
    };
    let value = at_filter("typed_config.value");
    assert_findings(&[
        (one(json!({"max_request_bytes": 0})), &[&format!("{value}.max_request_bytes: uint32.gt")]),
        (
            one(json!({"max_request_bytes": "x"})),
            &[&format!("{value}.max_request_bytes: typed_struct")],
        ),
        (one(json!({})), &[&format!("{value}.max_request_bytes: message.required")]),
    ]);
}

/// A filter that is discovered names known types, and a default of one of them.
#[test]
fn discovered_filter_needs_known_types_and_a_fitting_default() {
    let one = |kind: &str, rest: Json| {
        let mut source = json!({
            "config_source": {"ads": {}},
            "type_urls": [format!("type.googleapis.com/envoy.{kind}")],
        });
        source.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        http_filters(&[json!({"name": "f", "config_discovery": source}), router()])
    };
    let (buffer_kind, at) =
        ("extensions.filters.http.buffer.v3.Buffer", at_filter("config_discovery"));
    let cors = typed("extensions.filters.http.cors.v3.Cors", &json!({}));
    assert_findings(&[
        (one(buffer_kind, json!({})), &[]),
        (one("config.cluster.v3.None", json!({})), &[&format!("{at}.type_urls[0]: ecds.type_url")]),
        (
            one(buffer_kind, json!({"default_config": cors})),
            &[&format!("{at}.default_config: ecds.default_type")],
        ),
        (
            one(buffer_kind, json!({"apply_default_config_without_warming": true})),
            &[&format!("{at}.default_config: ecds.no_default")],
        ),
    ]);
}

/// The kind of a listener decides which options, filters and codecs it takes.
#[test]
fn options_of_a_listener_must_fit_its_kind() {
    let udp = |rest: Json| {
        let mut listener = plain_listener(&rest);
        listener["address"]["socket_address"]["protocol"] = json!("UDP");
        listener
    };
    let inspector = typed("extensions.filters.listener.tls_inspector.v3.TlsInspector", &json!({}));
    let filters = json!([{"name": "t", "typed_config": inspector}]);
    let matched = |criteria: Json| chains(&json!([{"filter_chain_match": criteria}]));
    let range = |ip: &str| json!({"filter_chain_match": {"prefix_ranges": [{"address_prefix": ip, "prefix_len": 8}]}});
    let compatible = |ip: &str| {
        let socket = json!({"address": ip, "port_value": 1, "ipv4_compat": true});
        plain_listener(&json!({"filter_chains": [{}], "address": {"socket_address": socket}}))
    };
    let other = json!([{"address": {"socket_address": {
        "address": "127.0.0.1", "port_value": 9, "protocol": "UDP",
    }}}]);
    let matcher = json!({"on_no_match": {"action": {
        "name": "a",
        "typed_config": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"},
    }}});
    assert_findings(&[
        (udp(json!({})), &[]),
        (
            udp(json!({"udp_listener_config": {"quic_options": {}}})),
            &["filter_chains: listener.filter_chains"],
        ),
        (udp(json!({"filter_chains": [{}]})), &["filter_chains: listener.udp_chain"]),
        (
            udp(json!({"listener_filters": filters})),
            &["listener_filters[0]: listener.filter_protocol"],
        ),
        (plain_listener(&json!({"filter_chains": [{}], "listener_filters": filters})), &[]),
        (
            plain_listener(&json!({"filter_chains": [{}], "internal_listener": {}})),
            &["address: listener.internal"],
        ),
        (
            plain_listener(&json!({"filter_chains": [{}], "additional_addresses": other})),
            &["additional_addresses[0]: listener.protocol"],
        ),
        (compatible("::"), &[]),
        (compatible("127.0.0.1"), &["address.socket_address.ipv4_compat: listener.ipv4_compat"]),
        (
            listener(&json!({"stat_prefix": "a", "route_config": {}, "codec_type": "HTTP3"})),
            &[&format!("{CONFIG}.codec_type: listener.quic")],
        ),
        (
            matched(json!({"address_suffix": "1.2.3.4"})),
            &["filter_chains[0].filter_chain_match.address_suffix: filter_chain.unimplemented"],
        ),
        (chains(&json!([range("10.0.0.0"), range("11.0.0.0")])), &[]),
        (
            chains(&json!([range("10.0.0.0"), range("10.1.2.3")])),
            &["filter_chains[1]: filter_chain.duplicate_match"],
        ),
        (
            plain_listener(&json!({"filter_chains": [{}], "filter_chain_matcher": matcher})),
            &["filter_chains[0].name: filter_chain.name"],
        ),
    ]);
}

/// Envoy discovers no filter chains for QUIC, whatever the protocol of the address.
#[test]
fn discovered_filter_chain_for_quic_is_refused() {
    let manager = |codec: &str| {
        let listener =
            listener(&json!({"stat_prefix": "a", "route_config": {}, "codec_type": codec}));
        listener["filter_chains"][0].clone()
    };
    let discovered = |codec: &str| {
        let filters = manager(codec)["filters"].clone();
        typed("config.listener.v3.FilterChain", &json!({"name": "a", "filters": filters}))
    };
    let with_source = |protocol: &str, rest: Json| {
        let matcher = json!({"on_no_match": {"action": {
            "name": "a",
            "typed_config": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "a"},
        }}});
        let source = json!({"config_source": {"resource_api_version": "V3", "ads": {}}});
        let mut listener =
            plain_listener(&json!({"fcds_config": source, "filter_chain_matcher": matcher}));
        listener["address"]["socket_address"]["protocol"] = json!(protocol);
        listener["udp_listener_config"] = rest;
        listener
    };
    assert_findings(&[
        (with_source("UDP", json!({"quic_options": {}})), &["fcds_config: listener.fcds"]),
        (with_source("TCP", json!({"quic_options": {}})), &["fcds_config: listener.fcds"]),
        (with_source("UDP", json!({})), &[]),
        (discovered("HTTP2"), &[]),
        (discovered("HTTP3"), &["filters[0].typed_config.codec_type: listener.quic"]),
    ]);
}

/// Envoy checks only the rules of the proto files in the match of a discovered filter chain, and ignores the rest.
#[test]
fn match_of_a_discovered_filter_chain_gives_only_warnings() {
    let verdicts = |criteria: Json| {
        let echo = typed("extensions.filters.network.echo.v3.Echo", &json!({}));
        let chain = json!({
            "name": "a", "filters": [{"name": "e", "typed_config": echo}],
            "filter_chain_match": criteria,
        });
        severities(&typed("config.listener.v3.FilterChain", &chain))
    };
    let range = json!([{"address_prefix": "foo", "prefix_len": 1}]);
    for (criteria, id) in [
        (json!({"server_names": ["a.*.b"]}), "filter_chain.server_name"),
        (json!({"prefix_ranges": range}), "cidr.ip"),
        (json!({"source_prefix_ranges": range}), "cidr.ip"),
        (json!({"address_suffix": "1.2.3.4"}), "filter_chain.unimplemented"),
    ] {
        assert_eq!(verdicts(criteria), [(id.to_owned(), Severity::Warning)]);
    }
    let port = verdicts(json!({"destination_port": 70_000}));
    assert_eq!(port, [("uint32.lte".to_owned(), Severity::Error)]);
}

/// Options of the connection manager, its routes and its tracer fit together.
#[test]
fn options_of_the_connection_manager_must_fit_together() {
    let one = |rest: Json| {
        let mut manager = json!({"stat_prefix": "a"});
        if rest.get("rds").is_none() && rest.get("scoped_routes").is_none() {
            manager["route_config"] = json!({});
        }
        manager.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        listener(&manager)
    };
    let xff = typed("extensions.http.original_ip_detection.xff.v3.XffConfig", &json!({}));
    let scopes = |extractor: Json, scope: Json| {
        one(json!({"scoped_routes": {
            "name": "s",
            "scope_key_builder": {"fragments": [{"header_value_extractor": extractor}]},
            "scoped_route_configurations_list": {"scoped_route_configurations": [scope]},
        }}))
    };
    let scope = json!({"name": "a", "route_configuration": {"name": "r"}, "key": {"fragments": [{"string_key": "k"}]}});
    let mut by_name = scope.clone();
    by_name["route_configuration_name"] = json!("r");
    let extractor =
        format!("{CONFIG}.scoped_routes.scope_key_builder.fragments[0].header_value_extractor");
    let tracer =
        |config: Json| one(json!({"tracing": {"provider": {"name": "t", "typed_config": config}}}));
    let zipkin = typed(
        "config.trace.v3.ZipkinConfig",
        &json!({"collector_cluster": "c", "collector_endpoint": "/a"}),
    );
    let provider = format!("{CONFIG}.tracing.provider.typed_config");
    assert_findings(&[
        (
            one(json!({
                "xff_num_trusted_hops": 1,
                "original_ip_detection_extensions": [{"name": "x", "typed_config": xff}],
            })),
            &[&format!("{CONFIG}.xff_num_trusted_hops: http.remote_address")],
        ),
        (
            one(json!({"strip_matching_host_port": true, "strip_any_host_port": true})),
            &[&format!("{CONFIG}.strip_matching_host_port: http.strip_port")],
        ),
        (
            one(json!({"rds": {"route_config_name": "r"}})),
            &[&format!("{CONFIG}.rds.config_source: rds.source")],
        ),
        (one(json!({"rds": {"route_config_name": "xdstp://a/b/c"}})), &[]),
        (scopes(json!({"name": "x", "index": 0}), scope.clone()), &[]),
        (
            scopes(json!({"name": "x", "index": 3}), scope.clone()),
            &[&format!("{extractor}.index: scoped_route.separator")],
        ),
        (scopes(json!({"name": "x"}), scope), &[&format!("{extractor}: scoped_route.extractor")]),
        (
            scopes(json!({"name": "x", "index": 0}), by_name),
            &[&format!(
                "{CONFIG}.scoped_routes.…scoped_route_configurations[0].route_configuration_name: scoped_route.inline"
            )],
        ),
        // The default of `collector_endpoint_version` is deprecated.
        (tracer(zipkin), &[&format!("{provider}.collector_endpoint_version: deprecated.enum")]),
        (
            tracer(typed("config.trace.v3.OpenTelemetryConfig", &json!({}))),
            &[&format!("{provider}: tracing.open_telemetry")],
        ),
        (
            one(json!({"upgrade_configs": [{"upgrade_type": "a", "filters": [buffer()]}]})),
            &[&format!("{CONFIG}.upgrade_configs[0].filters[0]: filter.not_terminal")],
        ),
    ]);
}

/// Plugins, bodies, upgrades and templates of routes.
#[test]
fn actions_of_routes_must_be_complete() {
    let at = "virtual_hosts[0].routes[0]";
    let template = |path: &str| {
        let kind = "extensions.path.match.uri_template.v3.UriTemplateMatchConfig";
        json!({"match": {"path_match_policy": {"name": "t", "typed_config": typed(kind, &json!({"path_template": path}))}}})
    };
    let rewrite = |path: &str| {
        let kind = "extensions.path.rewrite.uri_template.v3.UriTemplateRewriteConfig";
        json!({"cluster": "c", "path_rewrite_policy": {
            "name": "t", "typed_config": typed(kind, &json!({"path_template_rewrite": path})),
        }})
    };
    let answer = |len: usize| {
        let body = json!({"status": 200, "body": {"inline_string": "x".repeat(len)}});
        routes(&json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "direct_response": body},
        ]}]}))
    };
    let upgrade = |kinds: &[&str]| {
        let configs: Vec<Json> =
            kinds.iter().map(|kind| json!({"upgrade_type": kind, "connect_config": {}})).collect();
        route(&json!({"cluster": "c", "upgrade_configs": configs}), &json!({}))
    };
    let policy = format!("{at}.route.path_rewrite_policy: route.rewrite_template");
    let path =
        format!("{at}.match.path_match_policy.typed_config.path_template: route.path_template");
    assert_findings(&[
        (
            route(&json!({"cluster_specifier_plugin": "p"}), &json!({})),
            &[&format!("{at}.route.cluster_specifier_plugin: route.unknown_plugin")],
        ),
        (answer(4096), &[]),
        (answer(4097), &[&format!("{at}.direct_response.body: route.body_size")]),
        (upgrade(&["CONNECT"]), &[]),
        (
            upgrade(&["websocket"]),
            &[&format!("{at}.route.upgrade_configs[0].connect_config: route.connect_config")],
        ),
        (
            upgrade(&["CONNECT", "connect"]),
            &[&format!("{at}.route.upgrade_configs[1]: route.duplicate_upgrade")],
        ),
        (route(&rewrite("/b/{id}"), &template("/a/{id}/**")), &[]),
        (route(&rewrite("/b/{id}"), &json!({})), &[&policy]),
        (route(&rewrite("/b/{other}"), &template("/a/{id}")), &[&policy]),
        (route(&json!({"cluster": "c"}), &template("/a/{id")), &[&path]),
        (route(&json!({"cluster": "c"}), &template("/a/**/{id}")), &[&path]),
        (route(&json!({"cluster": "c"}), &template("/a/{id=*/b}.{id}")), &[&path]),
    ]);
}

/// The configuration of a filter in routes has another type than that of the filter.
#[test]
fn configuration_of_a_filter_in_routes_needs_its_own_type() {
    let one = |config: Json| {
        route(&json!({"cluster": "c"}), &json!({"typed_per_filter_config": {"f": config}}))
    };
    let at = "virtual_hosts[0].routes[0].typed_per_filter_config[\"f\"]";
    let lua =
        |name: &str, rest: Json| typed(&format!("extensions.filters.http.lua.v3.{name}"), &rest);
    let disabled = json!({"disabled": true});
    assert_findings(&[
        (one(lua("LuaPerRoute", disabled.clone())), &[]),
        (one(lua("Lua", json!({"inline_code": "a = 1"}))), &[&format!("{at}: per_filter.kind")]),
        (
            with_filter("lua.v3.LuaPerRoute", &disabled),
            &[&format!("{}: per_filter.kind", at_filter("typed_config"))],
        ),
        (
            one(typed("extensions.filters.http.router.v3.Router", &json!({}))),
            &[&format!("{at}: per_filter.unsupported")],
        ),
        (
            one(typed("config.route.v3.FilterConfig", &json!({}))),
            &[&format!("{at}: per_filter.empty")],
        ),
        (one(typed("config.route.v3.FilterConfig", &disabled)), &[]),
    ]);
}

/// The rules of single filters.
#[test]
fn rules_of_single_filters() {
    let bucket = |interval: &str| json!({"stat_prefix": "a", "token_bucket": {"max_tokens": 1, "fill_interval": interval}});
    let config = |path: &str| at_filter(&format!("typed_config.{path}"));
    let jwt = |keys: &str, provider: &str| {
        json!({
            "providers": {"a": {"local_jwks": {"inline_string": keys}}},
            "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": provider}}],
        })
    };
    let keys = r#"{"keys": [{"kty": "oct", "k": "YWJj"}]}"#;
    assert_findings(&[
        (with_filter("local_ratelimit.v3.LocalRateLimit", &bucket("0.050s")), &[]),
        (
            with_filter("local_ratelimit.v3.LocalRateLimit", &bucket("0.049s")),
            &[&format!("{}: rate_limit.fill_interval", config("token_bucket.fill_interval"))],
        ),
        (
            with_filter(
                "health_check.v3.HealthCheck",
                &json!({"pass_through_mode": false, "cache_time": "1s"}),
            ),
            &[&format!("{}: health_check.pass_through", config("cache_time"))],
        ),
        (with_filter("jwt_authn.v3.JwtAuthentication", &jwt(keys, "a")), &[]),
        (
            with_filter("jwt_authn.v3.JwtAuthentication", &jwt(keys, "b")),
            &[&format!("{}: jwt.provider", config("rules[0].requires.provider_name"))],
        ),
        (
            with_filter("jwt_authn.v3.JwtAuthentication", &jwt("{\"keys\": []}", "a")),
            &[&format!("{}: jwt.keys", config("providers[\"a\"].local_jwks.inline_string"))],
        ),
    ]);
}

/// The rules of further single filters.
#[test]
fn rules_of_further_filters() {
    let config = |path: &str| at_filter(&format!("typed_config.{path}"));
    let users = |line: &str| json!({"users": {"inline_string": line}});
    let state = |name: &str| {
        let cookie = typed(
            "extensions.http.stateful_session.cookie.v3.CookieBasedSessionState",
            &json!({"cookie": {"name": "a"}}),
        );
        json!({"session_state": {"name": name, "typed_config": cookie}})
    };
    let rule = |rest: Json| json!({"request_rules": [rest]});
    let present = json!({"key": "k"});
    assert_findings(&[
        (
            with_filter("basic_auth.v3.BasicAuth", &users("u:{SHA}tESsBmE/yNY3lb6a0L6vVQEZNqw=")),
            &[],
        ),
        (
            with_filter("basic_auth.v3.BasicAuth", &users("u:secret")),
            &[&format!("{}: basic_auth.users", config("users.inline_string"))],
        ),
        (
            with_filter(
                "stateful_session.v3.StatefulSession",
                &state("envoy.http.stateful_session.cookie"),
            ),
            &[],
        ),
        (
            with_filter("stateful_session.v3.StatefulSession", &state("cookie")),
            &[&format!("{}: stateful_session.name", config("session_state.name"))],
        ),
        (
            with_filter(
                "header_to_metadata.v3.Config",
                &rule(json!({"header": "a", "on_header_present": present})),
            ),
            &[],
        ),
        (
            with_filter(
                "header_to_metadata.v3.Config",
                &rule(json!({"header": "a", "on_header_missing": present})),
            ),
            &[&format!(
                "{}: header_to_metadata.value",
                config("request_rules[0].on_header_missing")
            )],
        ),
        (
            with_filter("aws_lambda.v3.Config", &json!({"arn": "x"})),
            &[&format!("{}: aws_lambda.arn", config("arn"))],
        ),
        (
            with_filter(
                "grpc_json_transcoder.v3.GrpcJsonTranscoder",
                &json!({
                    "services": ["a.B"], "proto_descriptor_bin": "AAAA",
                }),
            ),
            &[&format!("{}: transcoder.descriptors", config("proto_descriptor_bin"))],
        ),
    ]);
}

/// Parameters of format commands, also in JSON formats.
#[test]
fn parameters_of_format_commands_are_checked() {
    let log = |format: &Json| {
        let config = typed(
            "extensions.access_loggers.stream.v3.StdoutAccessLog",
            &json!({"log_format": format}),
        );
        listener(&json!({
            "stat_prefix": "a", "route_config": {},
            "access_log": [{"name": "l", "typed_config": config}],
        }))
    };
    let text = |text: &str| log(&json!({"text_format_source": {"inline_string": text}}));
    let at = format!("{CONFIG}.access_log[0].typed_config.log_format");
    let bad = format!("{at}.text_format_source.inline_string: format.command");
    for good in [
        "%GRPC_STATUS(NUMBER)%",
        "%FILTER_CHAIN_NAME%",
        "%FILTER_STATE(a:FIELD:b)%",
        "%PATH(WQ:ORIG)%",
    ] {
        assert_findings(&[(text(good), &[])]);
    }
    for wrong in
        ["%FILTER_STATE(a:X)%", "%REQ(a?b?c)%", "%METADATA(X:y)%", "%GRPC_STATUS(X)%", "%PATH(ZZ)%"]
    {
        assert_findings(&[(text(wrong), &[&bad])]);
    }
    assert_findings(&[
        (log(&json!({"json_format": {"a": {"b": ["%PROTOCOL%"]}}})), &[]),
        (
            log(&json!({"json_format": {"a": {"b": ["%REQ%"]}}})),
            &[&format!("{at}.json_format: format.command")],
        ),
    ]);
}

/// The place of a matcher decides which inputs and actions it takes.
#[test]
fn inputs_and_actions_of_a_matcher_must_fit_its_place() {
    let routes_by = |input: &str, action: Json| {
        let map = json!({"map": {"a": {"action": {"name": "r", "typed_config": action}}}});
        let input =
            json!({"name": "i", "typed_config": typed(input, &json!({"header_name": "a"}))});
        let matcher = json!({"matcher_tree": {"input": input, "exact_match_map": map}});
        routes(&json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "matcher": matcher}]}))
    };
    let route = || {
        typed(
            "config.route.v3.Route",
            &json!({"match": {"prefix": "/"}, "route": {"cluster": "c"}}),
        )
    };
    let tree = "virtual_hosts[0].matcher.matcher_tree";
    let action = format!("{tree}.exact_match_map.map[\"a\"].action: matcher.type");
    let header = "type.matcher.v3.HttpRequestHeaderMatchInput";
    assert_findings(&[
        (routes_by(header, route()), &[]),
        (
            routes_by("type.matcher.v3.HttpResponseHeaderMatchInput", route()),
            &[&format!("{tree}.input: matcher.type")],
        ),
        (routes_by(header, typed("config.rbac.v3.Action", &json!({"name": "a"}))), &[&action]),
    ]);
}

/// Returns an extension of xDS for matchers.
fn xds(kind: &str, rest: &Json) -> Json {
    let mut config = json!({"@type": format!("type.googleapis.com/xds.type.matcher.v3.{kind}")});
    config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    json!({"name": "x", "typed_config": config})
}

/// Returns an input of a connection.
fn text(name: &str) -> Json {
    let kind = format!("extensions.matching.common_inputs.network.v3.{name}");
    json!({"name": "i", "typed_config": typed(&kind, &json!({}))})
}

/// Returns a listener with a matcher of filter chains.
fn chains_by(matcher: &Json) -> Json {
    let echo = typed("extensions.filters.network.echo.v3.Echo", &json!({}));
    let chain = json!({"name": "a", "filters": [{"name": "e", "typed_config": echo}]});
    plain_listener(&json!({"filter_chain_matcher": matcher, "filter_chains": [chain]}))
}

/// Returns a matcher with one predicate.
fn predicate(input: &Json, (key, value): (&str, Json), then: &Json) -> Json {
    let single = json!({"input": input, key: value});
    let entry = json!({"predicate": {"single_predicate": single}, "on_match": then});
    json!({"matcher_list": {"matchers": [entry]}})
}

/// The texts of Envoy 1.40 for the refused forms: "Route table can only match on request headers", "Unsupported data
/// input type", "CEL expression not set", "Duplicate domain", "Invalid wildcard domain format", and "Empty domain".
#[test]
fn parts_of_a_matcher_must_fit_each_other() {
    let chain = json!({"action": {"name": "a", "typed_config":
        {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "a"}}});
    let domains = |domains: &[&str]| {
        let entry = json!({"domains": domains, "on_match": chain});
        let by_name = xds("ServerNameMatcher", &json!({"domain_matchers": [entry]}));
        let tree = json!({"input": text("ServerNameInput"), "custom_match": by_name});
        chains_by(&json!({"matcher_tree": tree}))
    };
    let access = |input: &Json, rest: (&str, Json)| {
        let action = typed("config.rbac.v3.Action", &json!({"name": "a"}));
        let matcher =
            predicate(input, rest, &json!({"action": {"name": "a", "typed_config": action}}));
        let config = typed("extensions.filters.http.rbac.v3.RBAC", &json!({"matcher": matcher}));
        http_filters(&[json!({"name": "rbac", "typed_config": config}), router()])
    };
    let hosts_by = |input: &Json| {
        let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "c"}});
        let action = json!({"name": "r", "typed_config": typed("config.route.v3.Route", &route)});
        let matcher =
            predicate(input, ("value_match", json!({"exact": "a"})), &json!({"action": action}));
        routes(&json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "matcher": matcher}]}))
    };
    let value = || ("value_match", json!({"exact": "a"}));
    let cel =
        |expression: Json| ("custom_match", xds("CelMatcher", &json!({"expr_match": expression})));
    let parsed =
        || json!({"cel_expr_parsed": {"expr": {"id": 1, "const_expr": {"bool_value": true}}}});
    let attributes = xds("HttpAttributesCelMatchInput", &json!({}));
    let header = json!({"name": "i", "typed_config":
        typed("type.matcher.v3.HttpRequestHeaderMatchInput", &json!({"header_name": "a"}))});
    let query = json!({"name": "i", "typed_config":
        typed("type.matcher.v3.HttpRequestQueryParamMatchInput", &json!({"query_param": "a"}))});
    let found = |document: &Json| findings(document).join(" ");
    for (document, end) in [
        (domains(&["*", "*.a.b", "a.b", "A.b"]), ""),
        (domains(&["a.b", "a.b"]), "domains[1]: matcher.domain"),
        (domains(&["a*.b"]), "domains[0]: matcher.domain"),
        (domains(&["*.a*"]), "domains[0]: matcher.domain"),
        (domains(&[""]), "domains[0]: matcher.domain"),
        (access(&attributes, cel(parsed())), ""),
        (access(&attributes, cel(json!({}))), "expr_match: matcher.expression"),
        (
            access(&attributes, cel(json!({"cel_expr_string": "true"}))),
            "expr_match: matcher.expression",
        ),
        (access(&attributes, value()), "value_match: matcher.type"),
        (access(&header, cel(parsed())), "input: matcher.type"),
        (access(&header, value()), ""),
        (chains_by(&predicate(&attributes, cel(parsed()), &chain)), "input: matcher.type"),
        (chains_by(&predicate(&text("ServerNameInput"), value(), &chain)), ""),
        (hosts_by(&header), ""),
        (hosts_by(&query), "input: matcher.type"),
        (hosts_by(&text("DestinationPortInput")), "input: matcher.type"),
    ] {
        let found = found(&document);
        assert!(found.ends_with(end) && found.is_empty() == end.is_empty(), "{document}: {found}");
    }
}
