//! The rules of gRPC's own policies for their configurations.

use crate::{
    error::ConvertError,
    model::{BuiltIn, Fields, Model},
    names,
};

/// The maximum of both ring sizes.
const RING_SIZE_BOUND: u64 = 8_388_608;
/// gRPC's own defaults of the ring sizes, which differ from those of xDS.
const RING_SIZE_MIN_DEFAULT: u64 = 1024;
const RING_SIZE_MAX_DEFAULT: u64 = 4096;

const POLICIES: &[(&str, BuiltIn)] = &[
    (names::ROUND_ROBIN, round_robin),
    (names::PICK_FIRST, pick_first),
    (names::RING_HASH, ring_hash),
    (names::LEAST_REQUEST, least_request),
    (names::WEIGHTED_ROUND_ROBIN, weighted_round_robin),
    (names::WRR_LOCALITY, wrr_locality),
    (names::WEIGHTED_TARGET, weighted_target),
    (names::PRIORITY, priority),
    (names::OUTLIER_DETECTION, outlier_detection),
    (names::CLUSTER_IMPL, cluster_impl),
    (names::CLUSTER_MANAGER, cluster_manager),
    (names::CDS, cds),
    (names::OVERRIDE_HOST, override_host),
    (names::RLS, rls),
    (names::RANDOM_SUBSETTING, random_subsetting),
];

/// Returns the LB policy registry with all policies of gRPC.
pub(crate) fn model() -> Model {
    Model::new(POLICIES)
}

fn round_robin(_: &Fields<'_>) -> Result<(), ConvertError> {
    Ok(())
}

fn pick_first(fields: &Fields<'_>) -> Result<(), ConvertError> {
    fields.bool("shuffleAddressList").map(drop)
}

fn ring_hash(fields: &Fields<'_>) -> Result<(), ConvertError> {
    ring_hash_of(fields, fields.uint64("minRingSize")?, fields.uint64("maxRingSize")?)
}

/// Reads a size of 0 as an absent one, like Go.
pub(crate) fn ring_hash_of_go(fields: &Fields<'_>) -> Result<(), ConvertError> {
    let size = |key| Ok(fields.uint64(key)?.filter(|size| *size > 0));
    ring_hash_of(fields, size("minRingSize")?, size("maxRingSize")?)
}

fn ring_hash_of(
    fields: &Fields<'_>,
    min: Option<u64>,
    max: Option<u64>,
) -> Result<(), ConvertError> {
    for (key, size) in [("minRingSize", min), ("maxRingSize", max)] {
        if size == Some(0) {
            return Err(fields.error(key, "the size is 0; set at least 1"));
        }
        if let Some(size) = size.filter(|size| *size > RING_SIZE_BOUND) {
            return Err(fields.error(key, format!("the size {size} exceeds {RING_SIZE_BOUND}")));
        }
    }
    let min = min.unwrap_or(RING_SIZE_MIN_DEFAULT);
    let max = max.unwrap_or(RING_SIZE_MAX_DEFAULT);
    if min > max {
        return Err(
            fields.error("minRingSize", format!("the size {min} exceeds maxRingSize {max}"))
        );
    }
    match fields.string("requestHashHeader")? {
        None | Some("") => Ok(()),
        Some(name) => check_header(&name.to_ascii_lowercase())
            .map_err(|rule| fields.error("requestHashHeader", rule)),
    }
}

/// Checks the key of a request's metadata, in lower case.
fn check_header(name: &str) -> Result<(), String> {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    if !name.bytes().all(is_allowed) {
        return Err(format!("{name:?} is not a valid metadata key"));
    }
    if name.ends_with("-bin") {
        Err(format!("{name:?} names binary metadata, whose hash gRPC does not use"))
    } else {
        Ok(())
    }
}

pub(crate) fn least_request(fields: &Fields<'_>) -> Result<(), ConvertError> {
    match fields.uint32("choiceCount")? {
        Some(count @ (0 | 1)) => {
            Err(fields.error("choiceCount", format!("the count is {count}; set at least 2")))
        }
        _ => Ok(()),
    }
}

/// The durations of `weighted_round_robin`.
pub(crate) const WEIGHT_PERIODS: [&str; 4] =
    ["oobReportingPeriod", "blackoutPeriod", "weightExpirationPeriod", "weightUpdatePeriod"];

