//! The conditions and actions of routes.

use serde_json::{Value, json};

use crate::support::{node_with, node_with_routes, shown};

fn to(cluster: &str, matcher: Value) -> Value {
    json!({"match": matcher, "route": {"cluster": cluster}})
}

#[test]
fn first_route_whose_path_matches_wins() {
    node_with_routes(json!([
        to("a", json!({"path": "/exact"})),
        to("b", json!({"path": "/Case", "case_sensitive": false})),
        to("c", json!({"safe_regex": {"regex": "/v[0-9]+"}})),
        to("a", json!({"path_separated_prefix": "/api"})),
        to("b", json!({"prefix": "/ap"})),
        to("c", json!({"path_match_policy": {"name": "t", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig",
            "path_template": "/t/{id}/x",
        }}})),
    ]))
    .check(&[
        ("http://h/exact?q", &[], "a"),
        ("http://h/exact/", &[], "no route"),
        ("http://h/cASE", &[], "b"),
        ("http://h/v12?x", &[], "c"),
        ("http://h/v12/x", &[], "no route"),
        ("http://h/api", &[], "a"),
        ("http://h/api/x", &[], "a"),
        ("http://h/apix", &[], "b"),
        ("http://h/t/7/x", &[], "c"),
        ("http://h/t/7/8/x", &[], "no route"),
    ]);
}

#[test]
fn headers_select_a_route() {
    let header = |fields: Value| {
        let mut header = json!({"name": "x-h"});
        header.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        node_with_routes(json!([
            to("a", json!({"prefix": "/", "headers": [header]})),
            to("b", json!({"prefix": "/"})),
        ]))
    };
    for (matcher, yes, no) in [
        (json!({"string_match": {"exact": "v"}}), ["v"].as_slice(), ["V", "", "v,v"].as_slice()),
        (json!({"string_match": {"prefix": "V", "ignore_case": true}}), &["v1"], &["1v"]),
        (json!({"string_match": {"suffix": "v"}}), &["1v"], &["v1"]),
        (json!({"string_match": {"contains": "v"}}), &["1v1"], &["11"]),
        (json!({"string_match": {"safe_regex": {"regex": "v+"}}}), &["vv"], &["vva"]),
        (json!({"exact_match": "v"}), &["v"], &["w"]),
        (json!({"exact_match": ""}), &["v", ""], &[]),
        (json!({"prefix_match": "v"}), &["v1"], &["1v"]),
        (json!({"suffix_match": "v"}), &["1v"], &["v1"]),
        (json!({"contains_match": "v"}), &["1v1"], &["11"]),
        (json!({"safe_regex_match": {"regex": "v|w"}}), &["w"], &["vw"]),
        (json!({"range_match": {"start": -1, "end": 5}}), &["-1", "4"], &["5", "x", "1.0"]),
        (json!({"present_match": true}), &["v", ""], &[]),
        (json!({"present_match": false}), &[], &["v"]),
        (json!({"invert_match": true, "string_match": {"exact": "v"}}), &["w"], &["v"]),
        (json!({}), &["v"], &[]),
    ] {
        let node = header(matcher.clone());
        let cases = yes.iter().map(|value| (value, "a")).chain(no.iter().map(|value| (value, "b")));
        for (value, expected) in cases {
            let walk = node.walk("http://h/", &[&format!("x-h: {value}")]);
            assert_eq!(shown(&walk.end), expected, "{matcher} {value:?}");
        }
    }
    // Without the header, only a condition on its absence holds.
    for (matcher, expected) in [
        (json!({"present_match": false}), "a"),
        (json!({"present_match": true, "invert_match": true}), "a"),
        (json!({"string_match": {"exact": "v"}, "invert_match": true}), "b"),
        (json!({"treat_missing_header_as_empty": true, "string_match": {"exact": ""}}), "a"),
        (
            json!({"treat_missing_header_as_empty": true, "invert_match": true, "string_match": {"exact": "v"}}),
            "a",
        ),
        (json!({"treat_missing_header_as_empty": true, "present_match": true}), "a"),
        (json!({"string_match": {"exact": ""}}), "b"),
        (json!({}), "b"),
    ] {
        let walk = header(matcher.clone()).walk("http://h/", &[]);
        assert_eq!(shown(&walk.end), expected, "{matcher}");
    }
    // One of several values suffices, and they are not joined.
    let second = header(json!({"string_match": {"exact": "2"}}));
    second.check(&[("http://h/", &["x-h: 1", "X-H: 2"], "a")]);
    let joined = header(json!({"string_match": {"exact": "1,2"}}));
    joined.check(&[("http://h/", &["x-h: 1", "X-H: 2"], "b"), ("http://h/", &["x-h: 1,2"], "a")]);
}

