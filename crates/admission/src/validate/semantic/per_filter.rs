//! The configurations of HTTP filters in routes.

use super::registry;
use crate::validate::{findings::Findings, tree::Message};

const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";
/// The filters without configurations in routes.
const UNSUPPORTED: [&str; 27] = [
    "a2a.v3.A2a",
    "adaptive_concurrency.v3.AdaptiveConcurrency",
    "admission_control.v3.AdmissionControl",
    "alternate_protocols_cache.v3.FilterConfig",
    "body_size_limit.v3.BodySizeLimit",
    "cache.v3.CacheConfig",
    "cache_v2.v3.CacheV2Config",
    "cdn_loop.v3.CdnLoopConfig",
    "connect_grpc_bridge.v3.FilterConfig",
    "credential_injector.v3.CredentialInjector",
    "decompressor.v3.Decompressor",
    "gcp_authn.v3.GcpAuthnFilterConfig",
    "grpc_http1_bridge.v3.Config",
    "grpc_stats.v3.FilterConfig",
    "grpc_web.v3.GrpcWeb",
    "health_check.v3.HealthCheck",
    "ip_tagging.v3.IPTagging",
    "mcp_router.v3.McpRouter",
    "original_src.v3.OriginalSrc",
    "proto_api_scrubber.v3.ProtoApiScrubberConfig",
    "proto_message_extraction.v3.ProtoMessageExtractionConfig",
    "rate_limit_quota.v3.RateLimitQuotaFilterConfig",
    "rate_limit_quota.v3.RateLimitQuotaOverride",
    "router.v3.Router",
    "tap.v3.Tap",
    "thrift_to_metadata.v3.ThriftToMetadata",
    "wasm.v3.Wasm",
];

/// The fields of which configurations in routes need one.
const NEEDED: [(&str, &[&str]); 4] = [
    ("bandwidth_limit.v3.BandwidthLimit", &["limit_kbps"]),
    ("header_to_metadata.v3.Config", &["request_rules", "response_rules"]),
    ("json_to_metadata.v3.JsonToMetadata", &["request_rules", "response_rules"]),
    ("local_ratelimit.v3.LocalRateLimit", &["token_bucket"]),
];

/// Each configuration is one that a filter takes in routes.
pub(super) fn configurations<'m>(scope: &'m Message<'_>, findings: &mut Findings<'m>) {
    for entry in scope.messages("typed_per_filter_config") {
        let Some(any) = entry.message("value") else { continue };
        findings.field("typed_per_filter_config", |findings| {
            findings.key(entry.text("key"), |findings| {
                let wrapper = any.content.as_deref().filter(|it| it.kind.name == FILTER_CONFIG);
                let Some(wrapper) = wrapper else {
                    return configuration(any, findings);
                };
                if wrapper.bits("disabled") != 0 {
                    return;
                }
                let is_optional = wrapper.bits("is_optional") != 0;
                match wrapper.message("config") {
                    None if is_optional => {}
                    // Envoy ignores an optional configuration only if it does not have the filter.
                    Some(config) if is_optional => findings.field("config", |f| needed(config, f)),
                    // An empty configuration enables the filter.
                    Some(config) if config.text("type_url").is_empty() => {}
                    Some(config) => findings.field("config", |f| configuration(config, f)),
                    None => {
                        let rule = "needs config, or disabled: true";
                        findings.refuse("per_filter.empty", rule);
                    }
                }
            });
        });
    }
}

fn configuration<'m>(any: &'m Message<'_>, findings: &mut Findings<'m>) {
    registry::configuration(any, &["envoy.filters.http"], findings);
    let kind = registry::kind_of(any);
    let filter = kind.strip_prefix("envoy.extensions.filters.http.");
    if filter.is_some_and(|filter| UNSUPPORTED.contains(&filter)) {
        let rule = "the filter takes no configuration in routes";
        findings.refuse("per_filter.unsupported", rule);
    }
    needed(any, findings);
    // Envoy reads a configuration without content as any type of the filter.
    let package = kind.rsplit_once('.').map_or(kind, |(package, _)| package);
    if is_of_filter(kind) && registry::kinds_in(package).any(is_of_route) && has_content(any) {
        let rule = format!("{kind} is the configuration of the filter, not of a route");
        findings.refuse("per_filter.kind", rule);
    }
}

/// A configuration has what its filter needs in routes.
fn needed<'m>(any: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(content) = any.content.as_deref() else { return };
    let filter = content.kind.name.strip_prefix("envoy.extensions.filters.http.");
    let needed = NEEDED.iter().find(|(known, _)| filter == Some(known));
    if let Some((_, fields)) = needed
        && !fields.iter().any(|field| content.has(field))
    {
        let rule = format!("needs {} in routes", fields.join(" or "));
        findings.refuse("per_filter.needed", rule);
    }
}

/// Returns whether a type is the configuration of a filter in a route alone.
fn is_of_route(kind: &str) -> bool {
    const ENDINGS: [&str; 5] =
        ["PerRoute", "PerRouteConfig", "CorsPolicy", "McpOverride", "RateLimitQuotaOverride"];
    ENDINGS.iter().any(|ending| kind.ends_with(ending))
}

fn is_of_filter(kind: &str) -> bool {
    kind.starts_with("envoy.extensions.filters.http.") && !is_of_route(kind)
}

/// Returns whether an `Any` has content. That of a `TypedStruct` is not examined.
fn has_content(any: &Message<'_>) -> bool {
    any.content.as_deref().is_some_and(|content| any.text("type_url").ends_with(&content.kind.name))
        && !any.bytes("value").is_empty()
}

/// The configuration of a filter is not one for routes.
pub(super) fn filter<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(any) = filter.message("typed_config") else { return };
    let kind = registry::kind_of(any);
    if is_of_route(kind) && kind.starts_with("envoy.extensions.") && has_content(any) {
        findings.field("typed_config", |findings| {
            let rule = format!("{kind} is a configuration for routes, not of a filter");
            findings.refuse("per_filter.kind", rule);
        });
    }
}
