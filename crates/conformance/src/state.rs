//! The resources that a node should see.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost::Message as _;
use serde_json::{Value, json};

use crate::{kind::Kind, located};

/// The key of the constraints of a variant.
const CONSTRAINTS: &str = "dynamic_parameter_constraints";

/// The complete state of one node, as an [`Adapter`](crate::Adapter) publishes it.
#[derive(Debug, Clone)]
pub struct State {
    node: String,
    /// The start of all names of this node.
    prefix: String,
    resources: BTreeMap<(Kind, String), Sample>,
    /// The version of each type: the publication that changed the type last.
    versions: BTreeMap<Kind, u64>,
    /// The number of publications.
    publication: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    generation: u32,
    /// The publication that changed the resource last.
    version: u64,
}

impl State {
    pub(crate) fn new(node: String, prefix: String) -> Self {
        let (resources, versions) = Default::default();
        Self { node, prefix, resources, versions, publication: 0 }
    }

    /// Sets resources to a generation. Generation 0 removes the resource.
    pub(crate) fn change(&mut self, changes: &[(Kind, &str, u32)]) {
        self.publication += 1;
        for (kind, name, generation) in changes {
            let key = (*kind, (*name).to_owned());
            let version = self.publication;
            match generation {
                0 => drop(self.resources.remove(&key)),
                _ => {
                    self.resources.insert(key, Sample { generation: *generation, version });
                }
            }
            self.versions.insert(*kind, version);
        }
    }

    /// Removes all resources.
    pub(crate) fn clear(&mut self) {
        let all: Vec<(Kind, String)> = self.resources.keys().cloned().collect();
        let changes: Vec<_> = all.iter().map(|(kind, name)| (*kind, name.as_str(), 0)).collect();
        self.change(&changes);
    }

    /// Returns the id of the node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the resources in JSON: the name, and the resource with its `@type`.
    pub(crate) fn resources(&self) -> Vec<Value> {
        let typed = |(kind, name): &(Kind, String), sample: &Sample| {
            let (name, constraints) = located::split(name);
            let mut resource = kind.json(&self.prefix, name, sample.generation);
            resource["@type"] = kind.url().into();
            let mut entry = json!({"name": format!("{}{name}", self.prefix), "resource": resource});
            if let Some(constraints) = constraints {
                entry[CONSTRAINTS] = located::constraints(constraints);
            }
            entry
        };
        self.resources.iter().map(|(key, sample)| typed(key, sample)).collect()
    }

    /// Returns the state in the form that an adapter command reads: one line of JSON.
    #[must_use]
    pub fn to_line(&self) -> String {
        let types: Vec<Value> = self.versions.iter().map(|(kind, version)| {
            let of_kind = self.resources.iter().filter(|((other, _), _)| other == kind);
            let resources: Vec<Value> = of_kind
                .map(|((kind, name), sample)| {
                    let (name, constraints) = located::split(name);
                    let message = kind.message(&self.prefix, name, sample.generation);
                    let bytes = message.map(|message| message.encode_to_vec()).unwrap_or_default();
                    let mut entry = json!({
                        "name": format!("{}{name}", self.prefix),
                        "version": sample.version.to_string(),
                        "json": kind.json(&self.prefix, name, sample.generation),
                        "bytes": STANDARD.encode(bytes),
                    });
                    if let Some(constraints) = constraints {
                        entry[CONSTRAINTS] = located::constraints(constraints);
                    }
                    entry
                })
                .collect();
            json!({"type_url": kind.url(), "version": version.to_string(), "resources": resources})
        }).collect();
        json!({"node": self.node, "types": types}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_all_types_that_ever_had_resources_and_their_versions() {
        let mut state = State::new("n".into(), "p-".into());
        state.change(&[(Kind::Cds, "a", 1), (Kind::Lds, "b", 1)]);
        state.change(&[(Kind::Cds, "c", 1)]);
        state.change(&[(Kind::Lds, "b", 0)]);
        state.change(&[(Kind::Eds, "e[env=prod]", 1)]);
        let line: Value = serde_json::from_str(&state.to_line()).unwrap();
        assert_eq!(line["node"], "n");
        let [cds, eds, lds] = line["types"].as_array().unwrap().as_slice() else {
            panic!("{line}")
        };
        let variant = &eds["resources"][0];
        assert_eq!(
            (&variant["name"], &variant["json"]["clusterName"]),
            (&"p-e".into(), &"p-e".into())
        );
        assert_eq!(
            variant["dynamic_parameter_constraints"],
            json!({"constraint": {"key": "env", "value": "prod"}})
        );
        assert_eq!((&cds["version"], cds["resources"].as_array().unwrap().len()), (&"2".into(), 2));
        assert_eq!(cds["resources"][0]["name"], "p-a");
        assert_eq!(cds["resources"][1]["version"], "2");
        assert_eq!(lds["version"], "3");
        assert_eq!(lds["resources"], json!([]));
    }
}
