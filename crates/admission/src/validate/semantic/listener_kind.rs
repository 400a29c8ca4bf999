//! The kinds of listeners: TCP, UDP, QUIC and internal ones, and what each of them takes.

use std::{collections::HashSet, net::IpAddr};

use super::registry;
use crate::validate::{findings::Findings, tree::Message};

const UDP: u64 = 1;
const QUIC_SOCKET: &str = "envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport";
/// `HttpConnectionManager.codec_type` of HTTP/3.
const HTTP3: u64 = 3;

fn protocol(address: &Message<'_>) -> u64 {
    address.message("socket_address").map_or(0, |socket| socket.bits("protocol"))
}

/// Returns whether a listener has options for QUIC, which Envoy reads also with a TCP address.
pub(super) fn has_quic(listener: &Message<'_>) -> bool {
    let udp = listener.message("udp_listener_config");
    udp.is_some_and(|config| config.has("quic_options"))
}

/// The options of a listener fit its kind.
pub(super) fn options<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    if listener.has("internal_listener") {
        return internal(listener, findings);
    }
    let Some(address) = listener.message("address") else { return };
    let own = protocol(address);
    sockets(listener, address, own, findings);
    let has_quic = has_quic(listener);
    let is_quic = has_quic && own == UDP;
    if is_quic && listener.has("connection_balance_config") {
        findings.field("connection_balance_config", |findings| {
            findings.refuse("listener.quic", "is not allowed for QUIC listeners");
        });
    }
    if own == UDP && !is_quic {
        for field in ["filter_chains", "default_filter_chain"] {
            if listener.has(field) {
                findings.field(field, |findings| {
                    let rule = "is not allowed for UDP listeners without QUIC";
                    let fix = "use listener_filters, or give udp_listener_config.quic_options";
                    findings.refuse_with_fix("listener.udp_chain", rule, fix);
                });
            }
        }
    }
    listener_filters(listener, own == UDP && !is_quic, findings);
    let chains = listener.messages("filter_chains").enumerate().map(|(at, it)| (Some(at), it));
    let default = listener.message("default_filter_chain").map(|chain| (None, chain));
    for (index, chain) in chains.chain(default) {
        if own == UDP && !is_quic {
            continue;
        }
        match index {
            Some(at) => {
                findings.item("filter_chains", at, |f| filter_chain(chain, is_quic, has_quic, f));
            }
            None => findings.field("default_filter_chain", |findings| {
                filter_chain(chain, is_quic, has_quic, findings);
            }),
        }
    }
}

/// The addresses of a listener have one protocol, and fit its options.
fn sockets<'m>(
    listener: &'m Message<'_>,
    address: &'m Message<'_>,
    own: u64,
    findings: &mut Findings<'m>,
) {
    if address.has("envoy_internal_address") {
        findings.field("address", |findings| {
            let rule = "is the address of an internal listener";
            findings.refuse_with_fix("listener.internal", rule, "use internal_listener");
        });
    }
    for (index, entry) in listener.messages("additional_addresses").enumerate() {
        let Some(other) = entry.message("address") else {
            findings.item("additional_addresses", index, |findings| {
                findings.field("address", |findings| {
                    findings.refuse("listener.address", "is required, but missing");
                });
            });
            continue;
        };
        if other.has("envoy_internal_address") {
            findings.item("additional_addresses", index, |findings| {
                let rule = "is the address of an internal listener";
                findings.refuse("listener.internal", rule);
            });
        }
        if protocol(other) != own {
            findings.item("additional_addresses", index, |findings| {
                let rule = "has a protocol that differs from that of the address of the listener";
                findings.refuse("listener.protocol", rule);
            });
        }
    }
    if own == UDP && listener.wrapped("bind_to_port") == Some(0) {
        findings.field("bind_to_port", |findings| {
            findings.refuse("listener.unbound", "must not be false for UDP listeners");
        });
    }
    if listener.bits("enable_mptcp") != 0 && (own == UDP || !address.has("socket_address")) {
        findings.field("enable_mptcp", |findings| {
            findings
                .refuse("listener.mptcp", "is allowed only for TCP listeners with IP addresses");
        });
    }
    if let Some(socket) = address.message("socket_address")
        && socket.bits("ipv4_compat") != 0
        && !is_compatible(socket.text("address"))
    {
        findings.field("address", |findings| {
            findings.field("socket_address", |findings| {
                findings.field("ipv4_compat", |findings| {
                    let rule = "needs the address :: or an IPv4-mapped IPv6 address";
                    findings.refuse("listener.ipv4_compat", rule);
                });
            });
        });
    }
}

