//! The policies of the field `load_balancing_policy`, and subsets.

use std::collections::HashSet;

use super::{extensions::type_name, versions};
use crate::validate::{
    findings::Findings,
    tree::{Message, nanos},
};

const LIST: &str = "envoy.config.cluster.v3.LoadBalancingPolicy";
const PREFIX: &str = "envoy.extensions.load_balancing_policies.";

/// The policies of the released Envoy 1.40.
const KNOWN: [&str; 12] = [
    "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
    "cluster_provided.v3.ClusterProvided",
    "dynamic_modules.v3.DynamicModulesLoadBalancerConfig",
    "least_request.v3.LeastRequest",
    "load_aware_locality.v3.LoadAwareLocality",
    "maglev.v3.Maglev",
    "override_host.v3.OverrideHost",
    "random.v3.Random",
    "ring_hash.v3.RingHash",
    "round_robin.v3.RoundRobin",
    "subset.v3.Subset",
    "wrr_locality.v3.WrrLocality",
];

/// Returns the index of the policy that Envoy uses: the first one that it knows.
pub(super) fn used(list: &Message<'_>) -> Option<usize> {
    if list.kind.name != LIST {
        return None;
    }
    list.messages("policies").position(|policy| known_name(policy_type(policy)).is_some())
}

/// Returns the short name of a policy that Envoy knows, for example `ring_hash`.
fn known_name(kind: &str) -> Option<&str> {
    let name = kind.strip_prefix(PREFIX).filter(|name| KNOWN.contains(name))?;
    name.split('.').next()
}

fn policy_type<'m>(policy: &'m Message<'_>) -> &'m str {
    type_name(policy.message("typed_extension_config").and_then(|it| it.message("typed_config")))
}

/// Returns the name of the policy that Envoy uses, for example `ring_hash`.
pub(super) fn used_name<'m>(list: &'m Message<'_>) -> Option<&'m str> {
    let policy = list.messages("policies").nth(used(list)?)?;
    known_name(policy_type(policy))
}

/// A list has a policy that a client knows.
pub(super) fn policies<'m>(list: &'m Message<'_>, findings: &mut Findings<'m>) {
    if used(list).is_some() {
        let names = list.messages("policies").filter_map(|policy| known_name(policy_type(policy)));
        return versions::policies(names, findings);
    }
    let fix = "add a policy at the end that all clients support, for example round_robin";
    findings.field("policies", |findings| {
        // gRPC clients know policies that Envoy does not know.
        let is_for_grpc =
            list.messages("policies").any(|policy| policy_type(policy).starts_with(PREFIX));
        match (list.has("policies"), is_for_grpc) {
            (false, _) => {
                let rule = "is empty, but at least one policy is required";
                findings.refuse_with_fix("lb_policy.empty", rule, fix);
            }
            (true, false) => {
                findings.refuse_with_fix(
                    "lb_policy.unknown",
                    "no client supports any of these policies",
                    fix,
                );
            }
            (true, true) => {
                findings.warn("lb_policy.grpc_only", "Envoy supports none of these policies");
            }
        }
    });
}

/// Checks that a policy has a policy for a part of its work. `uses` names the policies that are allowed.
fn child<'m>(
    policy: &'m Message<'_>,
    field: &'static str,
    findings: &mut Findings<'m>,
    uses: impl Fn(&str) -> Result<(), &'static str>,
) {
    let Some(list) = policy.message(field) else {
        return findings.field(field, |findings| {
            findings.refuse("lb_policy.child", "is required, but missing");
        });
    };
    if let Some(Err(rule)) = used_name(list).map(uses) {
        findings.field(field, |findings| findings.refuse("lb_policy.child", rule));
    }
}

/// A subset policy has a policy for the endpoints of a subset, and valid selectors.
pub(super) fn subset<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    child(policy, "subset_lb_policy", findings, |_| Ok(()));
    selectors(policy, findings);
}

/// `wrr_locality` has one policy for the endpoints of a locality.
pub(super) fn wrr_locality<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(list) = policy.message("endpoint_picking_policy") else {
        return child(policy, "endpoint_picking_policy", findings, |_| Ok(()));
    };
    if used_name(list).is_some_and(|name| name != "client_side_weighted_round_robin") {
        findings.field("endpoint_picking_policy", |findings| {
            let rule = "Envoy accepts only client_side_weighted_round_robin here; gRPC clients accept other policies";
            findings.warn("lb_policy.wrr_child", rule);
        });
    }
}

/// The parts of a policy that follows the load of localities are valid.
pub(super) fn load_aware<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    child(policy, "endpoint_picking_policy", findings, |name| match name {
        "load_aware_locality" => Err("load_aware_locality cannot contain itself"),
        _ => Ok(()),
    });
    let period = policy.message("weight_update_period");
    if period.is_some_and(|period| nanos(period) < 100_000_000) {
        findings.field("weight_update_period", |findings| {
            findings.refuse("load_aware.period", "must be at least 0.1s");
        });
    }
    let threshold = policy.wrapped("utilization_variance_threshold").map(f64::from_bits);
    if threshold.is_some_and(|threshold| !(0.0..=1.0).contains(&threshold)) {
        findings.field("utilization_variance_threshold", |findings| {
            findings.refuse("load_aware.threshold", "must be from 0 to 1");
        });
    }
}

/// Each source of an override has exactly one kind.
pub(super) fn override_sources<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, source) in policy.messages("override_host_sources").enumerate() {
        if source.has("header") == source.has("metadata") {
            findings.item("override_host_sources", index, |findings| {
                let rule = "needs exactly one of header and metadata";
                findings.refuse("override_host.source", rule);
            });
        }
    }
}

/// The value `KEYS_SUBSET` of the fallback policy of a selector.
const KEYS_SUBSET: u64 = 4;

/// The selectors of subsets fall back to fewer keys.
pub(super) fn selectors<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, selector) in config.messages("subset_selectors").enumerate() {
        let keys: HashSet<&str> = selector.texts("keys").collect();
        // Envoy ignores a selector without keys.
        if keys.is_empty() {
            continue;
        }
        let fallback: HashSet<&str> = selector.texts("fallback_keys_subset").collect();
        let rule = match selector.bits("fallback_policy") == KEYS_SUBSET {
            true if fallback.is_empty() => "is required with KEYS_SUBSET, but missing",
            true if !fallback.is_subset(&keys) => "has a key that is not in keys",
            true if keys.is_subset(&fallback) => "must have fewer items than keys",
            false if !fallback.is_empty() => "is allowed only with the fallback_policy KEYS_SUBSET",
            _ => continue,
        };
        findings.item("subset_selectors", index, |findings| {
            findings.field("fallback_keys_subset", |f| f.refuse("subset.fallback_keys", rule));
        });
    }
}

/// Each item of a hash policy says what it hashes.
pub(super) fn hash_policies<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, policy) in config.messages("hash_policy").enumerate() {
        if policy.fields().all(|(at, _)| policy.kind.fields[at].oneof.is_none()) {
            findings.item("hash_policy", index, |findings| {
                findings.refuse("lb_policy.hash", "does not say what to hash");
            });
        }
    }
}
