//! Route configurations.

use std::collections::HashMap;

use super::{common::repeated, headers};
use crate::{
    node::shown,
    validate::{
        findings::Findings,
        tree::{Message, nanos, seconds},
    },
};

/// A domain belongs to one virtual host, regardless of case.
pub(super) fn domains<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let mut seen: HashMap<String, (usize, usize)> = HashMap::new();
    for (i, host) in config.messages("virtual_hosts").enumerate() {
        for (j, domain) in host.texts("domains").enumerate() {
            let first = match seen.entry(domain.to_ascii_lowercase()) {
                std::collections::hash_map::Entry::Occupied(first) => *first.get(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert((i, j));
                    continue;
                }
            };
            findings.item("virtual_hosts", i, |findings| {
                findings.item("domains", j, |findings| {
                    let (host, at) = first;
                    let rule = format!(
                        "{} is also virtual_hosts[{host}].domains[{at}]; a domain belongs to one virtual host",
                        shown(domain)
                    );
                    findings.refuse_with_fix("route.duplicate_domain", rule, "remove one of the two");
                });
            });
        }
    }
}

/// A virtual host that is a resource of its own has each domain once. `domains` checks the others.
pub(super) fn own_domains<'m>(host: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !findings.is_resource() {
        return;
    }
    for (index, first) in repeated(host.texts("domains").map(str::to_ascii_lowercase)) {
        findings.item("domains", index, |findings| {
            let rule = format!("is also domains[{first}]");
            findings.refuse_with_fix("route.duplicate_domain", rule, "remove one of the two");
        });
    }
}

/// A route rewrites its path in one way.
pub(super) fn rewrites<'m>(action: &'m Message<'_>, findings: &mut Findings<'m>) {
    let ways = ["prefix_rewrite", "regex_rewrite", "path_rewrite_policy", "path_rewrite"];
    let given: Vec<&'static str> = ways.into_iter().filter(|way| action.has(way)).collect();
    if let [first, second, ..] = given[..] {
        findings.field(second, |findings| {
            let rule = format!("{first} and {second} exclude each other");
            findings.refuse_with_fix("route.rewrites", rule, "give one of the two");
        });
    }
}

/// A route with an extension that matches paths has no prefix to rewrite.
pub(super) fn prefixes<'m>(route: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !route.message("match").is_some_and(|criteria| criteria.has("path_match_policy")) {
        return;
    }
    for action in ["route", "redirect"] {
        if route.message(action).is_some_and(|action| action.has("prefix_rewrite")) {
            findings.field(action, |findings| {
                findings.field("prefix_rewrite", |findings| {
                    let rule = "cannot be combined with path_match_policy";
                    findings.refuse_with_fix("route.rewrites", rule, "use path_rewrite_policy");
                });
            });
        }
    }
}

/// Internal redirects copy neither pseudo-headers nor `host`.
pub(super) fn copied_headers<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, name) in policy.texts("response_headers_to_copy").enumerate() {
        if headers::is_fixed(name) {
            findings.item("response_headers_to_copy", index, |findings| {
                let rule = format!("{} cannot be copied", shown(name));
                findings.refuse("header.fixed", rule);
            });
        }
    }
}

/// A mirror policy names its cluster in one way.
pub(super) fn mirrors<'m>(action: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, policy) in action.messages("request_mirror_policies").enumerate() {
        if policy.has("cluster") == policy.has("cluster_header") {
            findings.item("request_mirror_policies", index, |findings| {
                let rule = "needs exactly one of cluster and cluster_header";
                findings.refuse("route.mirror", rule);
            });
        }
    }
}

/// A virtual cluster selects requests by headers.
pub(super) fn virtual_cluster<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !cluster.has("headers") {
        findings.field("headers", |findings| {
            findings.refuse("virtual_cluster.headers", "is required, but missing");
        });
    }
}

/// Weighted clusters have a name or a header each, and a sum of weights that is neither 0 nor too large.
pub(super) fn weights<'m>(weighted: &'m Message<'_>, findings: &mut Findings<'m>) {
    let clusters = || weighted.messages("clusters");
    if clusters().next().is_none() {
        return;
    }
    for (index, cluster) in clusters().enumerate() {
        let rule = match (cluster.has("name"), cluster.has("cluster_header")) {
            (true, true) => "has both name and cluster_header",
            (false, false) => "has neither name nor cluster_header",
            _ => continue,
        };
        findings.item("clusters", index, |findings| {
            findings.refuse_with_fix("weighted_cluster.name", rule, "give one of the two");
        });
    }
    let weight = |cluster: &Message<'_>| cluster.wrapped("weight").unwrap_or(0);
    let sum: u64 = clusters().map(weight).sum();
    if sum == 0 || sum > u32::MAX.into() {
        let rule = format!("the sum of the weights is {sum}, but must be from 1 to {}", u32::MAX);
        findings.field("clusters", |findings| findings.refuse("weighted_cluster.weights", rule));
    }
}

/// The longest interval of retries is not below the base interval.
pub(super) fn retries<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(backoff) = policy.message("retry_back_off") else { return };
    let base = backoff.message("base_interval").map_or(0, nanos);
    let max = backoff.message("max_interval").map(nanos);
    if let Some(max) = max.filter(|max| *max < base) {
        findings.field("retry_back_off", |findings| {
            findings.field("max_interval", |findings| {
                let rule = format!("is {}, but base_interval is {}", seconds(max), seconds(base));
                findings.refuse("retry.max_interval", rule);
            });
        });
    }
}
