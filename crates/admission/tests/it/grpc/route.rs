//! Route configurations.

use serde_json::{Value as Json, json};

use super::{any, assert_accepted, assert_refused, found, shown, with};

pub(super) fn config(rest: &Json) -> Json {
    any("config.route.v3.RouteConfiguration", &with(json!({"name": "r"}), rest))
}

pub(super) fn host(rest: &Json) -> Json {
    config(&json!({"virtual_hosts": [with(json!({"name": "v", "domains": ["*"]}), rest)]}))
}

pub(super) fn route(rest: &Json) -> Json {
    let base = json!({"match": {"prefix": "/"}, "route": {"cluster": "c"}});
    host(&json!({"routes": [with(base, rest)]}))
}

pub(super) fn matching(criteria: &Json) -> Json {
    route(&json!({"match": criteria}))
}

pub(super) fn action(rest: &Json) -> Json {
    route(&json!({"route": rest}))
}

pub(super) const ROUTE: &str = "virtual_hosts[0].routes[0]";

/// GRPCV-25: a path is matched by prefix, path or a valid regular expression.
#[test]
fn route_with_another_path_matcher_is_refused() {
    let regex = |text: &str| matching(&json!({"safe_regex": {"regex": text}}));
    assert_accepted(&[matching(&json!({"path": "/a/b"})), regex("/a/.*")]);
    let id = "grpc.path_matcher: C++, Go, Java, Node";
    let bare = host(&json!({"routes": [{"route": {"cluster": "c"}}]}));
    assert_refused(&[
        (bare, &[&format!("{ROUTE}.match: {id}")]),
        (matching(&json!({"connect_matcher": {}})), &[&format!("{ROUTE}.match: {id}")]),
        (matching(&json!({"path_separated_prefix": "/a"})), &[&format!("{ROUTE}.match: {id}")]),
        (
            regex("("),
            &[&format!("{ROUTE}.match.safe_regex.regex: grpc.regex: C++, Go, Java, Node")],
        ),
        // Node compiles the expression between anchors.
        (regex("*a"), &[&format!("{ROUTE}.match.safe_regex.regex: grpc.regex: C++, Go, Java")]),
    ]);
}

/// GRPCV-26: clients other than Node skip a route with query parameters.
#[test]
fn route_with_query_parameters_is_read_only_by_node() {
    let criteria = json!({"query_parameters": [{"name": "a"}], "connect_matcher": {}});
    assert_refused(&[(matching(&criteria), &[&format!("{ROUTE}.match: grpc.path_matcher: Node")])]);
}

/// GRPCV-27: the forms of header matchers.
#[test]
fn header_matcher_without_a_known_form_is_refused() {
    let header = |rest: &Json| {
        matching(&json!({"prefix": "/", "headers": [with(json!({"name": "x"}), rest)]}))
    };
    assert_accepted(&[
        header(&json!({"string_match": {"exact": "a"}})),
        header(&json!({"present_match": true})),
        header(&json!({"range_match": {"start": 1, "end": 2}})),
        header(&json!({"prefix_match": "a"})),
    ]);
    let at = format!("{ROUTE}.match.headers[0]");
    let id = "grpc.header_matcher";
    assert_refused(&[
        (header(&json!({})), &[&format!("{at}: {id}: C++, Go, Java")]),
        (header(&json!({"contains_match": "a"})), &[&format!("{at}.contains_match: {id}: Node")]),
        (
            header(&json!({"suffix_match": ""})),
            &[&format!("{at}.suffix_match: {id}: Go 1.76 and later")],
        ),
        (
            header(&json!({"string_match": {}})),
            &[&format!("{at}.string_match: grpc.matcher: C++, Go, Java")],
        ),
        (
            header(&json!({"string_match": {"prefix": ""}})),
            &[&format!("{at}.string_match.prefix: grpc.matcher: Go")],
        ),
        (
            header(&json!({"range_match": {"start": 2, "end": 1}})),
            &[&format!("{at}.range_match: {id}: C++")],
        ),
    ]);
}

