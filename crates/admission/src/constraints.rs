//! Reads and shows the constraints of a variant on dynamic parameters (TP2).

use chancery_model::{
    Constraints, ResourceKey, ResourceName, TypeUrl, VariantsBudget, example, has_private_key,
};
use prost_types::Any;
use serde_json::Value as Json;

use crate::{
    encode::encode_message, encoder::Encoder, node::Node, problem::Fault, render::body_to_json,
    sensitive::IS_KEY,
};

/// The key of a manifest's entry.
pub(crate) const KEY: &str = "dynamic_parameter_constraints";
/// The name of the message.
const MESSAGE: &str = "envoy.service.discovery.v3.DynamicParameterConstraints";

/// Reads the constraints of an entry: `DynamicParameterConstraints` in JSON (DYN-05). An entry without
/// them is for all clients.
pub(crate) fn read(node: &Node, faults: &mut Vec<Fault>) -> Constraints {
    let Some(node) = node.get(KEY) else { return Constraints::Always };
    let mut fault = |rule: String| faults.push(Fault::new(rule).within(KEY));
    let pool = chancery_proto::envoy_pool();
    let mut encoder = Encoder::new(pool);
    let message = pool.get_message_by_name(MESSAGE);
    let bytes = message.and_then(|message| encode_message(&mut encoder, &message, node));
    let Some(bytes) = bytes else {
        faults.extend(encoder.into_faults().into_iter().map(|fault| fault.within(KEY)));
        return Constraints::Always;
    };
    if has_private_key(&bytes) {
        fault(IS_KEY.to_owned());
        return Constraints::Always;
    }
    Constraints::decode(&bytes).unwrap_or_else(|error| {
        fault(error.to_string());
        Constraints::Always
    })
}

/// Returns the fault of constraints that no parameters match. `budget` bounds the work for one request.
pub(crate) fn unmatched(name: &ResourceName, budget: &mut VariantsBudget) -> Option<Fault> {
    let rule = match example(&name.constraints()?, budget) {
        Ok(Some(_)) => return None,
        Ok(None) => "match no parameters, so no client would receive the resource",
        Err(_) => "are too complex; use fewer keys or values",
    };
    Some(Fault::new(rule).within(KEY))
}

/// Returns the key of a resource with constraints. A variant has no aliases.
pub(crate) fn variant_key(
    key: ResourceKey,
    constraints: &Constraints,
    aliases: &[ResourceName],
    faults: &mut Vec<Fault>,
) -> ResourceKey {
    if *constraints != Constraints::Always && !aliases.is_empty() {
        let rule = format!("a resource with {KEY} cannot have aliases");
        faults.push(Fault::new(rule).within("aliases"));
    }
    ResourceKey { name: key.name.variant(constraints), ..key }
}

/// Returns constraints as a message with its type.
#[must_use]
pub fn constraints_any(constraints: &Constraints) -> Any {
    Any { type_url: format!("type.googleapis.com/{MESSAGE}"), value: constraints.encode() }
}

/// Returns constraints as a manifest has them. `bytes` are an encoded `DynamicParameterConstraints`.
#[must_use]
pub fn constraints_to_json(bytes: &[u8]) -> Json {
    let Ok(type_url) = TypeUrl::new(&format!("type.googleapis.com/{MESSAGE}")) else {
        return Json::Null;
    };
    let mut json = body_to_json(&type_url, bytes);
    if let Json::Object(fields) = &mut json {
        fields.remove("@type");
    }
    json
}
