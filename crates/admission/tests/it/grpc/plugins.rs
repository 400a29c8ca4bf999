//! The cluster specifier plugin of the route lookup service. Its message is not one of Envoy's API.

use prost::Message as _;
use serde_json::{Value as Json, json};

use super::{
    found,
    route::{ROUTE, config},
    shown,
};

#[derive(Clone, PartialEq, prost::Message)]
struct Specifier {
    #[prost(message, optional, tag = "1")]
    config: Option<Config>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Config {
    #[prost(message, repeated, tag = "2")]
    builders: Vec<Builder>,
    #[prost(string, tag = "3")]
    lookup_service: String,
    #[prost(message, optional, tag = "5")]
    max_age: Option<prost_types::Duration>,
    #[prost(message, optional, tag = "6")]
    stale_age: Option<prost_types::Duration>,
    #[prost(int64, tag = "7")]
    cache_size_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Builder {
    #[prost(message, repeated, tag = "1")]
    names: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<Header>,
    #[prost(message, optional, tag = "3")]
    extra_keys: Option<Name>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Name {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, repeated, tag = "2")]
    names: Vec<String>,
    #[prost(bool, tag = "3")]
    required_match: bool,
}

fn name(service: &str, method: &str) -> Name {
    Name { service: service.into(), method: method.into() }
}

fn header(key: &str, names: &[&str]) -> Header {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Header { key: key.into(), names, required_match: false }
}

fn valid() -> Config {
    let builder = Builder {
        names: vec![name("s", "")],
        headers: vec![header("k", &["h"])],
        extra_keys: Some(name("host", "service")),
    };
    Config {
        builders: vec![builder],
        lookup_service: "dns:///a".into(),
        cache_size_bytes: 1,
        ..Config::default()
    }
}

fn with_plugin(typed_config: &Json, is_optional: bool) -> Json {
    let extension = json!({"name": "p", "typed_config": typed_config});
    config(&json!({
        "cluster_specifier_plugins": [{"extension": extension, "is_optional": is_optional}],
    }))
}

fn refusals(clients: &str, config: Option<Config>, is_optional: bool) -> Vec<String> {
    let body = Specifier { config }.encode_to_vec();
    let typed_config = json!({
        "@type": "type.googleapis.com/grpc.lookup.v1.RouteLookupClusterSpecifier",
        "value": base64(&body),
    });
    let problems = found(clients, &with_plugin(&typed_config, is_optional));
    let own = problems.into_iter().filter(|problem| problem.id == "grpc.specifier_plugin");
    let refused = own.filter(|problem| problem.severity == chancery_admission::Severity::Error);
    refused.map(|problem| problem.rule).collect()
}

fn base64(bytes: &[u8]) -> String {
    use ::base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}

const AT: &str = "cluster_specifier_plugins[0].extension.typed_config";

/// GRPCV-30: C-core and Go check the configuration of the plugin, even of an optional one.
#[test]
fn route_lookup_plugin_that_is_not_valid_is_refused() {
    assert_eq!(refusals("grpc-cpp grpc-go", Some(valid()), false), [""; 0]);
    let age = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let built = |change: fn(&mut Builder)| {
        let mut config = valid();
        change(&mut config.builders[0]);
        config
    };
    let mut twice = valid();
    twice.builders.push(valid().builders[0].clone());
    for (config, clients, part) in [
        (None, "C++, Go", "route_lookup_config is missing"),
        (Some(Config { lookup_service: String::new(), ..valid() }), "C++, Go", "lookup_service"),
        (Some(Config { cache_size_bytes: 0, ..valid() }), "C++, Go", "cache_size_bytes"),
        (Some(Config { builders: Vec::new(), ..valid() }), "C++, Go", "grpc_keybuilders is empty"),
        (Some(Config { stale_age: age(1), ..valid() }), "C++, Go", "without max_age"),
        (Some(Config { stale_age: age(1), max_age: age(0), ..valid() }), "Go", "without max_age"),
        (Some(Config { max_age: age(-1), ..valid() }), "C++", "the duration must have"),
        (Some(twice), "C++, Go", "have the same name"),
        (Some(built(|one| one.names.clear())), "C++, Go", "has no names"),
        (Some(built(|one| one.names[0] = name("", "m"))), "C++, Go", "has no service"),
        (Some(built(|one| one.names[0] = name("s", "a/b"))), "Go", "has a slash"),
        (Some(built(|one| one.headers[0].required_match = true)), "C++, Go", "required_match"),
        (Some(built(|one| one.headers[0].names.clear())), "C++", "or no names"),
        (Some(built(|one| one.headers[0].key.clear())), "C++, Go", "is empty"),
        (Some(built(|one| one.headers.push(header("k", &["i"])))), "C++, Go", "a key twice"),
        (Some(built(|one| one.extra_keys = Some(name("k", "")))), "C++, Go", "a key twice"),
        (Some(built(|one| one.extra_keys = Some(name("e", "e")))), "C++", "a key twice"),
    ] {
        for is_optional in [false, true] {
            let found = refusals("grpc-cpp grpc-go grpc-node", config.clone(), is_optional);
            let [one] = found.as_slice() else { panic!("{config:?}: {found:?}") };
            assert!(
                one.contains(&format!("({clients})")) && one.contains(part),
                "{config:?}: {one}"
            );
        }
    }
}

/// GRPCV-30: a Go program has the policy of the plugin only if it imports it.
#[test]
fn route_lookup_plugin_is_a_warning_for_go() {
    let body = Specifier { config: Some(valid()) }.encode_to_vec();
    let typed_config = json!({
        "@type": "type.googleapis.com/grpc.lookup.v1.RouteLookupClusterSpecifier",
        "value": base64(&body),
    });
    let resource = with_plugin(&typed_config, false);
    let warned = |clients| {
        let problems = found(clients, &resource);
        problems.iter().any(|problem| problem.rule.contains("balancer/rls"))
    };
    assert!(warned("grpc-go") && !warned("grpc-cpp"));
}

/// GRPCV-30: C-core reads optional plugins.
#[test]
fn optional_plugin_that_cpp_cannot_read_is_refused() {
    let id = "grpc.specifier_plugin";
    let typed_struct = |url: &str| json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": url, "value": {}});
    let refused = |plugin: &Json| shown(&found("grpc-cpp grpc-go", plugin));
    let known = "type.googleapis.com/grpc.lookup.v1.RouteLookupClusterSpecifier";
    assert_eq!(refused(&with_plugin(&typed_struct("a/acme.P"), true)), [""; 0]);
    for url in ["acme.P", known] {
        let plugin = with_plugin(&typed_struct(url), true);
        assert_eq!(refused(&plugin), [format!("{AT}: {id}: C++")], "{url}");
    }
    let nothing = config(&json!({"cluster_specifier_plugins": [{}]}));
    let at = "cluster_specifier_plugins[0].extension";
    assert_eq!(refused(&nothing), [format!("{at}: {id}: C++, Go")]);
    let empty = json!({"match": {"prefix": "/"}, "route": {"cluster_specifier_plugin": ""}});
    let plugins =
        json!([{"is_optional": true, "extension": {"typed_config": typed_struct("a/b")}}]);
    let unnamed = config(&json!({
        "cluster_specifier_plugins": plugins,
        "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [empty]}],
    }));
    let path = format!("{ROUTE}.route.cluster_specifier_plugin");
    assert_eq!(refused(&unnamed), [format!("{path}: {id}: C++")]);
}
