//! The filter chains of gRPC servers (GRPCV-11 and -12).

use std::collections::{HashMap, HashSet};

use super::{
    cluster::TLS_SOCKET,
    endpoint,
    filters::Side,
    manager,
    rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, Rules, extension},
    tls,
};
use crate::{node::shown, validate::tree::Message};

const DOWNSTREAM_TLS: &str = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";

/// The maximum number of combinations of criteria that are compared in a listener.
const COMBINATIONS_MAX: usize = 100_000;

/// Checks the filter chains of a listener.
pub(super) fn check(listener: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let list = at.field("filter_chains");
    let default = listener.message("default_filter_chain");
    for (index, chain) in listener.messages("filter_chains").enumerate() {
        // Go reads only the chains that it can use.
        let readers = clients - GO.when(!is_usable(chain));
        self::chain(chain, readers, &list.index(index), rules);
        if let Some(criteria) = chain.message("filter_chain_match") {
            let at = list.index(index);
            ranges(criteria, readers, &at.field("filter_chain_match"), rules);
        }
    }
    if let Some(chain) = default {
        self::chain(chain, clients, &at.field("default_filter_chain"), rules);
    }
    let is_api = listener.has("api_listener");
    let has_chains = listener.has("filter_chains");
    let has_usable = listener.messages("filter_chains").any(is_usable);
    let refusing = (CPP | NODE).when(!has_chains && !is_api) | GO.when(!has_usable);
    let clients_without = refusing.when(default.is_none());
    let reason = "gRPC cannot use any filter chain of the listener";
    let fix = "add a filter chain, or give default_filter_chain";
    rules.refuse(&list, clients & clients_without, "grpc.filter_chains", reason, fix);
    overlaps(listener, clients, &list, rules);
}

fn chain(chain: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.network_filter";
    let list = at.field("filters");
    let n = chain.messages("filters").count();
    let refusing = (ALL - GO).when(n != 1) | GO.when(n == 0);
    let reason = "the filter chain does not have the HttpConnectionManager as its only filter";
    rules.refuse(&list, clients & refusing, ID, reason, "");
    let mut names = HashSet::new();
    for (index, filter) in chain.messages("filters").enumerate() {
        let at = list.index(index);
        let name = filter.text("name");
        if name.is_empty() || !names.insert(name) {
            let reason = "the name of the network filter is empty or repeated";
            rules.refuse(&at.field("name"), clients & GO, ID, reason, "");
        }
        // Clients other than Go and C-core stop at the number of filters.
        let clients = clients & (if n == 1 { ALL } else { CPP | GO });
        let at = at.field("typed_config");
        match filter.message("typed_config") {
            Some(config) => manager::of_any(config, Side::Server, clients, &at, rules),
            None => {
                rules.refuse(&at, clients, ID, "a network filter needs a typed_config", "");
            }
        }
    }
    if let Some(socket) = chain.message("transport_socket") {
        transport_socket(socket, clients, &at.field("transport_socket"), rules);
    }
}

fn transport_socket(socket: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.transport_socket";
    if socket.text("name") != TLS_SOCKET {
        let reason =
            "gRPC supports only transport sockets with the name envoy.transport_sockets.tls";
        let fix = "set the name to envoy.transport_sockets.tls";
        rules.refuse(&at.field("name"), clients & (ALL - CPP), ID, reason, fix);
    }
    let at = at.field("typed_config");
    let kind = socket.message("typed_config").map(extension);
    if kind.is_none_or(|kind| kind.name != DOWNSTREAM_TLS || kind.is_struct) {
        let reason = "gRPC supports only a transport socket with a DownstreamTlsContext";
        return rules.refuse(&at, clients, ID, reason, "");
    }
    if let Some(context) = socket.any("typed_config") {
        rules.only(clients, |rules| tls::server(context, &at, rules));
    }
}

/// Returns whether a chain can match a connection of a gRPC server.
fn is_usable(chain: &Message<'_>) -> bool {
    chain.message("filter_chain_match").is_none_or(|criteria| {
        criteria.wrapped("destination_port").unwrap_or(0) == 0
            && !criteria.has("server_names")
            && !criteria.has("application_protocols")
            && matches!(criteria.text("transport_protocol"), "" | "raw_buffer")
    })
}

