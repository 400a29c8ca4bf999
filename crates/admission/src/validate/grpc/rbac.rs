//! The RBAC filter of gRPC servers (GRPCV-71, gRFC A41 and A59).

use std::net::IpAddr;

use super::{
    matchers,
    rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, Rules, extension},
};
use crate::{node::shown, validate::tree::Message};

const ID: &str = "grpc.rbac";
/// The value of `RBAC.action` that turns the policies off.
const LOG: u64 = 2;
/// The audit logger that all clients have.
const STDOUT: &str = "envoy.extensions.rbac.audit_loggers.stream.v3.StdoutAuditLog";

/// A kind of condition: its lists, its negation, and its other forms that gRPC has.
struct Kind {
    sets: [(&'static str, &'static str); 2],
    not: &'static str,
    others: &'static [&'static str],
}

const PERMISSION: Kind = Kind {
    sets: [("and_rules", "rules"), ("or_rules", "rules")],
    not: "not_rule",
    others: &[
        "any",
        "header",
        "url_path",
        "destination_ip",
        "destination_port",
        "metadata",
        "requested_server_name",
    ],
};

const PRINCIPAL: Kind = Kind {
    sets: [("and_ids", "ids"), ("or_ids", "ids")],
    not: "not_id",
    others: &[
        "any",
        "header",
        "url_path",
        "authenticated",
        "source_ip",
        "direct_remote_ip",
        "remote_ip",
        "metadata",
    ],
};

/// Checks the configuration of the filter, or the one of an override.
pub(super) fn check(filter: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let Some(own) = filter.message("rules") else { return };
    let at = at.field("rules");
    let is_off = own.bits("action") == LOG;
    for entry in own.messages("policies") {
        let Some(policy) = entry.message("value") else { continue };
        let (list, key) = (at.field("policies"), entry.text("key"));
        let at = list.key(key);
        // Go reads the conditions of policies without effect too.
        let readers = clients & (GO | (ALL - GO).when(!is_off));
        for field in ["condition", "checked_condition"] {
            if policy.has(field) {
                let reason = "gRPC does not support CEL conditions";
                rules.refuse(&at.field(field), readers, ID, reason, "remove the condition");
            }
        }
        for (field, kind) in [("permissions", &PERMISSION), ("principals", &PRINCIPAL)] {
            for (index, one) in policy.messages(field).enumerate() {
                let list = at.field(field);
                if is_off {
                    reserved_headers(one, kind, clients & GO, &list.index(index), rules)
                } else {
                    condition(one, kind, clients, &list.index(index), rules)
                }
            }
        }
    }
    if let Some(audit) = own.message("audit_logging_options").filter(|_| !is_off) {
        audit_loggers(audit, clients, &at.field("audit_logging_options"), rules);
    }
}

/// A check of a permission or a principal.
type Check = fn(&Message<'_>, &Kind, Clients, &At<'_>, &mut Rules);

/// Runs a check on the parts of a set or a negation. Returns whether the message is one.
fn inside(
    one: &Message<'_>,
    kind: &Kind,
    check: Check,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) -> bool {
    for (set, list) in kind.sets {
        let Some(own) = one.message(set) else { continue };
        let at = at.field(set);
        for (index, inner) in own.messages(list).enumerate() {
            let list = at.field(list);
            check(inner, kind, clients, &list.index(index), rules);
        }
        return true;
    }
    if let Some(inner) = one.message(kind.not) {
        check(inner, kind, clients, &at.field(kind.not), rules);
        return true;
    }
    false
}

/// Checks the names of headers, which Go reads in policies without effect too.
fn reserved_headers(
    one: &Message<'_>,
    kind: &Kind,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) {
    if inside(one, kind, reserved_headers, clients, at, rules) {
        return;
    }
    if let Some(header) = one.message("header") {
        header_name(header, clients, &at.field("header"), rules);
    }
}

