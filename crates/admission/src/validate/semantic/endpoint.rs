//! Endpoint assignments.

use std::collections::BTreeMap;

use super::{address, common::repeated};
use crate::validate::{findings::Findings, tree::Message};

const WEIGHTS_MAX: u64 = u32::MAX as u64;

/// gRPC clients require that the sums of weights fit into 32 bits: of the endpoints of a locality, and of the
/// localities of a priority. Envoy accepts any sum.
pub(super) fn weights<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !findings.is_resource() {
        return;
    }
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    let weight = |message: &Message<'_>| message.wrapped("load_balancing_weight").unwrap_or(0);
    for (index, locality) in assignment.messages("endpoints").enumerate() {
        let sum = sums.entry(locality.bits("priority")).or_default();
        *sum = sum.saturating_add(weight(locality));
        let endpoints: u64 = locality.messages("lb_endpoints").map(weight).sum();
        if endpoints > WEIGHTS_MAX {
            findings.item("endpoints", index, |findings| {
                let rule = format!("the sum of the weights of the endpoints is {endpoints}; gRPC clients reject more than {WEIGHTS_MAX}");
                findings.warn("endpoint.weights", rule);
            });
        }
    }
    for (priority, sum) in sums.into_iter().filter(|(_, sum)| *sum > WEIGHTS_MAX) {
        findings.field("endpoints", |findings| {
            let rule = format!("the sum of the weights of the localities with priority {priority} is {sum}; gRPC clients reject more than {WEIGHTS_MAX}");
            findings.warn("locality.weights", rule);
        });
    }
}

/// gRPC rejects priorities with a gap, and a locality that a priority has twice. Envoy accepts both.
pub(super) fn priorities<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    let priority = |locality: &Message<'_>| locality.bits("priority");
    let mut all: Vec<u64> = assignment.messages("endpoints").map(priority).collect();
    all.sort_unstable();
    all.dedup();
    if let Some((missing, present)) = (0..).zip(&all).find(|(at, present)| at != *present) {
        findings.field("endpoints", |findings| {
            let rule = format!(
                "there is a priority {present}, but no priority {missing}; gRPC clients reject this"
            );
            findings.warn("priority.gap", rule);
        });
    }
    let place = |locality: &Message<'_>| {
        let part =
            |name| locality.message("locality").map_or("", |place| place.text(name)).to_owned();
        (priority(locality), part("region"), part("zone"), part("sub_zone"))
    };
    for (index, first) in repeated(assignment.messages("endpoints").map(place)) {
        findings.item("endpoints", index, |findings| {
            let rule =
                format!("repeats the locality of endpoints[{first}]; gRPC clients reject this");
            findings.warn("locality.duplicate", rule);
        });
    }
}

/// EDS resolves no names.
pub(super) fn resource_addresses<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    if findings.is_resource() {
        let fix = "use an IP address, or endpoints in a cluster of type STRICT_DNS";
        literal_addresses(assignment, fix, findings);
        health_check_addresses(assignment, findings);
    }
}

/// Checks that no address names a resolver.
pub(super) fn without_resolver<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (i, locality) in assignment.messages("endpoints").enumerate() {
        for (j, lb) in locality.messages("lb_endpoints").enumerate() {
            let socket = lb
                .message("endpoint")
                .and_then(|endpoint| endpoint.message("address")?.message("socket_address"));
            if socket.is_none_or(|socket| socket.text("resolver_name").is_empty()) {
                continue;
            }
            findings.item("endpoints", i, |findings| {
                findings.item("lb_endpoints", j, |findings| {
                    let rule = "a cluster that uses DNS cannot have a resolver_name";
                    findings.refuse_with_fix("address.resolver", rule, "remove resolver_name");
                });
            });
        }
    }
}

/// Runs a check of each endpoint of an assignment.
fn each_endpoint<'m>(
    assignment: &'m Message<'_>,
    findings: &mut Findings<'m>,
    check: impl Fn(&'m Message<'_>, &mut Findings<'m>),
) {
    for (i, locality) in assignment.messages("endpoints").enumerate() {
        for (j, lb) in locality.messages("lb_endpoints").enumerate() {
            findings.item("endpoints", i, |f| f.item("lb_endpoints", j, |f| check(lb, f)));
        }
    }
}

