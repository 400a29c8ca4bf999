//! The place of each finding: file, line, column, resource, field, rule and fix.

use std::sync::Arc;

use chancery_admission::{
    Admitted, FileEncoding, Manifest, Options, Problem, Validation, ValidationMode, admit_unless,
    import_bootstrap, locate, manifest_of_file,
};
use chancery_model::ScopeName;

fn manifest(file: &str, content: &str) -> Manifest {
    Manifest { file: file.to_owned(), content: content.to_owned() }
}

fn problems(manifests: &[Manifest]) -> Vec<Problem> {
    let options = Options {
        validation: Validation::of(ValidationMode::Enforce),
        ..Options::new(ScopeName::new("default").unwrap())
    };
    admit_unless(manifests, &options, &Arc::default()).unwrap_err()
}

/// Returns the places of problems: `file:line:column resource field [rule]`.
fn places(problems: &[Problem]) -> Vec<String> {
    let show = |problem: &Problem| {
        let position =
            problem.position.map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
        let document = problem.document.map_or(String::new(), |n| format!(" #{n}"));
        let (resource, field) = (problem.resource.as_deref(), problem.field_path.as_deref());
        let (resource, field) = (resource.unwrap_or_default(), field.unwrap_or_default());
        format!("{}{position}{document} {resource} {field} [{}]", problem.file, problem.id)
    };
    problems.iter().map(show).collect()
}

const TWO_DOCUMENTS: &str = r#"# comment
resources:
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: b
  connectTimeout: 0s
---
resources:
- resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: a
    type: EDS
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  connect_timeout: 0s
  lb_policy: MAGLEV
  maglev_lb_config: {table_size: 4}
  name: c
"#;

const JSON: &str = "{\"resources\": [\n {\"@type\": \"type.googleapis.com/envoy.config.cluster.v3.Cluster\",\n  \"name\": \"j\", \"connect_timeout\": \"0s\"}]}\n";

#[test]
fn findings_of_several_files_are_in_the_order_of_their_positions() {
    let files = [manifest("dir/b.yaml", TWO_DOCUMENTS), manifest("a.json", JSON)];
    let problems = problems(&files);
    assert_eq!(
        places(&problems),
        [
            "dir/b.yaml:5:3 #1 resources[0] Cluster \"b\" connect_timeout [duration.gt]",
            "dir/b.yaml:8:3 #2 resources[0] Cluster \"a\" eds_cluster_config [cluster.eds_source]",
            "dir/b.yaml:13:3 #2 resources[1] Cluster \"c\" connect_timeout [duration.gt]",
            "dir/b.yaml:15:22 #2 resources[1] Cluster \"c\" maglev_lb_config.table_size [maglev.table_size]",
            "a.json:3:16 #1 resources[0] Cluster \"j\" connect_timeout [duration.gt]",
        ]
    );
    assert_eq!(problems[0].fix, "");
    assert_eq!(problems[3].fix, "use 65537, for example");
}

#[test]
fn findings_of_a_bootstrap_have_lines() {
    let bootstrap = "node: {id: a}\nstatic_resources:\n  clusters:\n  - name: a\n    connect_timeout: 0s\n  - {name: b, type: EDS}\n";
    let scope = ScopeName::new("default").unwrap();
    let validation = Validation::of(ValidationMode::Enforce);
    let problems =
        import_bootstrap("envoy.yaml", bootstrap, &scope, None, &validation, &Arc::default())
            .unwrap_err();
    assert_eq!(
        places(&problems),
        [
            "envoy.yaml:5:5 static_resources.clusters[0] Cluster \"a\" connect_timeout [duration.gt]",
            "envoy.yaml:6:5 static_resources.clusters[1] Cluster \"b\" eds_cluster_config [cluster.eds_source]",
        ]
    );
}

/// The text format has no lines, because it is converted before it is read.
#[test]
fn findings_of_the_text_format_have_no_lines() {
    let text = r#"resources {
        [type.googleapis.com/envoy.config.cluster.v3.Cluster] { name: "a" connect_timeout {} }
    }"#;
    let file = manifest_of_file("a.pb_text", FileEncoding::Text, text.into()).unwrap();
    assert_eq!(
        places(&problems(&[file])),
        ["a.pb_text #1 resources[0] Cluster \"a\" connect_timeout [duration.gt]"]
    );
}

