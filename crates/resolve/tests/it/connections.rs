//! Listeners, filter chains and filters.

use serde_json::{Value, json};

use crate::support::{Node, PREFIX, chain, cluster, listener, manager, shown};

fn to(cluster: &str) -> Value {
    let host = json!({"name": "all", "domains": ["*"], "routes": [
        {"match": {"prefix": "/"}, "route": {"cluster": cluster}},
    ]});
    manager(json!({"route_config": {"name": "inline", "virtual_hosts": [host]}}))
}

/// Returns a filter chain with a match. Chains for TLS have a transport socket.
fn matched(cluster: &str, criteria: Value) -> Value {
    let mut chain = chain(&to(cluster));
    if criteria["transport_protocol"] != "raw_buffer" {
        chain["transport_socket"] = json!({"name": "tls"});
    }
    chain["filter_chain_match"] = criteria;
    chain["name"] = cluster.into();
    chain
}

fn node(listeners: &[Value]) -> Node {
    let clusters = ["a", "b", "c", "d", "e"].map(cluster);
    Node::new(&[listeners, &clusters].concat())
}

#[test]
fn listener_is_selected_by_port_and_address() {
    let mut own = listener("own", 8080, &[chain(&to("b"))]);
    own["address"]["socket_address"]["address"] = "10.0.0.1".into();
    let all =
        [listener("one", 80, &[chain(&to("a"))]), own, listener("two", 8081, &[chain(&to("c"))])];
    let node = node(&all);
    node.check(&[
        ("http://h/", &[], "a"),
        ("http://h:8080/", &[], "b"),
        ("http://10.0.0.1:8080/", &[], "b"),
        ("http://10.0.0.2:8080/", &[], "no connection"),
        ("http://h:9000/", &[], "no connection"),
    ]);
    // No listener has port 443, and the URL names no port.
    let answer = node.ask("GET", "https://h/", &[]);
    let names: Vec<&str> = answer.resolutions.iter().map(|one| one.listener.as_str()).collect();
    assert_eq!(names, ["one", "own", "two"]);
    let place = &answer.resolutions[0].undecided[0].place;
    assert_eq!(place, "filter chain, transport_socket", "the chains do not end TLS");
    let empty = Node::default().walk("http://h/", &[]);
    assert_eq!((empty.listener.as_str(), shown(&empty.end).as_str()), ("", "no connection"));
}

#[test]
fn api_listener_is_selected_by_its_name() {
    let mut manager = to("a");
    manager["http_filters"] = json!([]);
    let target = json!({"@type": "config.listener.v3.Listener", "name": "svc:50051",
        "api_listener": {"api_listener": manager}});
    let content_type = ["content-type: application/grpc"];
    node(&[target]).check(&[("http://svc:50051/pkg.Service/Method", &content_type, "a")]);
}

#[test]
fn most_specific_filter_chain_wins() {
    let chains = [
        matched("a", json!({"server_names": ["shop.test"], "transport_protocol": "tls"})),
        matched("b", json!({"server_names": ["*.test"]})),
        matched("c", json!({"transport_protocol": "tls", "application_protocols": ["h2"]})),
        matched("d", json!({"transport_protocol": "raw_buffer"})),
        matched("e", json!({"destination_port": 8443})),
    ];
    let mut all = listener("main", 443, &chains);
    all["additional_addresses"] = json!([80, 8443].map(|port| {
        json!({"address": {"socket_address": {"address": "0.0.0.0", "port_value": port}}})
    }));
    node(&[all.clone()]).check(&[
        ("https://shop.test/", &[], "a"),
        ("https://a.b.test/", &[], "b"),
        ("https://other/", &[], "c"),
        ("http://shop.test/", &[], "d"),
        ("https://shop.test:8443/", &[], "e"),
    ]);
    all["filter_chains"] = json!([chains[0]]);
    node(&[all.clone()]).check(&[("https://other/", &[], "no connection")]);
    all["default_filter_chain"] = matched("e", json!({}));
    node(&[all]).check(&[("https://other/", &[], "e")]);
}

#[test]
fn filter_chain_for_some_addresses_is_undecided() {
    let range = json!([{"address_prefix": "10.0.0.0", "prefix_len": 8}]);
    let plain = |cluster: &str, fields: Value| {
        let mut chain = chain(&to(cluster));
        chain["filter_chain_match"] = fields;
        chain
    };
    let chains = [plain("a", json!({"source_prefix_ranges": range})), plain("b", json!({}))];
    let walk = node(&[listener("main", 80, &chains)]).walk("http://h/", &[]);
    assert_eq!(shown(&walk.end), "b");
    assert_eq!(walk.undecided[0].place, "filter_chains[0].filter_chain_match");
    // The destination is known if the URL has it.
    let chains = [
        plain("a", json!({"prefix_ranges": range})),
        plain("b", json!({"prefix_ranges": [{"address_prefix": "10.1.0.0", "prefix_len": 16}]})),
        plain("c", json!({})),
    ];
    let node = node(&[listener("main", 80, &chains)]);
    node.check(&[
        ("http://10.2.0.1/", &[], "a"),
        ("http://10.1.0.1/", &[], "b"),
        ("http://11.0.0.1/", &[], "c"),
    ]);
    assert_eq!(node.walk("http://h/", &[]).undecided.len(), 1);
}

