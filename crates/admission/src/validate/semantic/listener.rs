//! Listeners, filter chains and filters.

use std::collections::{HashMap, hash_map::Entry};

use super::{address, common::repeated, listener_kind};
use crate::{
    node::shown,
    validate::{
        findings::Findings,
        tree::{Message, Value},
    },
};

/// The addresses of a listener are present, literal and different.
pub(super) fn addresses<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    let fix = "use an IP address; 0.0.0.0 or :: stands for all";
    match listener.message("address") {
        Some(own) => findings.field("address", |findings| address::literal(own, fix, findings)),
        None if !listener.has("api_listener") && !listener.has("internal_listener") => {
            findings.field("address", |findings| {
                findings.refuse("listener.address", "is required, but missing");
            });
        }
        None => {}
    }
    let additional = || listener.messages("additional_addresses");
    for (index, entry) in additional().enumerate() {
        if let Some(own) = entry.message("address") {
            findings.item("additional_addresses", index, |findings| {
                findings.field("address", |findings| address::literal(own, fix, findings));
            });
        }
    }
    let sockets = listener.message("address").into_iter();
    let sockets = sockets.chain(additional().filter_map(|entry| entry.message("address")));
    let sockets = sockets.filter_map(|address| address.message("socket_address"));
    let fixed = sockets
        .map(|socket| (socket.text("address"), socket.bits("port_value"), socket.bits("protocol")))
        .filter(|(_, port, _)| *port != 0);
    if !repeated(fixed).is_empty() {
        findings.field("additional_addresses", |findings| {
            findings.warn("listener.duplicate_address", "repeats an address of the listener");
        });
    }
}

/// Envoy 1.40 gets filter chains over ADS or from a file, and none for QUIC.
fn source_of_chains<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(config) = listener.message("fcds_config") else { return };
    if listener_kind::has_quic(listener) {
        findings.field("fcds_config", |findings| {
            let rule = "is not allowed with udp_listener_config.quic_options";
            findings.refuse_with_fix("listener.fcds", rule, "use filter_chains");
        });
    }
    let source = config.message("config_source");
    let has = |kind| source.is_some_and(|source| source.has(kind));
    if !["ads", "path_config_source", "path"].into_iter().any(has) {
        findings.field("fcds_config", |findings| {
            findings.field("config_source", |findings| {
                let rule = "is not a source from which Envoy can get filter chains";
                findings.refuse_with_fix("listener.fcds_source", rule, "use ads: {}");
            });
        });
    }
}

/// A listener for connections has filter chains, and no two of them match the same connections.
pub(super) fn filter_chains<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    let socket = listener.message("address").and_then(|address| address.message("socket_address"));
    let is_udp = socket.is_some_and(|socket| socket.bits("protocol") == 1);
    let is_plain_udp = is_udp && !listener_kind::has_quic(listener);
    let has_chains = ["filter_chains", "default_filter_chain", "fcds_config"];
    let has_chains = has_chains.iter().any(|field| listener.has(field));
    if !has_chains && !is_plain_udp && !listener.has("api_listener") {
        findings.field("filter_chains", |findings| {
            findings.refuse("listener.filter_chains", "a listener needs at least one filter chain");
        });
    }
    source_of_chains(listener, findings);
    // With a matcher, the matches of the chains have no effect.
    if listener.has("filter_chain_matcher") {
        return;
    }
    for (index, first) in overlaps(listener) {
        findings.item("filter_chains", index, |findings| {
            let (rule, fix) = if index == first {
                (
                    "has an item twice in a list of its filter_chain_match".to_owned(),
                    "remove one of the two",
                )
            } else {
                (
                    format!("matches the same connections as filter_chains[{first}]"),
                    "give each filter chain a different filter_chain_match",
                )
            };
            findings.refuse_with_fix("filter_chain.duplicate_match", rule, fix);
        });
    }
}

/// The maximum number of combinations of criteria that are compared in a listener.
const COMBINATIONS_MAX: usize = 100_000;

/// The lists of criteria. A connection matches any item of each list.
const CRITERIA: [&str; 6] = [
    "prefix_ranges",
    "server_names",
    "application_protocols",
    "direct_source_prefix_ranges",
    "source_prefix_ranges",
    "source_ports",
];

/// A combination of criteria: the numbers of the scalars, and of one item of each list.
type Combination = [usize; CRITERIA.len() + 1];

/// The distinct items of all criteria, with a number for each. A combination of long items is as small as any.
type Numbers = HashMap<Vec<u8>, usize>;

/// Returns each filter chain that has a combination of criteria twice, or that of an earlier chain; and the
/// chain that has it first.
fn overlaps(listener: &Message<'_>) -> Vec<(usize, usize)> {
    let mut seen: HashMap<Combination, usize> = HashMap::new();
    let mut numbers = Numbers::new();
    let mut found = Vec::new();
    for (index, chain) in listener.messages("filter_chains").enumerate() {
        let spare = COMBINATIONS_MAX.saturating_sub(seen.len());
        let combinations = combinations(chain.message("filter_chain_match"), spare, &mut numbers);
        let mut first = None;
        for combination in combinations {
            match seen.entry(combination) {
                Entry::Occupied(entry) => first = first.or(Some(*entry.get())),
                Entry::Vacant(entry) => _ = entry.insert(index),
            }
        }
        found.extend(first.map(|first| (index, first)));
    }
    found
}

