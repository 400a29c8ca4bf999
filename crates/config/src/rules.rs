//! The rules of the configuration that ranges of single values do not express.

use std::net::{IpAddr, SocketAddr};

use chancery_model::{StructuredName, TypeUrl};

use super::{Config, tls, types::configured_types};

/// The rule for an address to listen on.
pub const LISTEN_RULE: &str = "must be IP:PORT, such as 127.0.0.1:18000 or [::1]:18000";

/// The section, the key and the rule of a value that breaks the rule.
type Broken = (&'static str, &'static str, String);

/// Returns all broken rules.
pub(crate) fn rules(config: &Config) -> Vec<Broken> {
    let mut broken = Vec::new();
    let Config { store, raft, xds, admin, log, .. } = config;
    if store.data_dir.as_os_str().is_empty() {
        broken.push(("store", "data_dir", "must name a directory".to_owned()));
    }
    address_rules(config, &mut broken);
    broken.extend(tls::tls_rules(config));
    broken.extend(raft.rules().into_iter().map(|(key, rule)| ("raft", key, rule)));
    port_rules(config, &mut broken);
    if xds.ack_close_after.millis() > 0 && xds.ack_close_after <= xds.ack_timeout {
        let rule = format!("must be 0s, or longer than xds.ack_timeout, {}", xds.ack_timeout);
        broken.push(("xds", "ack_close_after", rule));
    }
    // A client must be able to list all its names in one request when it reconnects.
    if xds.names_per_request_max < xds.names_max {
        let rule = format!("must be at least xds.names_max, {}", xds.names_max);
        broken.push(("xds", "names_per_request_max", rule));
    }
    for authority in xds.authorities.iter().filter(|name| canonical_authority(name).is_none()) {
        let rule = format!("{authority:?} is not the authority of an xdstp:// name");
        broken.push(("xds", "authorities", rule));
    }
    if let Err(rule) = configured_types(&xds.types) {
        broken.push(("xds", "types", rule));
    }
    let is_collection = |name: &str| TypeUrl::new(name).is_ok_and(|name| name.is_collection());
    for name in xds.collections.iter().filter(|name| !is_collection(name)) {
        let rule = format!(
            "{name:?} is not a collection of MCP, such as istio/networking/v1alpha3/virtualservices"
        );
        broken.push(("xds", "collections", rule));
    }
    let is_name = |name: &String| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        !name.is_empty() && name.chars().all(allowed)
    };
    for name in admin.hosts.iter().filter(|name| !is_name(name)) {
        broken.push(("admin", "hosts", format!("{name:?} is not a host name without a port")));
    }
    if let Err(error) = chancery_load::Clusters::from_list(config.load_reports.clusters.clone()) {
        broken.push(("load_reports", "clusters", format!("is not a valid list: {error}")));
    }
    broken.extend(config.mcp.rules().into_iter().map(|(key, rule)| ("mcp", key, rule)));
    broken.extend(config.auth.rules().into_iter().map(|(key, rule)| ("auth", key, rule)));
    let access = config.access.rules(admin.socket().is_some()).into_iter();
    broken.extend(access.map(|(key, rule)| ("access", key, rule)));
    let guards = config.guards.rules().into_iter();
    broken.extend(guards.map(|(key, rule)| ("guards", key, rule)));
    let validation = config.validation.rules().into_iter();
    broken.extend(validation.map(|(key, rule)| ("validation", key, rule)));
    let references = config.references.rules().into_iter();
    broken.extend(references.map(|(key, rule)| ("references", key, rule)));
    broken.extend(config.secrets.rules().into_iter().map(|(key, rule)| ("secrets", key, rule)));
    broken.extend(config.audit.rules().into_iter().map(|(key, rule)| ("audit", key, rule)));
    broken.extend(config.trace.rules().map(|rule| ("trace", "otlp_endpoint", rule)));
    broken.extend(log_level_rules(&log.level).into_iter().map(|rule| ("log", "level", rule)));
    broken
}