#[test]
fn pseudo_headers_query_parameters_and_cookies_select_a_route() {
    let all = |matcher: Value| to("a", json!({"prefix": "/", "headers": [matcher]}));
    node_with_routes(json!([
        all(json!({"name": ":method", "string_match": {"exact": "PUT"}})),
        to(
            "b",
            json!({"prefix": "/", "query_parameters": [
                {"name": "q", "string_match": {"exact": "1"}},
                {"name": "r"},
            ]})
        ),
        to("c", json!({"prefix": "/", "query_parameters": [{"name": "s", "present_match": true}]})),
        all(json!({"name": "x-forwarded-proto", "string_match": {"exact": "https"}})),
        to("c", json!({"prefix": "/", "cookies": [{"name": "c", "string_match": {"exact": "v"}}]})),
        to("b", json!({"prefix": "/", "grpc": {}})),
    ]))
    .check(&[
        ("http://h/?q=1&r", &[], "b"),
        ("http://h/?q=2&q=1&r", &[], "no route"),
        ("http://h/?q=%31&r", &[], "no route"),
        ("http://h/?s=", &[], "c"),
        ("http://h/?ss", &["x-forwarded-proto: https"], "a"),
        ("http://h/", &["cookie: b=1; c=\"v\""], "c"),
        ("http://h/", &["content-type: application/grpc+proto"], "b"),
        ("http://h/", &["content-type: application/grpcx"], "no route"),
    ]);
    let put = node_with_routes(json!([all(
        json!({"name": ":method", "string_match": {"exact": "PUT"}})
    )]));
    assert_eq!(shown(&put.ask("PUT", "http://h/", &[]).resolutions[0].end), "a");
}

#[test]
fn connect_matches_only_its_own_routes() {
    let node = node_with_routes(json!([
        to("a", json!({"prefix": "/"})),
        to("b", json!({"connect_matcher": {}}))
    ]));
    assert_eq!(shown(&node.ask("CONNECT", "http://h/", &[]).resolutions[0].end), "b");
    node.check(&[("http://h/", &[], "a")]);
}

#[test]
fn undecided_condition_is_named_with_its_place_and_consequence() {
    let fraction = |numerator: u32| json!({"prefix": "/", "runtime_fraction": {"default_value": {"numerator": numerator}, "runtime_key": "k"}});
    let metadata = json!({"prefix": "/", "dynamic_metadata": [
        {"filter": "f", "path": [{"key": "k"}], "value": {"present_match": true}},
    ]});
    let node = node_with_routes(json!([
        to("a", fraction(0)),
        to("b", fraction(30)),
        to("c", metadata),
        to(
            "c",
            json!({"prefix": "/", "headers": [{"name": "x-request-id", "present_match": false}]})
        ),
        to("a", json!({"path": "/no", "runtime_fraction": {"default_value": {"numerator": 1}}})),
        to("a", fraction(100)),
    ]));
    let walk = node.walk("http://h/", &[]);
    assert_eq!(shown(&walk.end), "a");
    let undecided: Vec<String> = walk
        .undecided
        .iter()
        .map(|one| format!("{}: {} -> {}", one.place, one.reason, one.otherwise))
        .collect();
    let place = "virtual_hosts[0].routes";
    assert_eq!(
        undecided,
        [
            format!(
                "{place}[1].match.runtime_fraction: it holds for 30 of 100 requests (runtime key \"k\") -> cluster \"b\""
            ),
            format!(
                "{place}[2].match.dynamic_metadata: filters set the metadata of a request -> cluster \"c\""
            ),
            format!(
                "{place}[3].match.headers[0]: the node sets the header \"x-request-id\" itself -> cluster \"c\""
            ),
        ]
    );
    let route = walk.steps.last().unwrap();
    assert_eq!(route.skipped[0].reason, "runtime_fraction is 0");
    assert_eq!(route.skipped.len(), 5);
}