/// Returns the combinations of the criteria; none if there are more than `max`.
fn combinations(
    criteria: Option<&Message<'_>>,
    max: usize,
    numbers: &mut Numbers,
) -> Vec<Combination> {
    let mut number = |item: Vec<u8>| {
        let next = numbers.len();
        *numbers.entry(item).or_insert(next)
    };
    let transport = criteria.map_or("", |criteria| criteria.text("transport_protocol"));
    let port = criteria.and_then(|criteria| criteria.wrapped("destination_port"));
    let source = criteria.map_or(0, |criteria| criteria.bits("source_type"));
    let scalars = number(format!("{transport} {port:?} {source}").into_bytes());
    let mut all: Vec<Combination> = vec![[scalars; CRITERIA.len() + 1]];
    for (at, list) in CRITERIA.into_iter().enumerate() {
        let mut items = criteria.map(|criteria| items(criteria, list)).unwrap_or_default();
        if items.is_empty() {
            items.push(Vec::new());
        }
        if all.len().saturating_mul(items.len()) > max {
            return Vec::new();
        }
        let items: Vec<usize> = items.into_iter().map(&mut number).collect();
        let extended = all.iter().flat_map(|combination| {
            items.iter().map(move |item| {
                let mut extended = *combination;
                extended[at + 1] = *item;
                extended
            })
        });
        all = extended.collect();
    }
    all
}

/// Returns the items of a list as bytes that are not empty.
fn items(criteria: &Message<'_>, list: &str) -> Vec<Vec<u8>> {
    let item = |value: &Value<'_>| match value {
        Value::Bits(bits) => format!("port {bits}").into_bytes(),
        Value::Bytes(bytes) if list == "server_names" => {
            // Envoy reads `*.a.example` as `.a.example`.
            let suffix = bytes.strip_prefix(b"*").unwrap_or(bytes);
            [b"text ", suffix.to_ascii_lowercase().as_slice()].concat()
        }
        Value::Bytes(bytes) => [b"text ", *bytes].concat(),
        Value::Message(range) => {
            let (prefix, len) = (range.text("address_prefix"), range.wrapped("prefix_len"));
            listener_kind::normal_range(prefix, len.unwrap_or(0)).into_bytes()
        }
    };
    criteria.values(list).map(item).collect()
}

/// Only one way to find the address of the client is in use.
pub(super) fn remote_address<'m>(manager: &'m Message<'_>, findings: &mut Findings<'m>) {
    let is_used = manager.wrapped("use_remote_address") == Some(1);
    if is_used && manager.has("original_ip_detection_extensions") {
        findings.field("original_ip_detection_extensions", |findings| {
            let rule = "cannot be combined with use_remote_address";
            findings.refuse_with_fix("http.remote_address", rule, "remove one of the two");
        });
    }
}

/// A wildcard stands for the first labels of a server name.
pub(super) fn server_names<'m>(criteria: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (index, name) in criteria.texts("server_names").enumerate() {
        if name.contains('*') && !name.starts_with("*.") {
            findings.item("server_names", index, |findings| {
                let rule = format!("{} has a wildcard that is not the first label", shown(name));
                let fix = "write *.example.com, or omit server_names to match all names";
                findings.refuse_with_fix("filter_chain.server_name", rule, fix);
            });
        }
    }
}

/// A filter has a configuration, because Envoy finds it by the type.
pub(super) fn filter_config<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let has_config = filter.has("typed_config") || filter.has("config_discovery");
    if !has_config && filter.bits("is_optional") == 0 {
        findings.field("typed_config", |findings| {
            let rule =
                "is required, but missing: Envoy finds an extension by the type of its configuration";
            findings.refuse("filter.typed_config", rule);
        });
    }
}

/// The network filters that end a chain.
const NETWORK_TERMINALS: [&str; 11] = [
    super::common::HCM,
    "envoy.extensions.filters.network.direct_response.v3.Config",
    "envoy.extensions.filters.network.dubbo_proxy.v3.DubboProxy",
    "envoy.extensions.filters.network.echo.v3.Echo",
    "envoy.extensions.filters.network.ext_proc.v3.NetworkExternalProcessor",
    "envoy.extensions.filters.network.generic_proxy.v3.GenericProxy",
    "envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
    "envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel",
    "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
    "envoy.extensions.filters.network.thrift_proxy.v3.ThriftProxy",
    "envoy.extensions.filters.network.meta_protocol_proxy.v3.MetaProtocolProxy",
];