/// A path of more than 120 characters is shown in part. The position is that of the whole path.
#[test]
fn field_with_a_long_path_has_its_own_line() {
    let listener = r#"resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: edge
  address: {socket_address: {address: 127.0.0.1, port_value: 80}}
  filter_chains:
  - filters:
    - name: hcm
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: http
        route_config:
          virtual_hosts:
          - name: all
            domains: ["*"]
            routes:
            - match: {prefix: /}
              route: {cluster: web}
            - match: {prefix: /}
              route:
                weighted_clusters:
                  clusters:
                  - {name: a, weight: 1}
                  - name: b
                    weight: 1
                    request_headers_to_add:
                    - append_action: ADD_IF_ABSENT
                      header: {key: "", value: c}
        http_filters:
        - name: router
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;
    let problems = problems(&[manifest("a.yaml", listener)]);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert_eq!(problems[0].position, Some((27, 32)), "{problems:#?}");
    assert!(problems[0].field_path.as_deref().unwrap().contains('…'), "{problems:#?}");
}

/// Returns the places of findings about the field `address` of each admitted resource.
fn located(manifests: &[Manifest], name: Option<&str>) -> Vec<String> {
    let scope = ScopeName::new("default").unwrap();
    let options = Options { name: name.map(str::to_owned), ..Options::new(scope) };
    let Admitted { transaction, origins, warnings, .. } =
        admit_unless(manifests, &options, &Arc::default()).unwrap();
    assert_eq!(origins.len(), transaction.upserts.len());
    let names = transaction.upserts.iter().map(|upsert| upsert.draft.key.name.base().to_owned());
    let found = names.zip(origins).map(|(name, origin)| {
        let (resource, field_path) = (Some(name), Some("address".to_owned()));
        (Some(origin), Problem { resource, field_path, ..Problem::default() })
    });
    // Findings arrive in any order.
    places(&locate(manifests, warnings, found.rev().collect()))
}

const LISTENERS: &str = r#"resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  address: {socketAddress: {address: 127.0.0.1, portValue: 1}}
---
scope: other
resources:
- resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: b
    address: {}
- resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: c
  dynamic_parameter_constraints: {constraint: {key: env, value: prod}}
"#;

/// The places do not depend on the name, which may be generated or given outside of the file.
#[test]
fn finding_after_admission_has_the_place_of_its_resource() {
    let json = manifest(
        "a.json",
        &JSON.replace("\"connect_timeout\"", "\"lb_policy\"").replace("0s", "MAGLEV"),
    );
    let rest =
        ["b.yaml:10:5 #2 resources[0] b address []", "b.yaml:11:3 #2 resources[1] c address []"];
    let named = ["b.yaml:3:3 #1 resources[0] own address []", rest[0], rest[1]];
    assert_eq!(located(&[manifest("b.yaml", LISTENERS)], Some("own")), named);
    let all = located(&[manifest("b.yaml", LISTENERS), json], None);
    let generated = [
        "b.yaml:2:3 #1 resources[0] Listener \"listener_127.0.0.1_1\"  [listener.generated_name]",
        "b.yaml:3:3 #1 resources[0] listener_127.0.0.1_1 address []",
        rest[0],
        rest[1],
        "a.json:2:2 #1 resources[0] j address []",
    ];
    assert_eq!(all, generated);
}

#[test]
fn finding_after_admission_about_a_converted_file_has_no_line() {
    let listener =
        "resources { [type.googleapis.com/envoy.config.listener.v3.Listener] { name: \"a\" } }";
    let file = manifest_of_file("a.pb_text", FileEncoding::Text, listener.into()).unwrap();
    assert_eq!(located(&[file], None), ["a.pb_text #1 resources[0] a address []"]);
}

#[test]
fn finding_without_an_origin_gets_no_place_and_comes_last() {
    let files = [manifest("", JSON)];
    let problem = Problem { resource: Some("Cluster \"x\"".to_owned()), ..Problem::default() };
    let known = Problem { file: "-".to_owned(), ..Problem::default() };
    let all = locate(&files, vec![known.clone()], vec![(None, problem.clone())]);
    assert_eq!(all, [known, problem]);
}
