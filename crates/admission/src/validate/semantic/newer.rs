//! The rules that older versions of Envoy do not have yet. The verdicts are those of the versions 1.36 to 1.40.

use crate::clients::{Clients, ENVOY};

/// Returns the versions of Envoy from a minor version on.
const fn since(minor: u32) -> Clients {
    ENVOY.since(minor)
}

/// A rule that older versions do not have: its ID, the names that occur in this order in the path of a finding, and
/// the versions that have the rule.
pub(super) type Newer = (&'static str, &'static [&'static str], Clients);

const HTTP_OPTIONS: &str = "typed_extension_protocol_options";

pub(super) const NEWER: &[Newer] = &[
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

/// Returns the versions of Envoy that have a rule. `has` says whether names occur in this order in the path of the
/// finding.
pub(in crate::validate) fn of_rule(id: &str, has: impl Fn(&[&str]) -> bool) -> Clients {
    let found = NEWER.iter().find(|(known, names, _)| *known == id && has(names));
    found.map_or(ENVOY, |(.., clients)| *clients)
}
