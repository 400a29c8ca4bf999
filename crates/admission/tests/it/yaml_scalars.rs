//! The scalars of YAML: `import` reads them as Envoy's loader does, and a manifest that would mean something else to
//! Envoy is refused. The readings in `data/envoy_scalars.json` are those of a real Envoy
//! (`real_clients::envoy_scalars`).

use std::sync::Arc;

use chancery_admission::{
    Manifest, Options, Problem, Validation, ValidationMode, admit, body_to_json, import_bootstrap,
};
use chancery_model::{ResourceDraft, ScopeName};
use serde_json::{Value, json};

/// Each scalar as it is written, with the value that Envoy reads.
const READINGS: &str = include_str!("data/envoy_scalars.json");
const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

fn import(file: &str, content: &str) -> Result<Vec<ResourceDraft>, Vec<Problem>> {
    let validation = Validation::of(ValidationMode::Off);
    let imported = import_bootstrap(file, content, &scope(), None, &validation, &Arc::default());
    imported.map(|imported| imported.drafts.into_iter().map(|(_, draft)| draft).collect())
}

fn json_of(draft: &ResourceDraft) -> Value {
    body_to_json(&draft.key.type_url, &draft.body)
}

/// Returns the only imported cluster as JSON.
fn cluster(content: &str) -> Value {
    json_of(&import("envoy.yaml", content).unwrap()[0])
}

fn metadata(scalar: &str) -> String {
    let scalar = scalar.replace('\n', "\n          ");
    format!(
        "static_resources:\n  clusters:\n  - name: c\n    metadata:\n      filter_metadata:\n        x:\n          \
         k: {scalar}\n          last: 1\n"
    )
}

/// Returns what the import of fields of a cluster gives, without its name and type.
fn fields(text: &str) -> Value {
    let mut cluster =
        cluster(&format!("static_resources:\n  clusters:\n  - name: c\n    {text}\n"));
    let fields = cluster.as_object_mut().unwrap();
    fields.retain(|key, _| !["@type", "name"].contains(&key.as_str()));
    cluster
}

