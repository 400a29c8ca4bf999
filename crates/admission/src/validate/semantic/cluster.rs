//! Clusters.

use super::endpoint;
use crate::validate::{
    findings::Findings,
    tree::{Message, nanos},
};

// Values of `Cluster.type`.
const STATIC: u64 = 0;
const STRICT_DNS: u64 = 1;
const LOGICAL_DNS: u64 = 2;
const EDS: u64 = 3;
const ORIGINAL_DST: u64 = 4;

// Values of `Cluster.lb_policy`.
const RING_HASH: u64 = 2;
const MAGLEV: u64 = 5;
const CLUSTER_PROVIDED: u64 = 6;
const LOAD_BALANCING_POLICY_CONFIG: u64 = 7;

/// Returns the discovery type; `None` for a custom one.
fn discovery(cluster: &Message<'_>) -> Option<u64> {
    (!cluster.has("cluster_type")).then(|| cluster.bits("type"))
}

/// A cluster of type EDS says where its endpoints come from.
pub(super) fn eds_source<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let config = cluster.message("eds_cluster_config");
    if discovery(cluster) == Some(EDS) {
        if config.is_none_or(|config| !config.has("eds_config")) {
            let rule = "a cluster of type EDS needs a source of its endpoints";
            let fix = "give eds_cluster_config.eds_config, for example {ads: {}, resource_api_version: V3}";
            findings.field("eds_cluster_config", |f| {
                f.refuse_with_fix("cluster.eds_source", rule, fix)
            });
        }
    } else if config.is_some() && discovery(cluster).is_some() {
        findings.field("eds_cluster_config", |findings| {
            let rule = "only a cluster of type EDS may have this field";
            findings.refuse_with_fix("cluster.eds_config", rule, "set type to EDS");
        });
    }
    if discovery(cluster) == Some(EDS) && cluster.has("load_assignment") {
        findings.field("load_assignment", |findings| {
            let rule =
                "a cluster of type EDS receives its endpoints from its source, not from this field";
            findings.warn("cluster.eds_load_assignment", rule);
        });
    }
}

/// The load balancing policy fits the type of the cluster.
pub(super) fn load_balancing<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let policy = cluster.bits("lb_policy");
    if cluster.has("load_balancing_policy") {
        return;
    }
    let kind = discovery(cluster);
    if policy == LOAD_BALANCING_POLICY_CONFIG {
        let rule = "LOAD_BALANCING_POLICY_CONFIG needs the field load_balancing_policy";
        return findings.field("lb_policy", |f| f.refuse("cluster.lb_policy_missing", rule));
    }
    if kind == Some(ORIGINAL_DST) && policy != CLUSTER_PROVIDED {
        let rule = "a cluster of type ORIGINAL_DST has the policy CLUSTER_PROVIDED";
        let fix = "set lb_policy to CLUSTER_PROVIDED";
        findings.field("lb_policy", |f| f.refuse_with_fix("cluster.original_dst_lb", rule, fix));
    }
    if policy == CLUSTER_PROVIDED {
        if kind.is_some_and(|kind| kind != ORIGINAL_DST) {
            let rule = "CLUSTER_PROVIDED needs the type ORIGINAL_DST or a cluster_type with a policy of its own";
            findings.field("lb_policy", |f| f.refuse("cluster.lb_not_provided", rule));
        }
        if cluster.has("lb_subset_config") {
            let rule = "subsets cannot be combined with CLUSTER_PROVIDED";
            findings.field("lb_subset_config", |f| f.refuse("cluster.lb_subset", rule));
        }
    }
}

/// The endpoints in a cluster fit its type.
pub(super) fn endpoints<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(kind) = discovery(cluster) else { return };
    let assignment = cluster.message("load_assignment");
    if kind == ORIGINAL_DST && assignment.is_some() {
        let rule = "a cluster of type ORIGINAL_DST has no endpoints of its own";
        findings.field("load_assignment", |f| f.refuse("cluster.original_dst_endpoints", rule));
    }
    if kind == LOGICAL_DNS {
        let localities = assignment.into_iter().flat_map(|all| all.messages("endpoints"));
        let counts: Vec<usize> =
            localities.map(|locality| locality.messages("lb_endpoints").count()).collect();
        if counts != [1] {
            let rule = format!(
                "a cluster of type LOGICAL_DNS has one locality with one endpoint, found {} in {}",
                counts.iter().sum::<usize>(),
                counts.len()
            );
            findings.field("load_assignment", |f| f.refuse("cluster.logical_dns", rule));
        }
    }
    if matches!(kind, STRICT_DNS | LOGICAL_DNS)
        && let Some(assignment) = assignment
    {
        findings.field("load_assignment", |findings| {
            endpoint::without_resolver(assignment, findings);
        });
    }
    if kind == STATIC
        && let Some(assignment) = assignment
    {
        let fix = "use an IP address, or set the type of the cluster to STRICT_DNS";
        findings.field("load_assignment", |findings| {
            endpoint::literal_addresses(assignment, fix, findings);
        });
    }
}