pub(crate) fn weighted_round_robin(fields: &Fields<'_>) -> Result<(), ConvertError> {
    fields.bool("enableOobLoadReport")?;
    for key in WEIGHT_PERIODS {
        fields.is_negative_duration(key)?;
    }
    fields.strings("metricNamesForComputingUtilization")?;
    match fields.number("errorUtilizationPenalty")? {
        Some(penalty) if penalty < 0.0 => {
            Err(fields
                .error("errorUtilizationPenalty", format!("the penalty {penalty} is negative")))
        }
        _ => Ok(()),
    }
}

fn wrr_locality(fields: &Fields<'_>) -> Result<(), ConvertError> {
    fields.child("childPolicy")
}

fn weighted_target(fields: &Fields<'_>) -> Result<(), ConvertError> {
    for (_, target) in fields.map("targets")? {
        if target.uint32("weight")?.unwrap_or(0) == 0 {
            return Err(target.error("weight", "the weight is missing or 0; set at least 1"));
        }
        target.child("childPolicy")?;
    }
    Ok(())
}

pub(crate) fn priority(fields: &Fields<'_>) -> Result<(), ConvertError> {
    let children = fields.map("children")?;
    let priorities = fields.strings("priorities")?;
    for (name, child) in &children {
        child.child("config")?;
        child.bool("ignoreReresolutionRequests")?;
        if !priorities.contains(name) {
            return Err(child.error("", "the child is not in the list `priorities`"));
        }
    }
    for name in priorities {
        if !children.iter().any(|(child, _)| *child == name) {
            return Err(fields.error("priorities", format!("{name:?} is not in `children`")));
        }
    }
    Ok(())
}

fn outlier_detection(fields: &Fields<'_>) -> Result<(), ConvertError> {
    for key in ["interval", "baseEjectionTime", "maxEjectionTime"] {
        if fields.is_negative_duration(key)? {
            return Err(fields.error(key, "the duration is negative"));
        }
    }
    percent(fields, "maxEjectionPercent")?;
    if let Some(success) = fields.object("successRateEjection")? {
        percent(&success, "enforcementPercentage")?;
        ejection(&success, "stdevFactor")?;
    }
    if let Some(failure) = fields.object("failurePercentageEjection")? {
        percent(&failure, "threshold")?;
        percent(&failure, "enforcementPercentage")?;
        ejection(&failure, "threshold")?;
    }
    fields.child("childPolicy")
}

fn ejection(fields: &Fields<'_>, key: &str) -> Result<(), ConvertError> {
    for key in [key, "minimumHosts", "requestVolume"] {
        fields.uint32(key)?;
    }
    Ok(())
}

fn percent(fields: &Fields<'_>, key: &str) -> Result<(), ConvertError> {
    match fields.uint32(key)? {
        Some(value) if value > 100 => {
            Err(fields.error(key, format!("the percentage {value} exceeds 100")))
        }
        _ => Ok(()),
    }
}

fn cluster_impl(fields: &Fields<'_>) -> Result<(), ConvertError> {
    cds(fields)?;
    fields.child("childPolicy")
}

fn cluster_manager(fields: &Fields<'_>) -> Result<(), ConvertError> {
    for (_, child) in fields.map("children")? {
        child.child("childPolicy")?;
    }
    Ok(())
}

fn cds(fields: &Fields<'_>) -> Result<(), ConvertError> {
    match fields.string("cluster")? {
        None | Some("") => Err(fields.error("cluster", "the name of the cluster is missing")),
        Some(_) => Ok(()),
    }
}

fn override_host(fields: &Fields<'_>) -> Result<(), ConvertError> {
    fields.strings("overrideHostStatus")?;
    fields.child("childPolicy")
}

/// The client adds the target to the child's configuration, so only the child's name is checked.
fn rls(fields: &Fields<'_>) -> Result<(), ConvertError> {
    if fields.object("routeLookupConfig")?.is_none() {
        return Err(fields.error("routeLookupConfig", "the field is missing"));
    }
    if fields.string("childPolicyConfigTargetFieldName")?.unwrap_or_default().is_empty() {
        return Err(fields.error("childPolicyConfigTargetFieldName", "the name is missing"));
    }
    let children = fields.array("childPolicy")?.into_iter().flatten();
    let mut names = children.filter_map(|child| child.as_object()?.keys().next());
    if names.any(|name| fields.knows(name)) {
        Ok(())
    } else {
        Err(fields.error("childPolicy", "gRPC supports none of the policies"))
    }
}

fn random_subsetting(fields: &Fields<'_>) -> Result<(), ConvertError> {
    if fields.uint32("subsetSize")?.unwrap_or(0) == 0 {
        return Err(fields.error("subsetSize", "the size is missing or 0; set at least 1"));
    }
    fields.child("childPolicy")
}
