//! Rules about several resources of a transaction, and forms that Envoy's loader takes.

use std::sync::Arc;

use chancery_admission::{
    Admitted, Manifest, Options, Validation, ValidationMode, admit_unless, import_bootstrap,
};
use chancery_model::ScopeName;

fn try_admit(content: &str) -> Result<Admitted, Vec<String>> {
    let manifest = Manifest { file: "a.yaml".to_owned(), content: content.to_owned() };
    let options = Options {
        validation: Validation::of(ValidationMode::Enforce),
        ..Options::new(ScopeName::new("default").unwrap())
    };
    admit_unless(&[manifest], &options, &Arc::default())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn listener(name: &str, port: u16) -> String {
    format!(
        "- '@type': type.googleapis.com/envoy.config.listener.v3.Listener
{name}
  address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
  filter_chains: [{{}}]
"
    )
}

#[test]
fn two_listeners_with_one_address_are_refused() {
    let pair = |ports: [u16; 2]| {
        let [a, b] = ports;
        format!("resources:\n{}{}", listener("  name: a", a), listener("  name: b", b))
    };
    assert!(try_admit(&pair([80, 81])).is_ok());
    assert!(try_admit(&pair([0, 0])).is_ok(), "the system chooses the ports");
    let problems = try_admit(&pair([80, 80])).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("is also the address of \"a\""), "{problems:?}");
    assert!(problems[0].contains("[listener.shared_address]"), "{problems:?}");
}

#[test]
fn two_scopes_with_one_key_are_refused() {
    let scope = |name: &str, key: &str| {
        format!(
            "- '@type': type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration
  name: {name}
  route_configuration_name: r
  key: {{fragments: [{{string_key: {key}}}]}}
"
        )
    };
    assert!(try_admit(&format!("resources:\n{}{}", scope("a", "k"), scope("b", "l"))).is_ok());
    let problems =
        try_admit(&format!("resources:\n{}{}", scope("a", "k"), scope("b", "k"))).unwrap_err();
    assert!(problems[0].contains("[scoped_route.shared_key]"), "{problems:?}");
}

/// Envoy shares the caches of forward proxies by their names.
#[test]
fn two_settings_of_one_dns_cache_are_refused() {
    let cluster = |name: &str, cache: &str| {
        format!(
            "- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: {name}
  lb_policy: CLUSTER_PROVIDED
  cluster_type:
    name: envoy.clusters.dynamic_forward_proxy
    typed_config:
      '@type': type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig
      dns_cache_config: {{{cache}}}
"
        )
    };
    let pair = |caches: [&str; 2]| {
        try_admit(&format!("resources:\n{}{}", cluster("a", caches[0]), cluster("b", caches[1])))
    };
    assert!(pair(["name: c, max_hosts: 5", "max_hosts: 5, name: c"]).is_ok());
    assert!(pair(["name: c, max_hosts: 5", "name: d"]).is_ok());
    let problems = pair(["name: c, max_hosts: 5", "name: c"]).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .contains("typed_config.dns_cache_config: the cache \"c\" has other settings in \"a\""),
        "{problems:?}"
    );
}

#[test]
fn listener_without_a_name_gets_one_from_its_address() {
    let admitted = try_admit(&format!("resources:\n{}", listener("", 8080))).unwrap();
    let key = &admitted.transaction.upserts[0].draft.key;
    assert_eq!(key.name.as_str(), "listener_127.0.0.1_8080");
    assert_eq!(admitted.warnings.len(), 1, "{:?}", admitted.warnings);
    let warning = admitted.warnings[0].to_string();
    assert!(warning.contains("it is stored as \"listener_127.0.0.1_8080\""), "{warning}");
    // The name is in the body too, because clients read it there.
    let body = &admitted.transaction.upserts[0].draft.body;
    assert!(body.windows(23).any(|part| part == b"listener_127.0.0.1_8080"));
}

const ASSIGNMENT: &str = "\
- '@type': type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  clusterName: ''
";

fn try_admit_with_name(resources: &str) -> Result<Admitted, Vec<String>> {
    let content = format!("resources:\n{resources}");
    let manifest = Manifest { file: "a.yaml".to_owned(), content };
    let options = Options {
        name: Some("given".to_owned()),
        validation: Validation::of(ValidationMode::Enforce),
        ..Options::new(ScopeName::new("default").unwrap())
    };
    admit_unless(&[manifest], &options, &Arc::default())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn only_resource_without_a_name_gets_the_given_name() {
    let named = listener("  name: a", 80);
    let wrapped = "- resource: {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster}\n";
    for unnamed in [&listener("", 81), &listener("  name: ''", 81), ASSIGNMENT, wrapped] {
        let admitted = try_admit_with_name(&format!("{named}{unnamed}")).unwrap();
        let draft = &admitted.transaction.upserts[1].draft;
        assert_eq!(draft.key.name.as_str(), "given", "{unnamed}");
        assert!(draft.body.windows(5).any(|part| part == b"given"), "{unnamed}");
        assert_eq!(admitted.warnings, [], "{unnamed}");
    }
}

/// A name for several resources would leave one of them, and a name for none has no effect.
#[test]
fn given_name_is_refused_unless_exactly_one_resource_has_none() {
    let problems =
        try_admit_with_name(&format!("{}{}", listener("  name: a", 80), listener("  name: b", 81)));
    assert_eq!(
        problems.unwrap_err(),
        ["the name \"given\" is for one resource without a name, but all resources have names"]
    );
    let three = format!("{}{}{}", listener("", 80), listener("  name: b", 81), listener("", 82));
    let rule = "the name \"given\" is for one resource without a name, but the input has 2";
    assert_eq!(
        try_admit_with_name(&three).unwrap_err(),
        [
            format!("a.yaml:2:3: document 1: resources[0] Listener: name: {rule}"),
            format!("a.yaml:10:3: document 1: resources[2] Listener: name: {rule}"),
        ]
    );
}

#[test]
fn only_listener_of_a_bootstrap_without_a_name_gets_the_given_name() {
    let import = |listeners: &str| {
        let bootstrap = format!("static_resources:\n  listeners: [{listeners}]");
        let off = Validation::of(ValidationMode::Off);
        let scope = ScopeName::new("default").unwrap();
        import_bootstrap("e.yaml", &bootstrap, &scope, Some("edge"), &off, &Arc::default())
            .map(|imported| imported.drafts[0].1.key.name.to_string())
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(import("{}"), Ok("edge".to_owned()));
    let problems = import("{}, {}").unwrap_err();
    let place = "static_resources.listeners[1] Listener: name: the name \"edge\" is for one";
    assert!(problems.iter().any(|problem| problem.contains(place)), "{problems:?}");
    let problems = import("{name: a}").unwrap_err();
    assert!(problems[0].contains("all resources have names"), "{problems:?}");
}

/// Envoy's loader ignores the case of the names of enum values.
#[test]
fn enum_names_are_read_in_any_case() {
    let cluster = |kind: &str| {
        format!(
            "resources:
- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: web
  type: {kind}
"
        )
    };
    let body = |kind: &str| {
        let admitted = try_admit(&cluster(kind)).unwrap();
        admitted.transaction.upserts[0].draft.body.clone()
    };
    let expected = body("STRICT_DNS");
    for kind in ["strict_dns", "Strict_Dns"] {
        assert_eq!(body(kind), expected, "{kind}");
    }
    for kind in ["strictdns", "strict-dns"] {
        assert!(try_admit(&cluster(kind)).is_err(), "{kind}");
    }
}
