//! Load balancing policies of clusters (area LB): the conversion of gRFC A52 by each client.

use std::sync::LazyLock;

use chancery_lb_policy::{
    Client, Context, ConvertError, LEVELS_MAX, LbConfig, Reason, Registry, names,
    proto::{Cluster, Policy, RingHash, TypedStruct, WrrLocality},
    types,
};
use prost::Message as _;
use prost_types::value::Kind;

use super::rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, NONE, Rules, SIGNED_MAX};
use crate::validate::tree::Message;

/// The registries of the clients.
static REGISTRIES: LazyLock<[(Clients, Registry); 4]> = LazyLock::new(|| {
    [
        (CPP, Registry::of_client(Client::CCore)),
        (GO, Registry::of_client(Client::Go)),
        (JAVA, Registry::of_client(Client::Java)),
        (NODE, node()),
    ]
});

/// The policies of Node that have a name of their own there. Their configurations are not checked.
const OF_NODE: [&str; 8] = [
    "cds",
    "outlier_detection",
    "priority",
    "ring_hash",
    "weighted_target",
    "xds_cluster_impl",
    "xds_cluster_manager",
    "xds_wrr_locality",
];

/// Converts a `TypedStruct` like Node, which has other names for the policies of xDS.
fn struct_of_node(bytes: &[u8], context: &Context<'_>) -> Result<Option<LbConfig>, ConvertError> {
    let decoded = TypedStruct::decode(bytes)
        .map_err(|error| context.invalid("", format!("cannot decode the message: {error}")))?;
    let name = decoded.type_url.rsplit('/').next().unwrap_or_default();
    let shuffle = decoded.value.as_ref().and_then(|value| value.fields.get("shuffleAddressList"));
    if name == names::PICK_FIRST
        && shuffle.is_some_and(|value| !matches!(value.kind, Some(Kind::BoolValue(_))))
    {
        return Err(context.invalid("value.shuffleAddressList", "true or false is expected"));
    }
    let is_known =
        matches!(name, names::ROUND_ROBIN | names::PICK_FIRST) || OF_NODE.contains(&name);
    Ok(is_known.then(|| LbConfig::new(name, serde_json::json!({}))))
}

/// Returns the registry of Node without experimental policies. It reads explicit ring sizes as text, which
/// its own policy rejects. It rejects every `TypedStruct` without a value.
fn node() -> Registry {
    let of_ring_hash = |bytes: &[u8], context: &Context<'_>| {
        let ring = RingHash::decode(bytes)
            .map_err(|error| context.invalid("", format!("cannot decode the message: {error}")))?;
        if ring.hash_function != 1 {
            return Err(context.invalid("hash_function", "gRPC supports only XX_HASH; set XX_HASH"));
        }
        for (field, size) in [
            ("minimum_ring_size", ring.minimum_ring_size),
            ("maximum_ring_size", ring.maximum_ring_size),
        ] {
            if size.is_some() {
                return Err(
                    context.invalid(field, "Node accepts no explicit ring size; remove the field")
                );
            }
        }
        let config = serde_json::json!({ "minRingSize": 1024, "maxRingSize": 8_388_608 });
        Ok(Some(LbConfig::new(names::RING_HASH, config)))
    };
    OF_NODE
        .into_iter()
        .fold(Registry::of_client(Client::Node), Registry::with_policy)
        .with_converter(types::TYPED_STRUCT, struct_of_node)
        .with_converter(types::UDPA_TYPED_STRUCT, struct_of_node)
        .without_converter(types::PICK_FIRST)
        .without_converter(types::WEIGHTED_ROUND_ROBIN)
        .with_converter(types::RING_HASH, of_ring_hash)
}

/// The defaults of the ring sizes, and their maximum.
const RING_MIN: u64 = 1024;
const RING_MAX: u64 = 8_388_608;
/// Java reduces greater sizes to this one, which is also its default of the maximum.
const JAVA_RING_CAP: u64 = 4096;

// Values of `Cluster.lb_policy`.
const ROUND_ROBIN: u64 = 0;
const LEAST_REQUEST: u64 = 1;
const RING_HASH: u64 = 2;

