//! The transport sockets of clusters.

use std::collections::HashMap;

use super::{address, extensions::UPSTREAM_SOCKETS};
use crate::validate::{findings::Findings, tree::Message};

/// The sockets of a cluster are known, also those inside other sockets.
pub(super) fn sockets<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Some(own) = cluster.message("transport_socket") {
        findings.field("transport_socket", |findings| socket(own, findings));
    }
    for (index, entry) in cluster.messages("transport_socket_matches").enumerate() {
        findings.item("transport_socket_matches", index, |findings| {
            findings.field("transport_socket", |findings| {
                match entry.message("transport_socket") {
                    Some(own) => socket(own, findings),
                    None => findings.refuse("extension.type", "is required, but missing"),
                }
            });
        });
    }
    // With a matcher, Envoy finds the sockets by their names.
    if cluster.has("transport_socket_matcher") {
        names(cluster, findings);
    }
}

fn names<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let mut seen = HashMap::new();
    for (index, entry) in cluster.messages("transport_socket_matches").enumerate() {
        if let Some(first) = seen.insert(entry.text("name"), index) {
            findings.item("transport_socket_matches", index, |findings| {
                let rule = format!("repeats the name of transport_socket_matches[{first}]");
                findings.field("name", |f| f.refuse("transport_socket.name", rule));
            });
        }
    }
}

fn socket<'m>(own: &'m Message<'_>, findings: &mut Findings<'m>) {
    // `filter.typed_config` concerns a socket without a configuration.
    if !own.has("typed_config") {
        return;
    }
    UPSTREAM_SOCKETS.check(own, findings);
    let inner = own.any("typed_config").and_then(|config| config.message("transport_socket"));
    if let Some(inner) = inner {
        findings.field("typed_config", |findings| {
            findings.field("transport_socket", |findings| socket(inner, findings));
        });
    }
}

/// Returns whether a socket negotiates the protocol by ALPN. `None` if this is not known.
pub(super) fn has_alpn(own: Option<&Message<'_>>) -> Option<bool> {
    let Some(own) = own else { return Some(false) };
    let config = own.any("typed_config")?;
    let name = config.kind.name.strip_prefix("envoy.extensions.transport_sockets.")?;
    match name.split('.').next()? {
        "tls" | "quic" => Some(true),
        "raw_buffer" | "alts" | "starttls" => Some(false),
        "proxy_protocol" | "tap" | "tcp_stats" | "internal_upstream" | "http_11_proxy" => {
            has_alpn(config.message("transport_socket"))
        }
        _ => None,
    }
}

/// Metadata for internal connections comes from the host or the cluster.
pub(super) fn passed_metadata<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, source) in config.messages("passthrough_metadata").enumerate() {
        let kind = source.message("kind");
        if kind.is_some_and(|kind| kind.has("request") || kind.has("route")) {
            findings.item("passthrough_metadata", index, |findings| {
                let rule = "metadata of a request or a route is not available here";
                let fix = "use host or cluster";
                findings.field("kind", |f| f.refuse_with_fix("socket.metadata", rule, fix));
            });
        }
    }
}

/// A value of the proxy protocol is given in one way.
pub(super) fn proxy_value<'m>(entry: &'m Message<'_>, findings: &mut Findings<'m>) {
    // Envoy does not check the entries of health checks and routes.
    if ["tcp_health_check", "connect_config"].iter().any(|field| findings.is_within(field)) {
        return;
    }
    match (entry.has("value"), entry.has("format_string")) {
        (true, true) => findings.field("format_string", |findings| {
            let rule = "cannot be combined with value";
            findings.refuse_with_fix("socket.proxy_value", rule, "remove one of the two");
        }),
        (false, false) => findings.refuse("socket.proxy_value", "needs value or format_string"),
        _ => {}
    }
}

/// The address of a proxy needs no name resolution.
pub(super) fn proxy_address<'m>(socket: &'m Message<'_>, findings: &mut Findings<'m>) {
    let proxy = socket.message("default_proxy_address");
    if let Some(proxy) = proxy.and_then(|proxy| proxy.message("socket_address")) {
        findings.field("default_proxy_address", |findings| {
            findings.field("socket_address", |findings| {
                address::literal_socket(proxy, "use an IP address", findings);
            });
        });
    }
}

/// A client that compares the name of a server with its certificate verifies the certificate.
pub(super) fn name_comparison<'m>(context: &'m Message<'_>, findings: &mut Findings<'m>) {
    const VERIFICATIONS: [&str; 3] = [
        "validation_context",
        "validation_context_sds_secret_config",
        "combined_validation_context",
    ];
    let common = context.message("common_tls_context");
    let is_verified = common.is_some_and(|common| VERIFICATIONS.iter().any(|it| common.has(it)));
    let inline = common.and_then(|common| common.message("validation_context"));
    let has_no_authority = inline.is_some_and(|inline| {
        !inline.has("trusted_ca") && !inline.has("ca_certificate_provider_instance")
    });
    if context.bits("auto_sni_san_validation") != 0 && (!is_verified || has_no_authority) {
        findings.field("auto_sni_san_validation", |findings| {
            let rule = "needs a validation_context with trusted_ca";
            findings.refuse("tls.unverified_names", rule);
        });
    }
}
