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
    let common = manager.message("common_http_protocol_options");
    if common.is_some_and(|common| common.has("max_response_headers_kb")) {
        findings.field("common_http_protocol_options", |findings| {
            findings.field("max_response_headers_kb", |findings| {
                findings.refuse("http.response_headers", "is only possible in a cluster");
            });
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
                findings.warn("scoped_route.duplicate_key", rule);
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

/// An access log for OpenTelemetry has one destination.
pub(super) fn open_telemetry_log<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let common = config.message("common_config").is_some_and(|it| it.has("grpc_service"));
    let given = [config.has("grpc_service"), config.has("http_service"), common];
    if given.into_iter().filter(|given| *given).count() != 1 {
        let rule = "needs exactly one of grpc_service, http_service and common_config.grpc_service";
        findings.refuse("access_log.open_telemetry", rule);
    }
}

/// Trusted proxies are counted or listed.
pub(super) fn forwarded_for<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    if config.bits("xff_num_trusted_hops") != 0 && config.has("xff_trusted_cidrs") {
        findings.field("xff_num_trusted_hops", |findings| {
            findings.refuse("http.remote_address", "cannot be combined with xff_trusted_cidrs");
        });
    }
}

/// A Thrift proxy has inline routes or discovers them.
pub(super) fn thrift<'m>(proxy: &'m Message<'_>, findings: &mut Findings<'m>) {
    if proxy.has("route_config") && proxy.has("trds") {
        findings.field("trds", |findings| {
            findings.refuse("thrift.routes", "cannot be combined with route_config");
        });
    }
}

/// Released builds of Envoy have no validators of headers.
pub(super) fn header_validator<'m>(manager: &'m Message<'_>, findings: &mut Findings<'m>) {
    if manager.has("typed_header_validation_config") {
        findings.field("typed_header_validation_config", |findings| {
            findings.refuse(
                "http.header_validation",
                "released builds of Envoy have no header validators",
            );
        });
    }
}
