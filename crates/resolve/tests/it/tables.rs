//! Virtual hosts, scopes, route tables that the node requests, and clusters.

use chancery_resolve::End;
use serde_json::{Value, json};

use crate::support::{Node, PREFIX, chain, cluster, listener, manager, node_with, shown};

fn host(name: &str, domains: &[&str], cluster: &str) -> Value {
    json!({"name": name, "domains": domains, "routes": [
        {"match": {"prefix": "/"}, "route": {"cluster": cluster}},
    ]})
}

fn table(name: &str, hosts: &[Value]) -> Value {
    json!({"@type": "config.route.v3.RouteConfiguration", "name": name, "virtual_hosts": hosts})
}

fn rds(name: &str) -> Value {
    json!({"rds": {"route_config_name": name, "config_source": {"ads": {}}}})
}

#[test]
fn host_is_matched_with_its_port_unless_it_is_removed() {
    let hosts = json!([host("one", &["h"], "a"), host("any", &["*"], "b")]);
    let config = json!({"name": "r", "virtual_hosts": hosts});
    let with = |field: &str, value: Value| {
        let mut fields = json!({"route_config": config});
        match field {
            "ignore_port_in_host_matching" | "vhost_header" => {
                fields["route_config"][field] = value
            }
            _ => fields[field] = value,
        }
        node_with(fields)
    };
    node_with(json!({"route_config": config}))
        .check(&[("http://H/", &[], "a"), ("http://h/", &["host: h:8080"], "b")]);
    with("strip_any_host_port", json!(true)).check(&[("http://h/", &["host: h:8080"], "a")]);
    with("strip_matching_host_port", json!(true))
        .check(&[("http://h/", &["host: h:80"], "a"), ("http://h/", &["host: h:81"], "b")]);
    with("ignore_port_in_host_matching", json!(true)).check(&[("http://h/", &["host: h:1"], "a")]);
    with("strip_trailing_host_dot", json!(true)).check(&[("http://h./", &[], "a")]);
    with("vhost_header", json!("x-host")).check(&[("http://other/", &["x-host: h"], "a")]);
}

#[test]
fn tls_requirement_redirects_plain_requests() {
    let mut one = host("one", &["*"], "a");
    one["require_tls"] = "ALL".into();
    let node = node_with(json!({"route_config": {"name": "r", "virtual_hosts": [one]}}));
    node.check(&[
        ("http://h/x?y", &[], "301 https://h/x?y"),
        ("http://h/x", &["x-forwarded-proto: https"], "a"),
    ]);
    one["require_tls"] = "EXTERNAL_ONLY".into();
    let node = node_with(json!({"route_config": {"name": "r", "virtual_hosts": [one]}}));
    let walk = node.walk("http://h/", &[]);
    assert_eq!((shown(&walk.end).as_str(), walk.undecided.len()), ("a", 1));
}