/// The network filters that never end a chain.
const NETWORK_OTHERS: [&str; 11] = [
    "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
    "envoy.extensions.filters.network.ext_authz.v3.ExtAuthz",
    "envoy.extensions.filters.network.geoip.v3.Geoip",
    "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit",
    "envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy",
    "envoy.extensions.filters.network.ratelimit.v3.RateLimit",
    "envoy.extensions.filters.network.rbac.v3.RBAC",
    "envoy.extensions.filters.network.set_filter_state.v3.Config",
    "envoy.extensions.filters.network.sni_cluster.v3.SniCluster",
    "envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig",
    "envoy.extensions.filters.network.zookeeper_proxy.v3.ZooKeeperProxy",
];

/// The last network filter is terminal, and no other one.
pub(super) fn network_filters<'m>(chain: &'m Message<'_>, findings: &mut Findings<'m>) {
    order(chain, "filters", "network", findings, |kind| match kind {
        kind if NETWORK_TERMINALS.contains(&kind) => Some(true),
        kind if NETWORK_OTHERS.contains(&kind) => Some(false),
        _ => None,
    });
}

const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";
const CODEC: &str = "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec";
/// The HTTP filters that may or may not end a chain, by their configuration.
const HTTP_MAYBE: [&str; 4] = ["composite", "dynamic_modules", "file_server", "match_delegate"];

/// Returns whether an HTTP filter ends a chain, if that is known.
fn http_terminal(kind: &str, terminal: &str) -> Option<bool> {
    let name = kind.strip_prefix("envoy.extensions.filters.http.")?;
    let is_terminal = kind == terminal;
    let is_known = is_terminal || !HTTP_MAYBE.iter().any(|maybe| name.starts_with(maybe));
    is_known.then_some(is_terminal)
}

/// The router is the last HTTP filter, and is not disabled.
pub(super) fn http_filters<'m>(manager: &'m Message<'_>, findings: &mut Findings<'m>) {
    order(manager, "http_filters", "HTTP", findings, |kind| http_terminal(kind, ROUTER));
    let filters = manager.messages("http_filters");
    if let Some((index, last)) = filters.enumerate().last()
        && last.bits("disabled") != 0
        && kind_of(last) == Some(ROUTER)
    {
        findings.item("http_filters", index, |findings| {
            findings.field("disabled", |findings| {
                findings.refuse("http_filter.router_disabled", "the router cannot be disabled");
            });
        });
    }
}

/// The filters of an upgrade end like those of the manager.
pub(super) fn upgrade_filters<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    order(config, "filters", "HTTP", findings, |kind| http_terminal(kind, ROUTER));
}

/// The codec is the last of the filters for upstream requests of a router.
pub(super) fn router_filters<'m>(router: &'m Message<'_>, findings: &mut Findings<'m>) {
    order(router, "upstream_http_filters", "HTTP", findings, |kind| http_terminal(kind, CODEC));
}

/// The codec is the last HTTP filter of a cluster.
pub(super) fn upstream_http_filters<'m>(options: &'m Message<'_>, findings: &mut Findings<'m>) {
    order(options, "http_filters", "HTTP", findings, |kind| http_terminal(kind, CODEC));
}

/// Returns the type of a filter's configuration.
fn kind_of<'m>(filter: &'m Message<'_>) -> Option<&'m str> {
    filter.any("typed_config").map(|config| config.kind.name.as_str())
}

/// Checks that the last filter of a chain is terminal, and no other one. `is_terminal` returns `None`
/// for a type that it does not know.
fn order<'m>(
    chain: &'m Message<'_>,
    field: &'static str,
    what: &str,
    findings: &mut Findings<'m>,
    is_terminal: impl Fn(&str) -> Option<bool>,
) {
    let n = chain.messages(field).count();
    for (index, filter) in chain.messages(field).enumerate() {
        let terminal = kind_of(filter).and_then(&is_terminal);
        let is_last = index + 1 == n;
        if terminal != Some(!is_last) {
            continue;
        }
        findings.item(field, index, |findings| if is_last {
                let rule = format!("the last {what} filter is not a terminal filter");
                let fix = match what {
                    "HTTP" if field_is_router(chain) => "add envoy.filters.http.router at the end",
                    "HTTP" => "add envoy.filters.http.upstream_codec at the end",
                    _ => "add a terminal filter at the end, such as tcp_proxy or http_connection_manager",
                };
                findings.refuse_with_fix("filter.not_terminal", rule, fix);
            } else {
                let rule = format!("is a terminal filter, but not the last {what} filter");
                findings.refuse_with_fix("filter.terminal_not_last", rule, "move it to the end");
            });
    }
}

fn field_is_router(chain: &Message<'_>) -> bool {
    chain.kind.name.starts_with(super::common::HCM)
}

/// No type of upgrade occurs twice.
pub(super) fn upgrades<'m>(manager: &'m Message<'_>, findings: &mut Findings<'m>) {
    let kind = |config: &Message<'_>| config.text("upgrade_type").to_ascii_lowercase();
    for (index, first) in repeated(manager.messages("upgrade_configs").map(kind)) {
        findings.item("upgrade_configs", index, |findings| {
            let rule = format!("repeats the upgrade_type of upgrade_configs[{first}]");
            findings.refuse("http.duplicate_upgrade", rule);
        });
    }
}
