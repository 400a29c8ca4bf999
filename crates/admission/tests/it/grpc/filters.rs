//! HTTP filters that only some clients have, and overrides in their forms.

use serde_json::{Value as Json, json};

use super::{
    any, assert_accepted, assert_refused, found,
    listener::{CONFIG, api, filter, filters, manager, router, without},
    route::{ROUTE, route},
    shown,
};

fn typed_struct(url: &str) -> Json {
    json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": url, "value": {}})
}

fn optional(config: &Json) -> Json {
    filters(&json!([{"name": "f", "is_optional": true, "typed_config": config}, router()]))
}

const FAULT: &str = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";

/// GRPCV-04, -70: C-core's stateful sessions use cookies.
#[test]
fn stateful_session_without_a_named_cookie_is_refused_by_cpp() {
    let session = |state: &Json| {
        let config = json!({"session_state": {"name": "s", "typed_config": state}});
        let filter = filter("stateful_session.v3.StatefulSession", &config);
        filters(&json!([filter, router()]))
    };
    let cookie = |cookie: &Json| {
        let name = "extensions.http.stateful_session.cookie.v3.CookieBasedSessionState";
        session(&any(name, cookie))
    };
    let header = any(
        "extensions.http.stateful_session.header.v3.HeaderBasedSessionState",
        &json!({"name": "x"}),
    );
    let refused = |resource: &Json| shown(&found("grpc-cpp", resource));
    assert_eq!(refused(&cookie(&json!({"cookie": {"name": "c", "ttl": "3s"}}))), [""; 0]);
    let at = format!("{CONFIG}.http_filters[0].typed_config.session_state.typed_config");
    let id = "grpc.stateful_session: C++";
    for (resource, path) in [
        (session(&header), at.clone()),
        (cookie(&json!({})), format!("{at}.cookie")),
        (cookie(&json!({"cookie": {"ttl": "3s"}})), format!("{at}.cookie.name")),
        (cookie(&json!({"cookie": {"name": "c", "ttl": "-3s"}})), format!("{at}.cookie.ttl")),
    ] {
        assert_eq!(refused(&resource), [format!("{path}: {id}")], "{resource:#}");
    }
}

/// GRPCV-05: filters take their own messages. C-core reads the type URL of a `TypedStruct` always, and Go and Node
/// compare it as a whole.
#[test]
fn typed_struct_of_a_known_filter_is_refused() {
    let at = format!("{CONFIG}.http_filters[0].typed_config: grpc.http_filter");
    assert_accepted(&[optional(&typed_struct("type.googleapis.com/acme.Filter"))]);
    assert_refused(&[
        (optional(&typed_struct(FAULT)), &[&format!("{at}: C++, Go, Java, Node")]),
        (optional(&typed_struct("acme.Filter")), &[&format!("{at}: C++")]),
    ]);
    let url = "a/envoy.extensions.filters.http.fault.v3.HTTPFault";
    assert_refused(&[(optional(&typed_struct(url)), &[&format!("{at}: C++, Java")])]);
    // Go has the filter on the other side.
    let rbac = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    let per_route = any("extensions.filters.http.rbac.v3.RBACPerRoute", &json!({}));
    assert_refused(&[
        (optional(&typed_struct(rbac)), &[&format!("{at}: Go")]),
        (optional(&per_route), &[&format!("{at}: Go")]),
    ]);
}

/// GRPCV-34: the forms of an override.
#[test]
fn override_in_a_form_that_a_client_cannot_read_is_refused() {
    let overriding = |config: &Json| route(&json!({"typed_per_filter_config": {"f": config}}));
    let wrapped = |config: &Json| {
        any("config.route.v3.FilterConfig", &json!({"is_optional": true, "config": config}))
    };
    let fault = || any("extensions.filters.http.fault.v3.HTTPFault", &json!({}));
    let at = format!("{ROUTE}.typed_per_filter_config[\"f\"]");
    let id = "grpc.filter_override";
    assert_accepted(&[
        overriding(&fault()),
        overriding(&wrapped(&typed_struct("type.googleapis.com/acme.Filter"))),
    ]);
    assert_refused(&[
        (overriding(&typed_struct(FAULT)), &[&format!("{at}: {id}: C++, Go, Java, Node")]),
        (
            overriding(&wrapped(&typed_struct(FAULT))),
            &[&format!("{at}.config: {id}: C++, Go, Java")],
        ),
        (overriding(&wrapped(&typed_struct("acme"))), &[&format!("{at}.config: {id}: C++")]),
        (overriding(&wrapped(&fault())), &[&format!("{at}.config: {id}: Node")]),
    ]);
}

/// GRPCV-73: clients with gRFC A103 bound the depth of composite filters. Others ignore an optional one.
#[test]
fn composite_filter_of_more_than_eight_levels_is_a_warning() {
    let mut inner = any("extensions.filters.http.fault.v3.HTTPFault", &json!({}));
    let mut at_depth = Vec::new();
    for _ in 0..9 {
        let action = any(
            "extensions.filters.http.composite.v3.ExecuteFilterAction",
            &json!({"typed_config": {"name": "f", "typed_config": inner}}),
        );
        inner = any(
            "extensions.common.matching.v3.ExtensionWithMatcher",
            &json!({
                "extension_config": {
                    "name": "c",
                    "typed_config": any("extensions.filters.http.composite.v3.Composite", &json!({})),
                },
                "xds_matcher": {"on_no_match": {"action": {"name": "a", "typed_config": action}}},
            }),
        );
        at_depth.push(inner.clone());
    }
    assert_eq!(shown(&found("grpc-cpp", &optional(&at_depth[7]))), [""; 0]);
    let at = format!("{CONFIG}.http_filters[0].typed_config: grpc.composite");
    assert_eq!(shown(&found("grpc-cpp", &optional(&at_depth[8]))), [at]);
}

/// GRPCV-14: servers have routes without forwarding, and clients have others.
#[test]
fn route_with_an_action_of_the_other_side_is_reported() {
    let none = json!({"match": {"prefix": "/"}, "non_forwarding_action": {}});
    let forward = json!({"match": {"prefix": "/"}, "route": {"cluster": "c"}});
    let inline = |route: &Json| {
        let routes = json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [route]}]});
        without(manager(&json!({"route_config": routes})), "rds")
    };
    let server = |route: &Json| {
        let chain = json!({"filters": [{"name": "hcm", "typed_config": inline(route)}]});
        super::listener::server(&json!({"filter_chains": [chain]}))
    };
    let at = "virtual_hosts[0].routes[0]: grpc.route_action";
    let client_at = format!("{CONFIG}.route_config.{at}");
    assert_eq!(shown(&found("grpc-go", &server(&none))), [""; 0]);
    assert_eq!(shown(&found("grpc-go", &api(&inline(&forward)))), [""; 0]);
    let problems = found("grpc-go", &server(&forward));
    let path = format!("filter_chains[0].filters[0].typed_config.route_config.{at}");
    assert_eq!(shown(&problems), [path]);
    assert!(problems[0].rule.starts_with("gRPC servers fail the requests"), "{problems:?}");
    assert_eq!(shown(&found("grpc-go", &api(&inline(&none)))), [client_at.as_str()]);
    assert_eq!(
        shown(&found("grpc-node", &api(&inline(&none)))),
        [format!("{client_at}: Node")],
        "the process of the client ends"
    );
}