#[test]
fn filter_chain_matcher_names_a_chain() {
    let input = |name: &str| {
        json!({"name": "i", "typed_config": {
            "@type": format!("{PREFIX}extensions.matching.common_inputs.network.v3.{name}"),
        }})
    };
    let name = |name: &str| {
        json!({"action": {"name": "n", "typed_config": {
            "@type": "type.googleapis.com/google.protobuf.StringValue", "value": name,
        }}})
    };
    let mut all = listener("main", 443, &[matched("a", json!({})), matched("b", json!({}))]);
    all["filter_chain_matcher"] = json!({
        "matcher_tree": {"input": input("ServerNameInput"), "exact_match_map": {"map": {
            "a.test": name("a"), "c.test": name("c"),
        }}},
        "on_no_match": name("b"),
    });
    node(&[all.clone()]).check(&[
        ("https://a.test/", &[], "a"),
        ("https://x.test/", &[], "b"),
        ("https://c.test/", &[], "no connection"),
    ]);
    // The node requests the chain by its name.
    all["fcds_config"] = json!({"config_source": {"ads": {}}});
    let mut requested = matched("c", json!({}));
    requested["@type"] = "config.listener.v3.FilterChain".into();
    node(&[all.clone(), requested]).check(&[("https://c.test/", &[], "c")]);
    node(&[all.clone()]).check(&[("https://c.test/", &[], "missing c")]);
    all["filter_chain_matcher"]["matcher_tree"]["input"] = input("SourceIPInput");
    let walk = node(&[all]).walk("https://a.test/", &[]);
    assert_eq!(walk.undecided[0].place, "filter_chain_matcher.matcher_tree.input");
    assert_eq!(shown(&walk.end), "undecided");
}

#[test]
fn filters_that_may_change_the_answer_are_named() {
    let mut fields = to("a");
    let lua = json!({"@type": format!("{PREFIX}extensions.filters.http.lua.v3.Lua")});
    fields["http_filters"] = json!([
        {"name": "cors", "typed_config": {"@type": format!("{PREFIX}extensions.filters.http.cors.v3.Cors")}},
        {"name": "script", "typed_config": lua},
        {"name": "off", "typed_config": lua, "disabled": true},
    ]);
    let mut one = chain(&fields);
    let rbac = json!({"name": "r", "typed_config": {
        "@type": format!("{PREFIX}extensions.filters.network.rbac.v3.RBAC"), "stat_prefix": "r",
    }});
    one["filters"].as_array_mut().unwrap().insert(0, rbac);
    let node = node(&[listener("main", 80, &[one])]);
    let places = |method: &str| {
        let walk = node.ask(method, "http://h/", &[]).resolutions.remove(0);
        walk.undecided.into_iter().map(|one| one.place).collect::<Vec<_>>()
    };
    assert_eq!(places("GET"), ["filters[0] RBAC", "http_filters[1] lua"]);
    assert_eq!(
        places("OPTIONS"),
        ["filters[0] RBAC", "http_filters[0] cors", "http_filters[1] lua"]
    );
}

#[test]
fn tcp_proxy_ends_without_http() {
    let proxy = json!({
        "@type": format!("{PREFIX}extensions.filters.network.tcp_proxy.v3.TcpProxy"),
        "stat_prefix": "t",
        "weighted_clusters": {"clusters": [{"name": "a", "weight": 1}, {"name": "b", "weight": 2}]},
    });
    node(&[listener("main", 80, &[chain(&proxy)])]).check(&[("http://h/", &[], "tcp a=1 b=2")]);
    let echo = json!({"@type": format!("{PREFIX}extensions.filters.network.echo.v3.Echo")});
    let walk = node(&[listener("main", 80, &[chain(&echo)])]).walk("http://h/", &[]);
    assert_eq!(shown(&walk.end), "undecided");
}

/// Hostile resources end the walk, without a panic.
#[test]
fn deeply_nested_matcher_is_undecided() {
    let mut matcher = json!({"matcher_list": {"matchers": []}});
    for _ in 0..40 {
        matcher = json!({"on_no_match": {"matcher": matcher}});
    }
    let host = json!({"name": "all", "domains": ["*"], "matcher": matcher});
    let fields = manager(json!({"route_config": {"name": "inline", "virtual_hosts": [host]}}));
    let walk = node(&[listener("main", 80, &[chain(&fields)])]).walk("http://h/", &[]);
    assert_eq!(shown(&walk.end), "undecided");
}
