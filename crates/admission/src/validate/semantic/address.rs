//! Addresses.

use std::net::IpAddr;

use crate::{
    node::shown,
    validate::{findings::Findings, tree::Message},
};

/// Returns whether a text is an address without a name to resolve.
pub(super) fn is_ip(text: &str) -> bool {
    // An IPv6 address may have a zone.
    let (ip, zone) = text.split_once('%').unwrap_or((text, "0"));
    ip.parse::<IpAddr>().is_ok_and(|ip| !zone.is_empty() && (ip.is_ipv6() || zone == "0"))
}

/// Checks that an `Address` needs no name resolution.
pub(super) fn literal<'m>(
    address: &'m Message<'_>,
    fix: &'static str,
    findings: &mut Findings<'m>,
) {
    let Some(socket) = address.message("socket_address") else { return };
    if !socket.text("resolver_name").is_empty() {
        return;
    }
    let ip = socket.text("address");
    findings.field("socket_address", |findings| {
        if !ip.is_empty() && !is_ip(ip) {
            findings.field("address", |findings| {
                let rule = format!("{} is not an IP address", shown(ip));
                findings.refuse_with_fix("address.ip", rule, fix);
            });
        }
        if socket.has("named_port") {
            findings.field("named_port", |findings| {
                let rule = "a port without a resolver has a number";
                findings.refuse_with_fix("address.named_port", rule, "give port_value");
            });
        }
    });
}

/// CIDR ranges begin with an IP address.
pub(super) fn cidr<'m>(range: &'m Message<'_>, findings: &mut Findings<'m>) {
    let ip = range.text("address_prefix");
    if !ip.is_empty() && !is_ip(ip) {
        findings.field("address_prefix", |findings| {
            findings.refuse("cidr.ip", format!("{} is not an IP address", shown(ip)));
        });
    }
}