fn problems(content: &str) -> String {
    let manifest = Manifest { file: "m.yaml".to_owned(), content: content.to_owned() };
    let problems = admit(&[manifest], &Options::new(scope())).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn import_reads_each_scalar_of_metadata_as_envoy_does() {
    let readings: Vec<(String, Value)> = serde_json::from_str(READINGS).unwrap();
    let (mut n_read, mut n_refused) = (0, 0);
    for (scalar, expected) in readings {
        // Without a tag, both read the same, or the import is refused.
        let is_tagged = scalar.starts_with('!');
        match import("envoy.yaml", &metadata(&scalar)) {
            Ok(drafts) => {
                let json = json_of(&drafts[0]);
                let read = &json["metadata"]["filter_metadata"]["x"];
                let (read, last) = (&read["k"], &read["last"]);
                assert_eq!((read, last), (&expected, &json!(1)), "{scalar:?}");
                n_read += 1;
            }
            Err(problems) => {
                assert!(is_tagged, "{scalar:?}: {problems:?}");
                assert!(problems[0].rule.contains(" the tag "), "{problems:?}");
                n_refused += 1;
            }
        }
    }
    assert!(n_read > 110 && n_refused > 8, "{n_read} {n_refused}");
}

/// The values are those of Envoy 1.40 (`/config_dump`).
#[test]
fn import_reads_typed_fields_as_envoy_does() {
    for (text, expected) in [
        ("per_connection_buffer_limit_bytes: 0440", json!(288)),
        ("per_connection_buffer_limit_bytes: \"0440\"", json!(440)),
        ("per_connection_buffer_limit_bytes: 0x10", json!(16)),
        ("per_connection_buffer_limit_bytes: 08", json!(8)),
        ("per_connection_buffer_limit_bytes: 1e3", json!(1000)),
        ("per_connection_buffer_limit_bytes: +5", json!(5)),
        ("per_connection_buffer_limit_bytes: \"5.\"", json!(5)),
        ("per_connection_buffer_limit_bytes: {value: 5}", json!(5)),
        ("per_connection_buffer_limit_bytes: {}", json!(0)),
        ("connect_timeout: {seconds: 5}", json!("5s")),
        ("connect_timeout: {seconds: \"5\", nanos: 7}", json!("5.000000007s")),
        ("respect_dns_ttl: yes", json!(true)),
        ("respect_dns_ttl: \"yes\"", json!(true)),
        ("respect_dns_ttl: \"tRuE\"", json!(true)),
        ("respect_dns_ttl: \"1\"", json!(true)),
        ("alt_stat_name: 1.5", json!("1.5")),
        ("alt_stat_name: 3000000000", json!("3000000000")),
        ("lb_policy: random", json!("RANDOM")),
        ("lb_policy: \"3\"", json!("RANDOM")),
        ("common_lb_config: {healthy_panic_threshold: {value: .5}}", json!(null)),
    ] {
        let read = fields(text);
        match text.split_once(':').unwrap().0 {
            "common_lb_config" => {
                let expected = json!({"healthy_panic_threshold": {"value": 0.5}});
                assert_eq!(read["common_lb_config"], expected);
            }
            field => assert_eq!(read[field], expected, "{text}"),
        }
    }
    let one = "lb_subset_config: {fallback_policy: NO_FALLBACK, subset_selectors: {keys: version}}";
    let read = &fields(one)["lb_subset_config"]["subset_selectors"];
    assert_eq!(*read, json!([{"keys": ["version"]}]));
    for (text, said) in [
        ("respect_dns_ttl: 1", "expected true or false"),
        ("respect_dns_ttl: \"on\"", "expected true or false"),
        ("alt_stat_name: 12", "expected text"),
        ("connect_timeout: 5", "expected a duration"),
        ("connect_timeout: {second: 5}", "Duration has no such field"),
        ("connect_timeout: {nanos: 2000000000}", "out of range"),
        ("connect_timeout: {seconds: 1, nanos: -5}", "out of range"),
        ("per_connection_buffer_limit_bytes: 1_000", "expected a whole number"),
        ("per_connection_buffer_limit_bytes: 0o14", "expected a whole number"),
        ("per_connection_buffer_limit_bytes: {valu: 5}", "no such field"),
        ("metadata: {filter_metadata: [{x: {a: b}}]}", "expected a map"),
        ("metadata: {filter_metadata: {x: &a {k: 1}, y: {<<: *a}}}", "does not merge"),
    ] {
        let content = format!("static_resources:\n  clusters:\n  - name: c\n    {text}\n");
        let problems = import("envoy.yaml", &content).unwrap_err();
        assert!(problems[0].rule.contains(said), "{text}: {problems:?}");
        assert_eq!(problems[0].position.unwrap().0, 4, "{text}: {problems:?}");
    }
}

#[test]
fn import_leaves_out_what_envoy_ignores() {
    let ignored = "\
!ignore shared:
- &backend {address: 127.0.0.1, port_value: 18081}
static_resources:
  clusters:
  - name: c
    !ignore x: {a: [1.20]}
    metadata: {filter_metadata: {x: {!ignore a: 1, b: yes, !ignore c: 3}}}
    load_assignment: {cluster_name: c, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: *backend}}}]}]}
";
    let read = cluster(ignored);
    assert_eq!(read["metadata"]["filter_metadata"]["x"], json!({"b": true}));
    let address = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
    let expected = json!({"address": "127.0.0.1", "port_value": 18081});
    assert_eq!(read.pointer(address), Some(&expected));
}

/// JSON has no ambiguous scalars. In the file of an Envoy, its extension decides; the standard input has none.
#[test]
fn import_of_json_keeps_numbers() {
    let json = r#"{"static_resources": {"clusters": [{"name": "c", "metadata": {"filter_metadata": {"x": {"k": 1.50}}}}]}}"#;
    for (file, expected) in [("-", json!(1.5)), ("e.json", json!(1.5)), ("e.yaml", json!("1.50"))] {
        let read = json_of(&import(file, json).unwrap()[0]);
        assert_eq!(read["metadata"]["filter_metadata"]["x"]["k"], expected, "{file}");
    }
}

