use chancery_model::ScopeName;
use chancery_proto::envoy_pool;

use super::*;
use crate::{Manifest, Options, admit};

/// Returns the unreachable routes of a resource: `field < earlier`.
fn unreachable(resource: &str) -> Vec<String> {
    unreachable_with(resource, &mut RouteComparisons::at_most(1000))
}

fn unreachable_with(resource: &str, comparisons: &mut RouteComparisons) -> Vec<String> {
    let content = format!("resources: [{resource}]");
    let manifest = Manifest { file: "a.yaml".to_owned(), content };
    let options = Options::new(ScopeName::new("default").unwrap());
    let draft = admit(&[manifest], &options).unwrap().upserts.remove(0).draft;
    let mut all = Vec::new();
    for_each_unreachable_route(&draft.key, &draft.body, comparisons, |route| {
        all.push(format!("{} < {}", route.field, route.earlier));
    });
    all
}

fn routes(all: &[&str]) -> String {
    let route = |criteria: &&str| format!("{{match: {{{criteria}}}, route: {{cluster: a}}}}");
    all.iter().map(route).collect::<Vec<_>>().join(", ")
}

fn config(all: &[&str]) -> String {
    let routes = routes(all);
    format!(
        "{{'@type': {}, name: main, virtual_hosts: [{{name: a, domains: [a]}}, {{name: b, domains: ['*'], routes: \
         [{routes}]}}]}}",
        types::ROUTE
    )
}

/// Returns whether the second of two routes never matches.
fn covers(first: &str, second: &str) -> bool {
    let found = unreachable(&config(&[first, second]));
    match found[..] {
        [] => false,
        _ => {
            assert_eq!(found, ["virtual_hosts[1].routes[1] < virtual_hosts[1].routes[0]"]);
            true
        }
    }
}

#[test]
fn earlier_path_covers_the_paths_that_it_contains() {
    let regex = "safe_regex: {regex: '/a.*b'}";
    let any = "safe_regex: {regex: '.*'}";
    let template = "path_match_policy: {name: t, typed_config: {'@type': \
                    type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig, \
                    path_template: '/a/{b}'}}";
    for (first, second) in [
        ("prefix: /", "prefix: /a"),
        ("prefix: /", "path: /a"),
        ("prefix: /", "path_separated_prefix: /a"),
        ("prefix: /", regex),
        ("prefix: /", template),
        (any, "prefix: /"),
        (any, regex),
        ("prefix: /a", "prefix: /a"),
        ("prefix: /a", "prefix: /ab"),
        ("prefix: /a", "path: /ab"),
        ("prefix: /a", "path_separated_prefix: /ab"),
        ("path: /a", "path: /a"),
        ("path_separated_prefix: /a", "path_separated_prefix: /a"),
        ("path_separated_prefix: /a", "path_separated_prefix: /a/b"),
        ("path_separated_prefix: /a", "path: /a"),
        ("path_separated_prefix: /a", "path: /a/b"),
        ("path_separated_prefix: /a", "prefix: /a/"),
        (regex, regex),
        (template, template),
        ("connect_matcher: {}", "connect_matcher: {}"),
    ] {
        assert!(covers(first, second), "{first} covers {second}");
    }
    for (first, second) in [
        ("prefix: /a", "prefix: /"),
        ("prefix: /ab", "path: /a"),
        ("path: /a", "prefix: /a"),
        ("path: /a", "path: /a/"),
        ("path: /a", "path_separated_prefix: /a"),
        ("path_separated_prefix: /a", "path: /ab"),
        ("path_separated_prefix: /a", "prefix: /a"),
        ("path_separated_prefix: /a", "prefix: /ab"),
        (regex, "path: /aab"),
        ("prefix: /a", regex),
        ("prefix: /", "connect_matcher: {}"),
        ("connect_matcher: {}", "prefix: /"),
    ] {
        assert!(!covers(first, second), "{first} does not cover {second}");
    }
}

#[test]
fn route_is_covered_only_if_it_has_all_conditions_of_the_earlier_one() {
    let a = "{name: a, present_match: true}";
    let b = "{name: b, present_match: true}";
    let headers = |all: &str| format!("prefix: /, headers: [{all}]");
    let (one, two) = (headers(a), headers(&format!("{b}, {a}")));
    assert!(covers("prefix: /", &one));
    assert!(covers(&one, &one) && covers(&one, &two));
    assert!(!covers(&one, "prefix: /") && !covers(&two, &one) && !covers(&one, &headers(b)));
    let below = format!("path: /x, grpc: {{}}, headers: [{a}]");
    assert!(covers(&one, &below) && covers("prefix: /, grpc: {}", &below));
    assert!(!covers("prefix: /, query_parameters: [{name: q, present_match: true}]", &below));
    // A fraction of the requests goes on to the next route.
    let fraction = "prefix: /, runtime_fraction: {default_value: {numerator: 5}}";
    assert!(!covers(fraction, "prefix: /a") && !covers(fraction, fraction));
    assert!(covers("prefix: /", fraction));
}