#[test]
fn actions_name_clusters_with_rewrites() {
    node_with_routes(json!([
        {"match": {"prefix": "/w"}, "route": {"weighted_clusters": {"clusters": [
            {"name": "a", "weight": 30}, {"name": "b", "weight": 70}, {"name": "c", "weight": 0},
        ]}}},
        {"match": {"prefix": "/p/"}, "route": {
            "cluster": "a", "prefix_rewrite": "/q/", "host_rewrite_literal": "other",
        }},
        {"match": {"prefix": "/r"}, "route": {"cluster": "a", "regex_rewrite": {
            "pattern": {"regex": "^/r/([^/]+)/(.*)$"}, "substitution": "/\\2/\\1",
        }}},
        {"match": {"prefix": "/h"}, "route": {"cluster_header": "x-cluster"}},
        {"match": {"prefix": "/d"}, "direct_response": {"status": 204}},
        {"match": {"prefix": "/n"}, "non_forwarding_action": {}},
    ]))
    .check(&[
        ("http://h/w", &[], "a=30 b=70"),
        ("http://h/p/x?y=/p/", &[], "a path /q/x?y=/p/ host other"),
        ("http://h/r/1/2?z", &[], "a path /2/1?z"),
        ("http://h/h", &["x-cluster: c"], "c"),
        ("http://h/d", &[], "204"),
        ("http://h/n", &[], "non forwarding"),
    ]);
}

#[test]
fn cluster_header_without_value_is_undecided() {
    let node = node_with_routes(
        json!([{"match": {"prefix": "/"}, "route": {"cluster_header": "x-cluster"}}]),
    );
    let walk = node.walk("http://h/", &[]);
    assert_eq!(shown(&walk.end), "undecided");
    assert_eq!(walk.undecided[0].place, "virtual_hosts[0].routes[0].route.cluster_header");
}

#[test]
fn redirect_has_its_location() {
    let redirect =
        |matcher: Value, redirect: Value| json!({"match": matcher, "redirect": redirect});
    node_with_routes(json!([
        redirect(json!({"prefix": "/tls"}), json!({"https_redirect": true})),
        redirect(
            json!({"prefix": "/host"}),
            json!({"host_redirect": "new", "port_redirect": 8443, "response_code": "FOUND"})
        ),
        redirect(
            json!({"prefix": "/port"}),
            json!({"port_redirect": 81, "response_code": "TEMPORARY_REDIRECT"})
        ),
        redirect(
            json!({"prefix": "/path"}),
            json!({"path_redirect": "/new", "response_code": "SEE_OTHER"})
        ),
        redirect(
            json!({"prefix": "/query"}),
            json!({"path_redirect": "new?a=b", "strip_query": true})
        ),
        redirect(
            json!({"prefix": "/prefix/"}),
            json!({"prefix_rewrite": "/", "strip_query": true})
        ),
        redirect(
            json!({"prefix": "/regex"}),
            json!({"response_code": "PERMANENT_REDIRECT", "regex_rewrite": {
                "pattern": {"regex": "/regex/(\\d+)"}, "substitution": "/n/\\1",
            }})
        ),
    ]))
    .check(&[
        ("http://h/tls?x", &[], "301 https://h/tls?x"),
        ("http://h/tls", &["host: h:80"], "301 https://h/tls"),
        ("http://h/tls", &["host: h:8080"], "301 https://h:8080/tls"),
        ("http://h/host", &[], "302 http://new:8443/host"),
        ("http://h/port", &["host: h:8080"], "307 http://h:81/port"),
        ("http://h/path?x", &[], "303 http://h/new?x"),
        ("http://h/query?x", &[], "301 http://h/new?a=b"),
        ("http://h/prefix/a?x", &[], "301 http://h/a"),
        ("http://h/regex/7/x?y", &[], "308 http://h/n/7/x?y"),
    ]);
}

#[test]
fn path_is_normalized_as_configured() {
    let routes = json!([to("a", json!({"path": "/a/b"})), to("b", json!({"prefix": "/"}))]);
    let config = json!({"name": "r", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]});
    let plain = node_with(json!({"route_config": config}));
    plain.check(&[("http://h/a/x/../b", &[], "b"), ("http://h/a//b", &[], "b")]);
    let normal =
        node_with(json!({"route_config": config, "normalize_path": true, "merge_slashes": true}));
    normal.check(&[("http://h/a/x/../b", &[], "a"), ("http://h//a//b?c=//", &[], "a")]);
    let walk = normal.walk("http://h/a%2Fb", &[]);
    assert_eq!(walk.undecided[0].place, "normalize_path");
    let mut config = config;
    config["ignore_path_parameters_in_path_matching"] = true.into();
    node_with(json!({"route_config": config})).check(&[("http://h/a/b;c=1", &[], "a")]);
}