#[test]
fn manifest_with_an_ambiguous_scalar_is_refused_with_the_fix() {
    let of = |scalar: &str| {
        problems(&format!(
            "resources:\n- '@type': {CLUSTER}\n  name: c\n  metadata: {{filter_metadata: {{x: {{k: {scalar}}}}}}}\n"
        ))
    };
    for scalar in ["1.20", "1.0", "1e3", "1.", "+1.5", ".5", "-0.50"] {
        let said = of(scalar);
        let rule = "m.yaml:4:39: document 1: the value is text for Envoy, and a number here; put it in quotes if \
                    it is text, or write the number in its shortest form (1.2 for 1.20)";
        assert_eq!(said, rule, "{scalar}");
    }
    for (word, value) in [("yes", true), ("On", true), ("N", false), ("OFF", false)] {
        let rule = format!(
            "m.yaml:4:39: document 1: {word} is {value} for Envoy, and text here; write {value}, or {word:?} in quotes"
        );
        assert_eq!(of(word), rule);
    }
    for number in ["012", "-012", "08", "00"] {
        let said = of(number);
        assert!(said.contains("leading zero"), "{number}: {said}");
        assert!(!said.contains(number), "the value may be a secret: {said}");
    }
    for clear in [
        "1.2",
        "0.5",
        "-7.25",
        "\"1.20\"",
        "'yes'",
        "true",
        "3",
        "oN",
        "1.2.3",
        "2026-01-01",
        "0",
        "!!float 1.20",
    ] {
        assert_eq!(of(clear), "", "{clear}");
    }
}

/// A leading zero is refused in every field. The words and the other numbers have one meaning in fields with a type.
#[test]
fn ambiguity_of_a_scalar_depends_on_its_field() {
    let of = |field: &str| {
        problems(&format!("resources:\n- '@type': {CLUSTER}\n  name: c\n  {field}\n"))
    };
    for clear in [
        "common_lb_config: {healthy_panic_threshold: {value: 1.0}}",
        "alt_stat_name: yes",
        "respect_dns_ttl: yes",
        "per_connection_buffer_limit_bytes: 1e3",
        "per_connection_buffer_limit_bytes: \"012\"",
        "alt_stat_name: 012x",
        "alt_stat_name: 10.0.0.012",
    ] {
        assert_eq!(of(clear), "", "{clear}");
    }
    let said = of("per_connection_buffer_limit_bytes: 0440");
    assert!(said.starts_with("m.yaml:4:38: document 1: a number with a leading zero"), "{said}");
    // The second document is not the first one.
    let said = problems(&format!(
        "resources: []\n---\nresources:\n- '@type': {CLUSTER}\n  name: c\n  metadata: {{filter_metadata: {{x: {{k: [a, 1.20]}}}}}}\n"
    ));
    assert!(said.starts_with("m.yaml:6:43: document 2: the value is text"), "{said}");
}

/// Envoy reads a key as text, and the value of an alias by its type.
#[test]
fn key_that_is_shared_by_an_anchor_is_refused() {
    for metadata in ["{&v yes: 1, z: *v}", "{x: &v yes, *v : 1}", "{&v '0440': 1}"] {
        let body = format!("metadata: {{filter_metadata: {{a: {metadata}}}}}");
        let bootstrap = format!("static_resources: {{clusters: [{{name: c, {body}}}]}}\n");
        let imported = import("envoy.yaml", &bootstrap).unwrap_err();
        assert!(imported[0].to_string().contains("key with an anchor"), "{imported:?}");
        let refused = problems(&format!("resources: [{{'@type': {CLUSTER}, name: c, {body}}}]\n"));
        assert!(refused.contains("key with an anchor"), "{refused}");
    }
    let value = format!("resources: [{{'@type': {CLUSTER}, name: &n c, alt_stat_name: *n}}]\n");
    assert_eq!(problems(&value), "");
}

/// The metadata of an assignment is compared with that of a node, whose bootstrap Envoy reads.
#[test]
fn ambiguous_metadata_of_an_assignment_is_refused() {
    let refused = |value: &str| {
        problems(&format!(
            "assignments: [{{name: a, match: {{metadata: {{v: {{w: {value}}}}}}}, scopes: [s]}}]\n"
        ))
    };
    for bad in ["1.20", "yes", "On", "0440"] {
        assert_ne!(refused(bad), "", "{bad}");
    }
    for good in ["1.2", "'1.20'", "true", "'yes'", "5", "v1.20"] {
        assert_eq!(refused(good), "", "{good}");
    }
}
