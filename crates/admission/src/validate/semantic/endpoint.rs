//! Endpoint assignments.

use std::collections::BTreeMap;

use super::{address, common::repeated};
use crate::validate::{
    findings::{Findings, Step},
    tree::Message,
};

const WEIGHTS_MAX: u64 = u32::MAX as u64;

/// The sums of weights fit into 32 bits: of the endpoints of a locality, and of the localities of a
/// priority.
///
/// Envoy checks the endpoints that EDS sends, and not those in a cluster.
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
                let rule = format!("the sum of the weights of the endpoints is {endpoints}, but may be at most {WEIGHTS_MAX}");
                findings.refuse("endpoint.weights", rule);
            });
        }
    }
    for (priority, sum) in sums.into_iter().filter(|(_, sum)| *sum > WEIGHTS_MAX) {
        findings.field("endpoints", |findings| {
            let rule = format!("the sum of the weights of the localities with priority {priority} is {sum}, but may be at most {WEIGHTS_MAX}");
            findings.refuse("locality.weights", rule);
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
                    let rule = "a cluster with DNS cannot name a resolver";
                    findings.refuse_with_fix("address.resolver", rule, "remove resolver_name");
                });
            });
        }
    }
}

/// Checks that all addresses of an assignment are IP addresses.
pub(super) fn literal_addresses<'m>(
    assignment: &'m Message<'_>,
    fix: &'static str,
    findings: &mut Findings<'m>,
) {
    for (i, locality) in assignment.messages("endpoints").enumerate() {
        for (j, lb) in locality.messages("lb_endpoints").enumerate() {
            let Some(endpoint) = lb.message("endpoint") else { continue };
            let in_endpoint = |findings: &mut Findings<'m>| {
                if let Some(address) = endpoint.message("address") {
                    findings.field("address", |findings| address::literal(address, fix, findings));
                }
                for (k, additional) in endpoint.messages("additional_addresses").enumerate() {
                    let Some(address) = additional.message("address") else { continue };
                    findings.item("additional_addresses", k, |findings| {
                        findings.field("address", |f| address::literal(address, fix, f));
                    });
                }
            };
            findings.item("endpoints", i, |findings| {
                findings.item("lb_endpoints", j, |f| f.at(Step::Field("endpoint"), in_endpoint));
            });
        }
    }
}

/// The share of dropped requests is at most 100 %.
pub(super) fn drop_overloads<'m>(assignment: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(policy) = assignment.message("policy") else { return };
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
