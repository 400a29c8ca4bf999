//! Name resolution: the resolvers and the times of clusters and of caches.

use super::{
    address,
    cluster_kind::{Kind, kind},
    config_source::intervals,
    extensions::DNS_RESOLVERS,
};
use crate::validate::{findings::Findings, tree::Message};

/// The fields of a cluster for name resolution are valid if the cluster resolves names.
pub(super) fn cluster<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_dns = matches!(kind(cluster), Kind::StrictDns | Kind::LogicalDns);
    if is_dns && !cluster.has("cluster_type") {
        settings(cluster, findings);
    }
}

/// The settings of name resolution are valid: of a cluster, a cluster extension, or a cache.
pub(super) fn settings<'m>(settings: &'m Message<'_>, findings: &mut Findings<'m>) {
    resolver(settings, findings);
    if let Some(rate) = settings.message("dns_failure_refresh_rate") {
        findings.field("dns_failure_refresh_rate", |findings| intervals(rate, findings));
    }
}

fn resolver<'m>(settings: &'m Message<'_>, findings: &mut Findings<'m>) {
    DNS_RESOLVERS.check_field(settings, "typed_dns_resolver_config", findings);
    let typed = settings.message("typed_dns_resolver_config");
    if let Some(cares) = typed.and_then(|typed| typed.any("typed_config")) {
        findings.field("typed_dns_resolver_config", |findings| {
            findings.field("typed_config", |f| servers(cares, "resolvers", f));
        });
        return;
    }
    if let Some(config) = settings.message("dns_resolution_config") {
        findings.field("dns_resolution_config", |f| servers(config, "resolvers", f));
    }
    servers(settings, "dns_resolvers", findings);
}

/// Checks that name servers have IP addresses.
fn servers<'m>(owner: &'m Message<'_>, list: &'static str, findings: &mut Findings<'m>) {
    for (index, server) in owner.messages(list).enumerate() {
        findings.item(list, index, |findings| {
            if !server.has("socket_address") {
                return findings
                    .refuse("dns.server", "a name server needs an IP address and a port");
            }
            address::literal(server, "use the IP address of the name server", findings);
        });
    }
}

/// A cache of a forward proxy has space for its first entries.
pub(super) fn cache<'m>(cache: &'m Message<'_>, findings: &mut Findings<'m>) {
    resolver(cache, findings);
    let max = cache.wrapped("max_hosts").unwrap_or(1024);
    let n = cache.messages("preresolve_hostnames").count() as u64;
    if n > max {
        findings.field("preresolve_hostnames", |findings| {
            findings.refuse("dns.cache_size", format!("has {n} items, but max_hosts is {max}"));
        });
    }
}