/// Returns whether a socket on an address can also take connections of IPv4.
fn is_compatible(address: &str) -> bool {
    let ip = address.parse::<IpAddr>();
    ip.is_ok_and(|ip| match ip {
        IpAddr::V6(ip) => ip.is_unspecified() || ip.to_ipv4_mapped().is_some(),
        IpAddr::V4(_) => false,
    })
}

/// The options that internal listeners do not take.
const TCP_OPTIONS: [&str; 5] = [
    "enable_mptcp",
    "enable_reuse_port",
    "tcp_backlog_size",
    "tcp_fast_open_queue_length",
    "socket_options",
];

fn internal<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    let rule = "is not allowed for internal listeners";
    let refuse = |field: &'static str, findings: &mut Findings<'m>| {
        findings.field(field, |findings| findings.refuse("listener.internal", rule));
    };
    for field in ["address", "additional_addresses"].into_iter().chain(TCP_OPTIONS) {
        if listener.has(field) {
            refuse(field, findings);
        }
    }
    for field in ["freebind", "transparent"] {
        if listener.wrapped(field) == Some(1) {
            refuse(field, findings);
        }
    }
    let balance = listener.message("connection_balance_config");
    if balance.is_some_and(|balance| balance.has("exact_balance")) {
        refuse("connection_balance_config", findings);
    }
}

/// UDP listeners and the others have different listener filters.
fn listener_filters<'m>(listener: &'m Message<'_>, is_udp: bool, findings: &mut Findings<'m>) {
    const TCP: &str = "envoy.filters.listener";
    const UDP: &str = "envoy.filters.udp_listener";
    let (own, other) = if is_udp { (UDP, TCP) } else { (TCP, UDP) };
    for (index, filter) in listener.messages("listener_filters").enumerate() {
        let Some(config) = filter.message("typed_config") else { continue };
        let kind = registry::kind_of(config);
        if registry::exists(kind, &[other]) && !registry::exists(kind, &[own]) {
            findings.item("listener_filters", index, |findings| {
                let rule = if is_udp {
                    format!("{kind} is allowed only in TCP listeners")
                } else {
                    format!("{kind} is allowed only in UDP listeners")
                };
                findings.refuse("listener.filter_protocol", rule);
            });
        }
    }
}

/// The transport socket and the codec of a filter chain fit the kind of listener. Envoy compares the codec with the
/// options for QUIC, also of a TCP listener.
fn filter_chain<'m>(
    chain: &'m Message<'_>,
    is_quic: bool,
    has_quic: bool,
    findings: &mut Findings<'m>,
) {
    let socket = chain.message("transport_socket").and_then(|socket| socket.any("typed_config"));
    if is_quic && socket.is_none_or(|socket| socket.kind.name != QUIC_SOCKET) {
        findings.field("transport_socket", |findings| {
            findings.refuse("listener.quic", "a QUIC listener needs QuicDownstreamTransport");
        });
    }
    if is_quic {
        quic_chain(chain, socket, findings);
    }
    codecs(chain, has_quic, findings);
}

/// A discovered filter chain is for TCP, because Envoy discovers none for QUIC.
pub(super) fn discovered_chain<'m>(chain: &'m Message<'_>, findings: &mut Findings<'m>) {
    if findings.is_resource() {
        codecs(chain, false, findings);
    }
}

