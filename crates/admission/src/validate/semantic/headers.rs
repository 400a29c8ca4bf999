//! Changes of headers.

use super::format;
use crate::{
    node::shown,
    validate::{findings::Findings, tree::Message},
};

/// Routes change neither pseudo-headers nor `host`.
pub(super) fn changes<'m>(scope: &'m Message<'_>, findings: &mut Findings<'m>) {
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

/// Returns whether only the proxy itself changes a header.
pub(super) fn is_fixed(name: &str) -> bool {
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

/// The value of a tag of a trace is a format string.
pub(super) fn tag_format<'m>(tag: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Err(rule) = format::check(tag.text("value")) {
        findings.field("value", |findings| format::refuse(rule, findings));
    }
}

/// A header that is added may change, and its value is a format string.
pub(super) fn addition<'m>(option: &'m Message<'_>, findings: &mut Findings<'m>) {
    let name = option.message("header").map_or("", |header| header.text("key"));
    if is_fixed(name) {
        findings.field("header", |f| f.field("key", |f| refuse(name, "changed", f)));
    }
    if option.has("append") && option.bits("append_action") != 0 {
        findings.field("append", |findings| {
            let rule = "cannot be combined with append_action";
            findings.refuse_with_fix("header.append", rule, "remove append, which is deprecated");
        });
    }
    let value = option.message("header").map_or("", |header| header.text("value"));
    if let Err(rule) = format::check(value) {
        findings.field("header", |findings| {
            findings.field("value", |findings| format::refuse(rule, findings));
        });
    }
}
