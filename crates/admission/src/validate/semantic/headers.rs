//! Changes of headers.

use super::format;
use crate::{
    node::shown,
    validate::{findings::Findings, tree::Message},
};

/// Routes change neither pseudo-headers nor `host`.
pub(super) fn changes<'m>(scope: &'m Message<'_>, findings: &mut Findings<'m>) {
    for list in ["request_headers_to_add", "response_headers_to_add"] {
        for (index, option) in scope.messages(list).enumerate() {
            let name = option.message("header").map_or("", |header| header.text("key"));
            if is_fixed(name) {
                findings.item(list, index, |findings| {
                    findings.field("header", |f| f.field("key", |f| refuse(name, "changed", f)));
                });
            }
        }
    }
    for list in ["request_headers_to_remove", "response_headers_to_remove"] {
        for (index, name) in scope.texts(list).enumerate() {
            if is_fixed(name) {
                findings.item(list, index, |findings| refuse(name, "removed", findings));
            }
        }
    }
}

/// The header with a name can be added.
pub(super) fn name<'m>(header: &'m Message<'_>, findings: &mut Findings<'m>) {
    let name = header.text("key");
    if is_fixed(name) {
        findings.field("key", |findings| refuse(name, "changed", findings));
    }
}

fn is_fixed(name: &str) -> bool {
    name.starts_with(':') || name.eq_ignore_ascii_case("host")
}

fn refuse(name: &str, done: &str, findings: &mut Findings<'_>) {
    let rule = format!("{} cannot be {done} here", shown(name));
    findings.refuse_with_fix(
        "header.fixed",
        rule,
        "use host_rewrite_literal or a rewrite of the path",
    );
}

/// The value of a header is a format string.
pub(super) fn value_format<'m>(option: &'m Message<'_>, findings: &mut Findings<'m>) {
    let value = option.message("header").map_or("", |header| header.text("value"));
    if let Err(rule) = format::check(value) {
        findings.field("header", |findings| {
            findings.field("value", |findings| format::refuse(rule, findings));
        });
    }
}
