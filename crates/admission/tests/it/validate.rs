//! Validation of resources by the rules of Envoy's API.

use std::sync::Arc;

use chancery_admission::{
    Admitted, Manifest, Options, Problem, Severity, Validation, ValidationMode, admit_unless,
    import_bootstrap,
};
use chancery_model::ScopeName;
use serde_json::{Value as Json, json};

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

fn try_admit(file: &str, content: &str, mode: ValidationMode) -> Result<Admitted, Vec<String>> {
    let manifest = Manifest { file: file.to_owned(), content: content.to_owned() };
    let options = Options { validation: Validation::of(mode), ..Options::new(scope()) };
    admit_unless(&[manifest], &options, &Arc::default())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// Returns the warnings about a manifest that is accepted.
pub(crate) fn warnings(content: &str) -> Vec<String> {
    let admitted = try_admit("f.yaml", content, ValidationMode::Enforce).unwrap();
    admitted.warnings.iter().map(ToString::to_string).collect()
}

/// Returns `path: id` of each finding about a resource.
pub(crate) fn findings(resource: &Json) -> Vec<String> {
    let show = |problem: &Problem| {
        format!("{}: {}", problem.field_path.as_deref().unwrap_or_default(), problem.id)
    };
    problems(resource).iter().map(show).collect()
}

/// Returns the ID and the severity of each finding about a resource.
pub(crate) fn severities(resource: &Json) -> Vec<(String, Severity)> {
    problems(resource).into_iter().map(|problem| (problem.id, problem.severity)).collect()
}

fn problems(resource: &Json) -> Vec<Problem> {
    let content = json!({"resources": [resource]}).to_string();
    let manifest = Manifest { file: "a.json".to_owned(), content };
    let options =
        Options { validation: Validation::of(ValidationMode::Enforce), ..Options::new(scope()) };
    match admit_unless(&[manifest], &options, &Arc::default()) {
        Ok(admitted) => admitted.warnings,
        Err(problems) => problems,
    }
}

pub(crate) fn cluster(rest: &Json) -> Json {
    let mut cluster = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "web",
    });
    cluster.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    cluster
}

const HCM: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

pub(crate) fn listener(hcm: &Json) -> Json {
    let mut config = json!({"@type": format!("type.googleapis.com/{HCM}")});
    config.as_object_mut().unwrap().extend(hcm.as_object().unwrap().clone());
    json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "edge",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 8080}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": config}]}],
    })
}

#[test]
fn violation_inside_any_and_map_has_its_field_path() {
    let bad = listener(&json!({
        "stat_prefix": "",
        "route_config": {"virtual_hosts": [{
            "name": "v", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": ""}}],
            "typed_per_filter_config": {"limit": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            }},
        }]},
    }));
    let config = "filter_chains[0].filters[0].typed_config";
    let host = format!("{config}.route_config.virtual_hosts[0]");
    // Paths of more than 120 characters are cut in the middle.
    let found = findings(&bad);
    assert!(found.contains(&format!("{config}.stat_prefix: string.min_len")), "{found:#?}");
    let route = format!("{host}.routes[0].route.cluster: string.min_len");
    assert!(found.contains(&route), "{found:#?}");
    let in_map = |path: &String| path.contains("limit\"].stat_prefix: string.min_len");
    assert!(found.iter().any(in_map), "{found:#?}");
}

#[test]
fn all_violations_of_a_resource_are_reported_in_the_order_of_fields() {
    let bad = cluster(&json!({
        "connect_timeout": "0s",
        "max_requests_per_connection": 0,
        "load_assignment": {"cluster_name": "", "endpoints": [{
            "priority": 200,
            "lb_endpoints": [{"endpoint": {"address": {
                "socket_address": {"address": "", "port_value": 70_000},
            }}}],
        }]},
    }));
    let endpoints = "load_assignment.endpoints[0]";
    let address = format!("{endpoints}.lb_endpoints[0].endpoint.address.socket_address");
    let found = findings(&bad);
    let expected = [
        "connect_timeout: duration.gt".to_owned(),
        "load_assignment.cluster_name: string.min_len".to_owned(),
        format!("{endpoints}.priority: uint32.lte"),
        format!("{address}.address: string.min_len"),
        format!("{address}.port_value: uint32.lte"),
    ];
    for expected in expected {
        assert!(found.contains(&expected), "{expected}: {found:#?}");
    }
}

