//! Clusters.

use super::{
    cluster_kind::{Kind, config, kind},
    endpoint, extensions, lb_policy,
};
use crate::validate::{
    findings::Findings,
    tree::{Message, nanos, seconds},
};

// Values of `Cluster.lb_policy`.
const RING_HASH: u64 = 2;
const MAGLEV: u64 = 5;
const CLUSTER_PROVIDED: u64 = 6;
const LOAD_BALANCING_POLICY_CONFIG: u64 = 7;

/// A cluster of type EDS says where its endpoints come from.
pub(super) fn eds_source<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let config = cluster.message("eds_cluster_config");
    let is_eds = kind(cluster) == Kind::Eds;
    if is_eds && config.is_none_or(|config| !config.has("eds_config")) {
        let rule = "a cluster of type EDS needs a source of its endpoints";
        let fix =
            "give eds_cluster_config.eds_config, for example {ads: {}, resource_api_version: V3}";
        findings
            .field("eds_cluster_config", |f| f.refuse_with_fix("cluster.eds_source", rule, fix));
    }
    // Envoy looks only at the field `type` here.
    if config.is_some() && cluster.bits("type") != EDS {
        findings.field("eds_cluster_config", |findings| {
            let rule = "only a cluster of type EDS may have this field";
            findings.refuse_with_fix("cluster.eds_config", rule, "set type to EDS");
        });
    }
    if is_eds && cluster.has("load_assignment") {
        findings.field("load_assignment", |findings| {
            let rule =
                "a cluster of type EDS receives its endpoints from its source, not from this field";
            findings.warn("cluster.eds_load_assignment", rule);
        });
    }
}

/// The value `EDS` of `Cluster.type`.
const EDS: u64 = 3;

/// The load balancing policy fits the type of the cluster.
pub(super) fn load_balancing<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let (kind, legacy) = (kind(cluster), cluster.bits("lb_policy"));
    let list = cluster.message("load_balancing_policy");
    if legacy == LOAD_BALANCING_POLICY_CONFIG && list.is_none() {
        let rule = "LOAD_BALANCING_POLICY_CONFIG needs the field load_balancing_policy";
        return findings.field("lb_policy", |f| f.refuse("cluster.lb_policy_missing", rule));
    }
    if matches!(kind, Kind::OriginalDst | Kind::ReverseConnection) && legacy != CLUSTER_PROVIDED {
        let rule = "a cluster of this type needs the lb_policy CLUSTER_PROVIDED";
        let fix = "set lb_policy to CLUSTER_PROVIDED";
        return findings
            .field("lb_policy", |f| f.refuse_with_fix("cluster.original_dst_lb", rule, fix));
    }
    if legacy == CLUSTER_PROVIDED && list.is_none() && cluster.has("lb_subset_config") {
        let rule = "subsets cannot be combined with CLUSTER_PROVIDED";
        return findings.field("lb_subset_config", |f| f.refuse("cluster.lb_subset", rule));
    }
    let (field, is_provided) = match list {
        None => ("lb_policy", legacy == CLUSTER_PROVIDED),
        Some(list) => match lb_policy::used_name(list) {
            Some(name) => ("load_balancing_policy", name == "cluster_provided"),
            None => return,
        },
    };
    let provides = match kind {
        Kind::Other => return,
        Kind::Redis => legacy == CLUSTER_PROVIDED,
        Kind::OriginalDst
        | Kind::Aggregate
        | Kind::ForwardProxy
        | Kind::Composite
        | Kind::ReverseConnection => true,
        Kind::Static | Kind::StrictDns | Kind::LogicalDns | Kind::Eds => false,
    };
    match (provides, is_provided) {
        (true, false) => {
            let rule = "a cluster of this type selects endpoints itself";
            let fix = match kind {
                Kind::Aggregate => {
                    "set lb_policy to CLUSTER_PROVIDED, or give load_balancing_policy with cluster_provided first and then a policy for gRPC clients"
                }
                _ => "set lb_policy to CLUSTER_PROVIDED",
            };
            findings.field(field, |f| f.refuse_with_fix("cluster.lb_provided", rule, fix));
        }
        (false, true) => {
            let rule = "CLUSTER_PROVIDED needs the type ORIGINAL_DST, or a cluster_type that selects endpoints itself";
            findings.field(field, |f| f.refuse("cluster.lb_not_provided", rule));
        }
        _ => {}
    }
}