#[test]
fn case_of_letters_counts_unless_the_earlier_route_ignores_it() {
    let ignoring = |path: &str| format!("{path}, case_sensitive: false");
    assert!(!covers("prefix: /a", "prefix: /A"));
    assert!(covers(&ignoring("prefix: /a"), "prefix: /AB"));
    assert!(covers(&ignoring("path: /a"), &ignoring("path: /A")));
    assert!(!covers("prefix: /a", &ignoring("prefix: /a")), "the later route also takes /A");
    assert!(covers("prefix: /", &ignoring("prefix: /a")));
    assert!(covers("prefix: /1", &ignoring("path: /12")));
    assert!(covers("prefix: /a, case_sensitive: true", "prefix: /a"));
}

/// A later virtual host has requests of its own, and an unreachable route names the first one that covers it.
#[test]
fn routes_of_each_virtual_host_are_compared_with_the_first_that_covers_them() {
    let found = unreachable(&config(&["prefix: /a", "prefix: /", "prefix: /a/b", "path: /b"]));
    let expected = [
        "virtual_hosts[1].routes[2] < virtual_hosts[1].routes[0]",
        "virtual_hosts[1].routes[3] < virtual_hosts[1].routes[1]",
    ];
    assert_eq!(found, expected);
    let host = |domain: &str| {
        format!("{{name: {domain}, domains: [{domain}], routes: [{}]}}", routes(&["prefix: /"]))
    };
    let two = format!(
        "{{'@type': {}, name: main, virtual_hosts: [{}, {}]}}",
        types::ROUTE,
        host("a"),
        host("b")
    );
    assert_eq!(unreachable(&two), Vec::<String>::new());
}

#[test]
fn routes_of_virtual_hosts_and_listeners_are_found() {
    let all = routes(&["prefix: /", "prefix: /a"]);
    let host = format!("{{name: b, domains: ['*'], routes: [{all}]}}");
    let own = format!(
        "{{'@type': {}, name: main/b, domains: ['*'], routes: [{all}]}}",
        types::VIRTUAL_HOST
    );
    assert_eq!(unreachable(&own), ["routes[1] < routes[0]"]);
    let manager = format!(
        "{{'@type': type.googleapis.com/{MANAGER}, stat_prefix: a, route_config: {{virtual_hosts: [{host}]}}, \
         http_filters: [{{name: r, typed_config: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}"
    );
    let listener = format!(
        "{{'@type': {}, name: a, address: {{socket_address: {{address: 127.0.0.1, port_value: 80}}}}, filter_chains: \
         [{{filters: [{{name: m, typed_config: {manager}}}]}}], default_filter_chain: {{filters: [{{name: m, \
         typed_config: {manager}}}]}}}}",
        types::LISTENER
    );
    let found = unreachable(&listener);
    assert_eq!(found.len(), 2, "{found:?}");
    for start in ["filter_chains[0]", "default_filter_chain"] {
        let route = format!("{start}.filters[0].typed_config.route_config.virtual_hosts[0].routes");
        assert!(found.contains(&format!("{route}[1] < {route}[0]")), "{found:?}");
    }
    let api = format!(
        "{{'@type': {}, name: a, api_listener: {{api_listener: {manager}}}}}",
        types::LISTENER
    );
    let route = "api_listener.api_listener.route_config.virtual_hosts[0].routes";
    assert_eq!(unreachable(&api), [format!("{route}[1] < {route}[0]")]);
}

#[test]
fn comparisons_are_limited_and_unchecked_routes_are_counted() {
    let paths: Vec<String> = (0..50).map(|n| format!("path: /{n}")).collect();
    let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
    all.push("path: /0");
    let mut comparisons = RouteComparisons::at_most(50 * 49 / 2 + 50);
    assert_eq!(unreachable_with(&config(&all), &mut comparisons).len(), 1);
    assert_eq!((comparisons.left, comparisons.n_unchecked), (0, 0));
    let mut comparisons = RouteComparisons::at_most(50 * 49 / 2 + 49);
    assert_eq!(unreachable_with(&config(&all), &mut comparisons), Vec::<String>::new());
    assert_eq!(comparisons.n_unchecked, 1);
}

#[test]
fn numbers_of_fields_are_those_of_the_descriptors() {
    let check = |message: &str, number: u32, name: &str| {
        let message = envoy_pool().get_message_by_name(message).unwrap();
        let field = message.get_field_by_name(name).unwrap();
        assert_eq!(field.number(), number, "{name}");
        field.is_list()
    };
    for (_, message, number, name, _) in FIELDS {
        let is_list = check(message, *number, name);
        assert_eq!(
            is_list,
            matches!(*name, "filter_chains" | "filters" | "virtual_hosts"),
            "{name}"
        );
    }
    assert!(check("envoy.config.route.v3.VirtualHost", ROUTES, "routes"));
    check("envoy.config.route.v3.Route", MATCH, "match");
    check("envoy.type.matcher.v3.RegexMatcher", REGEX, "regex");
    for (number, name) in [
        (PREFIX, "prefix"),
        (PATH, "path"),
        (CASE_SENSITIVE, "case_sensitive"),
        (RUNTIME_FRACTION, "runtime_fraction"),
        (SAFE_REGEX, "safe_regex"),
        (CONNECT_MATCHER, "connect_matcher"),
        (PATH_SEPARATED_PREFIX, "path_separated_prefix"),
        (PATH_MATCH_POLICY, "path_match_policy"),
    ] {
        check("envoy.config.route.v3.RouteMatch", number, name);
    }
}