/// Checks the addresses of the ranges.
fn ranges(criteria: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.address_range";
    for field in ["prefix_ranges", "source_prefix_ranges"] {
        for (index, range) in criteria.messages(field).enumerate() {
            let list = at.field(field);
            let at = list.index(index);
            let text = range.text("address_prefix");
            let Some(ip) = endpoint::ip(text) else {
                let reason = format!("{} is not an IP address", shown(text));
                rules.refuse(&at.field("address_prefix"), clients, ID, reason, "");
                continue;
            };
            let max = if ip.is_ipv4() { 32 } else { 128 };
            if range.wrapped("prefix_len").is_some_and(|len| len > max) {
                let reason = format!("the prefix is longer than {max} bits");
                rules.refuse(&at.field("prefix_len"), clients & (GO | JAVA), ID, reason, "");
            }
        }
    }
}

/// A combination of criteria: destination, type of the source, source, port.
type Combination = (Option<(u128, u64)>, u64, Option<(u128, u64)>, u64);

/// No two chains match the same connections. Chains for `raw_buffer` replace those without a protocol.
fn overlaps(listener: &Message<'_>, clients: Clients, list: &At<'_>, rules: &mut Rules) {
    let chains: Vec<(usize, &Message<'_>)> = listener
        .messages("filter_chains")
        .enumerate()
        .filter(|(_, chain)| is_usable(chain))
        .collect();
    let mut seen: HashMap<(Combination, &str), usize> = HashMap::new();
    for (index, chain) in chains {
        let criteria = chain.message("filter_chain_match");
        let protocol = criteria.map_or("", |criteria| criteria.text("transport_protocol"));
        let spare = COMBINATIONS_MAX.saturating_sub(seen.len());
        let mut first = None;
        for combination in combinations(criteria, spare) {
            let earlier = *seen.entry((combination, protocol)).or_insert(index);
            first = first.or(Some(earlier).filter(|earlier| *earlier != index));
        }
        let Some(first) = first else { continue };
        // Node compares only chains with criteria.
        let node = NODE.when(criteria.is_some());
        let reason =
            format!("the filter chain matches the same connections as filter_chains[{first}]");
        let fix = "give each filter chain a different filter_chain_match";
        let clients = clients & (CPP | GO | JAVA | node);
        rules.refuse(&list.index(index), clients, "grpc.filter_chain_match", reason, fix);
    }
}

/// Returns the combinations of criteria; none if there are more than `max`.
fn combinations(criteria: Option<&Message<'_>>, max: usize) -> Vec<Combination> {
    let Some(criteria) = criteria else { return vec![(None, 0, None, 0)] };
    let ranges = |field| {
        let found: Vec<_> = criteria.messages(field).filter_map(range).map(Some).collect();
        if found.is_empty() { vec![None] } else { found }
    };
    let (destinations, sources) = (ranges("prefix_ranges"), ranges("source_prefix_ranges"));
    let mut ports: Vec<u64> = criteria.numbers("source_ports").collect();
    if ports.is_empty() {
        ports.push(0);
    }
    if destinations.len().saturating_mul(sources.len()).saturating_mul(ports.len()) > max {
        return Vec::new();
    }
    let source_type = criteria.bits("source_type");
    let mut all = Vec::new();
    for destination in &destinations {
        for source in &sources {
            all.extend(ports.iter().map(|port| (*destination, source_type, *source, *port)));
        }
    }
    all
}

/// Returns the bits of a range that count, and their number. The addresses of IPv4 follow those of IPv6.
fn range(range: &Message<'_>) -> Option<(u128, u64)> {
    let ip = endpoint::ip(range.text("address_prefix"))?;
    let len = range.wrapped("prefix_len").unwrap_or(0);
    let (bits, size) = match ip {
        std::net::IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        std::net::IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let len = len.min(size);
    let masked = bits.checked_shr(u32::try_from(size - len).unwrap_or(u32::MAX)).unwrap_or(0);
    // The size separates the two families.
    Some((masked, len + 1000 * size))
}
