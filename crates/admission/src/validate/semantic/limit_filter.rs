//! Filters that limit the rate, the bandwidth or the share of requests.

use super::{common::signed, format};
use crate::validate::{findings::Findings, tree::Message};

/// The rate limits of a local filter have no stage, no key that disables them, and no other limit.
pub(super) fn local_limits<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    limits(filter, &["stage", "disable_key", "limit"], findings);
}

/// The rate limits of a filter have no stage and no key that disables them.
pub(super) fn global_limits<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    limits(filter, &["stage", "disable_key"], findings);
}

fn limits<'m>(
    filter: &'m Message<'_>,
    unsupported: &'static [&'static str],
    findings: &mut Findings<'m>,
) {
    for (index, limit) in filter.messages("rate_limits").enumerate() {
        findings.item("rate_limits", index, |findings| {
            for field in unsupported.iter().filter(|field| limit.has(field)) {
                findings.field(field, |findings| {
                    let rule = "is only possible for the rate_limits of routes";
                    findings.refuse("rate_limit.option", rule);
                });
            }
            if let Some(addend) = limit.message("hits_addend") {
                findings.field("hits_addend", |findings| hits(addend, findings));
            }
        });
    }
}

/// The number of hits is given or computed.
fn hits<'m>(addend: &'m Message<'_>, findings: &mut Findings<'m>) {
    let text = addend.text("format");
    if text.is_empty() && !addend.has("number") {
        return findings.refuse("rate_limit.hits", "needs number or format");
    }
    findings.field("format", |findings| match format::check(text) {
        Err(rule) => format::refuse(rule, findings),
        Ok(()) if !text.is_empty() && !format::is_single(text) => {
            findings.refuse("format.single", "must consist of one command");
        }
        Ok(()) => {}
    });
}

/// The HTTP status codes that may count as successes, and the codes of gRPC.
const STATUS_MIN: i32 = 100;
const STATUS_END: i32 = 600;
const GRPC_STATUS_MAX: u64 = 16;

/// The criteria of success are codes that exist.
pub(super) fn success<'m>(criteria: &'m Message<'_>, findings: &mut Findings<'m>) {
    let http = criteria.message("http_criteria");
    let ranges = http.into_iter().flat_map(|http| http.messages("http_success_status"));
    for (index, range) in ranges.enumerate() {
        let (start, end) = (signed(range, "start"), signed(range, "end"));
        if start > end || start < STATUS_MIN || end > STATUS_END {
            findings.field("http_criteria", |findings| {
                findings.item("http_success_status", index, |findings| {
                    let rule = format!(
                        "the range from {start} to {end} is not within {STATUS_MIN} and {STATUS_END}"
                    );
                    findings.refuse("admission_control.status", rule);
                });
            });
        }
    }
    let grpc = criteria.message("grpc_criteria");
    let codes = grpc.into_iter().flat_map(|grpc| grpc.numbers("grpc_success_status"));
    for (index, code) in codes.enumerate().filter(|(_, code)| *code > GRPC_STATUS_MAX) {
        findings.field("grpc_criteria", |findings| {
            findings.item("grpc_success_status", index, |findings| {
                let rule = format!("{code} is not a status code of gRPC");
                findings.refuse("admission_control.status", rule);
            });
        });
    }
}

/// The share of successes below which requests are rejected is at least 1 %.
pub(super) fn threshold<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let percent = filter.message("sr_threshold").and_then(|it| it.message("default_value"));
    if percent.is_some_and(|percent| f64::from_bits(percent.bits("value")) < 1.0) {
        findings.field("sr_threshold", |findings| {
            findings.refuse("admission_control.threshold", "must be at least 1 %");
        });
    }
}