#[test]
fn matcher_of_a_virtual_host_selects_routes() {
    let input = json!({"name": "i", "typed_config": {
        "@type": format!("{PREFIX}type.matcher.v3.HttpRequestHeaderMatchInput"), "header_name": "x-team",
    }});
    let route = |cluster: &str| {
        json!({"action": {"name": "r", "typed_config": {
            "@type": format!("{PREFIX}config.route.v3.Route"),
            "match": {"prefix": "/"}, "route": {"cluster": cluster},
        }}})
    };
    let single = |value: Value| json!({"single_predicate": {"input": input, "value_match": value}});
    let matcher = json!({
        "matcher_tree": {"input": input, "exact_match_map": {"map": {
            "red": route("a"),
            "blue": {"matcher": {"matcher_list": {"matchers": [
                {"predicate": {"not_matcher": single(json!({"prefix": "b"}))}, "on_match": route("a")},
                {"predicate": {"or_matcher": {"predicate": [
                    single(json!({"exact": "x"})), single(json!({"suffix": "e"})),
                ]}}, "on_match": route("b")},
            ]}}},
        }}},
        "on_no_match": route("c"),
    });
    let one = json!({"name": "one", "domains": ["*"], "matcher": matcher});
    node_with(json!({"route_config": {"name": "r", "virtual_hosts": [one]}})).check(&[
        ("http://h/", &["x-team: red"], "a"),
        ("http://h/", &["x-team: blue"], "b"),
        ("http://h/", &["x-team: green"], "c"),
        ("http://h/", &[], "c"),
    ]);
    let custom = json!({"name": "cel", "typed_config": {
        "@type": format!("{PREFIX}extensions.matching.input_matchers.runtime_fraction.v3.RuntimeFraction"),
        "runtime_fraction": {"default_value": {"numerator": 5}},
    }});
    let matcher = json!({"matcher_list": {"matchers": [{
        "predicate": {"single_predicate": {"input": input, "custom_match": custom}}, "on_match": route("a"),
    }]}});
    let one = json!({"name": "one", "domains": ["*"], "matcher": matcher});
    let node = node_with(json!({"route_config": {"name": "r", "virtual_hosts": [one]}}));
    let walk = node.walk("http://h/", &["x-team: red"]);
    assert_eq!(shown(&walk.end), "undecided");
    let place =
        "virtual_hosts[0].matcher.matcher_list.matchers[0].predicate.single_predicate.custom_match";
    assert_eq!(walk.undecided[0].place, place);
}

#[test]
fn requested_routes_and_virtual_hosts_are_used() {
    let mut main = table("main", &[host("own", &["own.test"], "a")]);
    main["vhds"] = json!({"config_source": {"ads": {}}});
    let mut requested = host("main/b", &["b.test"], "b");
    requested["@type"] = "config.route.v3.VirtualHost".into();
    let on_demand = json!({"name": "on_demand", "typed_config": {
        "@type": format!("{PREFIX}extensions.filters.http.on_demand.v3.OnDemand"),
    }});
    let mut fields = rds("main");
    fields["http_filters"] = json!([on_demand]);
    let entry = listener("main", 80, &[chain(&manager(fields))]);
    let node = Node::new(&[entry.clone(), main, requested, cluster("a"), cluster("b")]);
    node.check(&[
        ("http://own.test/", &[], "a"),
        ("http://b.test/", &[], "b"),
        ("http://c.test/", &[], "missing main/c.test"),
    ]);
    Node::new(&[entry]).check(&[("http://own.test/", &[], "missing main")]);
}

#[test]
fn scope_is_selected_by_headers() {
    let extractor = |name: &str, fields: Value| {
        let mut extractor = json!({"name": name});
        extractor.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"header_value_extractor": extractor})
    };
    let fields = json!({"scoped_routes": {
        "name": "s",
        "scope_key_builder": {"fragments": [
            extractor("x-a", json!({"element_separator": ";", "element": {"separator": "=", "key": "team"}})),
            extractor("x-b", json!({"element_separator": ",", "index": 1})),
        ]},
        "rds_config_source": {"ads": {}},
        "scoped_rds": {"scoped_rds_config_source": {"ads": {}}},
    }});
    let scope = |name: &str, key: [&str; 2], route: &str| {
        json!({"@type": "config.route.v3.ScopedRouteConfiguration", "name": name,
            "route_configuration_name": route,
            "key": {"fragments": key.map(|text| json!({"string_key": text}))}})
    };
    let node = Node::new(&[
        listener("main", 80, &[chain(&manager(fields))]),
        scope("s1", ["red", "1"], "to-a"),
        scope("s2", ["red", "2"], "to-b"),
        table("to-a", &[host("h", &["*"], "a")]),
        table("to-b", &[host("h", &["*"], "b")]),
        cluster("a"),
        cluster("b"),
    ]);
    node.check(&[
        ("http://h/", &["x-a: x;team=red", "x-b: 0,1"], "a"),
        ("http://h/", &["x-a: team=red", "x-b: 0,2,3"], "b"),
        ("http://h/", &["x-a: team=red", "x-b: 0,3"], "no route"),
        ("http://h/", &["x-a: red", "x-b: 0,1"], "no route"),
        ("http://h/", &[], "no route"),
    ]);
}