/// GRPCV-28: actions other than `route` fail requests, and Java and Node refuse them.
#[test]
fn other_actions_are_refused_by_java_and_node() {
    let redirect =
        host(&json!({"routes": [{"match": {"prefix": "/"}, "redirect": {"path_redirect": "/a"}}]}));
    let found = shown(&found("grpc-cpp grpc-go grpc-java grpc-node", &redirect));
    assert_eq!(
        found,
        [format!("{ROUTE}: grpc.route_action: Java, Node"), format!("{ROUTE}: grpc.route_action")],
        "the second one is a warning"
    );
    let none = host(&json!({"routes": [{"match": {"prefix": "/"}, "non_forwarding_action": {}}]}));
    assert_accepted(&[none, action(&json!({"cluster_header": "x"}))]);
    assert_refused(&[(
        action(&json!({"cluster": ""})),
        &[&format!("{ROUTE}.route.cluster: grpc.route_cluster: C++")],
    )]);
}

/// GRPCV-35: the host is rewritten only for a server that the bootstrap trusts, which the server does not know.
#[test]
fn rewrite_of_the_host_is_a_warning() {
    let rewrite = |is_on: bool| action(&json!({"cluster": "c", "auto_host_rewrite": is_on}));
    let problems = found("grpc-go", &rewrite(true));
    assert_eq!(shown(&problems), [format!("{ROUTE}.route.auto_host_rewrite: grpc.host_rewrite")]);
    assert!(problems[0].rule.contains("trusted_xds_server"), "{problems:?}");
    assert_eq!(shown(&found("grpc-go", &rewrite(false))), [""; 0]);
}

/// GRPCV-29: weighted clusters have a sum from 1 to 4294967295.
#[test]
fn weighted_clusters_without_weights_are_refused() {
    let weighted = |clusters: &Json| action(&json!({"weighted_clusters": {"clusters": clusters}}));
    assert_accepted(&[weighted(&json!([{"name": "a", "weight": 0}, {"name": "b", "weight": 1}]))]);
    let at = format!("{ROUTE}.route.weighted_clusters.clusters");
    let id = "grpc.weighted_clusters";
    let sum = format!("{at}: {id}: C++, Go, Java, Node");
    assert_refused(&[
        (weighted(&json!([{"name": "a", "weight": 0}])), &[&sum]),
        (
            weighted(
                &json!([{"name": "a", "weight": 4_294_967_295_u32}, {"name": "b", "weight": 1}]),
            ),
            &[&sum],
        ),
        (
            weighted(&json!([{"weight": 1}, {"name": "b"}])),
            &[&format!("{at}[0].name: {id}: C++"), &format!("{at}[1].weight: {id}: C++")],
        ),
    ]);
}

/// GRPCV-30: a cluster specifier plugin is known, optional, or refused.
#[test]
fn unknown_cluster_specifier_plugin_is_refused() {
    let with_plugin = |plugin: &Json, name: &str| {
        let routes =
            json!([{"match": {"prefix": "/"}, "route": {"cluster_specifier_plugin": name}}]);
        let host = json!({"name": "v", "domains": ["*"], "routes": routes});
        config(&json!({"cluster_specifier_plugins": [plugin], "virtual_hosts": [host]}))
    };
    let custom = json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "x/my.Plugin", "value": {}});
    let plugin = json!({"extension": {"name": "p", "typed_config": custom}});
    let id = "grpc.specifier_plugin";
    let at = format!("{ROUTE}.route.cluster_specifier_plugin");
    assert_refused(&[
        (
            with_plugin(&plugin, "p"),
            &[
                &format!(
                    "cluster_specifier_plugins[0].extension.typed_config: {id}: C++, Go, Java"
                ),
                &format!("{at}: {id}: Node"),
            ],
        ),
        (
            with_plugin(&with(plugin.clone(), &json!({"is_optional": true})), "p"),
            &[&format!("{at}: {id}: Node")],
        ),
        (
            with_plugin(&with(plugin, &json!({"is_optional": true})), "q"),
            &[&format!("{at}: {id}: Node"), &format!("{at}: {id}: C++, Go, Java")],
        ),
    ]);
}