/// Checks that all addresses of an assignment are present and need no name resolution.
pub(super) fn literal_addresses<'m>(
    assignment: &'m Message<'_>,
    fix: &'static str,
    findings: &mut Findings<'m>,
) {
    each_endpoint(assignment, findings, |lb, findings| {
        let Some(endpoint) = lb.message("endpoint") else {
            let rule = "the endpoint has no address; Envoy does not support endpoint_name";
            return findings.refuse_with_fix("endpoint.address", rule, "give endpoint.address");
        };
        findings.field("endpoint", |findings| literal_endpoint(endpoint, fix, findings));
    });
}

/// Checks the addresses of an endpoint: its own, and the additional ones.
fn literal_endpoint<'m>(endpoint: &'m Message<'_>, fix: &'static str, findings: &mut Findings<'m>) {
    let check = |address: Option<&'m Message<'_>>, findings: &mut Findings<'m>| {
        findings.field("address", |findings| {
            let Some(address) = address else {
                return findings.refuse("endpoint.address", "is required, but missing");
            };
            address::literal(address, fix, findings);
            let socket = address.message("socket_address");
            if socket.is_some_and(|socket| socket.has("network_namespace_filepath")) {
                let rule = "an endpoint cannot have a network namespace";
                findings.refuse("endpoint.network_namespace", rule);
            }
        });
    };
    let address = endpoint.message("address");
    check(address, findings);
    for (k, additional) in endpoint.messages("additional_addresses").enumerate() {
        let address = additional.message("address");
        findings.item("additional_addresses", k, |findings| check(address, findings));
    }
    let Some(config) = endpoint.message("health_check_config") else { return };
    if config.bits("port_value") != 0
        && !config.has("address")
        && address.is_some_and(|address| !address.has("socket_address"))
    {
        findings.field("health_check_config", |findings| {
            let rule = "an address without a port cannot have another port for health checks";
            findings.field("port_value", |f| f.refuse("endpoint.health_check_port", rule));
        });
    }
}

/// Checks that the addresses for health checks are IP addresses.
pub(super) fn health_check_addresses<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    each_endpoint(assignment, findings, |lb, findings| {
        let config = lb.message("endpoint").and_then(|it| it.message("health_check_config"));
        if let Some(address) = config.and_then(|config| config.message("address")) {
            findings.field("endpoint", |findings| {
                findings.field("health_check_config", |findings| {
                    let fix = "use an IP address";
                    findings.field("address", |f| address::literal(address, fix, f));
                });
            });
        }
    });
}

/// Only clusters of type EDS find endpoints with LEDS.
pub(super) fn without_leds<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, locality) in assignment.messages("endpoints").enumerate() {
        if locality.has("leds_cluster_locality_config") {
            findings.item("endpoints", index, |findings| {
                findings.field("leds_cluster_locality_config", |findings| {
                    let rule = "is allowed only in assignments that EDS sends";
                    findings.refuse("locality.leds", rule);
                });
            });
        }
    }
}

/// The name of a collection of endpoints is a URL.
pub(super) fn collection_name<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let name = config.text("leds_collection_name");
    if !["xdstp:", "http:", "file:"].iter().any(|scheme| name.starts_with(scheme)) {
        findings.field("leds_collection_name", |findings| {
            let rule = "is not a URL with the scheme `xdstp:`";
            findings.refuse("locality.leds_name", rule);
        });
    }
}

/// The share of dropped requests is at most 100 %.
pub(super) fn drop_overloads<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(policy) = assignment.message("policy") else { return };
    let n = policy.messages("drop_overloads").count();
    if n > 1 {
        findings.field("policy", |findings| {
            let rule = format!("has {n} items, but Envoy supports only 1");
            findings.field("drop_overloads", |f| f.refuse("drop_overload.count", rule));
        });
    }
    for (index, overload) in policy.messages("drop_overloads").enumerate() {
        let Some(share) = overload.message("drop_percentage") else { continue };
        let denominator: u64 = match share.bits("denominator") {
            0 => 100,
            1 => 10_000,
            _ => 1_000_000,
        };
        let numerator = share.bits("numerator");
        if numerator > denominator {
            findings.field("policy", |findings| {
                findings.item("drop_overloads", index, |findings| {
                    let rule = format!(
                        "drops {numerator} of {denominator} requests, which is more than all"
                    );
                    findings.refuse("drop_overload.share", rule);
                });
            });
        }
    }
}

/// A locality has its endpoints inline or by LEDS, not both (CLI-E-33).
pub(super) fn sources<'m>(locality: &'m Message<'_>, findings: &mut Findings<'m>) {
    if locality.has("lb_endpoints") && locality.has("leds_cluster_locality_config") {
        let rule = "has both lb_endpoints and leds_cluster_locality_config";
        findings.refuse_with_fix("locality.sources", rule, "give one of the two");
    }
}