#[test]
fn cluster_has_its_endpoints_or_the_reason_why_not() {
    let eds = |name: &str, service: &str| {
        json!({"@type": "config.cluster.v3.Cluster", "name": name, "type": "EDS",
            "eds_cluster_config": {"service_name": service, "eds_config": {"ads": {}}}})
    };
    let endpoint = |port: u16, status: &str| {
        json!({"health_status": status, "load_balancing_weight": 3, "endpoint": {"address": {
            "socket_address": {"address": "::1", "port_value": port},
        }}})
    };
    let assignment = json!({"@type": "config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "service", "endpoints": [
        {"priority": 1, "locality": {"region": "r2"}, "lb_endpoints": [endpoint(2, "DRAINING")]},
        {"load_balancing_weight": 7, "locality": {"region": "r1", "zone": "z"}, "lb_endpoints": [endpoint(1, "HEALTHY")]},
    ]});
    let aggregate = json!({"@type": "config.cluster.v3.Cluster", "name": "all", "cluster_type": {
        "name": "envoy.clusters.aggregate",
        "typed_config": {
            "@type": format!("{PREFIX}extensions.clusters.aggregate.v3.ClusterConfig"),
            "clusters": ["lost", "all", "one"],
        },
    }});
    let routes = ["one", "lost", "all", "none"]
        .map(|name| json!({"match": {"path": format!("/{name}")}, "route": {"cluster": name}}));
    let one = json!({"name": "h", "domains": ["*"], "routes": routes});
    let node = Node::new(&[
        listener("main", 80, &[chain(&manager(rds("main")))]),
        table("main", &[one]),
        eds("one", "service"),
        eds("lost", ""),
        aggregate,
        assignment,
    ]);
    let first = |path: &str| {
        let walk = node.walk(&format!("http://h/{path}"), &[]);
        let is_served = walk.end.is_served();
        let End::Clusters { mut clusters, .. } = walk.end else { panic!("{walk:?}") };
        (clusters.remove(0), is_served)
    };
    let (one, is_served) = first("one");
    assert_eq!(
        (one.discovery.as_str(), one.service_name.as_str(), is_served),
        ("EDS", "service", true)
    );
    let shown: Vec<_> = one
        .localities
        .iter()
        .map(|one| {
            let endpoint = &one.endpoints[0];
            (
                one.priority,
                one.region.as_str(),
                one.weight,
                endpoint.address.as_str(),
                endpoint.health.as_str(),
                endpoint.weight,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [(0, "r1", 7, "[::1]:1", "HEALTHY", 3), (1, "r2", 0, "[::1]:2", "DRAINING", 3)]
    );
    let (lost, is_served) = first("lost");
    assert!(lost.missing.contains("no endpoints \"lost\"") && !is_served, "{lost:?}");
    let (none, is_served) = first("none");
    assert!(none.missing.contains("the node has no such cluster") && !is_served, "{none:?}");
    let (all, is_served) = first("all");
    assert_eq!(all.members.len(), 3);
    assert!(is_served && all.members[2].missing.is_empty(), "the nesting is bounded: {all:?}");
}

#[test]
fn doubt_about_a_resource_is_named() {
    let mut node = node_with(rds("main"));
    node.add(&table("main", &[host("h", &["*"], "a")]), "sent, and not acknowledged");
    let walk = node.walk("http://h/", &[]);
    assert_eq!(shown(&walk.end), "a");
    let [one] = &walk.undecided[..] else { panic!("{walk:?}") };
    assert_eq!(
        (one.place.as_str(), one.reason.as_str()),
        ("route configuration \"main\"", "sent, and not acknowledged")
    );
}
