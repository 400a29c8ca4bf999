//! Entries with constraints on dynamic parameters.

use chancery_admission::{Manifest, Options, admit};
use chancery_model::{ScopeName, Transaction};
use serde_json::{Value, json};

fn entry(constraints: &Value) -> Value {
    let cluster =
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "web"});
    json!({"dynamic_parameter_constraints": constraints, "resource": cluster})
}

/// Returns the transaction, or the problems as one text.
fn read(entries: &[Value]) -> Result<Transaction, String> {
    let content = json!({"resources": entries}).to_string();
    let manifest = Manifest { file: "m.json".to_owned(), content };
    let options = Options::new(ScopeName::new("default").unwrap());
    admit(&[manifest], &options).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        problems.join("; ")
    })
}

fn single(value: &str) -> Value {
    json!({"constraint": {"key": "env", "value": value}})
}

/// DYN-02, DYN-05: the constraints are a part of the key. Constraints that match everything are none.
#[test]
fn constraints_become_part_of_the_key() {
    let not = json!({"not_constraints": {"constraint": {"key": "env", "exists": {}}}});
    let camel = json!({"orConstraints": {"constraints": [single("a"), single("b")]}});
    let all = [entry(&single("prod")), entry(&not), entry(&camel)];
    let transaction = read(&all).unwrap();
    let names: Vec<String> =
        transaction.upserts.iter().map(|upsert| upsert.draft.key.name.to_string()).collect();
    assert_eq!(
        names,
        ["web [env=\"prod\"]", "web [not env exists]", "web [env=\"a\" or env=\"b\"]"]
    );
    let plain = read(&[entry(&json!({}))]).unwrap();
    assert_eq!(plain.upserts[0].draft.key.name.as_str(), "web");
    let twice = read(&[entry(&single("prod")), entry(&single("prod"))]).unwrap_err();
    assert!(twice.contains("duplicate resource"), "{twice}");
}

/// Constraints are bounded, and each problem has its place.
#[test]
fn invalid_constraints_are_rejected_at_their_place() {
    let deep = (0..20).fold(single("a"), |inner, _| json!({"not_constraints": inner}));
    let impossible = json!({"and_constraints": {"constraints": [single("a"), single("b")]}});
    let cases = [
        (json!({"constrain": {}}), "DynamicParameterConstraints has no such field"),
        (json!({"constraint": {"value": "x"}}), "a constraint has no key"),
        (json!({"constraint": {"key": "k"}}), "the key \"k\" has neither a value nor exists"),
        (deep, "nested more than 16 deep"),
        (impossible, "match no parameters"),
        (single("-----BEGIN PRIVATE KEY-----"), "contains a private key"),
        (json!([]), "expected"),
    ];
    for (constraints, rule) in cases {
        let found = read(&[entry(&constraints)]).unwrap_err();
        assert!(found.contains(rule), "{found}");
        assert!(found.contains("Cluster \"web\": dynamic_parameter_constraints"), "{found}");
    }
    let mut with_alias = entry(&single("a"));
    with_alias["aliases"] = json!(["other"]);
    let found = read(&[with_alias]).unwrap_err();
    assert!(found.contains("cannot have aliases"), "{found}");
}