/// GRPCV-31: retries have a number and intervals.
#[test]
fn retry_policy_without_retries_is_refused() {
    let retry = |rest: &Json| action(&json!({"cluster": "c", "retry_policy": rest}));
    let backoff = |rest: &Json| retry(&json!({"retry_back_off": rest}));
    assert_accepted(&[
        retry(&json!({"retry_on": "unavailable,5xx", "num_retries": 3})),
        backoff(&json!({"base_interval": "0.025s", "max_interval": "1s"})),
    ]);
    let at = format!("{ROUTE}.route.retry_policy");
    let id = "grpc.retry";
    assert_refused(&[
        (retry(&json!({"num_retries": 0})), &[&format!("{at}.num_retries: {id}: C++, Go, Node")]),
        (
            backoff(&json!({})),
            &[&format!("{at}.retry_back_off.base_interval: {id}: C++, Go, Java, Node")],
        ),
        (
            backoff(&json!({"base_interval": "0s"})),
            &[&format!("{at}.retry_back_off.base_interval: {id}: Go, Java, Node")],
        ),
        (
            backoff(&json!({"base_interval": "0.0005s"})),
            &[&format!("{at}.retry_back_off.base_interval: {id}: Node")],
        ),
        (
            backoff(&json!({"base_interval": "1s", "max_interval": "0.5s"})),
            &[&format!("{at}.retry_back_off.max_interval: {id}: Java, Node")],
        ),
    ]);
}

/// GRPCV-32, -33: durations of streams, and hash policies.
#[test]
fn invalid_duration_and_hash_policy_are_refused() {
    let hash = |rest: &Json| action(&json!({"cluster": "c", "hash_policy": [rest]}));
    let rewrite = |regex: &str| json!({"pattern": {"regex": regex}, "substitution": "a"});
    let header = |regex: &str| {
        hash(&json!({"header": {"header_name": "x", "regex_rewrite": rewrite(regex)}}))
    };
    let stream = |rest: &Json| action(&json!({"cluster": "c", "max_stream_duration": rest}));
    assert_accepted(&[
        hash(&json!({"filter_state": {"key": "io.grpc.channel_id"}})),
        hash(&json!({"cookie": {"name": "a"}})),
        header("a"),
        // The first of the two counts.
        stream(&json!({"grpc_timeout_header_max": "1s", "max_stream_duration": "-1s"})),
    ]);
    assert_refused(&[
        (
            header("("),
            &[&format!(
                "{ROUTE}.route.hash_policy[0].header.regex_rewrite.pattern.regex: grpc.regex: C++, Go, Java, Node"
            )],
        ),
        (
            hash(&json!({"header": {}})),
            &[&format!("{ROUTE}.route.hash_policy[0].header.header_name: grpc.hash_policy: C++")],
        ),
        (
            stream(&json!({"max_stream_duration": "-1s"})),
            &[&format!(
                "{ROUTE}.route.max_stream_duration.max_stream_duration: grpc.max_stream_duration: C++"
            )],
        ),
    ]);
}

/// GRPCV-34: an override of a filter is known, or optional.
#[test]
fn unknown_filter_override_is_refused() {
    let overriding = |config: &Json| route(&json!({"typed_per_filter_config": {"f": config}}));
    let rbac = |name: &str| any(&format!("extensions.filters.http.rbac.v3.{name}"), &json!({}));
    let lua = || any("extensions.filters.http.lua.v3.LuaPerRoute", &json!({"disabled": true}));
    let optional = |config: &Json| {
        any("config.route.v3.FilterConfig", &json!({"is_optional": true, "config": config}))
    };
    assert_accepted(&[
        overriding(&optional(&lua())),
        overriding(&any("extensions.filters.http.fault.v3.HTTPFault", &json!({}))),
    ]);
    let at = format!("{ROUTE}.typed_per_filter_config[\"f\"]");
    let id = "grpc.filter_override";
    assert_refused(&[
        (overriding(&lua()), &[&format!("{at}: {id}: C++, Go, Java, Node")]),
        // Go panics, and rejects the resource.
        (
            overriding(&rbac("RBACPerRoute")),
            &[&format!("{at}: {id}: Node"), &format!("{at}.rbac: {id}: Go")],
        ),
        (overriding(&rbac("RBAC")), &[&format!("{at}: {id}: C++, Go, Java, Node")]),
        (overriding(&optional(&rbac("RBAC"))), &[&format!("{at}.config: {id}: Go, Java")]),
    ]);
}

/// Domains are checked by C-core and Node.
#[test]
fn domain_with_a_star_inside_is_refused() {
    let domain = |domain: &str| host(&json!({"domains": [domain]}));
    let at = "virtual_hosts[0].domains";
    assert_accepted(&[domain("*"), domain("*.a"), domain("a.*"), domain("a")]);
    assert_refused(&[
        (domain("a.*.b"), &[&format!("{at}[0]: grpc.domain: C++, Node")]),
        (domain("*.a.*"), &[&format!("{at}[0]: grpc.domain: Node")]),
        (host(&json!({"domains": []})), &[&format!("{at}: grpc.domain: C++")]),
    ]);
}
