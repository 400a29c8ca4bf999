//! The fields that older versions of Envoy need, and the combinations that they do not have.

use super::{common::Check, extensions::type_name, listener_kind, versions::before};
#[cfg(test)]
use crate::clients::ENVOY;
use crate::{
    clients::Clients,
    validate::{findings::Findings, tree::Message},
};

/// The fields that older versions need: the versions, the type of the message, and the field.
pub(super) const REQUIRED: &[(Clients, &str, &str)] = &[
    (
        before(37),
        "envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
        "common_config",
    ),
    (before(38), "envoy.type.matcher.v3.AddressMatcher", "ranges"),
    (before(38), "envoy.extensions.filters.http.oauth2.v3.OAuth2", "config"),
    (before(38), "envoy.extensions.filters.http.oauth2.v3.OAuth2Credentials", "token_secret"),
    (
        before(38),
        "envoy.extensions.transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport",
        "transport_socket",
    ),
    (before(39), "envoy.type.v3.TokenBucket", "max_tokens"),
];

/// The types of messages with a field that older versions need.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    REQUIRED.iter().map(|(_, kind, _)| *kind)
}

/// Records the fields that older versions need. A number of 0 counts as absent.
pub(super) fn required<'m>(message: &'m Message<'_>, findings: &mut Findings<'m>) {
    let kind = message.kind.name.as_str();
    for (without, _, field) in REQUIRED.iter().filter(|(_, own, _)| *own == kind) {
        if !message.has(field) {
            refuse(*without, field, "version.required", "is required", findings);
        }
    }
}

/// The checks of single types of messages.
pub(super) const CHECKS: &[(&str, Check)] = &[
    (CLUSTER, health_checks),
    (CLUSTER, network_filters),
    ("envoy.config.endpoint.v3.Endpoint", additional_addresses),
    ("envoy.config.listener.v3.Listener", discovered_chains),
    ("envoy.config.listener.v3.Listener", quic_certificates),
    ("envoy.extensions.filters.http.composite.v3.ExecuteFilterAction", composite_action),
    ("envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata", metadata_rules),
    ("envoy.extensions.filters.http.ratelimit.v3.RateLimit", limits),
    ("envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute", limits),
];

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";

fn refuse(
    without: Clients,
    field: &'static str,
    id: &'static str,
    rule: &str,
    findings: &mut Findings<'_>,
) {
    findings.only(without, |findings| {
        findings.field(field, |findings| findings.refuse(id, rule));
    });
}

fn health_checks<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    if cluster.messages("health_checks").count() > 1 {
        let rule = "has several health checks";
        refuse(before(40), "health_checks", "health_check.several", rule, findings);
    }
}

/// Older versions find a network filter of a cluster by its name.
fn network_filters<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    const NEWER: &str = "envoy.filters.upstream_network.reverse_tunnel_lifecycle";
    for (index, filter) in cluster.messages("filters").enumerate() {
        let is_empty = type_name(filter.message("typed_config")) == "google.protobuf.Empty";
        if is_empty && filter.text("name") == NEWER {
            findings.item("filters", index, |findings| {
                let rule = "is a network filter that these versions do not have";
                refuse(before(39), "name", "extension.version", rule, findings);
            });
        }
    }
}

fn additional_addresses<'m>(endpoint: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_other = |holder: &Message<'_>| {
        holder.message("address").is_some_and(|address| !address.has("socket_address"))
    };
    let has_other = endpoint.messages("additional_addresses").any(is_other);
    if endpoint.has("additional_addresses") && (has_other || is_other(endpoint)) {
        let rule = "is possible only if all addresses of the endpoint are IP addresses";
        refuse(before(38), "additional_addresses", "endpoint.additional_addresses", rule, findings);
    }
}

fn discovered_chains<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    let has_chains = listener.has("filter_chains") || listener.has("default_filter_chain");
    if listener.has("fcds_config") && !has_chains {
        let rule = "is not read, and the listener has no other filter chains";
        refuse(before(40), "fcds_config", "listener.fcds_version", rule, findings);
    }
}

/// Older versions verify no client over QUIC.
fn quic_certificates<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !listener_kind::has_quic(listener) {
        return;
    }
    for (index, chain) in listener.messages("filter_chains").enumerate() {
        let socket =
            chain.message("transport_socket").and_then(|socket| socket.any("typed_config"));
        let tls = socket.and_then(|socket| socket.message("downstream_tls_context"));
        if tls.is_some_and(|tls| tls.wrapped("require_client_certificate") == Some(1)) {
            findings.item("filter_chains", index, |findings| {
                let rule = "verifies the certificates of clients, which is not possible for QUIC";
                refuse(before(40), "transport_socket", "listener.quic_version", rule, findings);
            });
        }
    }
}

fn composite_action<'m>(action: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in ["filter_chain", "filter_chain_name"] {
        if action.has(field) {
            let rule = "is not known; typed_config is required";
            refuse(before(37), field, "composite.version", rule, findings);
        }
    }
    if action.has("typed_config") && action.has("dynamic_config") {
        let rule = "cannot be combined with typed_config";
        refuse(before(37), "dynamic_config", "composite.version", rule, findings);
    }
}

fn metadata_rules<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !filter.has("request_rules") && !filter.has("response_rules") {
        let rule = "needs request_rules or response_rules";
        findings.only(before(37), |findings| findings.refuse("json_to_metadata.rules", rule));
    }
}

fn limits<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, limit) in filter.messages("rate_limits").enumerate() {
        if limit.has("limit") {
            findings.item("rate_limits", index, |findings| {
                let rule = "is not supported in this filter";
                refuse(before(39), "limit", "rate_limit.limit_version", rule, findings);
            });
        }
    }
}

/// The facts behind the checks that are functions.
#[cfg(test)]
pub(super) const FACTS: &[(&str, &str, Clients)] = &[
    ("health_check.several", "several health checks of a cluster", before(40)),
    ("extension.version", "the network filter reverse_tunnel_lifecycle of a cluster", before(39)),
    ("endpoint.additional_addresses", "additional addresses that are not IP addresses", before(38)),
    ("listener.fcds_version", "fcds_config without filter chains", before(40)),
    ("listener.quic_version", "certificates of clients over QUIC", before(40)),
    (
        "composite.version",
        "filter_chain, filter_chain_name, or two configurations of an ExecuteFilterAction",
        before(37),
    ),
    ("json_to_metadata.rules", "JsonToMetadata without rules", before(37)),
    ("rate_limit.limit_version", "limit in the rate_limits of the filter", before(39)),
    ("cel.syntax", "backquotes in CEL", before(40)),
    (
        "regex.syntax",
        "expressions of more than 100 instructions, of which `.` counts 8 and later 2",
        before(39),
    ),
    ("tcp_proxy.early_data", "upstream_connect_mode without max_early_data_bytes", ENVOY.since(37)),
];
