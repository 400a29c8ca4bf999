//! A policy of gRPC with its configuration, and the targets of `xds_wrr_locality_experimental`: one per locality.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::{error::ConvertError, names, notes::policy_notes, proto::Locality};

/// A load balancing policy of gRPC with its configuration.
///
/// `Display` formats the JSON array that `loadBalancingConfig` of a service config contains.
#[derive(Debug, Clone, PartialEq)]
pub struct LbConfig {
    /// The name of the policy in the client's LB policy registry.
    pub name: String,
    /// The configuration object.
    pub config: Value,
}

/// A locality of a priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedLocality {
    /// The location of the endpoints.
    pub locality: Locality,
    /// The weight; `None` if the assignment has none.
    pub weight: Option<u32>,
    /// The addresses of the endpoints.
    pub endpoints: Vec<String>,
}

/// A `weighted_target_experimental`, and what was left out of it.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedTarget {
    /// The policy.
    pub config: LbConfig,
    /// Weights that are ignored.
    pub warnings: Vec<String>,
}

impl LbConfig {
    /// Creates a policy with its configuration.
    pub fn new(name: impl Into<String>, config: Value) -> Self {
        Self { name: name.into(), config }
    }

    /// Returns a list with one object with one key, the name of the policy.
    pub fn to_json(&self) -> Value {
        json!([{ self.name.as_str(): self.config }])
    }

    /// Returns a note for each configured value that clients replace or ignore, in the policy and its children.
    pub fn notes(&self) -> Vec<String> {
        policy_notes(&self.name, &self.config)
    }

    /// Returns the policy that `xds_wrr_locality_experimental` creates for localities: one target per
    /// locality, with the weight of the locality and the child policy. If a locality occurs with several
    /// weights, the first counts.
    ///
    /// # Errors
    /// Fails if the policy is another one or has no child, or if a locality has no weight.
    pub fn weighted_target<'a>(
        &self,
        localities: impl IntoIterator<Item = &'a WeightedLocality>,
    ) -> Result<WeightedTarget, ConvertError> {
        if self.name != names::WRR_LOCALITY {
            let rule = format!("{} has no targets; {} has", self.name, names::WRR_LOCALITY);
            return Err(ConvertError::config("", rule));
        }
        let child = self.config.get("childPolicy").or_else(|| self.config.get("child_policy"));
        let child = child
            .ok_or_else(|| ConvertError::config(names::WRR_LOCALITY, "`childPolicy` is missing"))?;
        let mut seen: Vec<(&Locality, u32)> = Vec::new();
        let (mut targets, mut warnings) = (Map::new(), Vec::new());
        for WeightedLocality { locality, weight, .. } in localities {
            let mut key = locality.key();
            let weight = weight
                .ok_or_else(|| ConvertError::config(key.clone(), "the locality has no weight"))?;
            if let Some((_, first)) = seen.iter().find(|(seen, _)| *seen == locality) {
                if *first != weight {
                    warnings.push(format!(
                        "{key} has the weights {first} and {weight}; {first} counts"
                    ));
                }
                continue;
            }
            seen.push((locality, weight));
            // Names with commas can make two keys equal.
            while targets.contains_key(&key) {
                key.push('\'');
            }
            targets.insert(key, json!({ "weight": weight, "childPolicy": child }));
        }
        let config = LbConfig::new(names::WEIGHTED_TARGET, json!({ "targets": targets }));
        Ok(WeightedTarget { config, warnings })
    }
}

impl fmt::Display for LbConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_json().fmt(f)
    }
}

impl fmt::Display for WeightedLocality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.locality.key())
    }
}