/// The name under which Envoy knows the options of HTTP protocols.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The options of HTTP protocols have one fixed key.
pub(super) fn protocol_options<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    for entry in cluster.messages("typed_extension_protocol_options") {
        let (key, content) = (entry.text("key"), entry.any("value"));
        if content.is_some_and(|content| content.kind.name == HTTP_OPTIONS) && key != HTTP_OPTIONS {
            findings.field("typed_extension_protocol_options", |findings| {
                findings.at(crate::validate::findings::Step::Key(key), |findings| {
                    let rule = "these options have another key";
                    let fix = format!("use the key {HTTP_OPTIONS}");
                    findings.refuse_with_fix("cluster.protocol_options_key", rule, fix);
                });
            });
        }
    }
}

/// The configuration of the policy that `lb_policy` selects is valid. Envoy ignores the others.
pub(super) fn legacy_policy<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    if cluster.has("load_balancing_policy") {
        return;
    }
    match cluster.bits("lb_policy") {
        RING_HASH => {
            if let Some(config) = cluster.message("ring_hash_lb_config") {
                findings.field("ring_hash_lb_config", |findings| ring_size(config, findings));
            }
        }
        MAGLEV => {
            if let Some(config) = cluster.message("maglev_lb_config") {
                findings.field("maglev_lb_config", |findings| maglev_table(config, findings));
            }
        }
        _ => {}
    }
}

/// A list of policies is not empty.
pub(super) fn policies<'m>(list: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !list.has("policies") {
        findings.field("policies", |findings| {
            findings.refuse("lb_policy.empty", "is empty, but at least one policy is required");
        });
    }
}

/// A range of statuses has its bounds in order.
pub(super) fn expected_statuses<'m>(check: &'m Message<'_>, findings: &mut Findings<'m>) {
    for list in ["expected_statuses", "retriable_statuses"] {
        for (index, range) in check.messages(list).enumerate() {
            let (start, end) = (range.bits("start"), range.bits("end"));
            if start >= end || start < 100 || end > 600 {
                findings.item(list, index, |findings| {
                    let rule = "is not a range of statuses from 100 to 599, whose end is exclusive";
                    findings.refuse("health_check.statuses", rule);
                });
            }
        }
    }
}

/// The default bounds of a ring.
const RING_MIN: u64 = 1024;
const RING_MAX: u64 = 8 << 20;

/// The minimum size of a ring is not above the maximum.
pub(super) fn ring_size<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let min = config.wrapped("minimum_ring_size").unwrap_or(RING_MIN);
    let max = config.wrapped("maximum_ring_size").unwrap_or(RING_MAX);
    if min > max {
        findings.field("minimum_ring_size", |findings| {
            let rule = format!("is {min}, but maximum_ring_size is {max}");
            findings.refuse_with_fix(
                "ring_hash.size",
                rule,
                "set both, the minimum to at most the maximum",
            );
        });
    }
}

/// The size of a Maglev table is a prime.
pub(super) fn maglev_table<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_prime = |n: u64| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    // PGV bounds the size to 5,000,011, so that the test is short.
    if let Some(size) = config.wrapped("table_size").filter(|size| *size <= 5_000_011)
        && !is_prime(size)
    {
        findings.field("table_size", |findings| {
            findings.refuse_with_fix(
                "maglev.table_size",
                format!("{size} is not a prime"),
                "use 65537, for example",
            );
        });
    }
}

/// The longest time of an ejection is not below the base time.
pub(super) fn outlier_times<'m>(detection: &'m Message<'_>, findings: &mut Findings<'m>) {
    const SECOND: i128 = 1_000_000_000;
    let base = detection.message("base_ejection_time").map_or(30 * SECOND, nanos);
    if let Some(max) = detection.message("max_ejection_time")
        && nanos(max) < base
    {
        let rule = "is shorter than base_ejection_time, whose default is 30s";
        findings.field("max_ejection_time", |f| f.refuse("outlier.max_ejection_time", rule));
    }
}

/// An API source has what its type needs.
pub(super) fn api_source<'m>(source: &'m Message<'_>, findings: &mut Findings<'m>) {
    let (names, services) = (source.has("cluster_names"), source.has("grpc_services"));
    match source.bits("api_type") {
        // REST
        1 => {
            if !names || services {
                let rule = "a source of type REST has cluster_names, and no grpc_services";
                findings.refuse("api_source.rest", rule);
            }
            if !source.has("refresh_delay") {
                let rule = "is required for a source of type REST, but missing";
                findings.field("refresh_delay", |f| f.refuse("api_source.refresh_delay", rule));
            }
        }
        // GRPC and DELTA_GRPC
        2 | 3 if names || !services => {
            let rule =
                "a source of type GRPC or DELTA_GRPC has grpc_services, and no cluster_names";
            findings.refuse("api_source.grpc", rule);
        }
        _ => {}
    }
}
