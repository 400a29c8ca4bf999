//! The filter chains of gRPC servers (GRPCV-11 and -12).

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
};

use super::{
    cluster::TLS_SOCKET,
    filters::Side,
    manager,
    rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, NONE, Rules, extension, ip},
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
            let at = at.field("filter_chain_match");
            // Go reads the destination of all chains that it does not drop because of their port.
            let has_port = criteria.wrapped("destination_port").unwrap_or(0) != 0;
            let all = clients - GO.when(has_port);
            ranges(criteria, "prefix_ranges", all, &at, rules);
            ranges(criteria, "source_prefix_ranges", readers, &at, rules);
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
    repeated_names(listener, clients, &list, rules);
}

/// Java needs unique names. It calls a chain without a name `chain_` and its index.
fn repeated_names(listener: &Message<'_>, clients: Clients, list: &At<'_>, rules: &mut Rules) {
    let mut names = HashSet::new();
    for (index, chain) in listener.messages("filter_chains").enumerate() {
        let name = match chain.text("name") {
            "" => format!("chain_{index}"),
            name => name.to_owned(),
        };
        let at = list.index(index);
        let reason = format!("another filter chain has the name {}", shown(&name));
        if !names.insert(name) {
            let fix = "give each filter chain its own name";
            let java = clients & JAVA.since(72);
            rules.refuse(&at.field("name"), java, "grpc.filter_chain_name", reason, fix);
        }
    }
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
        // Go uses the first filter. Clients other than Go and C-core stop at the number of filters.
        let clients = clients & (if n == 1 { ALL } else { CPP | GO.when(index == 0) });
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

/// Checks the addresses of ranges.
fn ranges(criteria: &Message<'_>, field: &str, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.address_range";
    for (index, range) in criteria.messages(field).enumerate() {
        let list = at.field(field);
        let at = list.index(index);
        let text = range.text("address_prefix");
        let at_address = at.field("address_prefix");
        let Some(ip) = ip(text) else {
            let reason = format!("{} is not an IP address", shown(text));
            rules.refuse(&at_address, clients, ID, reason, "");
            continue;
        };
        if ip.is_ipv6() && text.contains(['.', '%']) {
            let reason = "Node reads only IPv6 addresses of hexadecimal digits and colons";
            rules.refuse(&at_address, clients & NODE, ID, reason, "");
        }
        let len = range.wrapped("prefix_len").unwrap_or(0);
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        // Go reads an IPv4 address in an IPv6 address as one of IPv4.
        let max = bits(ip).min(bits(ip.to_canonical()));
        let refusing = GO.when(len > max);
        let reason = format!("the prefix is longer than {max} bits");
        rules.refuse(&at.field("prefix_len"), clients & refusing, ID, reason, "");
    }
}

/// A combination of the criteria of a chain.
#[derive(PartialEq, Eq, Hash)]
struct Combination<'m> {
    destination: Option<(u128, u64)>,
    source_type: u64,
    source: Option<(u128, u64)>,
    source_port: u64,
    /// Chains for `raw_buffer` replace those without a protocol.
    transport_protocol: &'m str,
    /// The port of the destination, the name of the server, and the application protocol. No usable chain has them.
    others: (Option<u64>, &'m str, &'m str),
}

/// No two chains match the same connections, and no chain matches them twice.
fn overlaps(listener: &Message<'_>, clients: Clients, list: &At<'_>, rules: &mut Rules) {
    // Node compares all chains with criteria, and Java all chains. The others compare the chains that they can use.
    let (mut by_node, mut by_java, mut by_others) =
        (HashMap::new(), HashMap::new(), HashMap::new());
    for (index, chain) in listener.messages("filter_chains").enumerate() {
        let criteria = chain.message("filter_chain_match");
        let node = NODE.when(criteria.is_some());
        let others = (CPP | GO).when(is_usable(chain));
        let find = |client, seen: &mut _| match rules.seen_by(clients & client) {
            NONE => None,
            // Java compares the addresses with the bits that do not count.
            _ => earliest(seen, criteria, index, client != JAVA),
        };
        let found = [
            (find(others, &mut by_others), others),
            (find(JAVA, &mut by_java), JAVA),
            (find(node, &mut by_node), node),
        ];
        let mut refuse = |first, clients| match first {
            None => {}
            Some(first) if first == index => {
                let reason = "the filter chain matches the same connections twice";
                let fix = "remove the repeated range or port";
                rules.refuse(&list.index(index), clients, "grpc.filter_chain_match", reason, fix);
            }
            Some(first) => {
                let reason = format!(
                    "the filter chain matches the same connections as filter_chains[{first}]"
                );
                let fix = "give each filter chain a different filter_chain_match";
                rules.refuse(&list.index(index), clients, "grpc.filter_chain_match", reason, fix);
            }
        };
        // Clients with the same verdict share a finding.
        let mut left = ALL;
        for (first, _) in found {
            let same = found.into_iter().filter(|(other, _)| *other == first);
            let all = same.fold(NONE, |all, (_, client)| all | client) & left;
            refuse(first, clients & all);
            left = left - all;
        }
    }
}

