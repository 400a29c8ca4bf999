//! The local addresses of connections to a cluster.

use std::net::IpAddr;

use super::{address, extensions};
use crate::validate::{findings::Findings, tree::Message};

const FIX: &str = "use an IP address; 0.0.0.0 or :: stands for all";

/// There is at most one address per IP version, and each is an IP address.
pub(super) fn config<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    extensions::ADDRESS_SELECTORS.check_field(config, "local_address_selector", findings);
    let source = config.message("source_address");
    if let Some(source) = source {
        findings.field("source_address", |f| address::literal_socket(source, FIX, f));
    }
    let mut others = Vec::new();
    for (index, extra) in config.messages("extra_source_addresses").enumerate() {
        if let Some(extra) = extra.message("address") {
            findings.item("extra_source_addresses", index, |findings| {
                findings.field("address", |f| address::literal_socket(extra, FIX, f));
            });
            others.push(extra);
        }
    }
    for (index, extra) in config.messages("additional_source_addresses").enumerate() {
        findings.item("additional_source_addresses", index, |findings| {
            address::literal_socket(extra, FIX, findings);
        });
        others.push(extra);
    }
    let Some(other) = others.first() else { return };
    let version = |socket: &Message<'_>| {
        let ip = socket.text("address").split('%').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        ip.map(|ip| ip.is_ipv4())
    };
    let (field, rule) = match source {
        _ if config.has("extra_source_addresses") && config.has("additional_source_addresses") => {
            ("additional_source_addresses", "cannot be combined with extra_source_addresses")
        }
        None => ("source_address", "is required with extra or additional addresses, but missing"),
        _ if others.len() > 1 => ("extra_source_addresses", "has more than one item"),
        Some(source) if version(source).is_some() && version(source) == version(other) => (
            "source_address",
            "has the same IP version as the additional address; give one address per version",
        ),
        _ => return,
    };
    findings.field(field, |findings| findings.refuse("bind.addresses", rule));
}
