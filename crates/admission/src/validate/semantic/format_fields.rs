//! The fields that are format strings.

use std::{collections::HashMap, sync::LazyLock};

use super::format;
use crate::validate::{findings::Findings, tree::Message};

/// The fields that are format strings, by the type of the message.
const FIELDS: &[(&str, &[&str])] = &[
    ("envoy.config.route.v3.RouteAction", &["host_rewrite", "path_rewrite"]),
    ("envoy.config.route.v3.RateLimit.Action.RemoteAddressMatch", &["descriptor_value"]),
    ("envoy.config.route.v3.RedirectAction", &["path_rewrite"]),
    ("envoy.config.route.v3.Tracing", &["operation", "upstream_operation"]),
    (
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.Tracing",
        &["operation", "upstream_operation"],
    ),
    (
        "envoy.extensions.filters.http.oauth2.v3.OAuth2Config",
        &["redirect_uri", "original_request_uri"],
    ),
    ("envoy.extensions.filters.http.oauth2.v3.PostLogoutRedirectUri", &["uri"]),
    ("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig", &["hostname"]),
    ("envoy.extensions.filters.network.geoip.v3.Geoip", &["client_ip"]),
    (
        "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.UdpTunnelingConfig",
        &["proxy_host", "target_host"],
    ),
    ("envoy.extensions.access_loggers.stats.v3.Config.Tag", &["value_format"]),
    ("envoy.extensions.access_loggers.stats.v3.Config.Counter", &["value_format"]),
    ("envoy.extensions.access_loggers.stats.v3.Config.Gauge", &["value_format"]),
    ("envoy.extensions.access_loggers.stats.v3.Config.Histogram", &["value_format"]),
];

/// The fields that consist of one command.
const SINGLE: [&str; 3] = [
    "envoy.extensions.access_loggers.stats.v3.Config.Counter",
    "envoy.extensions.access_loggers.stats.v3.Config.Gauge",
    "envoy.extensions.access_loggers.stats.v3.Config.Histogram",
];

static BY_TYPE: LazyLock<HashMap<&str, &[&'static str]>> =
    LazyLock::new(|| FIELDS.iter().copied().collect());

/// Returns the types of messages that have such a field.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    BY_TYPE.keys().copied()
}

/// The fields of a message are format strings.
pub(super) fn fields<'m>(message: &'m Message<'_>, findings: &mut Findings<'m>) {
    let kind = message.kind.name.as_str();
    let Some(extra) = format::added(message) else { return };
    for name in BY_TYPE.get(kind).into_iter().copied().flatten() {
        let text = message.text(name);
        match format::check_with(text, &extra) {
            Err(rule) => findings.field(name, |findings| format::refuse(rule, findings)),
            Ok(()) if SINGLE.contains(&kind) && !text.is_empty() && !format::is_single(text) => {
                findings.field(name, |findings| {
                    findings.refuse("format.single", "must consist of one command");
                });
            }
            Ok(()) => {}
        }
    }
}

/// The values that are added to the query of a request are texts, and format strings.
pub(super) fn query_parameters<'m>(append: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(record) = append.message("record") else { return };
    findings.field("record", |findings| {
        findings.field("value", |findings| match format::check_text_value(record.bytes("value")) {
            Some(Ok(())) => {}
            Some(Err(rule)) => format::refuse(rule, findings),
            None => {
                let rule = "is not text, but Envoy takes only text here";
                findings.refuse("header_mutation.parameter", rule);
            }
        });
    });
}

/// The texts of a record of Fluentd are format strings.
pub(super) fn fluentd<'m>(log: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(extra) = format::added(log) else { return };
    if let Err(rule) = format::check_struct(log.bytes("record"), &extra) {
        findings.field("record", |findings| format::refuse(rule, findings));
    }
}

/// The texts of a record of OpenTelemetry are format strings. It has no other values.
pub(super) fn open_telemetry<'m>(log: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(extra) = format::added(log) else { return };
    if let Some(body) = log.message("body") {
        findings.field("body", |findings| telemetry_value(body, &extra, findings));
    }
    if let Some(attributes) = log.message("attributes") {
        findings.field("attributes", |findings| telemetry_list(attributes, &extra, findings));
    }
}

fn telemetry_list<'m>(
    list: &'m Message<'_>,
    extra: format::Extra<'_>,
    findings: &mut Findings<'m>,
) {
    for (index, entry) in list.messages("values").enumerate() {
        // The items of a list of pairs have a value, and those of an array are values.
        let value = entry.message("value").unwrap_or(entry);
        findings.item("values", index, |findings| telemetry_value(value, extra, findings));
    }
}

fn telemetry_value<'m>(
    value: &'m Message<'_>,
    extra: format::Extra<'_>,
    findings: &mut Findings<'m>,
) {
    for list in ["array_value", "kvlist_value"] {
        if let Some(inner) = value.message(list) {
            findings.field(list, |findings| telemetry_list(inner, extra, findings));
        }
    }
    for other in ["bool_value", "int_value", "double_value", "bytes_value"] {
        if value.has(other) {
            findings.field(other, |findings| {
                let rule = "is not possible; use string_value";
                findings.refuse("access_log.open_telemetry", rule);
            });
        }
    }
    if let Err(rule) = format::check_with(value.text("string_value"), extra) {
        findings.field("string_value", |findings| format::refuse(rule, findings));
    }
}

/// The values of the descriptors of a network filter are format strings.
pub(super) fn descriptors<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (i, descriptor) in filter.messages("descriptors").enumerate() {
        for (j, entry) in descriptor.messages("entries").enumerate() {
            if let Err(rule) = format::check(entry.text("value")) {
                findings.item("descriptors", i, |findings| {
                    findings.item("entries", j, |findings| {
                        findings.field("value", |findings| format::refuse(rule, findings));
                    });
                });
            }
        }
    }
}

/// Returns the types of messages with such a field, each with its fields.
#[cfg(test)]
pub(super) fn named_fields() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    FIELDS.iter().map(|(kind, fields)| (*kind, fields.to_vec()))
}