/// The options of load balancing exclude each other.
pub(super) fn lb_options<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    const OF_POLICIES: [&str; 3] =
        ["zone_aware_lb_config", "locality_weighted_lb_config", "consistent_hashing_lb_config"];
    let common = cluster.message("common_lb_config");
    if cluster.has("load_balancing_policy") {
        let fix = "set this option in the policy";
        for option in OF_POLICIES {
            if common.is_some_and(|common| common.has(option)) {
                let rule = "cannot be combined with load_balancing_policy";
                findings.field("common_lb_config", |findings| {
                    findings.field(option, |f| f.refuse_with_fix("cluster.lb_options", rule, fix));
                });
            }
        }
        if cluster.has("lb_subset_config") {
            let rule = "cannot be combined with load_balancing_policy";
            let fix = "use the policy envoy.extensions.load_balancing_policies.subset.v3.Subset";
            findings
                .field("lb_subset_config", |f| f.refuse_with_fix("cluster.lb_options", rule, fix));
        }
        return;
    }
    if let Some(subsets) = cluster.message("lb_subset_config") {
        findings.field("lb_subset_config", |findings| {
            lb_policy::selectors(subsets, findings);
            let is_weighted =
                common.is_some_and(|common| common.has("locality_weighted_lb_config"));
            if subsets.bits("locality_weight_aware") != 0 && !is_weighted {
                let rule = "needs common_lb_config.locality_weighted_lb_config";
                findings.field("locality_weight_aware", |f| f.refuse("subset.localities", rule));
            }
        });
    }
    let hashing = common.and_then(|common| common.message("consistent_hashing_lb_config"));
    let by_name = hashing.is_some_and(|hashing| hashing.bits("use_hostname_for_hashing") != 0);
    let is_dns = kind(cluster) == Kind::StrictDns && config(cluster).is_none();
    if by_name && !is_dns {
        findings.field("common_lb_config", |findings| {
            findings.field("consistent_hashing_lb_config", |findings| {
                let rule = "is allowed only with the type STRICT_DNS";
                findings
                    .field("use_hostname_for_hashing", |f| f.refuse("cluster.hash_names", rule));
            });
        });
    }
}

/// The endpoints in a cluster fit its type.
pub(super) fn endpoints<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let kind = kind(cluster);
    let assignment = cluster.message("load_assignment");
    if kind == Kind::LogicalDns {
        let localities = assignment.into_iter().flat_map(|all| all.messages("endpoints"));
        let counts: Vec<usize> =
            localities.map(|locality| locality.messages("lb_endpoints").count()).collect();
        if counts != [1] {
            let rule = format!(
                "a cluster of type LOGICAL_DNS needs exactly one locality with one endpoint, but the number of endpoints is {} and that of localities is {}",
                counts.iter().sum::<usize>(),
                counts.len()
            );
            findings.field("load_assignment", |f| f.refuse("cluster.logical_dns", rule));
        }
    }
    let Some(assignment) = assignment else { return };
    findings.field("load_assignment", |findings| match kind {
        Kind::OriginalDst | Kind::ReverseConnection => {
            let rule = "a cluster of this type cannot have endpoints";
            findings.refuse("cluster.original_dst_endpoints", rule);
        }
        Kind::StrictDns | Kind::LogicalDns => {
            endpoint::without_resolver(assignment, findings);
            endpoint::health_check_addresses(assignment, findings);
            endpoint::without_leds(assignment, findings);
        }
        Kind::Static => {
            let fix = "use an IP address, or set the type of the cluster to STRICT_DNS";
            endpoint::literal_addresses(assignment, fix, findings);
            endpoint::health_check_addresses(assignment, findings);
            endpoint::without_leds(assignment, findings);
        }
        _ => {}
    });
}

