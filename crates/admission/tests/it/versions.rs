//! The versions of Envoy: which of 1.36, 1.37, 1.38, 1.39 and 1.40 accept a resource. The verdicts are those of the
//! real programs.

use std::{collections::HashMap, sync::Arc};

use chancery_admission::{
    ClientProfile, ConnectedClient, ConnectedClients, Manifest, Options, Profiles, Severity,
    Validation, ValidationMode, lint,
};
use chancery_model::ScopeName;
use serde_json::{Value as Json, json};

/// Each line has the verdicts of the versions, `R` for a rejection, and the name of a resource in the other files.
const VERDICTS: &str = include_str!("data/versions.txt");
const RESOURCES: [&str; 2] =
    [include_str!("data/clusters.txt"), include_str!("data/listeners.txt")];
const VERSIONS: [&str; 5] = ["1.36", "1.37", "1.38", "1.39", "1.40"];

/// Returns the verdict of a version, and the findings.
fn verdict(version: &str, resource: &Json) -> (char, Vec<String>) {
    let profile: ClientProfile = format!("envoy@{version}").parse().unwrap();
    let call: Option<Arc<[ClientProfile]>> = Some([profile].into());
    verdict_for(Profiles { call, ..Profiles::default() }, resource)
}

fn verdict_for(profiles: Profiles, resource: &Json) -> (char, Vec<String>) {
    let validation = Validation { profiles, ..Validation::of(ValidationMode::Enforce) };
    let options = Options { validation, ..Options::new(ScopeName::new("default").unwrap()) };
    let content = json!({"resources": [resource]}).to_string();
    let problems = lint(&[Manifest { file: "a.json".to_owned(), content }], &options);
    let is_refused = problems.iter().any(|problem| problem.severity == Severity::Error);
    (if is_refused { 'R' } else { 'A' }, problems.iter().map(ToString::to_string).collect())
}

fn verdicts(resource: &Json) -> String {
    VERSIONS.iter().map(|version| verdict(version, resource).0).collect()
}

#[test]
fn each_version_of_envoy_is_predicted() {
    let lines = RESOURCES.iter().flat_map(|file| file.lines());
    let resources: HashMap<String, Json> = lines
        .filter_map(|line| {
            let resource: Json = serde_json::from_str(line.split('\t').nth(2)?).unwrap();
            let name = resource.get("name").or(resource.get("cluster_name"))?.as_str()?;
            Some((name.to_owned(), resource))
        })
        .collect();
    let mut wrong = Vec::new();
    for line in VERDICTS.lines() {
        let (expected, name) = line.split_once('\t').unwrap();
        let found = verdicts(&resources[name]);
        if found != expected {
            let at = found.chars().zip(expected.chars()).position(|(a, b)| a != b).unwrap();
            let problems = verdict(VERSIONS[at], &resources[name]).1;
            wrong.push(format!("{name}: found {found}, expected {expected}: {problems:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), VERDICTS.lines().count());
}

#[test]
fn regular_expressions_have_other_sizes_before_envoy_1_39() {
    let route = |regex: &str| {
        let matcher = json!({"safe_regex": {"regex": regex}});
        json!({
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "r",
            "virtual_hosts": [{
                "name": "v",
                "domains": ["*"],
                "routes": [{"match": matcher, "route": {"cluster": "c"}}],
            }],
        })
    };
    for (regex, expected) in [
        ("/users/.{36}/orders", "RRRAA"),
        ("/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+", "RRRAA"),
        ("/\\p{L}+", "RRRAA"),
        ("/users/.{6}/orders", "AAAAA"),
        ("[a-z]{97}", "RRRRR"),
    ] {
        assert_eq!(verdicts(&route(regex)), expected, "{regex}");
    }
    let problems = verdict("1.36", &route("/users/.{36}/orders")).1;
    assert!(
        problems[0].contains("a size of at least 306")
            && problems[0].contains("Envoy 1.36 to 1.38 would reject"),
        "{problems:?}"
    );
}

/// A finding says who rejects the resource.
#[test]
fn finding_counts_the_connected_nodes_that_reject_the_resource() {
    let scope = || ScopeName::new("default").unwrap();
    let connected = |agents: &[(&str, u64)]| {
        let clients =
            agents.iter().map(|(agent, n)| (ConnectedClient::of_user_agent(agent), *n)).collect();
        Arc::new(ConnectedClients::from([(scope(), clients)]))
    };
    let check = |name: &str| {
        json!({
            "name": name, "timeout": "1s", "interval": "1s", "unhealthy_threshold": 1,
            "healthy_threshold": 1, "tcp_health_check": {},
        })
    };
    let cluster = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "c",
        "load_assignment": {"cluster_name": "c"},
        "health_checks": [check("a"), check("b")],
    });
    let fleet = connected(&[("envoy/1.37.0", 2), ("envoy/1.40.1", 338)]);
    let found = verdict_for(Profiles { connected: fleet, ..Profiles::default() }, &cluster);
    let nodes = "Envoy 1.36 to 1.39 would reject this resource; 2 of 340 connected nodes (Envoy 1.37.0) would reject \
                 this [health_check.several]";
    assert!(found.0 == 'R' && found.1[0].ends_with(nodes), "{found:?}");
    // The nodes of other replicas count too.
    let profiles = Profiles {
        connected: connected(&[("envoy/1.40.1", 1)]),
        connected_elsewhere: connected(&[("envoy/1.20.0", 1)]),
        ..Profiles::default()
    };
    let found = verdict_for(profiles, &cluster);
    assert!(found.1[0].contains("1 of 2 connected nodes (Envoy 1.20.0)"), "{found:?}");
    let newest = connected(&[("envoy/1.41.0", 3)]);
    assert_eq!(verdict_for(Profiles { connected: newest, ..Profiles::default() }, &cluster).0, 'A');
}

#[test]
fn backquotes_of_cel_are_new_in_envoy_1_40() {
    let filter = |expression: &str| {
        let filter = json!({
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            "expression": expression,
        });
        let log = json!({
            "name": "a",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog"},
            "filter": {"extension_filter": {"name": "x", "typed_config": filter}},
        });
        json!({
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
            "name": "l",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 80}},
            "access_log": [log],
            "filter_chains": [{"filters": [{
                "name": "e",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo"},
            }]}],
        })
    };
    assert_eq!(verdicts(&filter("a.`b`")), "RRRRA");
    assert_eq!(verdicts(&filter("a == '`'")), "AAAAA");
}
