//! Addresses.

use std::net::IpAddr;

use crate::{
    node::shown,
    validate::{findings::Findings, tree::Message},
};

/// The resolvers of Envoy that find an address without a name server.
const RESOLVERS: [&str; 2] = ["envoy.ip", "envoy.resolvers.reverse_connection"];

/// Returns whether a text is an address without a name to resolve.
pub(super) fn is_ip(text: &str) -> bool {
    // An IPv6 address may have a zone.
    let (ip, zone) = text.split_once('%').unwrap_or((text, "0"));
    ip.parse::<IpAddr>()
        .is_ok_and(|ip| !zone.is_empty() && (ip.is_ipv6() || ip.to_string() == text))
}

/// Checks that an `Address` needs no name resolution.
pub(super) fn literal<'m>(
    address: &'m Message<'_>,
    fix: &'static str,
    findings: &mut Findings<'m>,
) {
    if let Some(socket) = address.message("socket_address") {
        findings.field("socket_address", |findings| literal_socket(socket, fix, findings));
    }
    if let Some(pipe) = address.message("pipe") {
        findings.field("pipe", |findings| path_of_socket(pipe, findings));
    }
}

/// Checks that a `SocketAddress` needs no name resolution.
pub(super) fn literal_socket<'m>(
    socket: &'m Message<'_>,
    fix: &'static str,
    findings: &mut Findings<'m>,
) {
    let resolver = socket.text("resolver_name");
    if !resolver.is_empty() && !RESOLVERS.contains(&resolver) {
        return findings.field("resolver_name", |findings| {
            let rule = format!("the released Envoy has no resolver {}", shown(resolver));
            findings.refuse("address.unknown_resolver", rule);
        });
    }
    if resolver == RESOLVERS[1] {
        return;
    }
    let ip = socket.text("address");
    if !ip.is_empty() && !is_ip(ip) {
        findings.field("address", |findings| {
            let rule = format!("{} is not an IP address", shown(ip));
            findings.refuse_with_fix("address.ip", rule, fix);
        });
    }
    if socket.has("named_port") {
        findings.field("named_port", |findings| {
            let rule = "a named port needs a resolver";
            findings.refuse_with_fix("address.named_port", rule, "give port_value");
        });
    }
}

/// The size of the field for the path in the address of a Unix domain socket.
const PATH_SIZE: usize = 108;

/// The path of a Unix domain socket fits into an address.
fn path_of_socket<'m>(pipe: &'m Message<'_>, findings: &mut Findings<'m>) {
    let path = pipe.text("path");
    let is_abstract = path.starts_with('@');
    let rule = match path {
        path if path.len() >= PATH_SIZE && !is_abstract => "has more than 107 bytes",
        path if path.len() > PATH_SIZE => "has more than 108 bytes",
        path if path.contains('\0') && !is_abstract => "contains a null byte",
        _ if is_abstract && pipe.bits("mode") != 0 => {
            return findings.field("mode", |findings| {
                let rule = "an abstract socket cannot have a mode";
                findings.refuse("address.pipe", rule);
            });
        }
        _ => return,
    };
    findings.field("path", |findings| findings.refuse("address.pipe", rule));
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
