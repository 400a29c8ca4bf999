//! The schema of the values: it knows exactly the values in `values.yaml`, and refuses all other names.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::refusals;
use super::render::{Chart, RELEASE};
use crate::{paths::Paths, proc};

/// Names that `values.yaml` does not set: Helm sets `global` for all charts of a release, and the others have no default.
const UNSET: [&str; 2] = ["global", "updateStrategy.rollingUpdate"];
/// The part of names whose parent is empty by default.
const ISSUER: &str = ".issuerRef.";
/// Prints `values.yaml` as JSON.
const TO_JSON: &str =
    "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";

/// Checks the schema.
pub(super) fn check(chart: &Chart, paths: &Paths) -> Result<()> {
    let path = chart.dir.join("values.schema.json");
    let schema = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let schema: Value =
        serde_json::from_str(&schema).with_context(|| format!("read {}", path.display()))?;
    let mut python = Command::new(&chart.tools.python);
    python.args(["-c", TO_JSON]).arg(chart.dir.join("values.yaml")).current_dir(&paths.root);
    let values: Value =
        serde_json::from_str(&proc::output(&mut python)?).context("read values.yaml")?;
    let mut known = Known::default();
    known.walk(&schema, &schema, "");
    let mut given = BTreeSet::new();
    leaves(&values, "", &known.closed, &mut given);
    let has_no_default = |name: &str| UNSET.contains(&name) || name.contains(ISSUER);
    let missing = known.leaves.difference(&given).filter(|name| !has_no_default(name));
    let missing: Vec<_> = missing.collect();
    ensure!(missing.is_empty(), "values.yaml lacks {missing:?}, which values.schema.json allows");
    let unknown: Vec<_> = given.difference(&known.leaves).collect();
    ensure!(unknown.is_empty(), "values.schema.json lacks {unknown:?}, which values.yaml sets");
    for object in &known.closed {
        let name = joined(object, "unknownName");
        let said = refusals::refusal(chart, &["--set", &format!("{name}=1")])?;
        ensure!(
            said.contains("additional properties 'unknownName' not allowed"),
            "the chart {RELEASE} accepts the unknown value {name}: {said}"
        );
    }
    Ok(())
}

/// The names that a schema knows, with dots between their parts.
#[derive(Debug, Default)]
struct Known {
    /// Objects that allow no other names.
    closed: BTreeSet<String>,
    /// Values that are not such objects.
    leaves: BTreeSet<String>,
}

impl Known {
    fn walk(&mut self, root: &Value, schema: &Value, at: &str) {
        if let Some(reference) = schema["$ref"].as_str() {
            let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            return self.walk(root, target.unwrap_or(&Value::Null), at);
        }
        let Some(properties) = schema["properties"].as_object() else {
            self.leaves.insert(at.to_owned());
            return;
        };
        if schema["additionalProperties"] == false {
            self.closed.insert(at.to_owned());
        }
        for (name, schema) in properties {
            self.walk(root, schema, &joined(at, name));
        }
    }
}

/// Collects the names of values that are not in `closed`.
fn leaves(value: &Value, at: &str, closed: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(object) if closed.contains(at) => {
            for (name, value) in object {
                leaves(value, &joined(at, name), closed, found);
            }
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

fn joined(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_a_schema_follow_its_references() {
        let schema = json!({
            "additionalProperties": false,
            "definitions": {"port": {"additionalProperties": false, "properties": {"number": {"type": "integer"}}}},
            "properties": {"a": {"type": "string"}, "b": {"$ref": "#/definitions/port"}, "free": {"type": "object"}},
        });
        let mut known = Known::default();
        known.walk(&schema, &schema, "");
        assert_eq!(Vec::from_iter(known.closed.clone()), ["", "b"]);
        assert_eq!(Vec::from_iter(known.leaves), ["a", "b.number", "free"]);
        let mut found = BTreeSet::new();
        leaves(
            &json!({"a": "", "b": {"port": 1}, "free": {"x": 1}}),
            "",
            &known.closed,
            &mut found,
        );
        assert_eq!(Vec::from_iter(found), ["a", "b.port", "free"]);
    }
}
