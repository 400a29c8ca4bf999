//! The converters of the policies that gRFC A52 and its successors define.

use prost_types::Duration;
use serde_json::{Map, Value, json};

use crate::{
    config::LbConfig,
    convert::{Context, decode},
    duration,
    error::ConvertError,
    names,
    proto::{
        ClientSideWeightedRoundRobin, LeastRequest, PickFirst, RandomSubsetting, RingHash,
        WrrLocality,
    },
};

type Converted = Result<Option<LbConfig>, ConvertError>;

/// The values of `hash_function` in the message of the policy.
const DEFAULT_HASH: i32 = 0;
const XX_HASH: i32 = 1;
/// The ring sizes that an unset field of the xDS message stands for.
pub(crate) const RING_SIZE_MIN_DEFAULT: u64 = 1024;
pub(crate) const RING_SIZE_MAX_DEFAULT: u64 = 8_388_608;
/// The choice count that an unset field stands for.
pub(crate) const CHOICE_COUNT_DEFAULT: u32 = 2;

pub(crate) fn ring_hash(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: RingHash = decode(bytes, context)?;
    if message.hash_function != XX_HASH {
        let got = match message.hash_function {
            DEFAULT_HASH => "DEFAULT_HASH".to_owned(),
            2 => "MURMUR_HASH_2".to_owned(),
            other => other.to_string(),
        };
        let text =
            format!("the hash function is {got}, but gRPC supports only XX_HASH; set XX_HASH");
        return Err(context.invalid("hash_function", text));
    }
    Ok(Some(ring_hash_config(message.minimum_ring_size, message.maximum_ring_size)))
}

/// Accepts an unset hash function, like C-core.
pub(crate) fn ring_hash_lenient(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: RingHash = decode(bytes, context)?;
    match message.hash_function {
        DEFAULT_HASH => {
            Ok(Some(ring_hash_config(message.minimum_ring_size, message.maximum_ring_size)))
        }
        _ => ring_hash(bytes, context),
    }
}

/// Rejects sizes, like grpc-js 1.14, which reads them as text and expects a number.
pub(crate) fn ring_hash_without_sizes(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: RingHash = decode(bytes, context)?;
    let sizes = [
        ("minimum_ring_size", message.minimum_ring_size),
        ("maximum_ring_size", message.maximum_ring_size),
    ];
    match sizes.into_iter().find(|(_, size)| size.is_some()) {
        Some((field, _)) => {
            Err(context.invalid(field, "grpc-js rejects every size; remove it, or use `lb_policy`"))
        }
        None => ring_hash(bytes, context),
    }
}

/// Both sizes are always present, because the default maximum of gRPC differs from that of xDS.
pub(crate) fn ring_hash_config(min: Option<u64>, max: Option<u64>) -> LbConfig {
    let config = json!({
        "minRingSize": min.unwrap_or(RING_SIZE_MIN_DEFAULT),
        "maxRingSize": max.unwrap_or(RING_SIZE_MAX_DEFAULT),
    });
    LbConfig::new(names::RING_HASH, config)
}

pub(crate) fn round_robin(_: &[u8], _: &Context<'_>) -> Converted {
    Ok(Some(round_robin_config()))
}

pub(crate) fn round_robin_config() -> LbConfig {
    LbConfig::new(names::ROUND_ROBIN, json!({}))
}

pub(crate) fn wrr_locality(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: WrrLocality = decode(bytes, context)?;
    let child =
        context.child("endpoint_picking_policy", message.endpoint_picking_policy.as_ref())?;
    Ok(Some(wrr_locality_config(&child)))
}

pub(crate) fn wrr_locality_config(child: &LbConfig) -> LbConfig {
    LbConfig::new(names::WRR_LOCALITY, json!({ "childPolicy": child.to_json() }))
}

pub(crate) fn least_request(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: LeastRequest = decode(bytes, context)?;
    Ok(Some(least_request_config(message.choice_count)))
}

pub(crate) fn least_request_config(choice_count: Option<u32>) -> LbConfig {
    let choice_count = choice_count.unwrap_or(CHOICE_COUNT_DEFAULT);
    LbConfig::new(names::LEAST_REQUEST, json!({ "choiceCount": choice_count }))
}

/// Emits only fields that are set. An explicit zero is set (grpc-go drops it).
pub(crate) fn weighted_round_robin(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: ClientSideWeightedRoundRobin = decode(bytes, context)?;
    let mut config = Map::new();
    if let Some(enabled) = message.enable_oob_load_report {
        config.insert("enableOobLoadReport".to_owned(), enabled.into());
    }
    let durations: [(&str, &str, Option<Duration>); 4] = [
        ("oob_reporting_period", "oobReportingPeriod", message.oob_reporting_period),
        ("blackout_period", "blackoutPeriod", message.blackout_period),
        ("weight_expiration_period", "weightExpirationPeriod", message.weight_expiration_period),
        ("weight_update_period", "weightUpdatePeriod", message.weight_update_period),
    ];
    for (field, key, value) in durations {
        let Some(value) = value else { continue };
        let text = duration::format(&value).map_err(|rule| context.invalid(field, rule))?;
        config.insert(key.to_owned(), text.into());
    }
    if let Some(penalty) = message.error_utilization_penalty {
        let number = penalty_number(penalty)
            .map_err(|rule| context.invalid("error_utilization_penalty", rule))?;
        config.insert("errorUtilizationPenalty".to_owned(), number);
    }
    let metrics = message.metric_names_for_computing_utilization;
    if !metrics.is_empty() {
        config.insert("metricNamesForComputingUtilization".to_owned(), metrics.into());
    }
    Ok(Some(LbConfig::new(names::WEIGHTED_ROUND_ROBIN, Value::Object(config))))
}

/// Writes a float with its own digits: 0.1 and not 0.10000000149011612.
fn penalty_number(penalty: f32) -> Result<Value, String> {
    if penalty.is_nan() || penalty.is_infinite() || penalty < 0.0 {
        return Err(format!("the penalty is {penalty}, but must be a number that is not negative"));
    }
    let shortest = penalty.to_string().parse::<f64>();
    Ok(shortest.unwrap_or_else(|_| f64::from(penalty)).into())
}

pub(crate) fn pick_first(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: PickFirst = decode(bytes, context)?;
    let config = json!({ "shuffleAddressList": message.shuffle_address_list });
    Ok(Some(LbConfig::new(names::PICK_FIRST, config)))
}

pub(crate) fn random_subsetting(bytes: &[u8], context: &Context<'_>) -> Converted {
    let message: RandomSubsetting = decode(bytes, context)?;
    let Some(size) = message.subset_size.filter(|size| *size > 0) else {
        return Err(context.invalid("subset_size", "the size is missing or 0; set at least 1"));
    };
    let child = context.child("child_policy", message.child_policy.as_ref())?;
    let config = json!({ "subsetSize": size, "childPolicy": child.to_json() });
    Ok(Some(LbConfig::new(names::RANDOM_SUBSETTING, config)))
}