/// Checks the policy of a cluster. With `load_balancing_policy`, only Go checks `lb_policy` too (LB-46).
pub(super) fn check(cluster: &Message<'_>, body: &[u8], at: &At<'_>, rules: &mut Rules) {
    let has_policy = cluster.has("load_balancing_policy");
    legacy(cluster, if has_policy { GO } else { ALL }, at, rules);
    if !has_policy {
        return;
    }
    if begins_with_round_robin(cluster) {
        return;
    }
    let Ok(decoded) = Cluster::decode(body) else { return };
    let Some(policy) = decoded.load_balancing_policy else { return };
    let at = at.field("load_balancing_policy");
    // Clients with the same error share a finding.
    let mut errors: Vec<(ConvertError, Clients)> = Vec::new();
    for (client, registry) in REGISTRIES.iter() {
        let client = *client;
        if rules.seen_by(client) == NONE {
            continue;
        }
        let without_value =
            (client == NODE).then(|| struct_without_value(&policy.policies, LEVELS_MAX));
        let result = match without_value.flatten() {
            Some(error) => Err(error),
            None => registry.convert(&policy).map(drop),
        };
        let Err(error) = result else { continue };
        match errors.iter_mut().find(|(known, _)| *known == error) {
            Some((_, clients)) => *clients = *clients | client,
            None => errors.push((error, client)),
        }
    }
    for (error, clients) in errors {
        let reason = error.to_string();
        let path = match error.reason {
            // The path of a converted configuration is not one of the resource.
            Reason::Config(_) => String::new(),
            _ => error.path,
        };
        place(&at, &path, |at| {
            rules.refuse(
                at,
                clients,
                "grpc.lb_policy",
                format!("its policy cannot be converted: {reason}"),
                "",
            );
        });
    }
}

/// Returns whether the first policy is `RoundRobin`, which all clients convert without a look at the others.
fn begins_with_round_robin(cluster: &Message<'_>) -> bool {
    let list = cluster.message("load_balancing_policy");
    let first = list.and_then(|list| list.messages("policies").next());
    let extension = first.and_then(|first| first.message("typed_extension_config"));
    let config = extension.and_then(|extension| extension.message("typed_config"));
    let name = config.and_then(|config| config.text("type_url").rsplit('/').next());
    name == Some(types::ROUND_ROBIN)
}

/// Returns the error of Node for a `TypedStruct` without a value before the first policy that it converts.
/// `levels` bounds the depth, which the conversion checks.
fn struct_without_value(policies: &[Policy], levels: usize) -> Option<ConvertError> {
    for (index, policy) in policies.iter().enumerate() {
        let config = policy.typed_extension_config.as_ref();
        let Some(any) = config.and_then(|config| config.typed_config.as_ref()) else { continue };
        let name = any.type_url.rsplit('/').next().unwrap_or_default();
        match name {
            types::TYPED_STRUCT | types::UDPA_TYPED_STRUCT => {
                let found = TypedStruct::decode(any.value.as_slice()).ok()?;
                if found.value.is_none() {
                    let path = format!("policies[{index}].TypedStruct.value");
                    return Some(ConvertError::invalid(path, "Node needs a value; set it to {}"));
                }
            }
            types::WRR_LOCALITY if levels > 0 => {
                let child = WrrLocality::decode(any.value.as_slice()).ok()?.endpoint_picking_policy;
                let mut error = struct_without_value(&child?.policies, levels - 1)?;
                error.path =
                    format!("policies[{index}].WrrLocality.endpoint_picking_policy.{}", error.path);
                return Some(error);
            }
            types::ROUND_ROBIN | types::RING_HASH | types::WRR_LOCALITY => return None,
            _ => {}
        }
    }
    None
}

/// Calls `then` with the place of a path such as `policies[0].RingHash.hash_function`. The message of an
/// `Any` has no name of its own in a manifest.
fn place(at: &At<'_>, path: &str, then: impl FnOnce(&At<'_>)) {
    let Some((head, rest)) = path.split_once(']') else {
        let (field, rest) = path.split_once('.').unwrap_or((path, ""));
        return match (field, rest) {
            ("", _) => then(at),
            (field, "") => then(&at.field(field)),
            (field, rest) => place(&at.field(field), rest, then),
        };
    };
    let (field, index) = match head.rsplit_once('[') {
        Some((field, index)) => (field, index.parse().ok()),
        None => (head, None),
    };
    // The fields before the list, such as `endpoint_picking_policy.policies`.
    let (outer, list) = field.rsplit_once('.').unwrap_or(("", field));
    let Some(index) = index else { return then(at) };
    let in_list = |at: &At<'_>| {
        let at = at.field(list);
        let at = at.index(index);
        let Some(rest) = rest.strip_prefix('.') else { return then(&at) };
        let at = at.field("typed_extension_config");
        let at = at.field("typed_config");
        // The first word is the name of the message.
        place(&at, rest.split_once('.').map_or("", |(_, rest)| rest), then);
    };
    match outer {
        "" => in_list(at),
        outer => in_list(&at.field(outer)),
    }
}