/// The codec is HTTP/3 with QUIC, and no other one.
fn codecs<'m>(chain: &'m Message<'_>, has_quic: bool, findings: &mut Findings<'m>) {
    for (index, filter) in chain.messages("filters").enumerate() {
        let Some(config) = filter.any("typed_config") else { continue };
        if config.kind.name != super::common::HCM
            || (config.bits("codec_type") == HTTP3) == has_quic
        {
            continue;
        }
        findings.item("filters", index, |findings| {
            findings.field("typed_config", |findings| {
                findings.field("codec_type", |findings| {
                    if has_quic {
                        findings.refuse("listener.quic", "must be HTTP3 with quic_options")
                    } else {
                        findings.refuse("listener.quic", "HTTP3 needs a QUIC listener")
                    }
                });
            });
        });
    }
}

/// A filter chain for QUIC ends with the connection manager, and verifies the certificates that it requires.
fn quic_chain<'m>(
    chain: &'m Message<'_>,
    socket: Option<&'m Message<'_>>,
    findings: &mut Findings<'m>,
) {
    const VERIFICATIONS: [&str; 3] = [
        "validation_context",
        "validation_context_sds_secret_config",
        "combined_validation_context",
    ];
    let kind =
        |filter: &'m Message<'_>| filter.message("typed_config").map_or("", registry::kind_of);
    let is_manager = |kind: &str| kind.is_empty() || kind.ends_with("HttpConnectionManager");
    if !chain.messages("filters").last().is_some_and(|last| is_manager(kind(last))) {
        findings.field("filters", |findings| {
            findings.refuse("listener.quic", "must end with the HTTP connection manager");
        });
    }
    let context = socket.and_then(|socket| socket.message("downstream_tls_context"));
    let common = context.and_then(|context| context.message("common_tls_context"));
    let is_verified = common.is_some_and(|common| VERIFICATIONS.iter().any(|it| common.has(it)));
    let is_required = context.is_some_and(|it| it.wrapped("require_client_certificate") == Some(1));
    if is_required && !is_verified {
        findings.field("transport_socket", |findings| {
            let rule = "require_client_certificate needs a validation context with QUIC";
            findings.refuse("listener.quic", rule);
        });
    }
}

/// With a matcher, each filter chain has a name of its own.
pub(super) fn chain_names<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !listener.has("filter_chain_matcher") {
        return;
    }
    let mut names = HashSet::new();
    for (index, chain) in listener.messages("filter_chains").enumerate() {
        let rule = match chain.text("name") {
            "" => "is required with filter_chain_matcher, but missing",
            name if names.insert(name) => continue,
            _ => "repeats the name of another filter chain",
        };
        findings.item("filter_chains", index, |findings| {
            findings.field("name", |findings| findings.refuse("filter_chain.name", rule));
        });
    }
}

/// A match uses only criteria that Envoy implements.
pub(super) fn implemented<'m>(criteria: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in ["address_suffix", "suffix_len"] {
        if criteria.has(field) {
            findings.field(field, |findings| {
                findings.refuse("filter_chain.unimplemented", "is not implemented by Envoy");
            });
        }
    }
}

/// Returns an address range without the bits after its prefix.
pub(super) fn normal_range(prefix: &str, len: u64) -> String {
    let masked = |bits: u128, width: u64| match width.saturating_sub(len.min(width)) {
        width if width >= 128 => 0,
        rest => bits >> rest << rest,
    };
    match prefix.parse() {
        Ok(IpAddr::V4(ip)) => format!("4 {:x}/{}", masked(u32::from(ip).into(), 32), len.min(32)),
        Ok(IpAddr::V6(ip)) => format!("6 {:x}/{}", masked(u128::from(ip), 128), len.min(128)),
        Err(_) => format!("{prefix}/{len}"),
    }
}
