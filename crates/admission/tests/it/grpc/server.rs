//! Filter chains of gRPC servers, and their RBAC filter.

use serde_json::{Value as Json, json};

use super::{
    assert_accepted, assert_refused,
    listener::{chain, filter, manager, router, server},
    shown,
};

const AT: &str = "filter_chains[0].filters[0].typed_config.http_filters[0].typed_config.rules";

fn rules(rules: &Json) -> Json {
    let filter = filter("rbac.v3.RBAC", &json!({"rules": rules}));
    let manager = manager(&json!({"http_filters": [filter, router()]}));
    server(&json!({
        "filter_chains": [chain(&json!({"filters": [{"name": "hcm", "typed_config": manager}]}))],
    }))
}

fn permission(permission: &Json, action: &str) -> Json {
    let policy = json!({"permissions": [permission], "principals": [{"any": true}]});
    rules(&json!({"action": action, "policies": {"p": policy}}))
}

/// Returns the refusals of clients that have the filter, without the long path of the permission.
fn refused(resource: &Json) -> Vec<String> {
    let shown = shown(&super::found("grpc-cpp grpc-go", resource));
    let short = |text: String| text.rsplit("ons[0].").next().unwrap_or_default().to_owned();
    shown.into_iter().map(short).collect()
}

/// GRPCV-71: Go parses the ranges of addresses.
#[test]
fn range_of_addresses_that_is_not_valid_is_refused_by_go() {
    let range = |address: &str, len: u32| {
        let range = json!({"address_prefix": address, "prefix_len": len});
        permission(&json!({"not_rule": {"destination_ip": range}}), "ALLOW")
    };
    let at = "not_rule.destination_ip";
    assert_eq!(refused(&range("10.0.0.0", 8)), [""; 0]);
    for (resource, field) in [
        (range("a", 8), "address_prefix"),
        (range("fe80::1%lo", 8), "address_prefix"),
        (range("10.0.0.0", 33), "prefix_len"),
    ] {
        assert_eq!(refused(&resource), [format!("{at}.{field}: grpc.rbac: Go")]);
    }
}

/// GRPCV-71: the headers of a policy. Go reads those of policies without effect too.
#[test]
fn header_of_a_policy_that_is_not_valid_is_refused() {
    let header = |rest: &Json, action| {
        permission(
            &json!({"and_rules": {"rules": [{"header": super::with(json!({"name": "x"}), rest)}]}}),
            action,
        )
    };
    let at = "and_rules.rules[0].header";
    for (rest, action, expected) in [
        (
            json!({"range_match": {"start": 2, "end": 1}}),
            "DENY",
            Some(".range_match: grpc.rbac: C++"),
        ),
        (
            json!({"safe_regex_match": {"regex": "("}}),
            "DENY",
            Some(".safe_regex_match.regex: grpc.regex: C++, Go"),
        ),
        (json!({"name": ":scheme", "exact_match": "a"}), "LOG", Some(".name: grpc.rbac: Go")),
        (json!({"safe_regex_match": {"regex": "("}}), "LOG", None),
    ] {
        let expected: Vec<String> = expected.iter().map(|rest| format!("{at}{rest}")).collect();
        assert_eq!(refused(&header(&rest, action)), expected, "{rest} {action}");
    }
}

/// GRPCV-71: Go reads optional audit loggers too.
#[test]
fn unknown_audit_logger_is_refused_by_go() {
    let logger = |config: &Json| {
        let logger = super::with(json!({"name": "l"}), config);
        let configs = json!([{"is_optional": true, "audit_logger": logger}]);
        let options = json!({"audit_condition": "ON_DENY", "logger_configs": configs});
        rules(&json!({"audit_logging_options": options}))
    };
    let stdout = super::any("extensions.rbac.audit_loggers.stream.v3.StdoutAuditLog", &json!({}));
    assert_eq!(refused(&logger(&json!({"typed_config": stdout}))), [""; 0]);
    let at = format!("{AT}.audit_logging_options.logger_configs[0]: grpc.rbac: Go");
    assert_eq!(refused(&logger(&json!({}))), [at.as_str()]);
    assert_eq!(refused(&logger(&json!({"typed_config": router()["typed_config"]}))), [at]);
}

/// GRPCV-12: a chain names each connection once, and Java and Node compare all chains.
#[test]
fn chain_that_matches_connections_twice_is_refused() {
    let matching = |criteria: &Json| chain(&json!({"filter_chain_match": criteria}));
    let one = |criteria: &Json| server(&json!({"filter_chains": [matching(criteria)]}));
    let id = "filter_chains[0]: grpc.filter_chain_match: C++, Go, Java, Node";
    let ranges = json!([
        {"address_prefix": "10.0.0.0", "prefix_len": 8},
        {"address_prefix": "10.1.0.0", "prefix_len": 8},
    ]);
    assert_accepted(&[one(&json!({"source_ports": [1, 2]}))]);
    // Java compares the addresses with the bits that do not count.
    let masked = "filter_chains[0]: grpc.filter_chain_match: C++, Go, Node";
    let equal = json!([ranges[0], ranges[0]]);
    assert_refused(&[
        (one(&json!({"source_ports": [1, 1]})), &[id]),
        (one(&json!({"prefix_ranges": equal})), &[id]),
        (one(&json!({"prefix_ranges": ranges})), &[masked]),
        (one(&json!({"source_prefix_ranges": ranges})), &[masked]),
    ]);
    let names = json!({"server_names": ["a"]});
    let three =
        json!([matching(&names), matching(&names), matching(&json!({"source_ports": [1]}))]);
    let others =
        json!([matching(&names), matching(&json!({"server_names": ["b"]})), chain(&json!({}))]);
    assert_accepted(&[server(&json!({"filter_chains": others}))]);
    assert_refused(&[(
        server(&json!({"filter_chains": three})),
        &["filter_chains[1]: grpc.filter_chain_match: Java, Node"],
    )]);
}

/// GRPCV-12: the addresses of ranges.
#[test]
fn address_of_a_chain_is_read_by_each_client() {
    let range = |address: &str, len: u32, rest: &Json| {
        let ranges = json!({"prefix_ranges": [{"address_prefix": address, "prefix_len": len}]});
        let criteria = json!({"filter_chain_match": super::with(ranges, rest)});
        server(&json!({"filter_chains": [chain(&criteria), chain(&json!({}))]}))
    };
    let none = json!({});
    let at = "filter_chains[0].filter_chain_match.prefix_ranges[0]";
    let id = "grpc.address_range";
    assert_accepted(&[range("10.0.0.0", 32, &none), range("::1", 128, &none)]);
    assert_refused(&[
        (range("10.0.0.0", 33, &none), &[&format!("{at}.prefix_len: {id}: Go")]),
        (
            range("::ffff:10.0.0.1", 96, &none),
            &[&format!("{at}.address_prefix: {id}: Node"), &format!("{at}.prefix_len: {id}: Go")],
        ),
        // Go drops a chain for server names after it has read the destination.
        (
            range("a", 8, &json!({"server_names": ["b"]})),
            &[&format!("{at}.address_prefix: {id}: C++, Go, Java, Node")],
        ),
        (
            range("a", 8, &json!({"destination_port": 80})),
            &[&format!("{at}.address_prefix: {id}: C++, Java, Node")],
        ),
    ]);
}