/// Returns the form in which structured names have an authority, or `None` if they cannot have it.
pub(crate) fn canonical_authority(authority: &str) -> Option<String> {
    let name = format!("xdstp://{authority}/t/x");
    let parsed = StructuredName::parse(&name).ok()?;
    (parsed.type_name() == "t" && parsed.id() == "x").then(|| parsed.authority().to_owned())
}

/// Only a trusted network may carry unencrypted traffic. `raft.rs` has the rule of its port.
fn address_rules(config: &Config, broken: &mut Vec<Broken>) {
    let (xds, admin) = (&config.xds, &config.admin);
    for (section, address, is_allowed) in [
        ("xds", xds.address, xds.allow_plaintext || xds.tls().is_some()),
        ("admin", admin.address, admin.allow_plaintext || admin.tls().is_some()),
    ] {
        if !address.ip().is_loopback() && !is_allowed {
            let rule = format!(
                "is not a loopback address, and the port is not encrypted; set {section}.tls_cert and \
                 {section}.tls_key, or {section}.allow_plaintext = true (--allow-plaintext) if the network is trusted"
            );
            broken.push((section, "address", rule));
        }
    }
}

/// No two ports may listen on the same address.
fn port_rules(config: &Config, broken: &mut Vec<Broken>) {
    let ports = [
        ("raft", config.raft.address),
        ("xds", config.xds.address),
        ("admin", config.admin.address),
    ];
    for (name, listen) in config.mcp.listening() {
        for (other, taken) in ports {
            if overlap(listen, taken) {
                let rule = format!(
                    "source {name:?}: listen: {listen} overlaps with {other}.address = {:?}; give them different ports",
                    taken.to_string()
                );
                broken.push(("mcp", "sources", rule));
            }
        }
    }
    for (index, (section, address)) in ports.iter().enumerate() {
        for (other, taken) in &ports[..index] {
            if address == taken && address.port() != 0 {
                let rule = format!("is already used by {other}.address");
                broken.push((section, "address", rule));
            } else if overlap(*address, *taken) {
                let rule = format!(
                    "overlaps with {other}.address = {:?}: one of them covers all addresses of the host; give \
                     them different ports",
                    taken.to_string()
                );
                broken.push((section, "address", rule));
            }
        }
    }
}

/// Returns whether two sockets cannot listen at the same time. On Linux, `[::]` also covers all IPv4
/// addresses.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    let covers = |wide: IpAddr, ip: IpAddr| match wide {
        IpAddr::V6(_) => wide.is_unspecified(),
        IpAddr::V4(_) => wide.is_unspecified() && ip.is_ipv4(),
    };
    one.port() != 0 && one.port() == other.port() && (a == b || covers(a, b) || covers(b, a))
}

/// The log levels.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Returns an error for each invalid item of a list of levels. The log library would take an
/// unknown word for a module, and log nothing.
pub fn log_level_rules(text: &str) -> Vec<String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_module = |word: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
        !word.is_empty() && word.chars().all(allowed)
    };
    let is_wrong = move |directive: &&str| match directive.split_once('=') {
        None => !is_level(directive),
        Some((module, level)) => !is_module(module) || !is_level(level),
    };
    let levels = LEVELS.join(", ");
    text.split(',')
        .map(str::trim)
        .filter(is_wrong)
        .map(move |wrong| {
            format!(
                "{wrong:?} is neither a level ({levels}) nor one for a module (chancery_xds=debug)"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_address_overlaps_with_every_address_that_it_covers() {
        for (one, other, overlaps) in [
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "127.0.0.1:1", true),
            ("[::]:1", "0.0.0.0:1", true),
            ("[::]:1", "[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("0.0.0.0:1", "127.0.0.1:2", false),
            ("0.0.0.0:0", "127.0.0.1:0", false),
            ("127.0.0.2:1", "127.0.0.1:1", false),
            ("[::1]:1", "127.0.0.1:1", false),
        ] {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(overlap(one, other), overlaps, "{one} {other}");
            assert_eq!(overlap(other, one), overlaps, "{other} {one}");
        }
    }
}