/// Adds the combinations of a chain. Returns the first chain that has one of them too.
fn earliest<'m>(
    seen: &mut HashMap<Combination<'m>, usize>,
    criteria: Option<&Message<'m>>,
    index: usize,
    is_masked: bool,
) -> Option<usize> {
    let mut first = None;
    let max = COMBINATIONS_MAX.saturating_sub(seen.len());
    for combination in combinations(criteria, max, is_masked) {
        match seen.entry(combination) {
            Entry::Occupied(earlier) => first = first.or(Some(*earlier.get())),
            Entry::Vacant(entry) => drop(entry.insert(index)),
        }
    }
    first
}

/// Returns the combinations of criteria; none if there are more than `max`.
fn combinations<'m>(
    criteria: Option<&Message<'m>>,
    max: usize,
    is_masked: bool,
) -> Vec<Combination<'m>> {
    let ranges = |field| {
        let ranges = criteria.into_iter().flat_map(|criteria| criteria.messages(field));
        let read = |one: &Message<'_>| range(one, is_masked);
        or_none(ranges.filter_map(read).map(Some).collect(), None)
    };
    let texts = |field| {
        or_none(criteria.into_iter().flat_map(|criteria| criteria.texts(field)).collect(), "")
    };
    let (destinations, sources) = (ranges("prefix_ranges"), ranges("source_prefix_ranges"));
    let ports = criteria.into_iter().flat_map(|criteria| criteria.numbers("source_ports"));
    let ports = or_none(ports.collect(), 0);
    let (servers, protocols) = (texts("server_names"), texts("application_protocols"));
    let factors = [destinations.len(), sources.len(), ports.len(), servers.len(), protocols.len()];
    if factors.into_iter().fold(1, usize::saturating_mul) > max {
        return Vec::new();
    }
    let destination_port = criteria.and_then(|criteria| criteria.wrapped("destination_port"));
    let mut all = Vec::new();
    for destination in &destinations {
        for source in &sources {
            for port in &ports {
                for server in &servers {
                    all.extend(protocols.iter().map(|protocol| Combination {
                        destination: *destination,
                        source_type: criteria.map_or(0, |criteria| criteria.bits("source_type")),
                        source: *source,
                        source_port: *port,
                        transport_protocol:
                            criteria.map_or("", |criteria| criteria.text("transport_protocol")),
                        others: (destination_port.filter(|port| *port > 0), server, protocol),
                    }));
                }
            }
        }
    }
    all
}

/// Returns a list with one value that stands for an empty list.
fn or_none<T>(list: Vec<T>, none: T) -> Vec<T> {
    if list.is_empty() { vec![none] } else { list }
}

/// Returns the bits of a range that count, or all bits, and their number. The addresses of IPv4 follow those of IPv6.
fn range(range: &Message<'_>, is_masked: bool) -> Option<(u128, u64)> {
    let ip = ip(range.text("address_prefix"))?;
    let len = range.wrapped("prefix_len").unwrap_or(0);
    let (bits, size) = match ip {
        std::net::IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        std::net::IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    if !is_masked {
        return Some((bits, len + 1000 * size));
    }
    let len = len.min(size);
    let masked = bits.checked_shr(u32::try_from(size - len).unwrap_or(u32::MAX)).unwrap_or(0);
    // The size separates the two families.
    Some((masked, len + 1000 * size))
}