#[test]
fn unknown_type_in_any_is_a_warning() {
    let own = json!({"@type": "type.googleapis.com/example.Own", "value": ""});
    let odd = cluster(&json!({"metadata": {"typed_filter_metadata": {"own": own}}}));
    let content = json!({"resources": [odd]}).to_string();
    let admitted = try_admit("a.json", &content, ValidationMode::Enforce).unwrap();
    assert_eq!(admitted.transaction.upserts.len(), 1);
    assert_eq!(admitted.warnings.len(), 1, "{:?}", admitted.warnings);
    assert_eq!(admitted.warnings[0].id, "any.unknown_type");
}

const BAD: &str = "resources:
- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: web
  connect_timeout: 0s
";

#[test]
fn mode_decides_about_a_resource_that_a_client_would_reject() {
    let problems = try_admit("web.yaml", BAD, ValidationMode::Enforce).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("must be greater than 0s [duration.gt]"), "{problems:?}");
    let admitted = try_admit("web.yaml", BAD, ValidationMode::Warn).unwrap();
    assert_eq!((admitted.transaction.upserts.len(), admitted.warnings.len()), (1, 1));
    let admitted = try_admit("web.yaml", BAD, ValidationMode::Off).unwrap();
    assert_eq!((admitted.transaction.upserts.len(), admitted.warnings.len()), (1, 0));
}

#[test]
fn mode_of_a_scope_applies_to_its_documents_only() {
    let content = format!("scope: dev\n{BAD}---\nscope: edge\n{BAD}");
    let manifest = Manifest { file: "web.yaml".to_owned(), content };
    let dev = ScopeName::new("dev").unwrap();
    let scopes = Arc::new([(dev, ValidationMode::Off)].into());
    let validation = Validation { scopes, ..Validation::default() };
    let options = Options { validation, ..Options::new(scope()) };
    let problems = admit_unless(&[manifest], &options, &Arc::default()).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].document, Some(2), "{problems:?}");
}

#[test]
fn import_refuses_what_a_client_would_reject() {
    let bootstrap = "static_resources: {clusters: [{name: web, connect_timeout: 0s}]}";
    let import = |mode| {
        let validation = Validation::of(mode);
        import_bootstrap("e.yaml", bootstrap, &scope(), None, &validation, &Arc::default())
    };
    let problems = import(ValidationMode::Enforce).unwrap_err();
    assert_eq!(problems[0].id, "duration.gt", "{problems:?}");
    let imported = import(ValidationMode::Warn).unwrap();
    assert_eq!((imported.drafts.len(), imported.warnings.len()), (1, 1));
}

/// A message at the limit of the depth is validated on a thread with the usual stack.
#[test]
fn deepest_message_is_validated() {
    let mut rule = json!({"any": true});
    for _ in 0..45 {
        rule = json!({"not_rule": rule});
    }
    let rbac = listener(&json!({
        "stat_prefix": "a",
        "route_config": {},
        "http_filters": [{"name": "rbac", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {"policies": {"p": {"permissions": [rule], "principals": [{}]}}},
        }}],
    }));
    let found = findings(&rbac);
    assert!(
        found.iter().any(|found| found.ends_with("principals[0]: oneof.required")),
        "{found:?}"
    );
}

/// The resources that the README and the demo apply.
#[test]
fn demo_resources_are_valid() {
    for content in [
        include_str!("../../../../deploy/demo/resources.yaml"),
        include_str!("../../../../deploy/demo/moved.yaml"),
    ] {
        // The demo chooses the ports.
        let ports = content.split("{{").map(|part| match part.split_once("}}") {
            Some((_, rest)) => format!("8080{rest}"),
            None => part.to_owned(),
        });
        let content: String = ports.collect();
        let admitted = try_admit("demo.yaml", &content, ValidationMode::Enforce).unwrap();
        assert_eq!(admitted.warnings, []);
    }
}

#[test]
fn finding_has_its_line_and_column() {
    let problems = try_admit("web.yaml", BAD, ValidationMode::Enforce).unwrap_err();
    assert!(problems[0].starts_with("web.yaml:4:3: document 1: "), "{problems:?}");
}
