//! Sources of configuration, and gRPC services.

use super::headers;
use crate::validate::{
    findings::Findings,
    tree::{Message, nanos, seconds},
};

// Values of `ApiConfigSource.api_type`.
const REST: u64 = 1;
const GRPC: u64 = 2;
const DELTA_GRPC: u64 = 3;
const AGGREGATED_GRPC: u64 = 5;
const AGGREGATED_DELTA_GRPC: u64 = 6;

/// An API source has what its type needs.
pub(super) fn api_source<'m>(source: &'m Message<'_>, findings: &mut Findings<'m>) {
    let count = |list| source.values(list).count();
    let (names, services) = (count("cluster_names"), count("grpc_services"));
    match source.bits("api_type") {
        REST => {
            if names != 1 || services != 0 {
                let rule = "a source of type REST needs exactly one item in cluster_names, and no grpc_services";
                findings.refuse("api_source.rest", rule);
            }
            if !source.has("refresh_delay") {
                let rule = "is required for a source of type REST, but missing";
                findings.field("refresh_delay", |f| f.refuse("api_source.refresh_delay", rule));
            }
        }
        GRPC | DELTA_GRPC if names != 0 || services != 1 => {
            let rule = "a source of type GRPC or DELTA_GRPC needs exactly one item in grpc_services, and no cluster_names";
            findings.refuse("api_source.grpc", rule);
        }
        AGGREGATED_GRPC | AGGREGATED_DELTA_GRPC => {
            let rule = "a source of this type is allowed only in the bootstrap configuration";
            findings.field("api_type", |findings| {
                findings.refuse_with_fix(
                    "api_source.aggregated",
                    rule,
                    "use ads, or the api_type GRPC",
                );
            });
        }
        _ => {}
    }
    version(source, findings);
}

/// A service is asked in version 3 of the API.
pub(super) fn version<'m>(owner: &'m Message<'_>, findings: &mut Findings<'m>) {
    if owner.bits("transport_api_version") == 1 {
        findings.field("transport_api_version", |findings| {
            let rule = "Envoy no longer supports xDS v2";
            findings.refuse_with_fix("api_source.version", rule, "set it to V3");
        });
    }
}

/// A gRPC service sends no pseudo-headers of its own. Envoy checks the services of sources at once, and others when
/// a request needs them.
pub(super) fn grpc_service<'m>(service: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_late = !findings.is_within("grpc_services");
    findings.unused(is_late, |findings| {
        for (index, header) in service.messages("initial_metadata").enumerate() {
            findings.item("initial_metadata", index, |f| headers::name(header, f));
        }
    });
}

/// The longest interval is not below the base interval.
pub(super) fn retry_intervals<'m>(service: &'m Message<'_>, findings: &mut Findings<'m>) {
    let policy = service.message("retry_policy");
    if let Some(backoff) = policy.and_then(|policy| policy.message("retry_back_off")) {
        findings.field("retry_policy", |findings| {
            findings.field("retry_back_off", |findings| intervals(backoff, findings));
        });
    }
}

/// Checks that the longest interval is not below the base interval.
pub(super) fn intervals<'m>(backoff: &'m Message<'_>, findings: &mut Findings<'m>) {
    let base = backoff.message("base_interval").map_or(0, nanos);
    let max = backoff.message("max_interval").map(nanos);
    if let Some(max) = max.filter(|max| *max < base) {
        findings.field("max_interval", |findings| {
            let rule = format!("is {}, but base_interval is {}", seconds(max), seconds(base));
            findings.refuse("backoff.max_interval", rule);
        });
    }
}

/// A source of configuration is not the connection that it is for.
pub(super) fn own_source<'m>(owner: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in FIELDS_OF_SOURCES {
        if owner.message(field).is_some_and(|source| source.has("self")) {
            findings.field(field, |findings| {
                findings.field("self", |findings| {
                    let rule = "is not possible as a source of resources";
                    findings.refuse_with_fix("config_source.self", rule, "use ads: {}");
                });
            });
        }
    }
}

/// The fields that `own_source` checks.
const FIELDS_OF_SOURCES: [&str; 6] = [
    "config_source",
    "eds_config",
    "sds_config",
    "scoped_rds_config_source",
    "odcds_config",
    "source",
];
