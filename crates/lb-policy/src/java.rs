//! Rules of grpc-java: its converter, and the policies of its registry.

use serde_json::{Value, json};

use crate::{
    config::LbConfig,
    convert::{Context, decode, type_name},
    converters::{self, RING_SIZE_MIN_DEFAULT, weighted_round_robin},
    error::ConvertError,
    model::Fields,
    names,
    proto::{ClientSideWeightedRoundRobin, RingHash, TypedStruct},
    typed_struct,
};

type Converted = Result<Option<LbConfig>, ConvertError>;

/// The ring size to which grpc-java reduces greater ones, which is also its default of the maximum.
const RING_SIZE_CAP: u64 = 4096;
/// grpc-java reads unsigned numbers of 32 bits as signed ones.
const SIGNED_MAX: u32 = i32::MAX.unsigned_abs();
/// The bound from which an unsigned number of 64 bits is negative.
const SIGN_BIT: u64 = 1 << 63;

/// The names of policies that differ in grpc-java, each with the name of the specification.
const NAMES: [(&str, &str); 3] = [
    ("wrr_locality_experimental", names::WRR_LOCALITY),
    ("cluster_impl_experimental", names::CLUSTER_IMPL),
    ("cluster_manager_experimental", names::CLUSTER_MANAGER),
];

/// The policies that a service config cannot name.
const INTERNAL: [&str; 2] = [names::PRIORITY, names::CLUSTER_IMPL];

/// Converts ring sizes. The defaults and the cap of the policy count for the comparison of both.
pub(crate) fn ring_hash(bytes: &[u8], context: &Context<'_>) -> Converted {
    converters::ring_hash(bytes, context)?;
    let message: RingHash = decode(bytes, context)?;
    let (min, max) = ring_sizes(message.minimum_ring_size, message.maximum_ring_size)
        .map_err(|rule| context.invalid("minimum_ring_size", rule))?;
    Ok(Some(LbConfig::new(names::RING_HASH, json!({ "minRingSize": min, "maxRingSize": max }))))
}

/// Returns the sizes that grpc-java uses.
pub(crate) fn ring_sizes(min: Option<u64>, max: Option<u64>) -> Result<(u64, u64), String> {
    let (min, max) = (min.unwrap_or(RING_SIZE_MIN_DEFAULT), max.unwrap_or(RING_SIZE_CAP));
    let is_positive = |size| (1..SIGN_BIT).contains(&size);
    let (used_min, used_max) = (min.min(RING_SIZE_CAP), max.min(RING_SIZE_CAP));
    if !is_positive(min) || !is_positive(max) || used_min > used_max {
        return Err(format!(
            "the sizes {min} and {max} are not positive, or the minimum exceeds the maximum"
        ));
    }
    Ok((used_min, used_max))
}

/// Checks the configuration of `ring_hash_experimental` with the cap.
pub(crate) fn check_ring_hash(fields: &Fields<'_>) -> Result<(), ConvertError> {
    let (min, max) = (fields.uint64("minRingSize")?, fields.uint64("maxRingSize")?);
    ring_sizes(min, max).map(drop).map_err(|rule| fields.error("minRingSize", rule))
}

/// Checks the configuration of `least_request_experimental`, whose count is signed.
pub(crate) fn check_least_request(fields: &Fields<'_>) -> Result<(), ConvertError> {
    match fields.uint32("choiceCount")?.filter(|count| *count > SIGNED_MAX) {
        Some(count) => {
            Err(fields.error("choiceCount", format!("the count {count} exceeds {SIGNED_MAX}")))
        }
        None => crate::policies::least_request(fields),
    }
}

/// Converts weights by load reports. Each penalty is valid.
pub(crate) fn weighted(bytes: &[u8], context: &Context<'_>) -> Converted {
    let mut message: ClientSideWeightedRoundRobin = decode(bytes, context)?;
    let penalty = message.error_utilization_penalty.take();
    let bytes = prost::Message::encode_to_vec(&message);
    let mut converted = weighted_round_robin(&bytes, context)?;
    if let (Some(config), Some(penalty)) = (&mut converted, penalty) {
        // A penalty that is not finite has no number in JSON.
        let number = penalty.to_string().parse::<f64>().map_or(Value::Null, Value::from);
        config.config["errorUtilizationPenalty"] = number;
    }
    Ok(converted)
}

/// Checks the configuration of `weighted_round_robin` like [`weighted`].
pub(crate) fn check_weighted(fields: &Fields<'_>) -> Result<(), ConvertError> {
    fields.bool("enableOobLoadReport")?;
    for key in crate::policies::WEIGHT_PERIODS {
        fields.is_negative_duration(key)?;
    }
    fields.strings("metricNamesForComputingUtilization")?;
    fields.number("errorUtilizationPenalty").map(drop)
}

/// Converts a `TypedStruct`. Its value has to be valid even if the policy is unknown.
pub(crate) fn typed_struct(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: TypedStruct = decode(bytes, context)?;
    let config = typed_struct::object(message.value.unwrap_or_default())
        .map_err(|error| error.under(&context.field("value")))?;
    let own = type_name(&message.type_url);
    let is_foreign = NAMES.iter().any(|(_, name)| *name == own);
    let name = NAMES.iter().find(|(name, _)| *name == own).map_or(own, |(_, name)| *name);
    if is_foreign || !context.has_policy(name) {
        return Ok(None);
    }
    if INTERNAL.contains(&name) {
        return Err(context.invalid("type_url", "grpc-java accepts this policy from no server"));
    }
    if name == names::WEIGHTED_TARGET && !config.contains_key("targets") {
        return Err(context.invalid("value", "grpc-java needs `targets`"));
    }
    Ok(Some(LbConfig { name: name.to_owned(), config: Value::Object(config) }))
}

/// The configuration of a cluster manager in grpc-java: `childPolicy` is a map of names to `lbPolicy`.
pub(crate) fn check_cluster_manager(fields: &Fields<'_>) -> Result<(), ConvertError> {
    let children = fields.map("childPolicy")?;
    if children.is_empty() {
        return Err(fields.error("childPolicy", "the map of child policies is missing"));
    }
    children.iter().try_for_each(|(_, child)| child.child("lbPolicy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_compared_after_the_cap() {
        for (min, max, expected) in [
            (None, None, Some((1024, 4096))),
            (Some(9_000_000), None, Some((4096, 4096))),
            (Some(5000), Some(4500), Some((4096, 4096))),
            (None, Some(1024), Some((1024, 1024))),
            (None, Some(512), None),
            (Some(10), Some(5), None),
            (Some(0), None, None),
            (Some(SIGN_BIT), None, None),
        ] {
            assert_eq!(ring_sizes(min, max).ok(), expected, "{min:?} {max:?}");
        }
    }
}
