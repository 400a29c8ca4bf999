//! The HTTP connection manager, beyond its filters.

use super::common::repeated;
use crate::validate::{findings::Findings, tree::Message};

/// Options of the connection manager do not contradict each other.
pub(super) fn options<'m>(manager: &'m Message<'_>, findings: &mut Findings<'m>) {
    let detects = manager.has("original_ip_detection_extensions");
    if detects && manager.bits("xff_num_trusted_hops") != 0 {
        findings.field("xff_num_trusted_hops", |findings| {
            let rule = "cannot be combined with original_ip_detection_extensions";
            findings.refuse_with_fix("http.remote_address", rule, "remove one of the two");
        });
    }
    if manager.bits("strip_matching_host_port") != 0 && manager.bits("strip_any_host_port") != 0 {
        findings.field("strip_matching_host_port", |findings| {
            let rule = "cannot be combined with strip_any_host_port";
            findings.refuse_with_fix("http.strip_port", rule, "remove one of the two");
        });
    }
}

/// A manager that discovers its routes has a source for them.
pub(super) fn route_source<'m>(rds: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !rds.has("config_source") && !rds.text("route_config_name").starts_with("xdstp:") {
        findings.field("config_source", |findings| {
            findings.refuse_with_fix("rds.source", "is required, but missing", "give ads: {}");
        });
    }
}

/// The part of a header that is a key of a scope is defined.
pub(super) fn header_key<'m>(extractor: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !extractor.has("index") && !extractor.has("element") {
        let rule = "needs index or element";
        return findings.refuse("scoped_route.extractor", rule);
    }
    let index = extractor.bits("index");
    if index != 0 && extractor.text("element_separator").is_empty() {
        findings.field("index", |findings| {
            let rule = format!("is {index}, but without element_separator it must be 0");
            findings.refuse("scoped_route.separator", rule);
        });
    }
}

/// Inline scopes contain their routes.
pub(super) fn inline_scopes<'m>(list: &'m Message<'_>, findings: &mut Findings<'m>) {
    let scopes = || list.messages("scoped_route_configurations");
    for (index, scope) in scopes().enumerate() {
        findings.item("scoped_route_configurations", index, |findings| {
            if !scope.text("route_configuration_name").is_empty() {
                findings.field("route_configuration_name", |findings| {
                    let rule = "is not allowed for inline scopes";
                    findings.refuse_with_fix(
                        "scoped_route.inline",
                        rule,
                        "give route_configuration",
                    );
                });
            }
        });
    }
    for (index, first) in repeated(scopes().map(key)) {
        findings.item("scoped_route_configurations", index, |findings| {
            findings.field("key", |findings| {
                let rule = format!("repeats the key of scoped_route_configurations[{first}]");
                findings.refuse("scoped_route.duplicate_key", rule);
            });
        });
    }
}

/// Returns the key of a scope.
fn key<'m>(scope: &'m Message<'_>) -> Vec<&'m str> {
    let fragments = scope.message("key").into_iter().flat_map(|key| key.messages("fragments"));
    fragments.map(|fragment| fragment.text("string_key")).collect()
}

/// Returns the key of a scope as a text.
pub(super) fn scope_key(scope: &Message<'_>) -> Vec<String> {
    match key(scope) {
        fragments if fragments.is_empty() => Vec::new(),
        fragments => vec![fragments.join("\0")],
    }
}

/// A tracer for Zipkin has a collector.
pub(super) fn zipkin<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    if config.has("collector_service") {
        return;
    }
    for field in ["collector_cluster", "collector_endpoint"] {
        if config.text(field).is_empty() {
            let rule = "is required without collector_service, but missing";
            findings.field(field, |findings| findings.refuse("tracing.zipkin", rule));
        }
    }
}

/// A tracer for OpenTelemetry has one exporter.
pub(super) fn open_telemetry<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let exporters = ["grpc_service", "http_service", "exporter"];
    if exporters.iter().filter(|field| config.has(field)).count() != 1 {
        let rule = "needs exactly one of grpc_service, http_service and exporter";
        findings.refuse("tracing.open_telemetry", rule);
    }
}