/// Checks `lb_policy` for some clients.
fn legacy(cluster: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.lb_policy";
    let has_policy = cluster.has("load_balancing_policy");
    match cluster.bits("lb_policy") {
        ROUND_ROBIN => {}
        RING_HASH => {
            let Some(config) = cluster.message("ring_hash_lb_config") else { return };
            let at = at.field("ring_hash_lb_config");
            if config.bits("hash_function") != 0 {
                let reason = "gRPC supports only the hash function XX_HASH";
                let at = at.field("hash_function");
                rules.refuse(&at, clients, ID, reason, "set hash_function to XX_HASH");
            }
            let min = config.wrapped("minimum_ring_size");
            let max = config.wrapped("maximum_ring_size");
            for (field, size) in [("minimum_ring_size", min), ("maximum_ring_size", max)] {
                let size = size.unwrap_or(RING_MIN);
                let found = (CPP | JAVA).when(size == 0) | (CPP | NODE).when(size > RING_MAX);
                let found = clients & found;
                let reason = format!("the size is {size}, but must be from 1 to {RING_MAX}");
                rules.refuse(&at.field(field), found, ID, reason, "");
            }
            let cpp = CPP.when(min.is_some_and(|min| min > max.unwrap_or(RING_MAX)));
            // The default of the minimum counts too, and both sizes are capped.
            let of_java = |size: Option<u64>, default| size.unwrap_or(default).min(JAVA_RING_CAP);
            let java = JAVA.when(of_java(min, RING_MIN) > of_java(max, JAVA_RING_CAP));
            let size = min.unwrap_or(RING_MIN);
            let reason = format!("the size {size} is greater than maximum_ring_size");
            let at = at.field("minimum_ring_size");
            rules.refuse(&at, clients & (cpp | java), ID, reason, "");
            if !has_policy {
                ring_of_go(min, max, &at, rules);
            }
        }
        LEAST_REQUEST => {
            let reason = "the lb_policy LEAST_REQUEST is not supported";
            let fix = "set load_balancing_policy";
            let refusing = CPP | JAVA.until(73) | NODE;
            rules.refuse(&at.field("lb_policy"), clients & refusing, ID, reason, fix);
            let config = cluster.message("least_request_lb_config");
            let count = config.and_then(|config| config.wrapped("choice_count")).unwrap_or(2);
            if count < 2 {
                let reason = format!("the choice_count is {count}, but must be at least 2");
                let at = at.field("least_request_lb_config");
                rules.refuse(&at.field("choice_count"), clients & (GO | JAVA), ID, reason, "");
            }
            if count > SIGNED_MAX {
                let reason =
                    format!("the choice_count is {count}, but must be at most {SIGNED_MAX}");
                let at = at.field("least_request_lb_config");
                rules.refuse(&at.field("choice_count"), clients & JAVA, ID, reason, "");
            }
        }
        _ => {
            let reason = if has_policy {
                "Go checks lb_policy even if load_balancing_policy overrides it, and does not support this lb_policy"
            } else {
                "gRPC supports only the policies ROUND_ROBIN, RING_HASH and LEAST_REQUEST"
            };
            let fix = "remove lb_policy, and set load_balancing_policy";
            rules.refuse(&at.field("lb_policy"), clients, ID, reason, fix);
        }
    }
}

/// Go does not check the sizes of a ring before it uses them. A size of 0 is absent.
fn ring_of_go(min: Option<u64>, max: Option<u64>, at: &At<'_>, rules: &mut Rules) {
    let size = |size: Option<u64>, default| size.filter(|size| *size > 0).unwrap_or(default);
    let (min, max) = (size(min, RING_MIN), size(max, RING_MAX));
    if min > max || max > RING_MAX {
        let effect = format!(
            "every RPC fails, because the ring sizes {min} and {max} are not in order, or exceed {RING_MAX}"
        );
        rules.effect(at, GO, "grpc.effect.ring_size", effect, "");
    }
}
