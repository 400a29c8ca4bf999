//! Network filters and filters of listeners.

use std::collections::HashSet;

use super::{common::repeated, registry, versions::before};
use crate::{
    clients::ENVOY,
    node::named,
    validate::{findings::Findings, tree::Message},
};

/// A value of `upstream_connect_mode`.
const ON_DOWNSTREAM_DATA: u64 = 1;

/// A connection that waits for data of the client needs a limit of this data.
pub(super) fn early_data<'m>(proxy: &'m Message<'_>, findings: &mut Findings<'m>) {
    if proxy.bits("upstream_connect_mode") != 0 && !proxy.has("max_early_data_bytes") {
        findings.field("max_early_data_bytes", |findings| {
            let rule = "is required unless upstream_connect_mode is IMMEDIATE, but missing";
            // Envoy 1.37 needs the field only to wait for data.
            let is_data = proxy.bits("upstream_connect_mode") == ON_DOWNSTREAM_DATA;
            let clients = ENVOY - before(if is_data { 37 } else { 38 });
            findings.only(clients, |f| f.refuse("tcp_proxy.early_data", rule));
        });
    }
}

/// Each operation has one threshold.
pub(super) fn zookeeper<'m>(proxy: &'m Message<'_>, findings: &mut Findings<'m>) {
    let overrides = proxy.messages("latency_threshold_overrides");
    for (index, first) in repeated(overrides.map(|it| it.bits("opcode"))) {
        findings.item("latency_threshold_overrides", index, |findings| {
            let rule = format!("has the opcode of latency_threshold_overrides[{first}]");
            findings.refuse("zookeeper.opcode", rule);
        });
    }
}

/// One version of the PROXY protocol at least is possible.
pub(super) fn proxy_protocol<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let disallowed: HashSet<u64> = filter.numbers("disallowed_versions").collect();
    if disallowed.len() >= 2 {
        findings.field("disallowed_versions", |findings| {
            findings.refuse("proxy_protocol.versions", "leaves no version");
        });
    }
}

/// A negated match of a Thrift route names what it negates.
pub(super) fn thrift_match<'m>(criteria: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_named = |field| !criteria.text(field).is_empty();
    if criteria.bits("invert") != 0 && !is_named("method_name") && !is_named("service_name") {
        findings.field("invert", |findings| {
            findings.refuse("thrift.invert", "needs a method_name or service_name");
        });
    }
}

/// The only filters of Dubbo in released builds, which Envoy finds by name.
const DUBBO_ROUTER: &str = "envoy.filters.dubbo.router";

/// A filter of Dubbo is known.
pub(super) fn dubbo_filter<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let name = filter.text("name");
    if !name.is_empty() && name != DUBBO_ROUTER {
        findings.field("name", |findings| {
            let rule = format!("released builds of Envoy have no Dubbo filter {}", named(name));
            findings.refuse_with_fix("dubbo.filter", rule, format!("use {DUBBO_ROUTER}"));
        });
    }
}

const GENERIC_ROUTER: &str = "envoy.extensions.filters.network.generic_proxy.router.v3.Router";

/// The router is the last filter of a generic proxy, and no host is in two virtual hosts.
pub(super) fn generic_proxy<'m>(proxy: &'m Message<'_>, findings: &mut Findings<'m>) {
    let n = proxy.messages("filters").count();
    for (index, filter) in proxy.messages("filters").enumerate() {
        let kind = filter.message("typed_config").map_or("", registry::kind_of);
        if kind == GENERIC_ROUTER && index + 1 < n {
            findings.item("filters", index, |findings| {
                let rule = "ends the chain, but is not the last filter";
                findings.refuse_with_fix("generic_proxy.router", rule, "move it to the end");
            });
        }
    }
}

/// A host belongs to one virtual host, and `*` excludes other default routes.
pub(super) fn generic_hosts<'m>(routes: &'m Message<'_>, findings: &mut Findings<'m>) {
    let mut seen = HashSet::new();
    for (i, host) in routes.messages("virtual_hosts").enumerate() {
        for (j, domain) in host.texts("hosts").enumerate() {
            let rule = match domain {
                "*" if routes.has("routes") => "cannot be combined with routes",
                _ if !seen.insert(domain) => "is also in another virtual host",
                _ => continue,
            };
            findings.item("virtual_hosts", i, |findings| {
                findings.item("hosts", j, |f| f.refuse("generic_proxy.host", rule));
            });
        }
    }
}