/// Addresses from request headers are in use if a header is named.
pub(super) fn original_dst<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    if kind(cluster) != Kind::OriginalDst {
        return;
    }
    let Some(options) = cluster.message("original_dst_lb_config") else { return };
    findings.field("original_dst_lb_config", |findings| header_use(options, findings));
}

/// Addresses from request headers are in use if a header is named.
pub(super) fn header_use<'m>(options: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !options.text("http_header_name").is_empty() && options.bits("use_http_header") == 0 {
        findings.field("http_header_name", |findings| {
            let rule = "has no effect without use_http_header";
            findings.refuse_with_fix(
                "cluster.original_dst_header",
                rule,
                "set use_http_header to true",
            );
        });
    }
}

/// A limit per host concerns connections only.
pub(super) fn limits_per_host<'m>(breakers: &'m Message<'_>, findings: &mut Findings<'m>) {
    const OTHERS: [&str; 5] = [
        "max_pending_requests",
        "max_requests",
        "max_retries",
        "retry_budget",
        "max_connection_pools",
    ];
    for (index, limits) in breakers.messages("per_host_thresholds").enumerate() {
        for field in OTHERS.into_iter().filter(|field| limits.has(field)) {
            findings.item("per_host_thresholds", index, |findings| {
                let rule = "is not supported per host; Envoy supports only max_connections here";
                findings.field(field, |findings| findings.refuse("breakers.per_host", rule));
            });
        }
    }
}

/// The network filters of a cluster are known.
pub(super) fn filters<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, filter) in cluster.messages("filters").enumerate() {
        if !filter.has("config_discovery") {
            findings.item("filters", index, |findings| {
                extensions::UPSTREAM_NETWORK_FILTERS.check(filter, findings);
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

/// The default bounds of a ring.
const RING_MIN: u64 = 1024;
const RING_MAX: u64 = 8 << 20;

/// The field for the policy of each subset. Envoy creates its tables when a subset gets its first endpoint.
const OF_SUBSETS: &str = "subset_lb_policy";

/// The minimum size of a ring is not above the maximum.
pub(super) fn ring_size<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_late = findings.is_within(OF_SUBSETS);
    findings.unused(is_late, |findings| ring_bounds(config, findings));
}

fn ring_bounds<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let min = config.wrapped("minimum_ring_size").unwrap_or(RING_MIN);
    let max = config.wrapped("maximum_ring_size").unwrap_or(RING_MAX);
    if min > max {
        findings.field("minimum_ring_size", |findings| {
            let rule = format!("is {min}, but maximum_ring_size is {max}");
            findings.refuse_with_fix(
                "ring_hash.size",
                rule,
                "set minimum_ring_size to at most maximum_ring_size",
            );
        });
    }
}

/// The size of a Maglev table is a prime.
pub(super) fn maglev_table<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_late = findings.is_within(OF_SUBSETS);
    findings.unused(is_late, |findings| table_size(config, findings));
}

fn table_size<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_prime = |n: u64| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    // PGV bounds the size to 5,000,011 in a cluster, so that the test is short.
    if let Some(size) = config.wrapped("table_size").filter(|size| *size <= u32::MAX.into())
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
        let default = if detection.has("base_ejection_time") { "" } else { " by default" };
        let (max, base) = (seconds(nanos(max)), seconds(base));
        let rule = format!("is {max}, but base_ejection_time is {base}{default}");
        findings.field("max_ejection_time", |f| f.refuse("outlier.max_ejection_time", rule));
    }
}
