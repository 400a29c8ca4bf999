//! How a cluster finds its endpoints.

use super::{
    extensions::{self, type_name},
    versions,
};
use crate::validate::{findings::Findings, tree::Message};

/// How a cluster finds its endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Static,
    StrictDns,
    LogicalDns,
    Eds,
    OriginalDst,
    Aggregate,
    ForwardProxy,
    Redis,
    Composite,
    ReverseConnection,
    /// An extension about which no rules are known.
    Other,
}

/// The extensions of the released Envoy 1.40: the name, the type of the configuration, and the kind.
const EXTENSIONS: [(&str, &str, Kind); 13] = [
    ("envoy.cluster.static", "", Kind::Static),
    ("envoy.cluster.strict_dns", "", Kind::StrictDns),
    ("envoy.cluster.logical_dns", "", Kind::LogicalDns),
    ("envoy.cluster.eds", "", Kind::Eds),
    ("envoy.cluster.dns", "dns.v3.DnsCluster", Kind::StrictDns),
    ("envoy.cluster.original_dst", "original_dst.v3.OriginalDstCluster", Kind::OriginalDst),
    ("envoy.clusters.aggregate", "aggregate.v3.ClusterConfig", Kind::Aggregate),
    (
        "envoy.clusters.dynamic_forward_proxy",
        "dynamic_forward_proxy.v3.ClusterConfig",
        Kind::ForwardProxy,
    ),
    ("envoy.clusters.redis", "redis.v3.RedisClusterConfig", Kind::Redis),
    ("envoy.clusters.composite", "composite.v3.ClusterConfig", Kind::Composite),
    (
        "envoy.clusters.reverse_connection",
        "reverse_connection.v3.ReverseConnectionClusterConfig",
        Kind::ReverseConnection,
    ),
    ("envoy.clusters.dynamic_modules", "dynamic_modules.v3.ClusterConfig", Kind::Other),
    ("envoy.clusters.mcp_multicluster", "mcp_multicluster.v3.ClusterConfig", Kind::Other),
];

const PREFIX: &str = "envoy.extensions.clusters.";

/// Returns how a cluster finds its endpoints.
pub(super) fn kind(cluster: &Message<'_>) -> Kind {
    let Some(extension) = cluster.message("cluster_type") else {
        return match cluster.bits("type") {
            0 => Kind::Static,
            1 => Kind::StrictDns,
            2 => Kind::LogicalDns,
            3 => Kind::Eds,
            4 => Kind::OriginalDst,
            _ => Kind::Other,
        };
    };
    let kind = find(extension).map_or(Kind::Other, |(_, _, kind)| *kind);
    let content = extension.any("typed_config");
    match content {
        Some(dns)
            if dns.bits("all_addresses_in_single_endpoint") != 0 && kind == Kind::StrictDns =>
        {
            Kind::LogicalDns
        }
        _ => kind,
    }
}

/// Returns the configuration of the extension, if it has the given kind.
pub(super) fn config<'c, 'a>(cluster: &'c Message<'a>) -> Option<&'c Message<'a>> {
    cluster.message("cluster_type")?.any("typed_config")
}

/// Finds an extension by the type of its configuration, or by its name without one.
fn find(extension: &Message<'_>) -> Option<&'static (&'static str, &'static str, Kind)> {
    let kind = type_of(extension);
    if kind.is_empty() || kind == "google.protobuf.Struct" {
        EXTENSIONS.iter().find(|(name, ..)| *name == extension.text("name"))
    } else {
        let kind = kind.strip_prefix(PREFIX)?;
        EXTENSIONS.iter().find(|(_, known, _)| *known == kind)
    }
}

fn type_of<'m>(extension: &'m Message<'_>) -> &'m str {
    // Envoy does not look into a `TypedStruct` here.
    match extension.any("typed_config") {
        Some(content) => content.kind.name.as_str(),
        None => type_name(extension.message("typed_config")),
    }
}

/// The extension of a cluster is known.
pub(super) fn extension<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(extension) = cluster.message("cluster_type") else { return };
    let found = find(extension);
    let (name, kind) = (extension.text("name"), type_of(extension));
    findings.field("cluster_type", |findings| match found {
        Some((expected, _, Kind::Redis)) if name != *expected => {
            findings.field("name", |findings| {
                let rule =
                    "Envoy accepts a RedisClusterConfig only with the name envoy.clusters.redis";
                findings.refuse_with_fix(
                    "cluster.extension",
                    rule,
                    "set the name to envoy.clusters.redis",
                );
            });
        }
        Some((_, _, Kind::Aggregate)) if kind.is_empty() => {
            findings.field("typed_config", |findings| {
                findings.refuse("cluster.extension", "is required, but missing");
            });
        }
        Some(_) => findings.field("typed_config", |findings| {
            versions::extension(kind, &[], findings);
        }),
        // An operator who declares a type with a descriptor set has built Envoy with the extension.
        None if extensions::is_declared_by_operator(kind) => {}
        None if kind.is_empty() => {
            let rule =
                format!("the released Envoy has no cluster type {}", crate::node::named(name));
            findings.field("name", |findings| findings.refuse("cluster.extension", rule));
        }
        None => {
            findings.field("typed_config", |findings| {
                let rule = format!(
                    "{} is not the configuration of a cluster type",
                    crate::node::named(kind)
                );
                findings.refuse("cluster.extension", rule);
            });
        }
    });
}
