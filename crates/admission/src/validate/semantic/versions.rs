//! The versions of Envoy between 1.36 and 1.40: what the older ones reject, and which rules they do not have yet.
//!
//! The tables say since which minor version something holds. The verdicts are those of Envoy 1.36.4, 1.37.0, 1.38.3,
//! 1.39.3 and 1.40.0.

use super::{common::Check, extensions::type_name, listener_kind};
use crate::{
    clients::{Clients, ENVOY},
    validate::{
        findings::{Findings, Step},
        tree::Message,
    },
};

/// Returns the versions of Envoy from a minor version on.
const fn since(minor: u32) -> Clients {
    ENVOY.since(minor)
}

/// Returns the versions of Envoy before a minor version.
pub(super) const fn before(minor: u32) -> Clients {
    ENVOY.until(minor)
}

/// A rule that older versions do not have: its ID, the names that occur in this order in the path of a finding, and
/// the versions that have the rule.
type Newer = (&'static str, &'static [&'static str], Clients);

const HTTP_OPTIONS: &str = "typed_extension_protocol_options";

const NEWER: &[Newer] = &[
    ("composite.filters", &["named_filter_chains"], since(37)),
    ("extension.category", &["named_filter_chains"], since(37)),
    ("format.command", &["route", "host_rewrite"], since(37)),
    ("format.command", &["route", "path_rewrite"], since(37)),
    ("format.command", &["tracing", "operation"], since(37)),
    ("format.command", &["tracing", "upstream_operation"], since(37)),
    ("matcher.type", &["forward_client_cert_matcher"], since(37)),
    ("matcher.type", &["transport_socket_matcher"], since(37)),
    ("regex.syntax", &[HTTP_OPTIONS, "hash_policy"], since(37)),
    ("retry.max_interval", &[HTTP_OPTIONS], since(37)),
    ("route.mirror", &[HTTP_OPTIONS], since(37)),
    ("route.rewrites", &["route", "path_rewrite"], since(37)),
    ("transport_socket.name", &["transport_socket_matches"], since(37)),
    ("address.ip", &["default_proxy_address"], since(38)),
    ("ext_authz.path_prefix", &["path_override"], since(38)),
    ("stats_log.operation", &[], since(38)),
    ("stats_log.value", &["gauges"], since(38)),
    ("format.command", &["redirect", "path_rewrite"], since(39)),
    ("header.fixed", &["forward_id_token"], since(39)),
    ("oauth2.authorization_header", &[], since(39)),
    ("stats_log.scope", &[], since(39)),
    ("extension.category", &["route_specifiers"], since(40)),
    ("format.command", &["config", "original_request_uri"], since(40)),
    ("format.command", &["config", "redirect_uri"], since(40)),
    ("health_check.alpn", &[], since(40)),
    ("listener.fcds", &[], since(40)),
    ("route.rewrites", &["redirect", "prefix_rewrite"], since(40)),
    ("socket.proxy_value", &[], since(40)),
];

/// Returns the versions of Envoy that have a rule, at a path.
pub(in crate::validate) fn of_rule(id: &str, path: &[Step<'_>]) -> Clients {
    let is_at = |names: &[&str]| {
        let mut steps = path.iter();
        names.iter().all(|name| steps.any(|step| matches!(step, Step::Field(own) if own == name)))
    };
    let found = NEWER.iter().find(|(known, names, _)| *known == id && is_at(names));
    found.map_or(ENVOY, |(.., clients)| *clients)
}

/// The extensions that are newer than 1.36: the minor version, the category or `*`, and the type of the configuration
/// behind `envoy.extensions.`.
const EXTENSIONS: &[(Clients, &str, &str)] = &[
    (before(37), "*", "access_loggers.filters.process_ratelimit.v3.ProcessRateLimitFilter"),
    (before(37), "*", "access_loggers.stats.v3.Config"),
    (before(37), "*", "clusters.composite.v3.ClusterConfig"),
    (before(37), "*", "filters.http.transform.v3.TransformConfig"),
    (before(38), "*", "filters.http.file_server.v3.FileServerConfig"),
    (before(38), "*", "filters.http.oauth2.v3.OAuth2PerRoute"),
    (before(38), "*", "formatter.file_content.v3.FileContent"),
    (before(39), "*", "filters.http.ai_protocol_manager.v3.AiProtocolManager"),
    (before(39), "*", "filters.http.filter_chain.v3.FilterChainConfig"),
    (before(39), "HTTP filter of a cluster", "filters.http.rbac.v3.RBAC"),
    (before(39), "envoy.filters.http.upstream", "filters.http.rbac.v3.RBAC"),
];

/// Records that older versions do not have an extension.
pub(super) fn extension(kind: &str, categories: &[&str], findings: &mut Findings<'_>) {
    let Some(own) = kind.strip_prefix("envoy.extensions.") else { return };
    let is_in = |category: &str| category == "*" || categories == [category];
    let found = EXTENSIONS.iter().find(|(_, category, kind)| *kind == own && is_in(category));
    if let Some((without, ..)) = found {
        let rule = format!("is of the type {kind}, which these versions do not have");
        findings.only(*without, |findings| findings.refuse("extension.version", rule));
    }
}

/// The load balancing policies that are newer than 1.36.
const POLICIES: [(Clients, &str); 2] =
    [(before(37), "wrr_locality"), (before(40), "load_aware_locality")];

/// Records that older versions have no policy of a list. `known` has the short names of those of the newest version.
pub(super) fn policies<'n>(known: impl Iterator<Item = &'n str>, findings: &mut Findings<'_>) {
    let without = |name: &str| POLICIES.iter().find(|(_, newer)| *newer == name).map(|one| one.0);
    let all = known.map(|name| without(name).unwrap_or_default());
    if let Some(without) = all.reduce(|all, one| all & one) {
        let rule = "has only policies that these versions do not have";
        findings.only(without, |findings| findings.refuse("lb_policy.version", rule));
    }
}

/// How a command of a format string is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Any,
    Parameter,
    Length,
    ParameterOrLength,
}

/// The commands of format strings, and uses of them, that older versions do not have.
const COMMANDS: &[(Clients, &str, Use)] = &[
    (before(37), "COALESCE", Use::Any),
    (before(37), "DYNAMIC_METADATA", Use::Length),
    (before(37), "REQUESTED_SERVER_NAME", Use::Parameter),
    (before(37), "REQUEST_HEADER", Use::Any),
    (before(38), "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "QUERY_PARAMS", Use::Any),
    (before(39), "DOWNSTREAM_TLS_GROUP", Use::Any),
    (before(40), "LISTENER_NAME", Use::Any),
];

/// Returns the versions that do not have a command of a format string in this use.
pub(super) fn without_command(name: &str, has_parameter: bool, has_len: bool) -> Option<Clients> {
    let is_used = |used| match used {
        Use::Any => true,
        Use::Parameter => has_parameter,
        Use::Length => has_len,
        Use::ParameterOrLength => has_parameter || has_len,
    };
    let found = COMMANDS.iter().find(|(_, known, used)| *known == name && is_used(*used));
    found.map(|(clients, ..)| *clients)
}

/// The fields that older versions need: the versions, the type of the message, and the field.
const REQUIRED: &[(Clients, &str, &str)] = &[
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

/// Returns the rules that depend on the version: the ID, the resources, and the versions that reject them.
#[cfg(test)]
pub(in crate::validate) fn facts() -> Vec<(&'static str, String, Clients)> {
    let short = |kind: &str| kind.rsplit('.').next().unwrap_or_default().to_owned();
    let newer = NEWER.iter().map(|(id, names, clients)| {
        let at = if names.is_empty() {
            "everywhere".to_owned()
        } else {
            format!("in {}", names.join(", "))
        };
        (*id, at, *clients)
    });
    let extensions = EXTENSIONS.iter().map(|(clients, category, kind)| {
        let at = if *category == "*" { String::new() } else { format!(", as {category}") };
        ("extension.version", format!("the extension {kind}{at}"), *clients)
    });
    let policies = POLICIES
        .iter()
        .map(|(clients, name)| ("lb_policy.version", format!("only the policy {name}"), *clients));
    let commands = COMMANDS.iter().map(|(clients, name, used)| {
        let what = match used {
            Use::Any => String::new(),
            Use::Parameter => " with a parameter".to_owned(),
            Use::Length => " with a length".to_owned(),
            Use::ParameterOrLength => " with a parameter or a length".to_owned(),
        };
        ("format.command", format!("the command {name}{what}"), *clients)
    });
    let required = REQUIRED.iter().map(|(clients, kind, field)| {
        ("version.required", format!("{} without {field}", short(kind)), *clients)
    });
    let others = FACTS.iter().map(|(id, what, clients)| (*id, (*what).to_owned(), *clients));
    let all = extensions.chain(policies).chain(commands).chain(required).chain(others);
    all.chain(newer).collect()
}

/// The facts behind the checks that are functions.
#[cfg(test)]
const FACTS: &[(&str, &str, Clients)] = &[
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
    ("tcp_proxy.early_data", "upstream_connect_mode without max_early_data_bytes", since(37)),
];