/// Checks a permission or a principal. The depth of messages is bounded.
fn condition(one: &Message<'_>, kind: &Kind, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    if inside(one, kind, condition, clients, at, rules) {
        return;
    }
    if !kind.others.iter().any(|form| one.has(form)) {
        let reason = "gRPC does not support this kind of permission or principal";
        let java = JAVA.when(!one.has("destination_port_range"));
        return rules.refuse(at, clients & (CPP | GO | java), ID, reason, "");
    }
    if let Some(header) = one.message("header") {
        self::header(header, clients, &at.field("header"), rules);
    }
    for field in ["destination_ip", "source_ip", "direct_remote_ip", "remote_ip"] {
        if let Some(range) = one.message(field) {
            self::range(range, clients & (GO | JAVA), &at.field(field), rules);
        }
    }
    for field in ["requested_server_name", "url_path"] {
        let Some(own) = one.message(field) else { continue };
        let outer = at.field(field);
        let (own, at) = match field {
            "url_path" => (own.message("path"), outer.field("path")),
            _ => (Some(own), outer),
        };
        match own {
            Some(own) => matchers::text(own, clients - NODE, &at, rules),
            None => rules.refuse(&at, clients - NODE, ID, "the path is missing", ""),
        }
    }
    if let Some(own) = one.message("authenticated") {
        let at = at.field("authenticated");
        let at = at.field("principal_name");
        match own.message("principal_name") {
            Some(name) => matchers::text(name, clients - NODE, &at, rules),
            None => {
                let reason = "Java needs the name; for all authenticated clients, match a prefix";
                rules.refuse(&at, clients & JAVA, ID, reason, "give principal_name");
            }
        }
    }
}

/// The forms of a header matcher, without those that are messages with text.
const HEADER_FORMS: [&str; 6] = [
    "exact_match",
    "range_match",
    "present_match",
    "prefix_match",
    "suffix_match",
    "contains_match",
];

/// C-core and Node read an address that is not valid as one that matches nothing. Java resolves it by DNS, and rejects the
/// resource if the name has no address.
fn range(range: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let text = range.text("address_prefix");
    let len = range.wrapped("prefix_len").unwrap_or(0);
    match text.parse::<IpAddr>() {
        Err(_) => {
            let reason = format!("{} is not an IP address", shown(text));
            // These names have an address everywhere.
            let clients = clients - JAVA.when(matches!(text, "" | "localhost"));
            rules.refuse(&at.field("address_prefix"), clients, ID, reason, "");
        }
        Ok(ip) => {
            let max = if ip.is_ipv4() { 32 } else { 128 };
            let reason = format!("the prefix is longer than {max} bits");
            let clients = clients & GO;
            let clients = clients.when(len > max);
            rules.refuse(&at.field("prefix_len"), clients, ID, reason, "");
        }
    }
}

fn header_name(header: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let name = header.text("name");
    let lower = name.to_ascii_lowercase();
    let is_reserved = |name: &str| name == ":scheme" || name.starts_with("grpc-");
    let refusing = (CPP | JAVA).when(is_reserved(name)) | GO.when(is_reserved(&lower));
    let reason = format!("gRPC does not match the header {}", shown(name));
    rules.refuse(&at.field("name"), clients & refusing, ID, reason, "");
}

fn header(header: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    header_name(header, clients, at, rules);
    if let Some(own) = header.message("string_match") {
        return matchers::text(own, clients - NODE, &at.field("string_match"), rules);
    }
    if let Some(own) = header.message("safe_regex_match") {
        let at = at.field("safe_regex_match");
        return matchers::expression(own, clients - NODE, &at, rules);
    }
    if header.message("range_match").is_some_and(matchers::is_reversed) {
        let at = at.field("range_match");
        rules.refuse(&at, clients & CPP, ID, matchers::REVERSED, "");
    }
    if !HEADER_FORMS.iter().any(|form| header.has(form)) {
        let reason = "the header matcher has no header_match_specifier";
        rules.refuse(at, clients & (CPP | GO | JAVA), ID, reason, "give string_match");
    }
}

/// By default, C-core does not read audit loggers. Go reads optional ones too.
fn audit_loggers(audit: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    for (index, logger) in audit.messages("logger_configs").enumerate() {
        let config = logger.message("audit_logger");
        let kind = config.and_then(|config| config.message("typed_config")).map(extension);
        // A program can add loggers, whose configuration is a TypedStruct.
        if !kind.is_some_and(|kind| kind.name == STDOUT || kind.is_struct) {
            let list = at.field("logger_configs");
            let reason = "gRPC does not support this audit logger";
            let fix = "use StdoutAuditLog, or a TypedStruct";
            rules.refuse(&list.index(index), clients & GO, ID, reason, fix);
        }
    }
}
