//! Active health checks.

use std::collections::HashMap;

use super::{extensions, http_options, transport_socket};
use crate::validate::{findings::Findings, tree::Message};

/// The maximum number of health checks of a cluster.
const CHECKS_MAX: usize = 8;

/// The health checks of a cluster differ by name, and fit its protocol.
pub(super) fn cluster<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let n = cluster.messages("health_checks").count();
    if n > CHECKS_MAX {
        findings.field("health_checks", |findings| {
            let rule = format!("has {n} items, but may have at most {CHECKS_MAX}");
            findings.refuse("health_check.count", rule);
        });
    }
    let mut seen = HashMap::new();
    for (index, check) in cluster.messages("health_checks").enumerate() {
        findings.item("health_checks", index, |findings| {
            if n > 1 {
                name(check, index, &mut seen, findings);
            }
            if check.has("grpc_health_check") && !http_options::has_http2(cluster) {
                let rule = "a gRPC health check needs a cluster with HTTP/2";
                let fix =
                    "set explicit_http_config.http2_protocol_options in the HttpProtocolOptions";
                findings.field("grpc_health_check", |f| {
                    f.refuse_with_fix("health_check.http2", rule, fix);
                });
            }
            if let Some(http) = check.message("http_health_check") {
                findings.field("http_health_check", |findings| alpn(cluster, http, findings));
            }
        });
    }
}

fn name<'m>(
    check: &'m Message<'_>,
    index: usize,
    seen: &mut HashMap<&'m str, usize>,
    findings: &mut Findings<'m>,
) {
    let name = check.text("name");
    let rule = match seen.insert(name, index) {
        _ if name.is_empty() => {
            "is required, because the cluster has several health checks".to_owned()
        }
        Some(first) => format!("repeats the name of health_checks[{first}]"),
        None => return,
    };
    findings.field("name", |findings| findings.refuse("health_check.name", rule));
}

/// The value `HTTP3` of `codec_client_type`.
const HTTP3: u64 = 2;

fn alpn<'m>(cluster: &'m Message<'_>, check: &'m Message<'_>, findings: &mut Findings<'m>) {
    if check.bits("use_alpn_protocol") == 0 {
        return;
    }
    let rule = match transport_socket::has_alpn(cluster.message("transport_socket")) {
        _ if check.bits("codec_client_type") == HTTP3 => "cannot be combined with HTTP3",
        Some(false) => "needs a transport socket with ALPN, such as TLS",
        _ => return,
    };
    findings.field("use_alpn_protocol", |f| f.refuse("health_check.alpn", rule));
}

/// The extensions of a health check are known.
pub(super) fn extensions<'m>(check: &'m Message<'_>, findings: &mut Findings<'m>) {
    extensions::HEALTH_CHECKERS.check_field(check, "custom_health_check", findings);
    extensions::HEALTH_EVENT_SINKS.check_list(check, "event_logger", findings);
}

/// A payload in text form is hexadecimal.
pub(super) fn payload<'m>(payload: &'m Message<'_>, findings: &mut Findings<'m>) {
    let text = payload.text("text");
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        findings.field("text", |findings| {
            let rule = "is not hexadecimal, with two digits for each byte";
            findings.refuse("health_check.payload", rule);
        });
    }
}

/// The methods whose requests have a body: `POST`, `PUT`, `OPTIONS` and `PATCH`.
const METHODS_WITH_BODY: [u64; 4] = [3, 4, 7, 9];
const BUFFER_DEFAULT: u64 = 1024;

/// The payloads of an HTTP health check fit its method and its buffer.
pub(super) fn http_payloads<'m>(check: &'m Message<'_>, findings: &mut Findings<'m>) {
    if check.has("send") && !METHODS_WITH_BODY.contains(&check.bits("method")) {
        findings.field("send", |findings| {
            let rule = "needs a method whose requests have a body";
            let fix = "set method to POST, PUT, PATCH or OPTIONS";
            findings.refuse_with_fix("health_check.method", rule, fix);
        });
    }
    let size = |payload: &Message<'_>| {
        if payload.has("text") {
            payload.text("text").len() / 2
        } else {
            payload.bytes("binary").len()
        }
    };
    let n: usize = check.messages("receive").map(size).sum();
    let max = check.wrapped("response_buffer_size").unwrap_or(BUFFER_DEFAULT);
    if max > 0 && n as u64 > max {
        findings.field("receive", |findings| {
            let rule = format!("has {n} bytes, but response_buffer_size is {max}");
            findings.refuse("health_check.buffer", rule);
        });
    }
}

/// A range of statuses has its bounds in order.
pub(super) fn expected_statuses<'m>(check: &'m Message<'_>, findings: &mut Findings<'m>) {
    for list in ["expected_statuses", "retriable_statuses"] {
        for (index, range) in check.messages(list).enumerate() {
            let (start, end) = (range.bits("start"), range.bits("end"));
            if start >= end || start < 100 || end > 600 {
                findings.item(list, index, |findings| {
                    let rule = "is not a range of statuses from 100 to 599; end is exclusive, and must be greater than start";
                    findings.refuse("health_check.statuses", rule);
                });
            }
        }
    }
}

/// A Thrift health check names the transport and the protocol.
pub(super) fn thrift<'m>(check: &'m Message<'_>, findings: &mut Findings<'m>) {
    const AUTO: u64 = 0;
    const HEADER: u64 = 3;
    const LAX_BINARY: u64 = 2;
    const TWITTER: u64 = 4;
    let (transport, protocol) = (check.bits("transport"), check.bits("protocol"));
    let (field, rule) = match (transport, protocol) {
        (AUTO, _) => {
            ("transport", "is required, because Envoy cannot detect it for a health check")
        }
        (_, AUTO) => ("protocol", "is required, because Envoy cannot detect it for a health check"),
        (_, TWITTER) => ("protocol", "TWITTER is not supported"),
        (HEADER, LAX_BINARY) => ("protocol", "LAX_BINARY cannot be combined with HEADER"),
        _ => return,
    };
    findings.field(field, |findings| findings.refuse("health_check.thrift", rule));
}
